//! What a sidecar is told about routing, by service.

use std::{collections::BTreeMap, sync::Arc};

use super::Bell;
use crate::{
    config::{Routing, ServiceRule},
    types::ServiceName,
};

/// Rules for every service.
#[derive(Debug, Clone, Default)]
pub struct Rules {
    /// Makes what is left to chance (open times of breakers) differ between sidecars; the same again for the same seed.
    pub seed: u64,
    /// Rung when this sidecar sees an instance fail; without it nobody is told.
    pub(super) bell: Option<Arc<Bell>>,
    default: Arc<Routing>,
    services: BTreeMap<ServiceName, Arc<Routing>>,
}

impl Rules {
    /// Of a configuration.
    pub fn new(seed: u64, default: Arc<Routing>, services: &BTreeMap<ServiceName, ServiceRule>) -> Self {
        let own = services.iter().filter_map(|(name, rule)| Some((name.clone(), rule.routing.clone()?)));
        Self { seed, bell: None, default, services: own.collect() }
    }

    /// The same, with failures told by this bell.
    pub fn ringing(self, bell: Arc<Bell>) -> Self {
        Self { bell: Some(bell), ..self }
    }

    /// Takes over what is configured.
    pub(super) fn replace(&mut self, other: Self) {
        (self.default, self.services) = (other.default, other.services);
    }

    /// Of one service.
    pub(super) fn of(&self, service: &ServiceName) -> &Arc<Routing> {
        self.services.get(service).unwrap_or(&self.default)
    }
}
