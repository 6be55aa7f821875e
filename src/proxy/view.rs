//! A data thread's view of one snapshot: what a request needs of a service, resolved once per snapshot and thread.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    sync::Arc,
};

use http::HeaderValue;
use rustc_hash::FxHashMap;

use super::headers::name_value;
use crate::{
    routing::{Decision, ServiceView, Snapshot},
    telemetry::{InstanceSeries, Metrics},
    types::{Mono, Protocol, ServiceName},
};

/// One snapshot, and what was resolved of it so far.
pub(super) struct View {
    pub(super) snapshot: Arc<Snapshot>,
    services: RefCell<FxHashMap<ServiceName, Rc<Service>>>,
}

impl View {
    pub(super) fn new(snapshot: Arc<Snapshot>) -> Self {
        Self { snapshot, services: RefCell::default() }
    }

    /// A service by name; `None` when the snapshot has none of that name.
    pub(super) fn service(&self, name: &str) -> Option<Rc<Service>> {
        if let Some(service) = self.services.borrow().get(name) {
            return Some(service.clone());
        }
        let view = self.snapshot.service(name)?;
        let service = Rc::new(Service {
            name: view.name.clone(),
            http1: view.instances.iter().all(|entry| entry.record.protocol == Protocol::Http1),
            prepared: RefCell::new(vec![None; view.instances.len()]),
        });
        self.services.borrow_mut().insert(view.name.clone(), service.clone());
        Some(service)
    }
}

/// One service in one view.
pub(super) struct Service {
    pub(super) name: ServiceName,
    /// All its instances speak HTTP/1.1.
    pub(super) http1: bool,
    prepared: RefCell<Vec<Option<Rc<Prepared>>>>,
}

/// What every request to an instance needs of it, ready made.
pub(super) struct Prepared {
    pub(super) series: Arc<InstanceSeries>,
    pub(super) id: HeaderValue,
    pub(super) version: HeaderValue,
    pub(super) lane: HeaderValue,
    /// When this thread heard of it last, by a response's head.
    pub(super) heard: Cell<Mono>,
}

impl Service {
    /// The routing view it was resolved from.
    pub(super) fn view<'a>(&self, view: &'a View) -> Option<&'a ServiceView> {
        view.snapshot.service(self.name.as_str())
    }

    /// What requests to an instance need; made at the first one per view and thread.
    pub(super) fn prepared(&self, view: &View, at: u16, metrics: &Metrics) -> Option<Rc<Prepared>> {
        let at = usize::from(at);
        if let Some(prepared) = self.prepared.borrow().get(at)? {
            return Some(prepared.clone());
        }
        let entry = self.view(view)?.instances.get(at)?;
        let prepared = Rc::new(Prepared {
            series: metrics.instance(entry),
            id: name_value(entry.record.id.as_str()),
            version: name_value(entry.record.version.as_str()),
            lane: name_value(entry.record.lane.as_str()),
            heard: Cell::new(Mono::ZERO),
        });
        self.prepared.borrow_mut()[at] = Some(prepared.clone());
        Some(prepared)
    }

    /// The decided lane.
    pub(super) fn lane<'a>(&self, view: &'a View, decision: &Decision) -> Option<&'a str> {
        Some(self.view(view)?.decided(&decision.lane).name.as_str())
    }
}
