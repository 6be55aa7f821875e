//! Floor 1: what travels between sidecars, to the byte.
//!
//! A datagram or one-way stream carries one [`Envelope`]: version, digest, frames; every frame has a kind and a length, so
//! that unknown kinds are skipped. What one node says and others pass on is a [`Statement`]: signed bytes that no relay can
//! change. Bodies are postcard; a newer version only appends to a body, and a reader ignores what follows what it knows.
//!
//! Not here: whether a statement is believed (`catalog`), who gets it and when (`node`).

mod body;
mod envelope;
mod statement;
mod sync;

pub use body::{Accusation, Alive, Body, BodyFault, Evidence, Left, Member};
pub use envelope::{Ctl, Envelope, Frame, MAX_ASKED, MAX_DATAGRAM, MAX_STREAM, VERSION, WireFault};
pub use statement::{KeyId, Kind, Statement, key_id};
pub use sync::{EntryKey, Namesake, QUESTION, SyncReply, SyncRequest, WHOLE};
