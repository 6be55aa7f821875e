//! Floor 1: configuration. `raw` is what was typed, `resolve` what is meant; every fault is reported at once, with its line,
//! the reason and a cure. One TOML file, environment over it, flags over that.
//!
//! Not here: reading files or the environment (the caller passes their text in).

mod raw;
mod reference;
mod resolve;
mod resolved;

pub use reference::reference;
pub use resolve::{Fault, Overrides, Source, parse_duration, resolve};
pub use resolved::{
    AccessLog, Admin, Check, CheckKind, Config, Gossip, Identity, Instance, LogFormat, Profile, Proxy, ServiceRule,
    Shutdown, Timeouts,
};
