//! Floor 5: checks of the applications beside this sidecar (REQUIREMENTS R9).
//!
//! One task per local instance asks (HTTP, TCP or nothing), [`Gate`] turns answers into health, and every change of health, and
//! of why a check fails, is reported to the agent. Checks start at a fixed interval from start to start; while the answers speak against the present
//! state, the next one comes after a tenth of a second, so that start-up takes about 0.2 s with `rise = 2`, and a dying
//! application is critical well within 2 s (one interval, two timeouts and the short wait between them).
//!
//! Where it is asked for, a check also brings how busy the application is (`load`, REQUIREMENTS R10), which is reported each time.
//!
//! Not here: checks of other sidecars' instances; each sidecar speaks for its own. What follows from a load is the node's.

mod check;
mod load;

use std::{collections::BTreeMap, future::Future, net::SocketAddr, time::Duration};

use tokio::{
    sync::mpsc,
    task::JoinHandle,
    time::{Instant, sleep_until},
};

use self::load::Group;
use crate::{
    agent::Handle,
    config::{Check, CheckKind, LoadSource},
    health::Gate,
    types::{Health, InstanceId},
};

/// Wait between checks while the answers speak against the present state.
const SOON: Duration = Duration::from_millis(100);
/// For so long an application that has not passed yet is taken to be starting, and asked often.
const STARTING: Duration = Duration::from_secs(30);

/// One instance to check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The instance.
    pub id: InstanceId,
    /// Where its application listens: `host:port`, IPv6 in brackets.
    pub authority: String,
    /// How it is checked.
    pub check: Check,
}

/// What a check brings.
#[derive(Debug, Clone, PartialEq)]
pub enum Heard {
    /// The instance's health has changed.
    Health(Health),
    /// A check ended otherwise than the one before it: it passed, or failed for this reason.
    Result(Result<(), String>),
    /// How busy it is (1.0: as much as it can do), where that is asked for; `None`: it did not say.
    Load(Option<f64>),
    /// It can have so many requests in flight, and is as busy as it has.
    InFlight(u32),
}

#[derive(Debug)]
enum Order {
    Check(Target),
    Forget(InstanceId),
}

/// The running checks; they end when this is dropped.
#[derive(Debug)]
pub struct Probes {
    orders: mpsc::UnboundedSender<Order>,
    supervisor: JoinHandle<()>,
}

impl Probes {
    /// Starts (or restarts, when it is known) the checks of an instance that was registered at run time.
    pub fn check(&self, target: Target) {
        // The supervisor lives as long as this value.
        let _ = self.orders.send(Order::Check(target));
    }

    /// Ends the checks of an instance that was deregistered.
    pub fn forget(&self, id: &InstanceId) {
        let _ = self.orders.send(Order::Forget(id.clone()));
    }
}

impl Drop for Probes {
    fn drop(&mut self) {
        self.supervisor.abort();
    }
}

/// Checks once, for a sidecar that is to be started: the error says what was seen.
pub async fn once(target: &Target) -> Result<(), String> {
    if target.check.kind == CheckKind::None { Ok(()) } else { check::once(target).await.map(drop) }
}

/// The longest until an instance is critical, after its application died and refuses (first), or hangs (second); `None` when
/// it is not checked.
pub fn worst(check: &Check) -> Option<(Duration, Duration)> {
    // It ended just after a check passed. Then a failed check costs nothing but the short wait, or its timeout.
    let fall = u32::from(check.fall);
    let hanging = check.interval + (check.timeout.max(SOON) + MIN_PAUSE) * fall;
    let refusing = check.interval + (SOON + MIN_PAUSE) * fall.saturating_sub(1);
    (check.kind != CheckKind::None).then_some((refusing, hanging))
}

/// Starts checking `targets`; changes of health, and loads, go to the agent. Must be called inside a runtime.
pub fn start(targets: Vec<Target>, handle: Handle) -> Probes {
    start_with(targets, move |id, heard| {
        let handle = handle.clone();
        async move {
            let told = match heard {
                Heard::Health(health) => handle.health(id, health).await,
                Heard::Load(load) => handle.load(id, load).await,
                Heard::InFlight(most) => handle.load_by_in_flight(id, most).await,
                Heard::Result(result) => handle.checked(id, result).await,
            };
            told.is_ok()
        }
    })
}

/// Like [`start`], with any receiver; `false` from it means that nobody listens any more.
pub fn start_with<R, F>(targets: Vec<Target>, report: R) -> Probes
where
    R: Fn(InstanceId, Heard) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = bool> + Send + 'static,
{
    #[expect(clippy::disallowed_methods, reason = "only this sidecar's own operator orders checks, one at a time")]
    let (orders, queue) = mpsc::unbounded_channel();
    let supervisor = tokio::spawn(supervise(targets, queue, report));
    Probes { orders, supervisor }
}

struct Running(JoinHandle<()>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn supervise<R, F>(targets: Vec<Target>, mut orders: mpsc::UnboundedReceiver<Order>, report: R)
where
    R: Fn(InstanceId, Heard) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = bool> + Send + 'static,
{
    let mut running = BTreeMap::new();
    let begin = |target: Target| (target.id.clone(), Running(tokio::spawn(watch(target, report.clone()))));
    running.extend(targets.into_iter().map(begin));
    while let Some(order) = orders.recv().await {
        match order {
            Order::Check(target) => {
                let known = running.remove(&target.id).is_some();
                if known {
                    // Registered anew: what the old check saw does not speak for it.
                    report(target.id.clone(), Heard::Health(Health::Critical)).await;
                }
                let (id, task) = begin(target);
                running.insert(id, task);
            }
            Order::Forget(id) => {
                running.remove(&id);
            }
        }
    }
}

/// Checks one instance until nobody listens.
async fn watch<R, F>(target: Target, report: R)
where
    R: Fn(InstanceId, Heard) -> F,
    F: Future<Output = bool>,
{
    let mut group = match &target.check.load {
        LoadSource::Group(dir) => Some(Group::new(dir)),
        LoadSource::None | LoadSource::Check(_) | LoadSource::InFlight(_) => None,
    };
    if target.check.kind == CheckKind::None {
        report(target.id.clone(), Heard::Health(Health::Passing)).await;
        return watch_load(&target, group, report).await;
    }
    let mut gate = Gate::new(target.check.rise, target.check.fall);
    let started = Instant::now();
    let (mut passed_before, mut told) = (false, false);
    let mut last = None;
    loop {
        let began = Instant::now();
        let answer = check::once(&target).await;
        if let Err(reason) = &answer {
            tracing::debug!(instance = %target.id, %reason, "health check failed");
            if !passed_before && !told && started.elapsed() > OVERDUE {
                tracing::warn!(instance = %target.id, %reason, "the application has not passed its health check yet");
                told = true;
            }
        }
        let result = answer.as_ref().map(|_| ()).map_err(Clone::clone);
        if last.as_ref() != Some(&result) {
            report(target.id.clone(), Heard::Result(result.clone())).await;
            last = Some(result);
        }
        if let Some(health) = gate.record(answer.is_ok()) {
            tracing::info!(instance = %target.id, ?health, reason = answer.as_ref().err(), "health of the application changed");
            if !report(target.id.clone(), Heard::Health(health)).await {
                return;
            }
        }
        let load = match (&target.check.load, &mut group) {
            (LoadSource::None, _) => None,
            (LoadSource::InFlight(most), _) => Some(Heard::InFlight(*most)),
            (_, Some(group)) => Some(Heard::Load(group.look())),
            // One that fails says nothing of its load.
            (_, None) => answer.ok().map(Heard::Load),
        };
        if let Some(load) = load
            && !report(target.id.clone(), load).await
        {
            return;
        }
        passed_before |= gate.health() == Health::Passing;
        let soon = gate.undecided() || !passed_before && started.elapsed() < STARTING;
        let wait = if soon { SOON.min(target.check.interval) } else { target.check.interval };
        sleep_until((began + wait).max(Instant::now() + MIN_PAUSE)).await;
    }
}

/// Of an instance that is not checked only its load is looked at, where there is something to look at.
async fn watch_load<R, F>(target: &Target, mut group: Option<Group>, report: R)
where
    R: Fn(InstanceId, Heard) -> F,
    F: Future<Output = bool>,
{
    loop {
        let load = match (&target.check.load, &mut group) {
            (LoadSource::InFlight(most), _) => Heard::InFlight(*most),
            (_, Some(group)) => Heard::Load(group.look()),
            (_, None) => return,
        };
        if !report(target.id.clone(), load).await {
            return;
        }
        sleep_until(Instant::now() + target.check.interval).await;
    }
}

/// By then most applications listen; a wrong path or port would otherwise never be told.
const OVERDUE: Duration = Duration::from_secs(5);
/// Even a check that takes longer than its interval leaves the application a moment.
const MIN_PAUSE: Duration = Duration::from_millis(10);

/// Resolves `host:port`; the first address is as good as any for a local application.
async fn resolve(authority: &str) -> Result<SocketAddr, String> {
    if let Ok(addr) = authority.parse() {
        return Ok(addr);
    }
    let mut found = tokio::net::lookup_host(authority).await.map_err(|e| format!("cannot resolve {authority}: {e}"))?;
    found.next().ok_or_else(|| format!("{authority} resolves to no address"))
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a test's own few messages")]
mod tests;
