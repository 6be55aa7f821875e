//! Floor 1: configuration. `raw` is what was typed, `resolve` what is meant; every fault is reported at once, with its line,
//! the reason and a cure. One TOML file, environment over it, flags over that.
//!
//! Every key stands once, in `keys`: its kind, range, default, environment name and meaning. The checks, the defaults and the
//! printed reference all read that table, so they cannot disagree.
//!
//! Not here: reading files or the environment (the caller passes their text in), and the number of cores, addresses and
//! certificates of this machine (`app` looks at those).

mod fault;
mod keys;
mod overrides;
mod raw;
mod reference;
mod resolve;
mod resolved;
mod routing;
mod table;
mod values;
mod warnings;

#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_random;

pub use fault::{Fault, Source};
pub use keys::{ENVIRONMENT_PREFIX, MAX_INSTANCES, MAX_SERVICES, RESERVED_ENVIRONMENT};
pub use overrides::{Overrides, environment_name};
pub use raw::{MAX_FILE_BYTES, decode};
pub use reference::reference;
pub use resolve::resolve;
pub use resolved::{
    AccessLog, Admin, Check, CheckKind, Config, Gossip, Identity, Instance, LoadSource, LogFormat, Profile, Proxy,
    ServiceRule, Shutdown, TcpKey, Timeouts,
};
pub use routing::{Balance, Breaker, Counts, Fallback, Routing, Statuses};
pub use values::{REQUEST_ID_HEADERS, format_duration, parse_check, parse_duration, parse_subject, request_id_in};
pub use warnings::{exposure, oddities, warnings};
