//! The report is drawn by a real browser, without an error, from nothing but the file.

use std::{
    path::PathBuf,
    process::{Command, Stdio},
};

const SIM: &str = env!("CARGO_BIN_EXE_lanemesh-sim");

/// Runs a scenario and returns the page, and what the browser made of it: the document after its script, and the console.
fn drawn(arguments: &[&str], name: &str) -> Option<(String, String, String)> {
    let browser = ["chromium", "chromium-browser", "google-chrome"].into_iter().find(|browser| works(browser));
    let Some(browser) = browser else {
        skip(name, "apt-get install chromium");
        return None;
    };
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&folder).unwrap();
    let page = folder.join("out.html");
    let run = Command::new(SIM).args(arguments).args(["--quiet", "--report"]).arg(&page).output().unwrap();
    assert!(run.status.code().is_some_and(|code| code < 2), "{}", String::from_utf8_lossy(&run.stderr));
    let mut command = Command::new(browser);
    command
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--v=0", "--dump-dom"])
        .args(["--virtual-time-budget=5000", "--host-resolver-rules=MAP * ~NOTFOUND"])
        .arg(format!("--user-data-dir={}", folder.join("profile").display()))
        .arg(format!("file://{}", page.display()));
    let output = command.output().unwrap();
    let dom = String::from_utf8_lossy(&output.stdout).into_owned();
    let console = String::from_utf8_lossy(&output.stderr).lines().filter(|line| line.contains("CONSOLE")).collect();
    Some((std::fs::read_to_string(page).unwrap(), dom, console))
}

#[test]
fn the_report_is_drawn_in_a_browser() {
    let Some((page, dom, console)) = drawn(&["run", "crash", "--seed", "3"], "report-crash") else { return };
    assert_eq!(console, "", "nothing on the console");
    for outside in ["src=", "href=", "@import", "url("] {
        assert!(!page.contains(outside), "`{outside}`: the page must need nothing else");
    }
    assert!(dom.contains("data-drawn=\"yes\""), "the script ran to its end");
    for title in ["Faults and views", "Requests by outcome", "How fast others notice", "Keys moved", "worst user"] {
        assert!(dom.contains(title), "{title}");
    }
    assert!(dom.contains("Nothing is wrong"));
    // Twelve hosts, some of which crashed: more runs of one state than hosts; and one bar for each of the faults.
    assert!(dom.matches("class=\"state\"").count() > 12 + 3);
    assert_eq!(dom.matches("class=\"fault\"").count(), 4);
    assert!(!shown(&dom).contains("NaN") && !shown(&dom).contains("undefined"));
}

#[test]
fn a_report_of_many_hosts_or_of_few_is_drawn_too() {
    for (nodes, name) in [("3", "report-few"), ("60", "report-many")] {
        let arguments = ["run", "calm", "--nodes", nodes];
        let Some((_, dom, console)) = drawn(&arguments, name) else { return };
        assert_eq!(console, "", "{nodes} hosts");
        assert!(dom.contains("data-drawn=\"yes\"") && !shown(&dom).contains("NaN"), "{nodes} hosts");
    }
}

/// What a reader sees: without the script and its data.
fn shown(dom: &str) -> &str {
    dom.split("<script").next().unwrap_or_default()
}

fn works(program: &str) -> bool {
    let run = Command::new(program).arg("--version").stdin(Stdio::null()).output();
    run.is_ok_and(|output| output.status.success())
}

/// A browser is large: its absence is said, and fails nobody.
fn skip(test: &str, cure: &str) {
    println!("SKIPPED {test}: {cure}");
}
