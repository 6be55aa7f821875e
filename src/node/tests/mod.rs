//! Whole nodes on a small network in virtual time: joining, spreading, syncing, leaving, names in dispute.

mod meshes;
mod signals;
mod world;
