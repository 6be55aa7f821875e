//! Floor 2: the replicated tables.
