//! Questions between sidecars (`lanemesh route --mesh`): one goes to every active member over its own two-way stream, as a sync does,
//! and is answered from the routing view in force there. A peer is an authenticated member of the mesh; what it asks costs one
//! decision, and more than [`MOST_A_SECOND`] are not answered.
//!
//! On the wire: one byte that no sync request begins with ([`wire::QUESTION`]), then JSON, so that a question and its answer may
//! gain fields. A peer of an older version cannot read it and answers nothing, which is said.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::{sync::oneshot, time::Instant};

use super::{CommandError, run::Agent, survey::Survey};
use crate::{
    net::NetEvent,
    routing::{Explanation, MeshAnswer, NodeAnswer, Question},
    types::{Mono, NodeId},
    wire,
};

/// What comes back.
#[derive(Debug, Serialize, Deserialize)]
struct Reply {
    explanation: Option<Explanation>,
    fault: Option<String>,
}

/// Questions of this node that are under way, and how many of others it answered lately.
#[derive(Default)]
pub(super) struct Questions {
    asked: Vec<Asked>,
    /// Of streams that are open: which question, and whom.
    streams: BTreeMap<u64, (u64, NodeId)>,
    /// Numbers questions and streams.
    last: u64,
    answered: (u64, u32),
}

struct Asked {
    number: u64,
    request: Bytes,
    back: oneshot::Sender<Result<MeshAnswer, CommandError>>,
    survey: Survey<NodeAnswer>,
}

impl Questions {
    /// When the first that is under way ends at the latest.
    pub(super) fn until(&self) -> Option<Instant> {
        self.asked.iter().map(|asked| asked.survey.until).min()
    }

    /// Whether one more of a peer may be answered now.
    fn may_answer(&mut self, now: Mono) -> bool {
        let second = now.millis() / 1000;
        if self.answered.0 != second {
            self.answered = (second, 0);
        }
        self.answered.1 += 1;
        self.answered.1 <= MOST_A_SECOND
    }
}

impl Agent {
    /// Begins to ask everybody; this node's own answer is among them.
    pub(super) fn ask_mesh(&mut self, question: &Question, back: oneshot::Sender<Result<MeshAnswer, CommandError>>) {
        let request = encode(question);
        let refusal = match request.len() {
            size if size > MAX_QUESTION => {
                Some(format!("the question has {size} bytes, at most {MAX_QUESTION} are sent"))
            }
            _ if self.questions.asked.len() >= MOST_AT_ONCE => {
                Some("several such questions are under way: ask again".into())
            }
            _ => None,
        };
        if let Some(refusal) = refusal {
            // Whoever asked may have gone; so below.
            return drop(back.send(Err(CommandError::Refused(refusal))));
        }
        self.questions.last += 1;
        let own = answer_of(self.node.id().clone(), self.reply(question));
        let mut survey = Survey::of(self.node.membership().active());
        survey.add(own);
        self.questions.asked.push(Asked { number: self.questions.last, request, back, survey });
        self.questions_on();
    }

    /// Asks the next, and ends what is over.
    pub(super) fn questions_on(&mut self) {
        let Questions { asked, streams, last, .. } = &mut self.questions;
        for Asked { number, request, survey, .. } in asked.iter_mut() {
            survey.ask(|node| {
                let Some(entry) = self.node.catalog().member(node) else { return false };
                *last += 1;
                streams.insert(*last, (*number, node.clone()));
                self.net.open_sync(OWN_TOKENS | *last, Some(node), entry.member.addr, request.clone());
                true
            });
        }
        for at in (0..asked.len()).rev() {
            if asked[at].survey.is_over() {
                let Asked { number, back, survey, .. } = asked.swap_remove(at);
                streams.retain(|_, (of, _)| *of != number);
                let answers = survey.end(|node, why| answer_of(node, Err(why)));
                drop(back.send(Ok(MeshAnswer::new(self.node.id().clone(), answers))));
            }
        }
    }

    /// Takes what is a question or an answer to one; everything else is the node's.
    pub(super) fn question_or(&mut self, event: NetEvent) -> Option<NetEvent> {
        match event {
            NetEvent::SyncRequest { id, from, bytes, .. } if bytes.first() == Some(&wire::QUESTION) => {
                let reply = match decode(&bytes) {
                    _ if !self.questions.may_answer(self.clock.mono()) => Err("asked too often: ask again".to_owned()),
                    Some(question) => self.reply(&question),
                    None => Err("it could not read the question: another version?".to_owned()),
                };
                tracing::debug!(%from, "asked where a request would go");
                let (explanation, fault) = match reply {
                    Ok(explanation) => (Some(explanation), None),
                    Err(fault) => (None, Some(fault)),
                };
                let bytes = serde_json::to_vec(&Reply { explanation, fault }).unwrap_or_default();
                self.net.reply(id, bytes.into());
                None
            }
            NetEvent::SyncReply { token, result } if token & OWN_TOKENS != 0 => {
                if let Some((number, node)) = self.questions.streams.remove(&(token & !OWN_TOKENS)) {
                    let reply = match result {
                        Ok((_, bytes)) => read(&bytes),
                        Err(fault) => Err(fault.to_string()),
                    };
                    let asked = self.questions.asked.iter_mut().find(|asked| asked.number == number);
                    if let Some(asked) = asked {
                        asked.survey.answered(&node, answer_of(node.clone(), reply));
                    }
                }
                None
            }
            event => Some(event),
        }
    }

    fn reply(&self, question: &Question) -> Result<Explanation, String> {
        let answer = question.answer(&self.snapshot.load(), self.clock.mono());
        let mut answer = answer.ok_or("it knows no such service")?;
        // In a large service most of these say nothing about this request.
        answer.excluded.truncate(MOST_EXCLUDED);
        Ok(answer)
    }
}

fn answer_of(node: NodeId, reply: Result<Explanation, String>) -> NodeAnswer {
    let (explanation, fault) = match reply {
        Ok(explanation) => (Some(explanation), None),
        Err(fault) => (None, Some(fault)),
    };
    NodeAnswer { node, fault, explanation, differences: Vec::new() }
}

fn encode(question: &Question) -> Bytes {
    let mut bytes = vec![wire::QUESTION];
    bytes.extend(serde_json::to_vec(question).unwrap_or_default());
    bytes.into()
}

fn decode(bytes: &[u8]) -> Option<Question> {
    let json = bytes.get(1..).filter(|json| json.len() < MAX_QUESTION)?;
    serde_json::from_slice(json).ok()
}

fn read(bytes: &[u8]) -> Result<Explanation, String> {
    let unreadable = || "its answer can't be read: another version?".to_owned();
    let reply: Reply = serde_json::from_slice(bytes).map_err(|_| unreadable())?;
    match reply {
        Reply { explanation: Some(explanation), .. } => Ok(explanation),
        // A peer's words go to people's terminals.
        Reply { fault: Some(fault), .. } => Err(fault.chars().filter(|c| !c.is_control()).take(200).collect()),
        Reply { .. } => Err(unreadable()),
    }
}

/// The node numbers its own streams from 1; these never meet.
const OWN_TOKENS: u64 = 1 << 63;
/// Largest question, bytes.
const MAX_QUESTION: usize = 64 * 1024;
/// Questions of this node under way at a time.
const MOST_AT_ONCE: usize = 8;
/// Questions of peers that are answered.
const MOST_A_SECOND: u32 = 50;
/// Instances that an answer names as left out.
const MOST_EXCLUDED: usize = 100;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_is_no_sync_request_and_reads_back() {
        let question = Question { service: "orders".into(), key: Some("u1".into()), ..Question::default() };
        let bytes = encode(&question);
        assert_eq!(decode(&bytes), Some(question));
        assert_eq!(wire::SyncRequest::decode(&bytes), None);
        let request = wire::SyncRequest { version: 1, hello: Vec::new(), summary: Vec::new() };
        assert_ne!(request.encode()[0], wire::QUESTION);
    }

    #[test]
    fn what_a_peer_sends_never_harms() {
        for bytes in [&b"?"[..], b"?{}", b"?{\"service\":1}", b"?\xff", b"?[[[[["] {
            assert_eq!(decode(bytes), None, "{bytes:?}");
        }
        assert!(read(b"").is_err() && read(b"{}").is_err());
        let nasty = br#"{"explanation":null,"fault":"\u001b[2Jgone"}"#;
        assert_eq!(read(nasty).unwrap_err(), "[2Jgone");
    }

    #[test]
    fn a_peer_is_answered_only_so_often() {
        let mut questions = Questions::default();
        let allowed =
            |questions: &mut Questions, ms| (0..200).filter(|_| questions.may_answer(Mono::from_millis(ms))).count();
        assert_eq!(
            [allowed(&mut questions, 1_000), allowed(&mut questions, 1_900), allowed(&mut questions, 2_000)],
            [50, 0, 50]
        );
    }
}
