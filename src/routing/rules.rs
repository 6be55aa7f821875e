//! What a sidecar is told about routing, by service.

use std::{collections::BTreeMap, sync::Arc};

use super::{Bell, Reading};
use crate::{
    config::{Proxy, Routing, ServiceRule},
    types::{LanePolicy, ServiceName},
};

/// Rules for every service.
#[derive(Debug, Clone, Default)]
pub struct Rules {
    /// Makes what is left to chance (open times of breakers) differ between sidecars; the same again for the same seed.
    pub seed: u64,
    /// Rung when this sidecar sees an instance fail; without it nobody is told.
    pub(super) bell: Option<Arc<Bell>>,
    /// Counts how often they were replaced.
    pub(super) version: u64,
    default: Arc<Routing>,
    services: BTreeMap<ServiceName, ServiceRule>,
    reading: Reading,
}

impl Rules {
    /// Of a configuration.
    pub fn new(seed: u64, default: Arc<Routing>, services: &BTreeMap<ServiceName, ServiceRule>) -> Self {
        Self { seed, default, services: services.clone(), ..Self::default() }
    }

    /// The same, with failures told by this bell.
    pub fn ringing(self, bell: Arc<Bell>) -> Self {
        Self { bell: Some(bell), ..self }
    }

    /// The same, with heads of requests read as the proxy is told to.
    pub fn reading(self, proxy: &Proxy) -> Self {
        let (subject, lane_header) = (proxy.subject.clone(), proxy.lane_header.clone());
        Self { reading: Reading { subject, lane_header, ..self.reading }, ..self }
    }

    /// Takes over what is configured.
    pub(super) fn replace(&mut self, other: Self) {
        (self.default, self.services, self.reading) = (other.default, other.services, other.reading);
        self.version += 1;
    }

    /// Of one service.
    pub(super) fn of(&self, service: &ServiceName) -> &Arc<Routing> {
        self.services.get(service).and_then(|rule| rule.routing.as_ref()).unwrap_or(&self.default)
    }

    /// How heads of requests to it are read: by its own rule, else its policy's, else the default.
    pub(super) fn reading_of(&self, service: &ServiceName, policy: Option<&LanePolicy>) -> Reading {
        let rule = self.services.get(service);
        let own = rule.and_then(|rule| rule.subject.as_ref());
        let subject = own.or_else(|| policy?.subject.as_ref()).unwrap_or(&self.reading.subject).clone();
        Reading {
            subject,
            route_key: rule.and_then(|rule| rule.route_key.clone()),
            request_id: rule.is_some_and(|rule| rule.request_id_as_subject),
            lane_header: self.reading.lane_header.clone(),
        }
    }
}
