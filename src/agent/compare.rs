//! `members --compare`: every active member is asked for its view, a few at a time.

use std::{
    collections::{BTreeSet, VecDeque},
    time::Duration,
};

use tokio::{sync::oneshot, time::Instant};

use super::run::Agent;
use crate::{node::PeerView, types::NodeId};

/// One comparison under way; whoever asks meanwhile gets its result too.
pub(super) struct Comparison {
    asked: Vec<oneshot::Sender<Vec<PeerView>>>,
    waiting: VecDeque<NodeId>,
    open: BTreeSet<NodeId>,
    views: Vec<PeerView>,
    /// Who has not answered then is said not to.
    pub(super) until: Instant,
}

impl Agent {
    /// Begins to ask everybody.
    pub(super) fn compare(&mut self, back: oneshot::Sender<Vec<PeerView>>) {
        let fresh = || Comparison {
            asked: Vec::new(),
            waiting: self.node.membership().active().into(),
            open: BTreeSet::new(),
            views: Vec::new(),
            until: Instant::now() + PATIENCE,
        };
        self.comparison.get_or_insert_with(fresh).asked.push(back);
        self.compare_on();
    }

    /// A member has answered, or has not.
    pub(super) fn compared(&mut self, view: PeerView) {
        // One that comes after the end, or of an earlier comparison, is nobody's.
        if let Some(comparison) = &mut self.comparison
            && comparison.open.remove(&view.node)
        {
            comparison.views.push(view);
        }
        self.compare_on();
    }

    /// Asks the next, or ends when all have answered or the time is over.
    pub(super) fn compare_on(&mut self) {
        let now = self.now();
        let Some(comparison) = &mut self.comparison else { return };
        let over = Instant::now() >= comparison.until;
        while !over && comparison.open.len() < AT_ONCE {
            let Some(peer) = comparison.waiting.pop_front() else { break };
            // Who has gone since is no peer any more.
            if self.node.compare_with(now, &peer) {
                comparison.open.insert(peer);
            }
        }
        if !over && !comparison.open.is_empty() {
            return;
        }
        let Some(comparison) = self.comparison.take() else { return };
        let silent = comparison.open.into_iter().chain(comparison.waiting).map(|node| PeerView {
            node,
            fault: Some(format!("no answer within {} s", PATIENCE.as_secs_f64())),
            differences: Vec::new(),
            newer_there: 0,
            older_there: 0,
        });
        let mut views: Vec<PeerView> = comparison.views.into_iter().chain(silent).collect();
        views.sort_by(|a, b| a.node.cmp(&b.node));
        // Whoever asked may have gone.
        comparison.asked.into_iter().for_each(|back| drop(back.send(views.clone())));
    }
}

/// Peers asked at the same time.
const AT_ONCE: usize = 16;
/// A command ends within 5 s.
const PATIENCE: Duration = Duration::from_millis(3500);
