//! quinn's runtime for a process that mostly sleeps: tokio's tasks, but timers and a UDP socket of its own (Linux).
//!
//! An idle sidecar's processor time is the number of times it is woken. Of three wakes with tokio's timers and sockets two had
//! nothing to do: a timer of more than 64 ms wakes once more on its way down the wheel; one that becomes the earliest
//! interrupts the very poll that sets it; and a socket that is listened to for both directions reports after each packet that
//! it can be written again. Here one `timerfd` has the earliest deadline of all (`alarms`), and sockets are listened to for
//! what comes in; for room to write only while there is none (`socket`).
//!
//! Not here: tasks, which are tokio's. Other systems use quinn's own runtime for tokio.

mod alarms;
mod socket;

use std::{future::Future, io, pin::Pin, sync::Arc, time::Instant};

use quinn::{AsyncTimer, AsyncUdpSocket, Runtime};

use self::{
    alarms::{Alarms, Timer},
    socket::Socket,
};

/// See the module. Its timers end with it and with whatever was made by it.
#[derive(Debug)]
pub(super) struct Frugal {
    alarms: Arc<Alarms>,
}

impl Frugal {
    /// Inside a tokio runtime.
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self { alarms: Alarms::start()? })
    }
}

impl Drop for Frugal {
    fn drop(&mut self) {
        self.alarms.end();
    }
}

impl Runtime for Frugal {
    fn new_timer(&self, at: Instant) -> Pin<Box<dyn AsyncTimer>> {
        Box::pin(Timer::new(self.alarms.clone(), at))
    }

    fn spawn(&self, future: Pin<Box<dyn Future<Output = ()> + Send>>) {
        tokio::spawn(future);
    }

    fn wrap_udp_socket(&self, socket: std::net::UdpSocket) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        Ok(Arc::new(Socket::new(socket)?))
    }

    fn now(&self) -> Instant {
        tokio::time::Instant::now().into_std()
    }
}
