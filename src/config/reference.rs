//! The commented reference of every key, its default and its meaning.

/// A complete configuration file with every key, commented.
pub fn reference() -> String {
    todo!()
}
