//! Floor 4: certificates, signatures, and whom to trust.
//!
//! One Ed25519 key per sidecar does everything: it proves the TLS handshake and signs the statements of the mesh. Its
//! certificate, issued by the mesh's own authority, says in URI names which mesh, which node and which services it is for:
//! `lanemesh://<mesh>/node/<node>` (exactly one) and `lanemesh://<mesh>/service/<service>` (any number, `*` for any).
//!
//! - [`Authority`] is what `ca init` and `ca issue` use.
//! - [`Identity`] is a sidecar's own certificate and key with the authorities it trusts: it makes the TLS configurations
//!   and implements [`Trust`](crate::types::Trust).
//!
//! Invariants: no peer is believed before chain, dates, mesh and node name were checked, in that order; TLS 1.3 only; one
//! crypto provider, passed explicitly (the simulator passes a seeded one); no early data, which can be replayed.
//!
//! Not here: revocation and signing requests (a later issue), host names (peers are named by node, not by address).

mod authority;
mod files;
mod identity;
mod names;
#[cfg(test)]
mod tests;
mod verify;

pub use authority::{Authority, IssuedFiles, Leaf, LeafRequest};
pub use files::PkiError;
pub use identity::{Identity, IdentityParts, PartsFault};
pub use names::{CertFault, facts};
pub use verify::PeerName;

/// Protocol name in the TLS handshake; carries the version of everything above it.
pub const ALPN: &[u8] = b"lanemesh/1";
