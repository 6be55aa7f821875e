//! The headers of a message, whichever way they are held: hyper's map, or lines still in the bytes they came in. Whoever decides
//! by headers asks through this, so that both ways of serving a request decide alike.

use http::{HeaderMap, HeaderValue};

/// Headers to look things up in.
pub(super) trait Fields {
    /// Every value of the header with this name (in lower case), in order.
    fn all<'a, 'n>(&'a self, name: &'n str) -> impl Iterator<Item = &'a [u8]>;

    /// The first value, if it is plain text.
    fn text<'a>(&'a self, name: &str) -> Option<&'a str> {
        let value = self.all(name).next()?;
        let plain = value.iter().all(|c| matches!(c, b'\t' | b' '..=b'~'));
        std::str::from_utf8(value).ok().filter(|_| plain)
    }
}

impl Fields for HeaderMap {
    fn all<'a, 'n>(&'a self, name: &'n str) -> impl Iterator<Item = &'a [u8]> {
        self.get_all(name).into_iter().map(HeaderValue::as_bytes)
    }
}

impl Fields for [httparse::Header<'_>] {
    fn all<'a, 'n>(&'a self, name: &'n str) -> impl Iterator<Item = &'a [u8]> {
        let named = move |line: &&httparse::Header<'_>| line.name.eq_ignore_ascii_case(name);
        self.iter().filter(named).map(|line| line.value)
    }
}
