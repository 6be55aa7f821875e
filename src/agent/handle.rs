//! Questions to and orders for the agent. All answers are plain data that the admin API prints as JSON.

use std::{collections::BTreeMap, net::SocketAddr, sync::Arc};

use arc_swap::ArcSwap;
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot};

use super::{Diagnostics, LocalInstance};
use crate::{
    lanes::PolicyChange,
    node::{InstanceChange, PeerView, Story},
    routing::{MeshAnswer, Question, Rules, SignalsReport, Snapshot},
    telemetry::{Observe, ObservedSubject},
    types::{Health, InstanceId, InstanceRecord, Lane, LanePolicy, MemberState, NodeId, ServiceName, VersionName},
};

/// A member as people see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberInfo {
    /// Node id.
    pub node: NodeId,
    /// State here.
    pub state: MemberState,
    /// Whether it is this node.
    pub this: bool,
    /// Gossip address.
    pub addr: SocketAddr,
    /// Generation.
    pub generation: u64,
    /// Incarnation.
    pub incarnation: u16,
    /// Known from disk only, not confirmed in this run.
    pub stale: bool,
    /// Services of its instances.
    pub services: Vec<ServiceName>,
    /// Why it is in its state.
    pub why: Vec<String>,
    /// Program version it reports.
    pub program: String,
}

/// Everything that a sidecar knows of a member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberStory {
    /// As in the list.
    #[serde(flatten)]
    pub info: MemberInfo,
    /// What is behind it.
    pub story: Story,
}

/// An instance as people see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstanceInfo {
    /// The record.
    pub record: InstanceRecord,
    /// State of its sidecar.
    pub owner_state: MemberState,
    /// Whether this sidecar owns it.
    pub local: bool,
    /// Known from disk only.
    pub stale: bool,
    /// Why it is no candidate (`critical`, `draining`, ...), if it is none.
    pub excluded: Option<String>,
    /// Why the last check of its application failed; known of this sidecar's own instances only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failing: Option<String>,
    /// The lane that it serves by a selector of its service's policy, where it announces another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selected: Option<Lane>,
}

impl InstanceInfo {
    /// The lane that it serves.
    pub fn lane(&self) -> &Lane {
        self.selected.as_ref().unwrap_or(&self.record.lane)
    }
}

/// An instance to register at run time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewInstance {
    /// Instance id.
    pub id: InstanceId,
    /// Service.
    pub service: ServiceName,
    /// `None`: the advertised address.
    #[serde(default)]
    pub host: Option<String>,
    /// Port.
    pub port: u16,
    /// What it speaks.
    #[serde(default)]
    pub protocol: crate::types::Protocol,
    /// Version.
    pub version: VersionName,
    /// Lane; `stable` when absent.
    #[serde(default = "Lane::stable")]
    pub lane: Lane,
    /// Weight; 100 when absent.
    #[serde(default = "normal_weight")]
    pub weight: u16,
    /// Labels.
    #[serde(default)]
    pub tags: BTreeMap<String, String>,
    /// Requests a second.
    #[serde(default)]
    pub capacity: Option<u32>,
    /// `none`, `tcp`, or `http:/path`.
    #[serde(default)]
    pub check: Option<String>,
}

fn normal_weight() -> u16 {
    crate::types::NORMAL_WEIGHT
}

/// Whether a node did what it was asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeDone {
    /// Which.
    pub node: NodeId,
    /// Why it did not; `None` when it did.
    pub fault: Option<String>,
}

/// A policy as people see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyInfo {
    /// The policy in force here.
    pub policy: LanePolicy,
    /// How many keys of 10,000 samples each lane gets.
    pub shares: BTreeMap<Lane, u32>,
}

/// This sidecar.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NodeInfo {
    /// Node id.
    pub node: NodeId,
    /// Mesh.
    pub mesh: String,
    /// Program version.
    pub version: String,
    /// Generation.
    pub generation: u64,
    /// Incarnation.
    pub incarnation: u16,
    /// Advertised gossip address.
    pub gossip: SocketAddr,
    /// Bound proxy address.
    pub proxy: SocketAddr,
    /// Bound dedicated ports.
    pub ports: BTreeMap<ServiceName, SocketAddr>,
    /// Bound TCP ports.
    #[serde(default)]
    pub tcp_ports: BTreeMap<ServiceName, SocketAddr>,
    /// Bound admin address.
    pub admin: SocketAddr,
    /// Where the write token is; readable by the owner only.
    pub token_file: String,
    /// Process id.
    pub pid: u32,
    /// Members alive, this one included.
    pub members: usize,
    /// Open peer connections.
    pub connections: usize,
    /// Settled digest.
    pub digest: String,
    /// Snapshot version.
    pub snapshot: u64,
    /// What readiness waits for; empty when ready.
    pub waiting_for: Vec<String>,
}

/// Why an order was not carried out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// The order breaks a rule; says which, and the cure.
    #[error("{0}")]
    Refused(String),
    /// There is no such thing here.
    #[error("{0}")]
    NotFound(String),
    /// The agent is gone or too slow.
    #[error("the agent does not answer")]
    Unavailable,
}

/// One question or order, with the way back.
pub(super) enum Ask {
    Members(oneshot::Sender<Vec<MemberInfo>>),
    Member(NodeId, oneshot::Sender<Option<MemberStory>>),
    Compare(oneshot::Sender<Vec<PeerView>>),
    Mesh(Box<Question>, oneshot::Sender<Result<MeshAnswer, CommandError>>),
    Observe(Observe, oneshot::Sender<Result<Vec<NodeDone>, CommandError>>),
    Observed(oneshot::Sender<Vec<ObservedSubject>>),
    Instances(oneshot::Sender<Vec<InstanceInfo>>),
    Info(oneshot::Sender<NodeInfo>),
    Diagnostics(oneshot::Sender<Diagnostics>),
    Policies(oneshot::Sender<Vec<PolicyInfo>>),
    SetInstance(InstanceId, InstanceChange, oneshot::Sender<Result<InstanceRecord, CommandError>>),
    Register(NewInstance, oneshot::Sender<Result<InstanceRecord, CommandError>>),
    Announce(LocalInstance, oneshot::Sender<Result<InstanceRecord, CommandError>>),
    Deregister(InstanceId, oneshot::Sender<Result<(), CommandError>>),
    Drain {
        ids: Vec<InstanceId>,
        by: String,
        reason: String,
        min_ready: Option<u32>,
        back: oneshot::Sender<Result<Vec<InstanceId>, CommandError>>,
    },
    Undrain {
        ids: Vec<InstanceId>,
        back: oneshot::Sender<Result<Vec<InstanceId>, CommandError>>,
    },
    SetPolicy(ServiceName, PolicyChange, oneshot::Sender<Result<LanePolicy, CommandError>>),
    Rollback(ServiceName, String, oneshot::Sender<Result<LanePolicy, CommandError>>),
    Health(InstanceId, Health),
    Checked(InstanceId, Result<(), String>),
    Load(InstanceId, Option<f64>),
    /// Its load is told by its requests in flight, of which it can have so many.
    LoadByInFlight(InstanceId, u32),
    Shutdown,
    Signals(oneshot::Sender<SignalsReport>),
    Rules(Rules),
    Leave(oneshot::Sender<()>),
}

/// The way to the agent; cheap to clone.
#[derive(Clone)]
pub struct Handle {
    pub(super) asks: mpsc::Sender<Ask>,
    pub(super) snapshot: Arc<ArcSwap<Snapshot>>,
}

macro_rules! ask {
    ($self:ident, |$back:ident| $ask:expr) => {{
        let ($back, answer) = oneshot::channel();
        $self.asks.send($ask).await.map_err(|_| CommandError::Unavailable)?;
        answer.await.map_err(|_| CommandError::Unavailable)
    }};
}

impl Handle {
    /// The routing view in force.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.snapshot.load_full()
    }

    /// The place where it is replaced; data-path threads read it.
    pub fn snapshots(&self) -> Arc<ArcSwap<Snapshot>> {
        self.snapshot.clone()
    }

    /// Members, by node id.
    pub async fn members(&self) -> Result<Vec<MemberInfo>, CommandError> {
        ask!(self, |back| Ask::Members(back))
    }

    /// One member with all that is known of it; `None` where it is unknown.
    pub async fn member(&self, node: NodeId) -> Result<Option<MemberStory>, CommandError> {
        ask!(self, |back| Ask::Member(node, back))
    }

    /// Asks every active member for its view, and says how each differs from this sidecar's. Takes as long as the slowest
    /// answer, some seconds where somebody does not answer.
    pub async fn compare(&self) -> Result<Vec<PeerView>, CommandError> {
        ask!(self, |back| Ask::Compare(back))
    }

    /// Asks every active member where it would send a request, and says in what they differ. Takes as long as the slowest answer,
    /// some seconds where somebody does not answer.
    pub async fn ask_mesh(&self, question: Question) -> Result<MeshAnswer, CommandError> {
        ask!(self, |back| Ask::Mesh(Box::new(question), back))?
    }

    /// Has every active member log all requests of a subject for a while; who has heard it, by node id.
    pub async fn observe(&self, order: Observe) -> Result<Vec<NodeDone>, CommandError> {
        ask!(self, |back| Ask::Observe(order, back))?
    }

    /// Subjects under observation here.
    pub async fn observed(&self) -> Result<Vec<ObservedSubject>, CommandError> {
        ask!(self, |back| Ask::Observed(back))
    }

    /// Instances, by service and id.
    pub async fn instances(&self) -> Result<Vec<InstanceInfo>, CommandError> {
        ask!(self, |back| Ask::Instances(back))
    }

    /// This sidecar.
    pub async fn info(&self) -> Result<NodeInfo, CommandError> {
        ask!(self, |back| Ask::Info(back))
    }

    /// What it sees of its surroundings.
    pub async fn diagnostics(&self) -> Result<Diagnostics, CommandError> {
        ask!(self, |back| Ask::Diagnostics(back))
    }

    /// Policies, by service.
    pub async fn policies(&self) -> Result<Vec<PolicyInfo>, CommandError> {
        ask!(self, |back| Ask::Policies(back))
    }

    /// Changes an instance of this sidecar.
    pub async fn set_instance(&self, id: InstanceId, change: InstanceChange) -> Result<InstanceRecord, CommandError> {
        ask!(self, |back| Ask::SetInstance(id, change, back))?
    }

    /// Announces a further instance.
    pub async fn register(&self, new: NewInstance) -> Result<InstanceRecord, CommandError> {
        ask!(self, |back| Ask::Register(new, back))?
    }

    /// Announces an instance of the configuration, or what has changed of it. Its operator's drain stands; its health is
    /// checked anew.
    pub async fn announce(&self, instance: LocalInstance) -> Result<InstanceRecord, CommandError> {
        ask!(self, |back| Ask::Announce(instance, back))?
    }

    /// Withdraws an instance of this sidecar.
    pub async fn deregister(&self, id: InstanceId) -> Result<(), CommandError> {
        ask!(self, |back| Ask::Deregister(id, back))?
    }

    /// Takes instances of this sidecar out of rotation (all when `ids` is empty); refused when fewer than `min_ready`
    /// other candidates would be left in a lane.
    pub async fn drain(
        &self,
        ids: Vec<InstanceId>,
        by: String,
        reason: String,
        min_ready: Option<u32>,
    ) -> Result<Vec<InstanceId>, CommandError> {
        ask!(self, |back| Ask::Drain { ids, by, reason, min_ready, back })?
    }

    /// Puts them back.
    pub async fn undrain(&self, ids: Vec<InstanceId>) -> Result<Vec<InstanceId>, CommandError> {
        ask!(self, |back| Ask::Undrain { ids, back })?
    }

    /// Changes a service's policy, mesh-wide.
    pub async fn set_policy(&self, service: ServiceName, change: PolicyChange) -> Result<LanePolicy, CommandError> {
        ask!(self, |back| Ask::SetPolicy(service, change, back))?
    }

    /// Everybody to stable, at once, mesh-wide.
    pub async fn rollback(&self, service: ServiceName, reason: String) -> Result<LanePolicy, CommandError> {
        ask!(self, |back| Ask::Rollback(service, reason, back))?
    }

    /// What sidecars say of instances that fail, and what follows here.
    pub async fn signals(&self) -> Result<SignalsReport, CommandError> {
        ask!(self, |back| Ask::Signals(back))
    }

    /// Routes by other rules from now on; what is known of instances stays.
    pub async fn set_rules(&self, rules: Rules) -> Result<(), CommandError> {
        self.asks.send(Ask::Rules(rules)).await.map_err(|_| CommandError::Unavailable)
    }

    /// A check changed an instance's health.
    pub async fn health(&self, id: InstanceId, health: Health) -> Result<(), CommandError> {
        self.asks.send(Ask::Health(id, health)).await.map_err(|_| CommandError::Unavailable)
    }

    /// A check of an instance's application has another result than the one before it.
    pub async fn checked(&self, id: InstanceId, result: Result<(), String>) -> Result<(), CommandError> {
        self.asks.send(Ask::Checked(id, result)).await.map_err(|_| CommandError::Unavailable)
    }

    /// A check measured how busy an instance is (1.0: as much as it can do), or it says nothing of that any more.
    pub async fn load(&self, id: InstanceId, load: Option<f64>) -> Result<(), CommandError> {
        self.asks.send(Ask::Load(id, load)).await.map_err(|_| CommandError::Unavailable)
    }

    /// An instance's load is to be told by its requests in flight, of which it can have so many.
    pub async fn load_by_in_flight(&self, id: InstanceId, most: u32) -> Result<(), CommandError> {
        self.asks.send(Ask::LoadByInFlight(id, most)).await.map_err(|_| CommandError::Unavailable)
    }

    /// Takes everything out of rotation because the process ends; not kept over a restart.
    pub async fn shutting_down(&self) -> Result<(), CommandError> {
        self.asks.send(Ask::Shutdown).await.map_err(|_| CommandError::Unavailable)
    }

    /// Says goodbye to the mesh; returns when peers were told.
    pub async fn leave(&self) -> Result<(), CommandError> {
        ask!(self, |back| Ask::Leave(back))
    }
}
