//! Who a request is from and what it asks for, read from its head by this sidecar's rules (REQUIREMENTS L3, L4). The proxy and
//! `lanemesh route` read by the same code.

use std::borrow::Cow;

use super::{MethodClass, Request};
use crate::{
    lanes::{self, Head},
    types::SubjectSource,
};

/// How heads of requests to one service are read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reading {
    /// Who is bucketed: this sidecar's rule for the service, else its policy's, else the sidecar's default.
    pub subject: SubjectSource,
    /// What is hashed on the ring; `None`: the subject.
    pub route_key: Option<SubjectSource>,
    /// A request id may be either.
    pub request_id: bool,
    /// Header that may name a lane (lower case).
    pub lane_header: String,
}

impl Default for Reading {
    /// As a sidecar without any rules has it.
    fn default() -> Self {
        let subject = SubjectSource::default();
        Self { subject, route_key: None, request_id: false, lane_header: "x-lane".into() }
    }
}

/// What a head says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Who<'a> {
    /// Who is bucketed.
    pub subject: Option<Cow<'a, str>>,
    /// What is hashed on the ring in its place.
    pub route_key: Option<Cow<'a, str>>,
    /// The lane that it names.
    pub explicit_lane: Option<&'a str>,
}

impl Reading {
    /// Reads a head. Allocates only where a subject has several parts.
    pub fn read<'a>(&self, head: &'a dyn Head) -> Who<'a> {
        let by = |source| lanes::subject(source, head, self.request_id);
        Who {
            subject: by(&self.subject),
            route_key: self.route_key.as_ref().and_then(by),
            explicit_lane: head.first(&self.lane_header),
        }
    }
}

impl Who<'_> {
    /// What routing sees of the request; `head` is the one that was read.
    pub fn request<'a>(&'a self, head: &'a dyn Head, method: MethodClass, random: u64) -> Request<'a> {
        Request {
            subject: self.subject.as_deref(),
            route_key: self.route_key.as_deref(),
            explicit_lane: self.explicit_lane,
            method,
            random,
            head: Some(head),
        }
    }
}
