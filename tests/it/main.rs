//! The one integration binary: real sockets, port 0, no sleeps that hope.

mod proxy;
mod support;
