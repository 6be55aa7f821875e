//! A request's body, seen from the client's connection.
//!
//! With some of it to come when a response begins, the connection is closed behind the response; a client that is not told so
//! beforehand loses its next request (RFC 9112 9.6). So whoever answers asks here whether all of it has come.

use std::{cell::RefCell, rc::Rc, time::Duration};

use http::{HeaderMap, header, request::Parts};
use hyper::body::{Body, Incoming};

use super::{
    body::{Outgoing, keep},
    forward::Refusal,
    replay::Origin,
};
use crate::config::Proxy;

/// How far a request's body has come.
pub(super) enum Upload {
    /// Nobody has asked for it. Who expects a 100 may not send it at all.
    Unread { body: Incoming, expects: bool },
    /// On its way to an instance, piece by piece.
    Streamed(Rc<RefCell<Origin>>),
    /// All of it is here.
    Taken,
    /// It did not come.
    Cut,
}

impl Upload {
    pub(super) fn new(parts: &Parts, body: Incoming) -> Self {
        let expects = parts
            .headers
            .get(header::EXPECT)
            .is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"100-continue"));
        if body.is_end_stream() { Self::Taken } else { Self::Unread { body, expects } }
    }

    /// Whether nothing of it is still to come.
    pub(super) fn is_taken(&self) -> bool {
        match self {
            Self::Unread { .. } | Self::Cut => false,
            Self::Streamed(origin) => origin.borrow().taken(),
            Self::Taken => true,
        }
    }

    /// Whether it can be read here and now: small, of known length, and on its way. Who expects a 100 wants the instance's word
    /// before the body is sent: reading it here would be that word.
    fn is_readable(&self, config: &Proxy) -> bool {
        matches!(self, Self::Unread { body, expects: false }
            if body.size_hint().exact().is_some_and(|length| length <= config.max_replay_bytes))
    }

    /// Reads one that nobody wants, if it is small, so that the connection may stay.
    pub(super) async fn drain(&mut self, config: &Proxy) {
        if !self.is_readable(config) {
            return;
        }
        if let Self::Unread { body, .. } = std::mem::replace(self, Self::Cut)
            && keep(body, LONGEST_DRAIN, LONGEST_DRAIN).await.is_ok()
        {
            *self = Self::Taken;
        }
    }

    /// Keeps a small body of known length; passes any other on as it comes.
    pub(super) async fn take(&mut self, headers: &mut HeaderMap, config: &Proxy) -> Result<Outgoing, Refusal> {
        let is_readable = self.is_readable(config);
        let Self::Unread { body, expects } = std::mem::replace(self, Self::Taken) else {
            headers.remove(header::EXPECT);
            return Ok(Outgoing::empty());
        };
        if is_readable {
            let kept = keep(body, config.timeouts.idle, config.timeouts.body).await;
            return kept.map(Outgoing::Kept).map_err(|fault| {
                *self = Self::Cut;
                fault.into()
            });
        }
        let origin = Rc::new(RefCell::new(Origin::new(body)));
        *self = Self::Streamed(origin.clone());
        Ok(Outgoing::streamed(origin, config.timeouts.idle, expects))
    }
}

/// How long a refused request's small body is waited for.
const LONGEST_DRAIN: Duration = Duration::from_millis(200);
