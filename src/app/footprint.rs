//! Memory that is needed no longer, given back: program text that only starting runs, which is most of an idle sidecar's resident
//! memory, and the heap of a burst of connections, which the C library would keep for the next one.

use std::{ffi::c_void, ptr::NonNull, time::Duration};

use nix::sys::mman::{MmapAdvise, madvise};

/// By then a sidecar has read its files, joined, looked at its applications and answered its first questions.
const SETTLED: Duration = Duration::from_secs(3);

/// Once, some seconds after the start. What still runs is mapped again at its next use, from the page cache.
pub(super) async fn give_back_text() {
    tokio::time::sleep(SETTLED).await;
    // Without it, the text stays as it is.
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    for (begin, length) in maps.lines().filter_map(text_of_file) {
        let Some(begin) = NonNull::new(std::ptr::with_exposed_provenance_mut::<c_void>(begin)) else { continue };
        // SAFETY: the range is executable, not writable, and mapped from a file: nothing in it can differ from the file, so that
        // dropping its pages only makes the kernel take them from there again.
        let done = unsafe { madvise(begin, length, MmapAdvise::MADV_DONTNEED) };
        if let Err(error) = done {
            tracing::debug!(%error, "program text is not given back");
        }
    }
}

/// After each burst of client connections. Never ends.
pub(super) async fn give_back_heap(connections: impl Fn() -> usize) {
    let mut most = 0;
    loop {
        tokio::time::sleep(LOOK).await;
        let now = connections();
        most = most.max(now);
        if most >= BURST && now <= most / 2 {
            most = now;
            // It looks at the whole heap, which takes some milliseconds; nobody waits for it.
            let _ = tokio::task::spawn_blocking(trim).await;
        }
    }
}

/// Between looks at the number of connections.
const LOOK: Duration = Duration::from_secs(5);
/// Fewer connections leave too little behind to look for it.
const BURST: usize = 200;

fn trim() {
    // SAFETY: it takes no pointers and locks what it looks at.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Begin and length of the mapping, if it is program text of a file: `begin-end r-xp offset device inode path`.
///
/// Data that is read-only now is not enough: the dynamic linker wrote into it before.
fn text_of_file(line: &str) -> Option<(usize, usize)> {
    let mut fields = line.split_ascii_whitespace();
    let (range, access) = (fields.next()?, fields.next()?);
    let inode = fields.nth(2)?;
    if access != "r-xp" || inode == "0" {
        return None;
    }
    let (begin, end) = range.split_once('-')?;
    let (begin, end) = (usize::from_str_radix(begin, 16).ok()?, usize::from_str_radix(end, 16).ok()?);
    Some((begin, end.checked_sub(begin)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_text_of_files_is_given_back() {
        let text = "55d0a4000000-55d0a4001000 r-xp 000a4000 fe:00 1234 /usr/bin/lanemesh";
        assert_eq!(text_of_file(text), Some((0x55d0_a400_0000, 0x1000)));
        for other in [
            "55d0a4000000-55d0a4001000 r--p 000a4000 fe:00 1234 /usr/bin/lanemesh",
            "55d0a4000000-55d0a4001000 rw-p 000a4000 fe:00 1234 /usr/bin/lanemesh",
            "7ffd1c5f2000-7ffd1c5f4000 r-xp 00000000 00:00 0 [vdso]",
            "",
            "nonsense r-xp 0 0 1",
        ] {
            assert_eq!(text_of_file(other), None, "{other}");
        }
    }
}
