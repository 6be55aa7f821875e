//! `members --compare`: every active member is asked for its view.

use tokio::sync::oneshot;

use super::{run::Agent, survey::Survey};
use crate::node::PeerView;

/// One comparison under way; whoever asks meanwhile gets its result too.
pub(super) struct Comparison {
    asked: Vec<oneshot::Sender<Vec<PeerView>>>,
    pub(super) survey: Survey<PeerView>,
}

impl Agent {
    /// Begins to ask everybody.
    pub(super) fn compare(&mut self, back: oneshot::Sender<Vec<PeerView>>) {
        let fresh = || Comparison { asked: Vec::new(), survey: Survey::of(self.node.membership().active()) };
        self.comparison.get_or_insert_with(fresh).asked.push(back);
        self.compare_on();
    }

    /// A member has answered, or has not.
    pub(super) fn compared(&mut self, view: PeerView) {
        // One that comes after the end, or of an earlier comparison, is nobody's.
        if let Some(comparison) = &mut self.comparison {
            let node = view.node.clone();
            comparison.survey.answered(&node, view);
        }
        self.compare_on();
    }

    /// Asks the next, or ends when all have answered or the time is over.
    pub(super) fn compare_on(&mut self) {
        let now = self.now();
        let Some(comparison) = &mut self.comparison else { return };
        comparison.survey.ask(|peer| self.node.compare_with(now, peer));
        if !comparison.survey.is_over() {
            return;
        }
        let Some(Comparison { asked, survey }) = self.comparison.take() else { return };
        let silent =
            |node, why| PeerView { node, fault: Some(why), differences: Vec::new(), newer_there: 0, older_there: 0 };
        let mut views = survey.end(silent);
        views.sort_by(|a, b| a.node.cmp(&b.node));
        // Whoever asked may have gone.
        asked.into_iter().for_each(|back| drop(back.send(views.clone())));
    }
}
