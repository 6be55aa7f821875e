//! Commands against a real listener.
