//! One timer for all waits of a connection. Most waits end long before their time, so that it is not set back when they do: it stays
//! where the earliest of them put it, looks when it fires, and goes on to where it is needed then.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::time::{Sleep, sleep_until};

use crate::{telemetry::Clock, types::Mono};

/// The timer of one connection.
pub(super) struct Timer {
    clock: Clock,
    sleep: Option<Pin<Box<Sleep>>>,
}

impl Timer {
    pub(super) fn new(clock: Clock) -> Self {
        Self { clock, sleep: None }
    }

    /// Ready once it is `at`.
    pub(super) fn poll(&mut self, at: Mono, cx: &mut Context<'_>) -> Poll<()> {
        let due = self.clock.instant(at).into();
        let sleep = self.sleep.get_or_insert_with(|| Box::pin(sleep_until(due)));
        if sleep.deadline() > due {
            sleep.as_mut().reset(due);
        }
        loop {
            ready!(sleep.as_mut().poll(cx));
            if sleep.deadline() >= due {
                return Poll::Ready(());
            }
            sleep.as_mut().reset(due);
        }
    }
}
