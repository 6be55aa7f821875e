//! Tools that many tests need: a scripted upstream, a raw client, and a proxy over a hand-made snapshot.
//!
//! All are blocking and run on threads of their own, so that a test reads from top to bottom and a fault in the proxy's runtime
//! cannot hide in the test's.

#![allow(dead_code)] // Each test file uses its part.

pub mod fixture;
pub mod h2;
pub mod http;
pub mod load;
pub mod process;
pub mod raw;
pub mod upstream;

pub use fixture::{Fixture, Instance};
pub use raw::{End, Raw};
pub use upstream::{Act, Upstream};
