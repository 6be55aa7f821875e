//! Whole nodes on a small network in virtual time: joining, spreading, syncing, leaving, names in dispute.

mod load;
mod meshes;
mod signals;
mod world;
