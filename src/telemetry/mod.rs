//! Floor 4: what people and programs see of a running sidecar. Log, metrics, access log, and the process's only clock.
//!
//! Invariants: nothing here is global except the log subscriber; labels come from what the sidecar knows (services,
//! instances, lanes, closed lists of reasons), never from what a client sent; the request path takes no lock here.
//! Not here: serving `/metrics` (`admin`), deciding what is logged as an event of the mesh (`agent`).

mod access;
#[expect(clippy::disallowed_methods, reason = "this is the one clock")]
mod clock;
mod log;
mod metrics;
mod observed;
mod series;
mod view;

pub use access::{AccessEntry, AccessLogger, AccessSink};
pub use clock::Clock;
pub use log::{LogFault, init_logging, set_log_filter};
pub use metrics::Metrics;
pub use observed::{LONGEST_OBSERVATION, MAX_SUBJECT, MOST_OBSERVED, Observe, Observed, ObservedSubject};
pub use series::{CodeClass, InstanceKey, InstanceSeries, LaneSeries, MethodLabel};
