//! Waiting by the clock that the endpoint was started with.
//!
//! tokio's own timers would tie this module to tokio's runtime and, in a simulation, to its grain of a millisecond. With
//! quinn's `Runtime` everything that waits here does so by the clock that quinn itself goes by.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    time::{Duration, Instant},
};

use quinn::{AsyncTimer, Runtime};

/// The time was up first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Elapsed;

/// Waits for so long.
pub(super) async fn sleep(runtime: &dyn Runtime, span: Duration) {
    let mut timer = runtime.new_timer(runtime.now() + span);
    poll_fn(|cx| timer.as_mut().poll(cx)).await;
}

/// What `future` comes to within so long.
pub(super) async fn timeout<F: Future>(runtime: &dyn Runtime, span: Duration, future: F) -> Result<F::Output, Elapsed> {
    tokio::select! { biased;
        output = future => Ok(output),
        () = sleep(runtime, span) => Err(Elapsed),
    }
}

/// One deadline that is moved again and again: cheaper than a timer for each.
#[derive(Debug)]
pub struct Alarm {
    timer: Pin<Box<dyn AsyncTimer>>,
    at: Instant,
}

impl Alarm {
    pub(super) fn new(runtime: &dyn Runtime) -> Self {
        let at = runtime.now();
        Self { timer: runtime.new_timer(at), at }
    }

    /// Moves it; it is due at once until it is moved for the first time.
    pub fn set(&mut self, at: Instant) {
        if at != self.at {
            self.at = at;
            self.timer.as_mut().reset(at);
        }
    }

    /// Waits until it is due. May be given up and begun again.
    pub async fn ring(&mut self) {
        poll_fn(|cx| self.timer.as_mut().poll(cx)).await;
    }
}
