//! The report: what happened in a run, as one page that needs nothing else.
//!
//! A [`Recorder`] looks on as an invariant does, finds nothing and changes nothing; what it noted becomes JSON inside
//! `page.html`, which draws it with its own few lines of script. No link, font, image or library from anywhere.

mod record;

use std::{cell::RefCell, rc::Rc};

use serde::Serialize;

pub use self::record::Recorder;
use self::record::{Deaths, Recording};
use crate::{scenario::Scenario, stats::Summary};

/// What the page is made of.
#[derive(Serialize)]
struct Page<'a> {
    summary: &'a Summary,
    scenario: &'a Scenario,
    #[serde(flatten)]
    recording: &'a Recording,
    detection: Vec<Curve>,
    worst: Option<record::Story>,
}

/// How fast others noticed something: in how many seconds which share of them.
#[derive(Serialize)]
struct Curve {
    what: &'static str,
    /// How often it happened.
    times: usize,
    /// Seconds after which those who noticed did so, ascending.
    seconds: Vec<f64>,
    /// Share of those who were to notice that did.
    share: f64,
}

/// A recorder for a run, and where its notes can be read afterwards.
pub fn recorder(scenario: &Scenario) -> (Recorder, Rc<RefCell<Recording>>) {
    let recording = Rc::new(RefCell::new(Recording::new(scenario)));
    (Recorder::new(recording.clone()), recording)
}

/// The whole page.
pub fn page(scenario: &Scenario, summary: &Summary, recording: &Recording) -> String {
    let curve =
        |what, deaths: &Deaths| Curve { what, times: deaths.times(), seconds: deaths.thinned(), share: deaths.share() };
    let detection = [
        curve("a port that refuses: found down", &recording.refused),
        curve("silence: found down", &recording.silent),
        curve("a goodbye: known as left", &recording.left),
        curve("a start: known as alive", &recording.starts),
    ];
    let page = Page {
        summary,
        scenario,
        recording,
        detection: detection.into_iter().filter(|curve| curve.times > 0).collect(),
        worst: recording.worst(),
    };
    // `</script>` in a scenario's texts must not end the script.
    let json = serde_json::to_string(&page).expect("plain data always encodes").replace('<', "\\u003c");
    let title = format!("{} seed {}", escaped(&scenario.name), summary.seed);
    let parts = [("/*STYLE*/", STYLE), ("/*SCRIPT*/", SCRIPT), ("__TITLE__", &title), ("\"__DATA__\"", &json)];
    parts.into_iter().fold(TEMPLATE.to_owned(), |page, (mark, text)| page.replacen(mark, text, 1))
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

const TEMPLATE: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");
