//! The `Date` of answers that have none (RFC 9110 6.6.1), written once a second.

use std::{
    cell::RefCell,
    time::{Duration, SystemTime},
};

use super::super::headers::add_line;
use crate::types::Wall;

thread_local! {
    static WRITTEN: RefCell<(u64, String)> = const { RefCell::new((u64::MAX, String::new())) };
}

/// Adds it to a head.
pub(super) fn add(head: &mut Vec<u8>, now: Wall) {
    let second = now.0 / 1_000;
    WRITTEN.with_borrow_mut(|(at, text)| {
        if *at != second {
            (*at, *text) = (second, httpdate::fmt_http_date(SystemTime::UNIX_EPOCH + Duration::from_secs(second)));
        }
        add_line(head, b"date", text.as_bytes());
    });
}
