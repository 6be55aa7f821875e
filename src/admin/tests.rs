//! The API on a real listener.
