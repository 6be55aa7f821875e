//! A request's head as routing reads it ([`crate::routing::Reading`]): who it is from, and what match rules look at.

use http::{HeaderMap, Method, Uri};

use crate::lanes::Head;

/// Borrowed from the request; headers as the client sent them.
#[derive(Debug, Clone, Copy)]
pub(super) struct RequestHead<'a> {
    pub(super) method: &'a Method,
    pub(super) uri: &'a Uri,
    pub(super) headers: &'a HeaderMap,
}

impl Head for RequestHead<'_> {
    fn method(&self) -> &str {
        self.method.as_str()
    }

    fn path(&self) -> &str {
        self.uri.path()
    }

    fn values<'a>(&'a self, name: &str, each: &mut dyn FnMut(&'a [u8])) {
        self.headers.get_all(name).iter().for_each(|value| each(value.as_bytes()));
    }
}
