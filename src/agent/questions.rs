//! Questions and requests between agents: where would you send this (`lanemesh route --mesh`), observe this subject (`lanemesh
//! observe --subject`). One goes to every active member over its own two-way stream, as a sync does, and is answered by the agent
//! there. A peer is an authenticated member of the mesh; what it asks costs one decision, and more than [`MOST_A_SECOND`] are
//! not answered.
//!
//! On the wire: one byte that no sync request begins with ([`wire::QUESTION`]), then JSON, so that messages may gain fields. A peer of
//! an older version cannot read it and answers nothing, which is said.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::{sync::oneshot, time::Instant};

use super::{CommandError, NodeDone, run::Agent, survey::Survey};
use crate::{
    net::NetEvent,
    routing::{Explanation, MeshAnswer, NodeAnswer, Question},
    telemetry::Observe,
    types::{Mono, NodeId},
    wire,
};

/// What is asked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Message {
    /// Where it would send a request.
    Route(Question),
    /// To log all requests of a subject for a while.
    Observe(Observe),
}

/// What comes back: an explanation, nothing where it was done, or why not.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Reply {
    explanation: Option<Explanation>,
    fault: Option<String>,
}

/// Who asked, and for what.
enum Back {
    Route(oneshot::Sender<Result<MeshAnswer, CommandError>>),
    Observe(oneshot::Sender<Result<Vec<NodeDone>, CommandError>>),
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
    back: Back,
    survey: Survey<(NodeId, Reply)>,
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

impl Back {
    /// Whoever asked may have gone; then nobody hears it.
    fn refuse(self, why: &str) {
        let refused = CommandError::Refused(why.to_owned());
        match self {
            Self::Route(back) => drop(back.send(Err(refused))),
            Self::Observe(back) => drop(back.send(Err(refused))),
        }
    }

    fn answer(self, here: NodeId, mut replies: Vec<(NodeId, Reply)>) {
        replies.sort_by(|a, b| a.0.cmp(&b.0));
        match self {
            Self::Route(back) => {
                let answer = |(node, Reply { explanation, fault })| NodeAnswer {
                    node,
                    fault,
                    explanation,
                    differences: Vec::new(),
                };
                drop(back.send(Ok(MeshAnswer::new(here, replies.into_iter().map(answer).collect()))));
            }
            Self::Observe(back) => {
                let done = |(node, Reply { fault, .. })| NodeDone { node, fault };
                drop(back.send(Ok(replies.into_iter().map(done).collect())));
            }
        }
    }
}

impl Agent {
    /// Begins to ask everybody where they would send a request; this node's own answer is among them.
    pub(super) fn ask_mesh(&mut self, question: Question, back: oneshot::Sender<Result<MeshAnswer, CommandError>>) {
        self.ask_all(Message::Route(question), Back::Route(back));
    }

    /// Begins to tell everybody to observe a subject, this node first: what is wrong with it is its to say.
    pub(super) fn observe_mesh(&mut self, order: Observe, back: oneshot::Sender<Result<Vec<NodeDone>, CommandError>>) {
        self.ask_all(Message::Observe(order), Back::Observe(back));
    }

    fn ask_all(&mut self, message: Message, back: Back) {
        let request = encode(&message);
        if request.len() > MAX_QUESTION {
            return back.refuse(&format!("the question has {} bytes, at most {MAX_QUESTION} are sent", request.len()));
        }
        if self.questions.asked.len() >= MOST_AT_ONCE {
            return back.refuse("several such questions are under way: ask again");
        }
        let here = self.node.id().clone();
        let own = self.reply(&here, &message);
        if let (Message::Observe(_), Some(fault)) = (&message, &own.fault) {
            return back.refuse(fault);
        }
        let mut survey = Survey::of(self.node.membership().active());
        survey.add((here, own));
        self.questions.last += 1;
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
                let replies = survey.end(|node, why| (node, Reply::failed(why)));
                back.answer(self.node.id().clone(), replies);
            }
        }
    }

    /// Takes what is a question or an answer to one; everything else is the node's.
    pub(super) fn question_or(&mut self, event: NetEvent) -> Option<NetEvent> {
        match event {
            NetEvent::SyncRequest { id, from, bytes, .. } if bytes.first() == Some(&wire::QUESTION) => {
                let reply = match decode(&bytes) {
                    _ if !self.questions.may_answer(self.clock.mono()) => Reply::failed("asked too often: ask again"),
                    Some(message) => self.reply(&from, &message),
                    None => Reply::failed("it could not read the question: another version?"),
                };
                let bytes = serde_json::to_vec(&reply).unwrap_or_default();
                self.net.reply(id, bytes.into());
                None
            }
            NetEvent::SyncReply { token, result } if token & OWN_TOKENS != 0 => {
                if let Some((number, node)) = self.questions.streams.remove(&(token & !OWN_TOKENS)) {
                    let reply = match result {
                        Ok((_, bytes)) => read(&bytes),
                        Err(fault) => Reply::failed(fault.to_string()),
                    };
                    let asked = self.questions.asked.iter_mut().find(|asked| asked.number == number);
                    if let Some(asked) = asked {
                        asked.survey.answered(&node, (node.clone(), reply));
                    }
                }
                None
            }
            event => Some(event),
        }
    }

    /// This node's own answer.
    fn reply(&self, from: &NodeId, message: &Message) -> Reply {
        let now = self.clock.mono();
        match message {
            Message::Route(question) => {
                let Some(mut explanation) = question.answer(&self.snapshot.load(), now) else {
                    return Reply::failed("it knows no such service");
                };
                // In a large service most of these say nothing about this request.
                explanation.excluded.truncate(MOST_EXCLUDED);
                Reply { explanation: Some(explanation), fault: None }
            }
            Message::Observe(order) => {
                let done = self.observed.order(order, now);
                let (by, seconds) = (&order.by, order.for_ms as f64 / 1e3);
                tracing::info!(%from, by, seconds, done = done.is_ok(), "a subject is to be observed: its requests are logged in full");
                Reply { explanation: None, fault: done.err() }
            }
        }
    }
}

impl Reply {
    fn failed(why: impl Into<String>) -> Self {
        Self { explanation: None, fault: Some(why.into()) }
    }
}

fn encode(message: &Message) -> Bytes {
    let mut bytes = vec![wire::QUESTION];
    bytes.extend(serde_json::to_vec(message).unwrap_or_default());
    bytes.into()
}

fn decode(bytes: &[u8]) -> Option<Message> {
    let json = bytes.get(1..).filter(|json| json.len() < MAX_QUESTION)?;
    serde_json::from_slice(json).ok()
}

fn read(bytes: &[u8]) -> Reply {
    let Ok(reply) = serde_json::from_slice::<Reply>(bytes) else {
        return Reply::failed("its answer can't be read: another version?");
    };
    // A peer's words go to people's terminals.
    let clean = |fault: String| fault.chars().filter(|c| !c.is_control()).take(200).collect();
    Reply { fault: reply.fault.map(clean), ..reply }
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
        let order = Observe { subject: "u1".into(), for_ms: 1, by: String::new() };
        for message in [Message::Route(question), Message::Observe(order)] {
            let bytes = encode(&message);
            assert_eq!(decode(&bytes), Some(message));
            assert_eq!(wire::SyncRequest::decode(&bytes), None);
        }
        let request = wire::SyncRequest { version: 1, hello: Vec::new(), summary: Vec::new() };
        assert_ne!(request.encode()[0], wire::QUESTION);
    }

    #[test]
    fn what_a_peer_sends_never_harms() {
        for bytes in [&b"?"[..], b"?{}", b"?{\"route\":1}", b"?\xff", b"?[[[[["] {
            assert_eq!(decode(bytes), None, "{bytes:?}");
        }
        assert!(read(b"").fault.is_some() && read(b"{}").fault.is_none());
        let nasty = br#"{"explanation":null,"fault":"\u001b[2Jgone"}"#;
        assert_eq!(read(nasty).fault.as_deref(), Some("[2Jgone"));
    }

    #[test]
    fn a_peer_is_answered_only_so_often() {
        let mut questions = Questions::default();
        let mut allowed = |ms| (0..200).filter(|_| questions.may_answer(Mono::from_millis(ms))).count();
        assert_eq!([allowed(1_000), allowed(1_900), allowed(2_000)], [50, 0, 50]);
    }
}
