//! Read buffers, shared by all connections of a thread: one is taken when there is something to read, and given back when that was
//! passed on. Idle connections have none.

use std::{
    cell::RefCell,
    io,
    ops::{Deref, DerefMut},
    pin::pin,
    task::{Context, Poll},
};

use tokio::io::{AsyncRead, AsyncReadExt};

use super::super::pool::MAX_RESPONSE_HEAD;

thread_local! {
    static FREE: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// A buffer on loan. It never grows.
pub(super) struct Buffer(Vec<u8>);

impl Buffer {
    /// An empty one.
    pub(super) fn take() -> Self {
        let free = FREE.with_borrow_mut(Vec::pop);
        Self(free.unwrap_or_else(|| Vec::with_capacity(MAX_RESPONSE_HEAD)))
    }

    /// Whether nothing more fits.
    pub(super) fn is_full(&self) -> bool {
        self.0.len() == self.0.capacity()
    }

    /// Reads what is there and fits. Not to be called on a full one.
    pub(super) fn poll_read<S: AsyncRead + Unpin>(
        &mut self,
        stream: &mut S,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        pin!(stream.read_buf(&mut self.0)).poll(cx)
    }
}

impl Deref for Buffer {
    type Target = Vec<u8>;

    fn deref(&self) -> &Vec<u8> {
        &self.0
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut Vec<u8> {
        &mut self.0
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let mut bytes = std::mem::take(&mut self.0);
        bytes.clear();
        FREE.with_borrow_mut(|free| {
            if free.len() < MOST_FREE {
                free.push(bytes);
            }
        });
    }
}

/// Buffers that a thread keeps for the next to come.
const MOST_FREE: usize = 4;
