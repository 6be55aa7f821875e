//! Tasks and timers of all simulated processes, in virtual time: the runtime that quinn and `lanemesh::net` are given.
//!
//! Nothing runs by itself. The world pops processes that have something to do ([`Reactor::next`]) and has them do one step
//! ([`Process::step`]); it moves time forward and fires timers ([`Reactor::advance`]). Order is that of waking, and of arming for
//! timers of the same moment, so that the same seed gives the same history. Time has the grain of a nanosecond.
//!
//! Hand-written, because tokio's paused clock has a grain of a millisecond, one queue for all processes, and no way to stand
//! still, be slow or die one process at a time. Locks are there because quinn's traits want `Sync`; there is one thread.

use std::{
    cell::RefCell,
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap, VecDeque},
    fmt,
    future::Future,
    io,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll, Wake, Waker},
    time::{Duration, Instant},
};

use quinn::{AsyncTimer, AsyncUdpSocket, Runtime};

use super::crypto::Memo;
use crate::{
    chance::Chance,
    cpu::Cpu,
    queue::{Run, Time},
};

type Future_ = Pin<Box<dyn Future<Output = ()> + Send>>;

fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// All processes' tasks and timers.
pub struct Reactor {
    /// Stands for the start of the world; only differences to it mean anything.
    base: Instant,
    now: AtomicU64,
    timers: Mutex<Timers>,
    runnable: Mutex<VecDeque<Arc<Process>>>,
}

impl fmt::Debug for Reactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reactor").field("now", &self.now).finish_non_exhaustive()
    }
}

#[derive(Default)]
struct Timers {
    heap: BinaryHeap<Reverse<Armed>>,
    sequence: u64,
}

struct Armed {
    at: Time,
    sequence: u64,
    timer: Arc<Mutex<Alarm>>,
}

impl PartialEq for Armed {
    fn eq(&self, other: &Self) -> bool {
        self.sequence == other.sequence
    }
}

impl Eq for Armed {}

impl PartialOrd for Armed {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Armed {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.sequence).cmp(&(other.at, other.sequence))
    }
}

/// One timer's state. It may stand in the heap for an earlier moment than it is due: one that is moved back, as QUIC does with
/// every packet, is looked at when its old time comes. `armed` names its valid place there.
#[derive(Debug)]
struct Alarm {
    due: Time,
    waker: Option<Waker>,
    armed: Option<Time>,
}

impl Reactor {
    /// At time zero.
    #[expect(
        clippy::disallowed_methods,
        reason = "quinn counts in `Instant`s, which come from nowhere else; only differences are used"
    )]
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            base: Instant::now(),
            now: AtomicU64::new(0),
            timers: Mutex::default(),
            runnable: Mutex::default(),
        })
    }

    /// Virtual time.
    pub fn now(&self) -> Time {
        self.now.load(Relaxed)
    }

    fn instant(&self, at: Time) -> Instant {
        self.base + Duration::from_nanos(at)
    }

    fn time(&self, at: Instant) -> Time {
        u64::try_from(at.saturating_duration_since(self.base).as_nanos()).unwrap_or(Time::MAX)
    }

    /// Moves on to `now` and wakes whoever waits for a moment up to it.
    pub fn advance(&self, now: Time) {
        self.now.store(now, Relaxed);
        loop {
            let mut timers = lock(&self.timers);
            if timers.heap.peek().is_none_or(|Reverse(next)| next.at > now) {
                return;
            }
            let Some(Reverse(Armed { at, timer, .. })) = timers.heap.pop() else { return };
            let mut alarm = lock(&timer);
            if alarm.armed != Some(at) {
                // It was moved forward meanwhile, and stands elsewhere.
                continue;
            }
            alarm.armed = None;
            if alarm.waker.is_some() && alarm.due > now {
                let due = alarm.due;
                alarm.armed = Some(due);
                timers.push(due, timer.clone());
                continue;
            }
            let waker = alarm.waker.take();
            drop((alarm, timers));
            waker.into_iter().for_each(Waker::wake);
        }
    }

    /// When [`Reactor::advance`] has something to do next.
    pub fn next_timer(&self) -> Option<Time> {
        lock(&self.timers).heap.peek().map(|Reverse(next)| next.at)
    }

    /// A process that has something to do; it is taken off the list.
    pub fn next(&self) -> Option<Arc<Process>> {
        let process = lock(&self.runnable).pop_front()?;
        process.queued.store(false, Relaxed);
        Some(process)
    }

    /// Forgets everything, so that processes and tasks, which hold each other, can go.
    pub fn clear(&self) {
        lock(&self.runnable).clear();
        // Outside of the lock: what goes may look at the time.
        drop(std::mem::take(&mut *lock(&self.timers)));
    }
}

impl Timers {
    fn push(&mut self, at: Time, timer: Arc<Mutex<Alarm>>) {
        self.sequence += 1;
        self.heap.push(Reverse(Armed { at, sequence: self.sequence, timer }));
    }
}

/// One run of one host's sidecar.
pub struct Process {
    /// Which.
    pub run: Run,
    /// What it works.
    pub cpu: Arc<Cpu>,
    /// Signatures known to be good.
    pub memo: Arc<Memo>,
    reactor: Arc<Reactor>,
    /// What its wall clock is off by, in milliseconds.
    skew: AtomicI64,
    chance: Mutex<Chance>,
    alive: AtomicBool,
    /// Stands on the reactor's list.
    queued: AtomicBool,
    /// May not run now; whoever held it releases it.
    held: AtomicBool,
    ready: Mutex<VecDeque<Arc<Task>>>,
    tasks: Mutex<BTreeMap<u64, Arc<Task>>>,
    spawned: AtomicU64,
}

impl fmt::Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Process").field("run", &self.run).finish_non_exhaustive()
    }
}

thread_local! {
    static CURRENT: RefCell<Option<Arc<Process>>> = const { RefCell::new(None) };
}

/// The process whose code runs now.
pub(super) fn current() -> Option<Arc<Process>> {
    CURRENT.with_borrow(Clone::clone)
}

impl Process {
    /// A process without tasks. Its randomness is `chance`.
    pub fn new(reactor: Arc<Reactor>, run: Run, cpu: Arc<Cpu>, memo: Arc<Memo>, chance: Chance) -> Arc<Self> {
        Arc::new(Self {
            run,
            cpu,
            memo,
            reactor,
            skew: AtomicI64::new(0),
            chance: Mutex::new(chance),
            alive: AtomicBool::new(true),
            queued: AtomicBool::new(false),
            held: AtomicBool::new(false),
            ready: Mutex::default(),
            tasks: Mutex::default(),
            spawned: AtomicU64::new(0),
        })
    }

    /// Runs something as this process: randomness and CPU time are its own.
    pub fn enter<R>(self: &Arc<Self>, what: impl FnOnce() -> R) -> R {
        let before = CURRENT.replace(Some(self.clone()));
        let result = what();
        CURRENT.set(before);
        result
    }

    /// Starts a task.
    pub fn spawn(self: &Arc<Self>, future: impl Future<Output = ()> + Send + 'static) {
        self.spawn_boxed(Box::pin(future));
    }

    fn spawn_boxed(self: &Arc<Self>, future: Future_) {
        if !self.is_alive() {
            return;
        }
        let id = self.spawned.fetch_add(1, Relaxed);
        let task = Arc::new(Task {
            id,
            process: self.clone(),
            queued: AtomicBool::new(false),
            future: Mutex::new(Some(future)),
        });
        lock(&self.tasks).insert(id, task.clone());
        task.wake();
    }

    /// Runs one task that is ready; `false` if there is none.
    pub fn step(self: &Arc<Self>) -> bool {
        let Some(task) = lock(&self.ready).pop_front() else { return false };
        // From here on whatever wakes it is news.
        task.queued.store(false, Relaxed);
        let Some(mut future) = lock(&task.future).take() else { return true };
        let waker = Waker::from(task.clone());
        let done = self.enter(|| future.as_mut().poll(&mut Context::from_waker(&waker)).is_ready());
        if done {
            lock(&self.tasks).remove(&task.id);
            // What it leaves behind may wake others.
            self.enter(|| drop(future));
        } else {
            *lock(&task.future) = Some(future);
        }
        true
    }

    /// Whether a task is ready.
    pub fn is_ready(&self) -> bool {
        !lock(&self.ready).is_empty()
    }

    /// Puts it on the list of those that have something to do.
    pub fn kick(self: &Arc<Self>) {
        let waits = self.held.load(Relaxed) || !self.is_alive();
        if !waits && !self.queued.swap(true, Relaxed) {
            lock(&self.reactor.runnable).push_back(self.clone());
        }
    }

    /// It may not run: it stands still, or works.
    pub fn hold(&self) {
        self.held.store(true, Relaxed);
    }

    /// It may run again.
    pub fn release(self: &Arc<Self>) {
        if self.held.swap(false, Relaxed) {
            self.kick();
        }
    }

    /// Whether it has not ended.
    pub fn is_alive(&self) -> bool {
        self.alive.load(Relaxed)
    }

    /// It ends without a word. Its tasks are dropped, and nothing that this sets off is carried out.
    pub fn kill(self: &Arc<Self>) {
        self.alive.store(false, Relaxed);
        let tasks = std::mem::take(&mut *lock(&self.tasks));
        lock(&self.ready).clear();
        self.enter(|| {
            for task in tasks.into_values() {
                let future = lock(&task.future).take();
                drop(future);
            }
        });
        lock(&self.ready).clear();
    }

    /// Random bytes, from the seed.
    pub fn fill(&self, bytes: &mut [u8]) {
        let mut chance = lock(&self.chance);
        for part in bytes.chunks_mut(8) {
            part.copy_from_slice(&chance.next().to_le_bytes()[..part.len()]);
        }
    }

    /// Sets what its wall clock is off by, in milliseconds.
    pub fn set_skew(&self, ms: i64) {
        self.skew.store(ms, Relaxed);
    }

    /// Milliseconds since 1970 by its wall clock.
    pub fn wall(&self) -> u64 {
        let true_time = crate::host::EPOCH_MS + self.reactor.now() / 1_000_000;
        true_time.saturating_add_signed(self.skew.load(Relaxed))
    }

    /// Virtual time.
    pub fn now(&self) -> Time {
        self.reactor.now()
    }
}

/// One task. Its waker is itself.
struct Task {
    id: u64,
    process: Arc<Process>,
    queued: AtomicBool,
    future: Mutex<Option<Future_>>,
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        if self.process.is_alive() && !self.queued.swap(true, Relaxed) {
            let process = self.process.clone();
            lock(&process.ready).push_back(self);
            process.kick();
        }
    }
}

/// A process as quinn's runtime.
#[derive(Debug, Clone)]
pub struct Virtual(pub Arc<Process>);

impl Runtime for Virtual {
    fn new_timer(&self, at: Instant) -> Pin<Box<dyn AsyncTimer>> {
        let due = self.0.reactor.time(at);
        let alarm = Arc::new(Mutex::new(Alarm { due, waker: None, armed: None }));
        Box::pin(Timer { alarm, reactor: self.0.reactor.clone() })
    }

    fn spawn(&self, future: Future_) {
        self.0.spawn_boxed(future);
    }

    fn wrap_udp_socket(&self, _: std::net::UdpSocket) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        Err(io::Error::other("there is no real socket in a simulation"))
    }

    fn now(&self) -> Instant {
        self.0.reactor.instant(self.0.reactor.now())
    }
}

struct Timer {
    alarm: Arc<Mutex<Alarm>>,
    reactor: Arc<Reactor>,
}

impl fmt::Debug for Timer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Timer")
    }
}

impl Timer {
    /// Puts it into the heap, unless it stands there in time.
    fn arm(&self, alarm: &mut Alarm) {
        if alarm.armed.is_none_or(|armed| armed > alarm.due) {
            alarm.armed = Some(alarm.due);
            lock(&self.reactor.timers).push(alarm.due, self.alarm.clone());
        }
    }
}

impl AsyncTimer for Timer {
    fn reset(self: Pin<&mut Self>, at: Instant) {
        let due = self.reactor.time(at);
        let mut alarm = lock(&self.alarm);
        alarm.due = due;
        if alarm.waker.is_some() {
            self.arm(&mut alarm);
        }
    }

    fn poll(self: Pin<&mut Self>, cx: &mut Context) -> Poll<()> {
        let mut alarm = lock(&self.alarm);
        if alarm.due <= self.reactor.now() {
            alarm.waker = None;
            return Poll::Ready(());
        }
        if !alarm.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            alarm.waker = Some(cx.waker().clone());
        }
        self.arm(&mut alarm);
        Poll::Pending
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        // What is left in the heap wakes nobody.
        lock(&self.alarm).waker = None;
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    fn process(reactor: &Arc<Reactor>) -> Arc<Process> {
        let run = Run { host: 0, epoch: 1 };
        Process::new(reactor.clone(), run, Arc::new(Cpu::new(1.0)), Arc::default(), Chance::of(1, &[]))
    }

    /// Runs everything up to a moment.
    fn play(reactor: &Reactor, until: Time) {
        loop {
            while let Some(process) = reactor.next() {
                while process.step() {}
            }
            match reactor.next_timer() {
                Some(at) if at <= until => reactor.advance(at),
                _ => return reactor.advance(until),
            }
        }
    }

    async fn wait(process: Arc<Process>, span: Time) {
        let runtime = Virtual(process);
        let mut timer = runtime.new_timer(runtime.now() + Duration::from_nanos(span));
        poll_fn(|cx| timer.as_mut().poll(cx)).await;
    }

    #[test]
    fn tasks_wait_to_the_nanosecond_and_in_order() {
        let reactor = Reactor::new();
        let process = process(&reactor);
        let seen = Arc::new(Mutex::new(Vec::new()));
        for span in [30, 10, 20, 10] {
            let (p, seen) = (process.clone(), seen.clone());
            process.spawn(async move {
                wait(p.clone(), span).await;
                lock(&seen).push((span, p.now()));
            });
        }
        play(&reactor, 25);
        assert_eq!(*lock(&seen), [(10, 10), (10, 10), (20, 20)]);
        play(&reactor, 30);
        assert_eq!(lock(&seen).len(), 4);
    }

    #[test]
    fn a_timer_that_is_moved_back_and_forth_fires_once_and_in_time() {
        let reactor = Reactor::new();
        let process = process(&reactor);
        let fired = Arc::new(AtomicU64::new(0));
        let (p, told) = (process.clone(), fired.clone());
        process.spawn(async move {
            let runtime = Virtual(p.clone());
            let at = |ns| p.reactor.instant(ns);
            let mut timer = runtime.new_timer(at(10));
            // Armed for 10, then due at 40, then at 20.
            poll_fn(|cx| Poll::Ready(timer.as_mut().poll(cx).is_ready())).await;
            timer.as_mut().reset(at(40));
            timer.as_mut().reset(at(20));
            poll_fn(|cx| timer.as_mut().poll(cx)).await;
            told.store(p.now(), Relaxed);
        });
        play(&reactor, 100);
        assert_eq!(fired.load(Relaxed), 20);
    }

    #[test]
    fn who_is_held_does_not_run_and_who_is_dead_never_will() {
        let reactor = Reactor::new();
        let (held, dead) = (process(&reactor), process(&reactor));
        let ran = Arc::new(AtomicU64::new(0));
        for process in [&held, &dead] {
            let ran = ran.clone();
            process.spawn(async move {
                ran.fetch_add(1, Relaxed);
            });
        }
        while reactor.next().is_some() {}
        held.hold();
        dead.kill();
        held.kick();
        dead.kick();
        assert!(reactor.next().is_none());
        held.release();
        play(&reactor, 1);
        assert_eq!(ran.load(Relaxed), 1);
        assert_eq!(Arc::strong_count(&ran), 1, "what the dead one held is gone");
    }
}
