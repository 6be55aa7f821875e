//! Deadlines, of which the earliest is armed in a `timerfd`.
//!
//! Whoever sets, moves or drops the earliest wakes the task that arms it, which runs after what is being polled: however many
//! deadlines move in one go, the kernel is told once. Deadlines are rounded up to whole milliseconds, as tokio's are, so that
//! what is due at nearly the same time is one wake.
//!
//! Invariants: a waker that waits is woken at its deadline or later, never lost; the lock is held for a few map operations, and
//! no waker is woken or dropped under it, since that may run anything.

use std::{
    collections::BTreeMap,
    future::poll_fn,
    io,
    os::fd::{AsFd, AsRawFd, RawFd},
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use nix::sys::{
    time::TimeSpec,
    timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags},
};
use quinn::AsyncTimer;
use tokio::io::{Interest, unix::AsyncFd};

/// When, and a number that tells apart what is due at the same time.
type Key = (Instant, u64);

/// All that wait.
#[derive(Debug)]
pub(super) struct Alarms {
    began: Instant,
    book: Mutex<Book>,
}

#[derive(Debug, Default)]
struct Book {
    waiting: BTreeMap<Key, Waker>,
    last: u64,
    /// What the kernel was told.
    armed: Option<Instant>,
    /// The task that tells it, unless it is about to run.
    arming: Option<Waker>,
    ended: bool,
}

impl Alarms {
    /// Spawns the task that arms the earliest.
    pub(super) fn start() -> io::Result<Arc<Self>> {
        let alarms = Arc::new(Self { began: now(), book: Mutex::default() });
        let fd = TimerFd::new(ClockId::CLOCK_MONOTONIC, TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC)?;
        // SAFETY: `Fd` owns its one descriptor and never gives it up or changes it.
        let fd = unsafe { AsyncFd::register_with_interest(Fd(fd), Interest::READABLE) }?;
        let own = alarms.clone();
        tokio::spawn(async move { poll_fn(|cx| own.poll(&fd, cx)).await });
        Ok(alarms)
    }

    /// Nothing is woken any more.
    pub(super) fn end(&self) {
        self.book().ended = true;
        self.rearm();
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        // Every change is a plain collection operation: a panic elsewhere leaves the book consistent.
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn rearm(&self) {
        let arming = self.book().arming.take();
        arming.into_iter().for_each(Waker::wake);
    }

    /// Wakes what is due, and arms what is next.
    fn poll(&self, fd: &AsyncFd<Fd>, cx: &mut Context<'_>) -> Poll<()> {
        // That it rang is of no interest (the clock says what is due), only that it will be heard when it rings again.
        while let Poll::Ready(Ok(mut rang)) = fd.poll_read_ready(cx) {
            rang.clear_ready();
        }
        let now = now();
        let due: Vec<Waker> = {
            let mut book = self.book();
            if book.ended {
                return Poll::Ready(());
            }
            let mut due = Vec::new();
            let next = loop {
                let Some(first) = book.waiting.first_entry() else { break None };
                let at = first.key().0;
                if at > now {
                    break Some(at);
                }
                due.push(first.remove());
            };
            // One that rang is no longer armed, also when the next is for the same moment.
            if next != book.armed || book.armed.is_some_and(|at| at <= now) {
                fd.get_ref().arm(next.map(|at| at.saturating_duration_since(now)));
                book.armed = next;
            }
            book.arming = Some(cx.waker().clone());
            due
        };
        due.into_iter().for_each(Waker::wake);
        Poll::Pending
    }

    /// Up to a whole millisecond since the start.
    fn round(&self, at: Instant) -> Instant {
        let since = at.saturating_duration_since(self.began);
        let rest = since.subsec_nanos() % GRAIN;
        if rest == 0 { at } else { at.checked_add(Duration::from_nanos((GRAIN - rest).into())).unwrap_or(at) }
    }
}

/// One deadline; waits from its first poll on.
#[derive(Debug)]
pub(super) struct Timer {
    alarms: Arc<Alarms>,
    at: Instant,
    waits: Option<Key>,
}

impl Timer {
    pub(super) fn new(alarms: Arc<Alarms>, at: Instant) -> Self {
        let at = alarms.round(at);
        Self { alarms, at, waits: None }
    }

    /// Takes the waker that waits, if one does, and says whether it was the earliest.
    fn withdraw(&mut self, book: &mut Book) -> (Option<Waker>, bool) {
        let Some(key) = self.waits.take() else { return (None, false) };
        let first = book.waiting.first_key_value().is_some_and(|(first, _)| *first == key);
        (book.waiting.remove(&key), first)
    }

    /// Writes it down; whether it is the earliest now.
    fn enter(&mut self, book: &mut Book, waker: Waker) -> bool {
        book.last += 1;
        let key = (self.at, book.last);
        self.waits = Some(key);
        let first = book.waiting.first_key_value().is_none_or(|(first, _)| key < *first);
        book.waiting.insert(key, waker);
        first
    }
}

impl AsyncTimer for Timer {
    fn reset(mut self: Pin<&mut Self>, at: Instant) {
        let alarms = self.alarms.clone();
        let at = alarms.round(at);
        if at == self.at {
            return;
        }
        self.at = at;
        let mut book = alarms.book();
        let (waker, was_first) = self.withdraw(&mut book);
        let is_first = waker.is_some_and(|waker| self.enter(&mut book, waker));
        drop(book);
        if was_first || is_first {
            alarms.rearm();
        }
    }

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let alarms = self.alarms.clone();
        let mut book = alarms.book();
        if now() >= self.at {
            // Nobody waits for the kernel's word about it any more; if it comes, it finds nothing to do.
            let withdrawn = self.withdraw(&mut book);
            drop(book);
            drop(withdrawn);
            return Poll::Ready(());
        }
        if let Some(waker) = self.waits.and_then(|key| book.waiting.get_mut(&key)) {
            let other = (!waker.will_wake(cx.waker())).then(|| std::mem::replace(waker, cx.waker().clone()));
            drop(book);
            drop(other);
            return Poll::Pending;
        }
        let first = self.enter(&mut book, cx.waker().clone());
        drop(book);
        if first {
            alarms.rearm();
        }
        Poll::Pending
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        let alarms = self.alarms.clone();
        let mut book = alarms.book();
        // The kernel may ring for it once more.
        let withdrawn = self.withdraw(&mut book);
        drop(book);
        drop(withdrawn);
    }
}

/// The kernel's timer.
#[derive(Debug)]
struct Fd(TimerFd);

impl Fd {
    /// Rings after so long, once; or never.
    fn arm(&self, after: Option<Duration>) {
        let set = match after {
            // Zero would disarm it.
            Some(after) => {
                let after = TimeSpec::from_duration(after.max(Duration::from_nanos(1)));
                self.0.set(Expiration::OneShot(after), TimerSetTimeFlags::empty())
            }
            None => self.0.unset(),
        };
        // It fails only for a file descriptor or a time that makes no sense.
        set.expect("a timer can be set");
    }
}

impl AsRawFd for Fd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// Nanoseconds in the grain of deadlines, a millisecond.
const GRAIN: u32 = 1_000_000;

#[cfg(test)]
mod tests {
    use quinn::Runtime;

    use super::{super::Frugal, *};
    use crate::net::timer;

    const MS: Duration = Duration::from_millis(1);

    #[tokio::test]
    async fn rings_at_its_time_and_not_before_in_whatever_order_it_was_set() {
        let runtime = Arc::new(Frugal::new().unwrap());
        let began = now();
        let waits = [30, 10, 200, 20, 10].map(|after| {
            let runtime = runtime.clone();
            tokio::spawn(async move {
                timer::sleep(&*runtime, after * MS).await;
                (after, began.elapsed())
            })
        });
        for wait in waits {
            let (after, took) = wait.await.unwrap();
            assert!(took >= after * MS && took < after * MS + 5000 * MS, "{after} ms took {took:?}");
        }
    }

    #[tokio::test]
    async fn moved_forward_and_back_it_rings_once_at_the_last_time() {
        let runtime = Frugal::new().unwrap();
        let began = now();
        let mut timer = runtime.new_timer(began + 10 * MS);
        let mut polls = 0;
        poll_fn(|cx| {
            polls += 1;
            if polls == 1 {
                assert!(timer.as_mut().poll(cx).is_pending());
                timer.as_mut().reset(began + 10_000 * MS);
                assert!(timer.as_mut().poll(cx).is_pending());
                timer.as_mut().reset(began + 40 * MS);
            }
            timer.as_mut().poll(cx)
        })
        .await;
        assert!(began.elapsed() >= 40 * MS, "{:?}", began.elapsed());
        assert_eq!(polls, 2, "the earlier deadline that was moved wakes nobody");
        timer.as_mut().reset(now() + 5 * MS);
        poll_fn(|cx| timer.as_mut().poll(cx)).await;
    }

    #[tokio::test]
    async fn a_dropped_timer_leaves_nothing_behind_and_the_next_one_still_rings() {
        let runtime = Frugal::new().unwrap();
        for _ in 0..3 {
            let dropped = timer::timeout(&runtime, 20 * MS, std::future::ready(())).await;
            assert_eq!(dropped, Ok(()));
            timer::sleep(&runtime, 2 * MS).await;
        }
        assert!(runtime.alarms.book().waiting.is_empty());
    }
}
