//! The endpoint on loopback: what a user of the floor can rely on.
