//! Every member is asked the same, a few at a time, and who has not answered in time is said not to.

use std::{
    collections::{BTreeSet, VecDeque},
    time::Duration,
};

use tokio::time::Instant;

use crate::types::NodeId;

/// One survey under way.
pub(super) struct Survey<T> {
    waiting: VecDeque<NodeId>,
    open: BTreeSet<NodeId>,
    answers: Vec<T>,
    /// Who has not answered then is said not to.
    pub(super) until: Instant,
}

impl<T> Survey<T> {
    pub(super) fn of(members: impl IntoIterator<Item = NodeId>) -> Self {
        let waiting = members.into_iter().collect();
        Self { waiting, open: BTreeSet::new(), answers: Vec::new(), until: Instant::now() + PATIENCE }
    }

    /// Asks as many as may be asked now; `ask` says whether it could.
    pub(super) fn ask(&mut self, mut ask: impl FnMut(&NodeId) -> bool) {
        while !self.is_late() && self.open.len() < AT_ONCE {
            let Some(member) = self.waiting.pop_front() else { break };
            // Who has gone since is no member any more.
            if ask(&member) {
                self.open.insert(member);
            }
        }
    }

    /// An answer of somebody who need not be asked.
    pub(super) fn add(&mut self, answer: T) {
        self.answers.push(answer);
    }

    /// An answer; one that nobody waits for is dropped.
    pub(super) fn answered(&mut self, member: &NodeId, answer: T) {
        if self.open.remove(member) {
            self.answers.push(answer);
        }
    }

    /// Whether all have answered, or the time is over.
    pub(super) fn is_over(&self) -> bool {
        self.is_late() || self.open.is_empty() && self.waiting.is_empty()
    }

    /// All answers; `silent` makes those of who has not given one, of the reason.
    pub(super) fn end(self, silent: impl Fn(NodeId, String) -> T) -> Vec<T> {
        let why = format!("no answer within {} s", PATIENCE.as_secs_f64());
        let rest = self.open.into_iter().chain(self.waiting).map(|member| silent(member, why.clone()));
        self.answers.into_iter().chain(rest).collect()
    }

    fn is_late(&self) -> bool {
        Instant::now() >= self.until
    }
}

/// Members asked at the same time.
const AT_ONCE: usize = 16;
/// A command ends within 5 s.
const PATIENCE: Duration = Duration::from_millis(3500);

#[cfg(test)]
mod tests {
    use super::*;

    fn members(count: usize) -> Vec<NodeId> {
        (0..count).map(|at| NodeId::new(&format!("n{at:02}")).unwrap()).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_few_at_a_time_until_all_have_answered() {
        let members = members(20);
        let mut survey = Survey::of(members.clone());
        let asked = |survey: &mut Survey<usize>| {
            let mut asked = Vec::new();
            survey.ask(|member| {
                asked.push(member.clone());
                *member != members[3]
            });
            asked.len()
        };
        assert_eq!((asked(&mut survey), asked(&mut survey)), (17, 0), "one of them has gone");
        survey.answered(&members[0], 0);
        survey.answered(&members[0], 1);
        assert_eq!(asked(&mut survey), 1);
        members.iter().enumerate().for_each(|(at, member)| survey.answered(member, at));
        assert!(!survey.is_over());
        assert_eq!(asked(&mut survey), 2);
        members.iter().enumerate().for_each(|(at, member)| survey.answered(member, at));
        assert!(survey.is_over());
        assert_eq!(survey.end(|_, _| 99).len(), 19);
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_silent_is_named_at_the_end() {
        let mut survey = Survey::of(members(2));
        survey.ask(|_| true);
        survey.answered(&members(2)[1], "here".to_owned());
        assert!(!survey.is_over());
        tokio::time::advance(PATIENCE).await;
        assert!(survey.is_over());
        assert_eq!(survey.end(|node, why| format!("{node}: {why}")), ["here", "n00: no answer within 3.5 s"]);
    }
}
