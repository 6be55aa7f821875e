//! A data thread's view of one snapshot: what a request needs of a service, resolved once per snapshot and thread.

use std::{cell::RefCell, collections::BTreeMap, rc::Rc, sync::Arc};

use rustc_hash::FxHashMap;

use crate::{
    config::ServiceRule,
    routing::{Decision, ServiceView, Snapshot},
    telemetry::{InstanceSeries, Metrics},
    types::{Lane, ServiceName, SubjectSource},
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
    pub(super) fn service(
        &self,
        name: &str,
        rules: &BTreeMap<ServiceName, ServiceRule>,
        default: &SubjectSource,
    ) -> Option<Rc<Service>> {
        if let Some(service) = self.services.borrow().get(name) {
            return Some(service.clone());
        }
        let view = self.snapshot.service(name)?;
        let rule = rules.get(name);
        let from_policy = || view.policy.as_ref().and_then(|policy| policy.policy.subject.as_ref());
        let subject = rule.and_then(|rule| rule.subject.as_ref()).or_else(from_policy).unwrap_or(default).clone();
        let service = Rc::new(Service {
            name: view.name.clone(),
            subject,
            route_key: rule.and_then(|rule| rule.route_key.clone()),
            request_id: rule.is_some_and(|rule| rule.request_id_as_subject),
            series: RefCell::new(vec![None; view.instances.len()]),
        });
        self.services.borrow_mut().insert(view.name.clone(), service.clone());
        Some(service)
    }
}

/// One service in one view.
pub(super) struct Service {
    pub(super) name: ServiceName,
    /// Rule of this sidecar, else the policy's, else the default.
    pub(super) subject: SubjectSource,
    /// `None`: the subject.
    pub(super) route_key: Option<SubjectSource>,
    pub(super) request_id: bool,
    series: RefCell<Vec<Option<Arc<InstanceSeries>>>>,
}

impl Service {
    /// The routing view it was resolved from.
    pub(super) fn view<'a>(&self, view: &'a View) -> Option<&'a ServiceView> {
        view.snapshot.service(self.name.as_str())
    }

    /// Counters of an instance; the registry is asked once per view and thread.
    pub(super) fn series(&self, view: &View, at: u16, metrics: &Metrics) -> Arc<InstanceSeries> {
        let at = usize::from(at);
        if let Some(Some(series)) = self.series.borrow().get(at) {
            return series.clone();
        }
        match self.view(view).and_then(|service| service.instances.get(at)) {
            Some(entry) => {
                let series = metrics.instance(entry);
                self.series.borrow_mut()[at] = Some(series.clone());
                series
            }
            None => metrics.unanswered(self.name.as_str(), "other"),
        }
    }

    /// The decided lane.
    pub(super) fn lane<'a>(&self, view: &'a View, decision: &Decision) -> Option<&'a str> {
        let service = self.view(view)?;
        Some(service.policy.as_ref().map_or(Lane::STABLE, |policy| policy.lane(decision.lane.lane).as_str()))
    }
}
