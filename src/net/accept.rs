//! Incoming connections, and telling a connection to oneself from one with a namesake.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use quinn::{Connection, Incoming, Runtime};

use super::{
    NetEvent, NetFault,
    engine::Engine,
    link::plain,
    report,
    timer::{sleep, timeout},
};

impl Engine {
    /// Accepts until the endpoint closes.
    pub(super) async fn accept_all(self: Arc<Self>) {
        while let Some(incoming) = self.endpoint.accept().await {
            let free = self.handshake_slots.available_permits();
            if 2 * free < self.limits.handshakes && !incoming.remote_address_validated() && incoming.may_retry() {
                // Under pressure an address must prove that it is no forgery. A retry costs us nothing to remember.
                let _ = incoming.retry();
                continue;
            }
            let Ok(slot) = self.handshake_slots.clone().try_acquire_owned() else {
                self.stats.refused_busy.one();
                incoming.refuse();
                continue;
            };
            let engine = self.clone();
            self.spawn(async move {
                engine.accept(incoming).await;
                drop(slot);
            });
        }
    }

    async fn accept(self: &Arc<Self>, incoming: Incoming) {
        let addr = plain(incoming.remote_address());
        // A handshake that stalls is the caller's to report.
        let Ok(result) = self.timeout(self.limits.handshake_deadline, incoming.into_future()).await else { return };
        let conn = match result {
            Ok(conn) => conn,
            Err(error) => {
                if let Some(reason) = report::certificate_fault(&error) {
                    self.report(addr, reason);
                }
                return;
            }
        };
        match self.check(&conn).await {
            Ok(facts) => {
                self.stats.accepted.one();
                self.admit(conn, &facts, false);
            }
            // A seed list may hold one's own address.
            Err(NetFault::Itself(_)) => {}
            Err(NetFault::OwnName { .. }) => self.tell(addr, NetEvent::NameClaimed { addr }),
            Err(NetFault::Handshake { reason, .. }) => self.report(addr, reason),
            Err(fault) => self.report(addr, fault.to_string()),
        }
    }
}

/// Tells whether both ends of a connection are in this process: they share its secret, which nobody else has.
#[derive(Default)]
pub(super) struct SelfTest {
    seen: Mutex<BTreeMap<[u8; 16], u8>>,
}

impl SelfTest {
    /// Whether the other end asks the same of the same connection here, within a moment.
    pub(super) async fn meets_itself(&self, conn: &Connection, runtime: &dyn Runtime) -> bool {
        let mut secret = [0; 16];
        if conn.export_keying_material(&mut secret, b"lanemesh self test", b"").is_err() {
            return false;
        }
        *self.seen().entry(secret).or_default() += 1;
        let both = || self.seen().get(&secret).is_some_and(|count| *count == 2);
        let met = timeout(runtime, MOMENT, async {
            while !both() {
                sleep(runtime, Duration::from_millis(5)).await;
            }
        });
        let met = met.await.is_ok();
        if met {
            // Let the other end see it too.
            sleep(runtime, Duration::from_millis(20)).await;
        }
        self.seen().remove(&secret);
        met
    }

    fn seen(&self) -> std::sync::MutexGuard<'_, BTreeMap<[u8; 16], u8>> {
        self.seen.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

const MOMENT: Duration = Duration::from_millis(300);
