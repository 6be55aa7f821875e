//! Outcomes of whole meshes in virtual time, and the known traps of foca, each with a test.

mod harness;
mod outcomes;
mod rules;
mod traps;
