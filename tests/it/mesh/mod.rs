//! Meshes of real processes on loopback: what an operator does to them, what dies under them, and what traffic sees of it.
//!
//! Nothing here sleeps and hopes: every wait is for a condition, with a deadline far above what it takes. Times that the
//! product promises are measured and printed (`--nocapture` shows them); the tests assert a generous multiple.

mod chaos;
mod check;
mod command;
mod files;
mod hosts;
mod instances;
mod lanes;
mod names;
mod networks;
mod orders;
mod reload;
mod restart;
mod rolling;
mod route;
mod signals;
mod switch;
mod together;
mod traffic;
