//! The instance record: what a sidecar says of one instance. Only its owner changes it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Env, InstanceId, Lane, NodeId, Region, ServiceName, VersionName, Wall, Zone};

/// Weight of an ordinary instance: 256 points on the ring.
pub const NORMAL_WEIGHT: u16 = 100;
/// Largest weight an instance may have.
pub const MAX_WEIGHT: u16 = 1600;
/// Largest size of an instance record, encoded, in bytes.
pub const MAX_RECORD_BYTES: usize = 8 * 1024;

/// What an instance speaks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// HTTP/1.1.
    #[default]
    Http1,
    /// HTTP/2 without TLS.
    H2c,
    /// gRPC over HTTP/2 without TLS.
    Grpc,
    /// Plain TCP.
    Tcp,
}

/// State of the application as its own sidecar's checks see it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Health {
    /// Takes traffic.
    Passing,
    /// Takes traffic, but wants attention.
    Warning,
    /// Takes no traffic. Also the state before the first check passed.
    #[default]
    Critical,
}

/// Who took an instance out of rotation, when and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drain {
    /// Operator, or `shutdown`.
    pub by: String,
    /// When it began.
    pub at: Wall,
    /// Free text; may be empty.
    pub reason: String,
}

/// Metadata of one instance, replaced whole at every change. Newer is a higher (`generation`, `sequence`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstanceRecord {
    /// The sidecar that announces the instance and alone may change this record.
    pub owner: NodeId,
    /// The owner's generation when it wrote this.
    pub generation: u64,
    /// Counts the owner's changes to this record within a generation.
    pub sequence: u64,
    /// Stable over restarts.
    pub id: InstanceId,
    /// The service it serves; the owner's certificate must list it.
    pub service: ServiceName,
    /// Host name or IP address where the application listens (IPv6 without brackets).
    pub host: String,
    /// Port where the application listens.
    pub port: u16,
    /// What it speaks.
    pub protocol: Protocol,
    /// Environment; requests never cross it.
    pub env: Env,
    /// Region.
    pub region: Region,
    /// Availability zone.
    pub zone: Zone,
    /// Version of the application.
    pub version: VersionName,
    /// Traffic group.
    pub lane: Lane,
    /// 0..=1600, 100 is normal; 0 takes no new traffic.
    pub weight: u16,
    /// As the owner's checks see it.
    pub health: Health,
    /// Set while an operator or a shutdown keeps it out of rotation.
    pub drain: Option<Drain>,
    /// Free labels.
    pub tags: BTreeMap<String, String>,
    /// Requests a second it says it can serve, if it says.
    pub capacity: Option<u32>,
    /// When the owner last changed it, by the owner's clock.
    pub updated_at: Wall,
    /// The owner has withdrawn the instance; kept so that nothing older brings it back.
    pub removed: bool,
    /// How busy its application is, where the owner measures that.
    #[serde(default)]
    pub load: Option<LoadFigure>,
    /// Its owner wants to hear how many requests each sidecar has in flight there.
    #[serde(default)]
    pub counted: bool,
}

/// What an owner says of its instance's load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadFigure {
    /// Of what the application can do, in per cent, smoothed; 0..=1000.
    pub percent: u16,
    /// Per cent of its weight that counts on the ring meanwhile; 1..=100.
    pub share: u8,
}

/// Why a record cannot be announced; each names the field, the limit and the value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RecordFault {
    /// Weight out of range.
    #[error("weight {0} is out of range: 0 to 1600, 100 is normal")]
    Weight(u16),
    /// Empty or unusable host.
    #[error("host `{0}` is not a host name or IP address")]
    Host(String),
    /// Port 0.
    #[error("port 0 is not a port that an application listens on")]
    Port,
    /// A tag breaks its limits.
    #[error("tag `{0}`: keys have 1 to 128 bytes, values at most 4096, neither holds control characters")]
    Tag(String),
    /// Encoded size.
    #[error("the record is {0} bytes, at most 8192 are carried: shorten its tags")]
    TooLarge(usize),
    /// Not listed in the owner's certificate.
    #[error(
        "the certificate of node `{node}` does not list service `{service}`: issue one with `lanemesh ca issue --node {node} --service {service}`"
    )]
    NotAuthorised {
        /// The owner.
        node: NodeId,
        /// The service it wanted to announce.
        service: ServiceName,
    },
}

impl InstanceRecord {
    /// Checks every field that its type alone does not; the encoded size is checked where it is encoded.
    pub fn check(&self) -> Result<(), RecordFault> {
        if self.weight > MAX_WEIGHT {
            return Err(RecordFault::Weight(self.weight));
        }
        if self.port == 0 {
            return Err(RecordFault::Port);
        }
        let host_ok = !self.host.is_empty()
            && self.host.len() <= 253
            && self.host.bytes().all(|c| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'-' | b'_' | b':' | b'%'));
        if !host_ok {
            return Err(RecordFault::Host(self.host.chars().take(80).collect()));
        }
        for (key, value) in &self.tags {
            let clean = |text: &str| !text.chars().any(char::is_control);
            if key.is_empty() || key.len() > 128 || value.len() > 4096 || !clean(key) || !clean(value) {
                return Err(RecordFault::Tag(key.chars().filter(|c| !c.is_control()).take(80).collect()));
            }
        }
        Ok(())
    }

    /// The weight that counts on the ring: the record's, eased by its load; not 0 unless the record's is.
    pub fn ring_weight(&self) -> u16 {
        let share = self.load.map_or(100, |load| u32::from(load.share.clamp(1, 100)));
        let eased = (u32::from(self.weight) * share / 100).max(u32::from(self.weight.min(1)));
        // At most the weight.
        eased as u16
    }

    /// `host:port`, IPv6 in brackets.
    pub fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

/// What this node holds of another sidecar.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MemberState {
    /// Answers, or nobody has said otherwise.
    Alive,
    /// Accused; skipped while walking the ring, the ring itself unchanged.
    Doubtful,
    /// Declared dead.
    Down,
    /// Said goodbye itself.
    Left,
}
