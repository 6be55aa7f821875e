//! A streamed request body whose beginning is kept, so that it can be given once more.
//!
//! HTTP/2 instances may refuse a request after some of its body was sent (REFUSED_STREAM, GOAWAY): it was certainly not processed,
//! and goes to a fresh connection or another instance. gRPC calls have no `Content-Length`, so that nobody can know beforehand
//! whether they are small; here the first 64 KiB are kept while they pass, without being copied, and let go as soon as an
//! answer begins or there is more.
//!
//! Not here: repeating what may have been processed.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::HeaderMap;
use hyper::body::{Body, Frame, Incoming, SizeHint};

use super::headers::clean_trailers;

/// Where a streamed body comes from, and its beginning. Only the body of the present turn gets anything: hyper may hold on to one
/// that an instance refused.
pub(super) struct Origin {
    inner: Incoming,
    kept: Vec<Bytes>,
    trailers: Option<HeaderMap>,
    /// Everything so far is kept, and so is what comes.
    whole: bool,
    size: usize,
    turn: u32,
    /// The client has sent its end. hyper knows it by itself only of bodies with a `Content-Length`.
    over: bool,
}

impl Origin {
    pub(super) fn new(inner: Incoming) -> Self {
        Self { inner, kept: Vec::new(), trailers: None, whole: true, size: 0, turn: 0, over: false }
    }

    /// Whether all of it can be given once more.
    pub(super) fn whole(&self) -> bool {
        self.whole
    }

    /// Keeps nothing more: it will not be given once more.
    pub(super) fn settle(&mut self) {
        self.whole = false;
    }

    pub(super) fn turn(&self) -> u32 {
        self.turn
    }

    /// From the beginning, for the next turn.
    pub(super) fn again(&mut self) {
        self.turn += 1;
    }

    /// The next piece; one that was kept when fewer than all of those were `given`.
    pub(super) fn poll(
        &mut self,
        given: &mut usize,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        if let Some(piece) = self.kept.get(*given) {
            *given += 1;
            return Poll::Ready(Some(Ok(Frame::data(piece.clone()))));
        }
        if *given == self.kept.len()
            && let Some(trailers) = &self.trailers
        {
            *given += 1;
            return Poll::Ready(Some(Ok(Frame::trailers(trailers.clone()))));
        }
        if !self.whole {
            (self.kept, self.trailers) = (Vec::new(), None);
        }
        let mut polled = ready!(Pin::new(&mut self.inner).poll_frame(cx));
        self.over |= polled.as_ref().is_none_or(|polled| polled.as_ref().is_ok_and(Frame::is_trailers));
        if let Some(Ok(frame)) = &mut polled {
            frame.trailers_mut().map(clean_trailers);
            if self.whole {
                *given += 1;
                self.keep(frame);
            }
        }
        Poll::Ready(polled)
    }

    fn keep(&mut self, frame: &Frame<Bytes>) {
        self.trailers = frame.trailers_ref().cloned();
        if let Some(data) = frame.data_ref() {
            self.size += data.len();
            self.kept.push(data.clone());
        }
        if self.size > MOST_KEPT {
            (self.whole, self.kept) = (false, Vec::new());
        }
    }

    /// Whether nothing is left when so many kept pieces were given.
    pub(super) fn ended(&self, given: usize) -> bool {
        given >= self.kept.len() + usize::from(self.trailers.is_some()) && self.inner.is_end_stream()
    }

    /// Whether the client has sent all of it.
    pub(super) fn taken(&self) -> bool {
        self.over || self.inner.is_end_stream()
    }

    /// What is left when so many kept pieces were given.
    pub(super) fn size_hint(&self, given: usize) -> SizeHint {
        let kept = self.kept.get(given..).unwrap_or_default();
        ahead_of(self.inner.size_hint(), kept.iter().map(|piece| piece.len() as u64).sum())
    }
}

/// The size of a body with so many bytes before it.
pub(super) fn ahead_of(mut hint: SizeHint, ahead: u64) -> SizeHint {
    if let Some(upper) = hint.upper() {
        hint.set_upper(upper + ahead);
    }
    hint.set_lower(hint.lower() + ahead);
    hint
}

/// Of a streamed body, as much is kept while an HTTP/2 instance may still refuse it.
const MOST_KEPT: usize = 64 * 1024;
