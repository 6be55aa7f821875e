//! Tests of the floor as its users see it.
