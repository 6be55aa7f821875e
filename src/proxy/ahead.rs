//! Connections opened ahead (REQUIREMENTS R9): when an instance comes into rotation, each data thread that sends requests to its service opens
//! one to it at once, so that the first users who move there do not wait for handshakes.
//!
//! Only where this thread has lately kept a connection to another instance of the service: an application that closes after each answer,
//! or serves one connection at a time, must not be given one that says nothing. At most `proxy.connect_ahead` a snapshot, one after
//! another; the pool closes what is not used like any other. A dial that fails says nothing about the instance: its own requests will.

use std::{rc::Rc, sync::Arc};

use tokio::task::spawn_local;

use super::worker::Worker;
use crate::{
    routing::{InstanceEntry, ServiceView, Snapshot},
    types::{MemberState, Protocol},
};

/// Opens what the worker's present view calls for, when it is another one than `seen`.
pub(super) fn open(worker: &Rc<Worker>, seen: &mut Arc<Snapshot>) {
    let view = worker.view();
    if Arc::ptr_eq(seen, &view.snapshot) {
        return;
    }
    let before = std::mem::replace(seen, view.snapshot.clone());
    let most = worker.config.connect_ahead;
    let newcomers: Vec<InstanceEntry> = view
        .snapshot
        .services()
        .filter_map(|service| newcomers(service, before.service(service.name.as_str())))
        .filter(|(service, _)| service.instances.iter().any(|entry| keeps(worker, entry)))
        .flat_map(|(_, newcomers)| newcomers.into_iter().cloned())
        .take(most)
        .collect();
    if newcomers.is_empty() {
        return;
    }
    let worker = worker.clone();
    spawn_local(async move {
        for instance in newcomers {
            dial(&worker, &instance).await;
        }
    });
}

/// The instances of a service that were not in rotation before, if there are any.
fn newcomers<'a>(
    service: &'a ServiceView,
    before: Option<&ServiceView>,
) -> Option<(&'a ServiceView, Vec<&'a InstanceEntry>)> {
    // A service that did not change is the same object. One that was not there had no connections either.
    let before = before.filter(|before| !std::ptr::eq(*before, service))?;
    let was_there = |entry: &InstanceEntry| {
        let record = &entry.record;
        let old = before.instance(&record.owner, &record.id).map(|at| &before.instances[usize::from(at)]);
        old.is_some_and(|old| {
            old.excluded.is_none() && (&old.record.host, old.record.port) == (&record.host, record.port)
        })
    };
    let is_new = |entry: &&InstanceEntry| {
        let serves = entry.excluded.is_none() && entry.owner != MemberState::Doubtful;
        serves && entry.record.protocol != Protocol::Tcp && !was_there(entry)
    };
    let found: Vec<&InstanceEntry> = service.instances.iter().filter(is_new).collect();
    (!found.is_empty()).then_some((service, found))
}

fn keeps(worker: &Worker, instance: &InstanceEntry) -> bool {
    worker.pool.keeps(instance) || worker.h2_pool.keeps(instance)
}

async fn dial(worker: &Worker, instance: &InstanceEntry) {
    let until = worker.clock.mono() + worker.config.timeouts.connect;
    match instance.record.protocol {
        Protocol::Http1 => match worker.pool.open_plain(instance, until).await {
            Ok(link) => worker.pool.rest(instance, link),
            Err(fault) => {
                return tracing::debug!(instance = %instance.record.id, ?fault, "no connection was opened ahead");
            }
        },
        Protocol::H2c | Protocol::Grpc => worker.h2_pool.open_ahead(instance),
        Protocol::Tcp => return,
    }
    worker.metrics.upstream_ahead.inc();
}
