//! A switch in user space between network namespaces. Between any two of its ports lies a link of the simulator ([`Links`]): what it
//! loses, delays, doubles and reorders there it does here, to the frames of real processes.
//!
//! A port is the near end of a pair of virtual interfaces. Frames go from one to another with the header that says what the
//! kernel has left undone of them (checksums), so that the far end's kernel takes them as its own.
//!
//! Not here: bandwidth, and the loss of what the reader is too slow for, which the kernel does by itself.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
    io::{self, Read},
    mem::size_of,
    os::fd::{AsFd, AsRawFd},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use lanemesh_sim::links::{Links, Quality};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

/// A running switch.
pub(super) struct Switch {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    links: Mutex<Links>,
    stop: AtomicBool,
}

impl Switch {
    /// Between the interfaces of these indices, in the namespace that the caller is in. Links are perfect at first.
    pub(super) fn new(ports: &[u32], seed: u64) -> io::Result<Self> {
        let sockets = ports.iter().map(|index| port(*index)).collect::<io::Result<Vec<_>>>()?;
        let perfect = Quality { delay_ms: 0.0, jitter_ms: 0.0, ..Quality::default() };
        let shared = Arc::new(Shared { links: Mutex::new(Links::new(seed, perfect)), stop: AtomicBool::new(false) });
        let theirs = shared.clone();
        let thread = std::thread::spawn(move || forward(&theirs, &sockets));
        Ok(Self { shared, thread: Some(thread) })
    }

    /// What lies between its ports; host k of a link is the port k.
    pub(super) fn links(&self) -> MutexGuard<'_, Links> {
        self.shared.links.lock().unwrap()
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        self.shared.stop.store(true, Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// A socket that hears and says everything on an interface.
fn port(index: u32) -> io::Result<Socket> {
    let everything = (libc::ETH_P_ALL as u16).to_be();
    let socket = Socket::new(Domain::PACKET, Type::RAW, Some(Protocol::from(i32::from(everything))))?;
    for option in [VNET_HEADER, IGNORE_OUTGOING] {
        let on: libc::c_int = 1;
        // SAFETY: the value is an int that lives through the call, of the size that is said.
        let done = unsafe {
            let value = (&raw const on).cast();
            libc::setsockopt(socket.as_raw_fd(), libc::SOL_PACKET, option, value, size_of::<libc::c_int>() as u32)
        };
        if done != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    // SAFETY: `sockaddr_ll` is what packet sockets are bound by; it fits into the storage, and its length is said.
    let ((), address) = unsafe {
        SockAddr::try_init(|storage, length| {
            storage.cast::<libc::sockaddr_ll>().write(libc::sockaddr_ll {
                sll_family: libc::AF_PACKET as u16,
                sll_protocol: everything,
                sll_ifindex: index as i32,
                sll_hatype: 0,
                sll_pkttype: 0,
                sll_halen: 0,
                sll_addr: [0; 8],
            });
            *length = size_of::<libc::sockaddr_ll>() as u32;
            Ok(())
        })
    }?;
    socket.bind(&address)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// A frame on its way, by the moment at which it arrives.
type Late = Reverse<(Duration, u64, usize, Vec<u8>)>;

fn forward(shared: &Shared, ports: &[Socket]) {
    let began = Instant::now();
    let (mut late, mut count) = (BinaryHeap::<Late>::new(), 0);
    let mut homes = BTreeMap::<[u8; 6], usize>::new();
    let mut buffer = vec![0; LARGEST];
    while !shared.stop.load(Relaxed) {
        let next = late.peek().map_or(IDLE, |Reverse((at, ..))| at.saturating_sub(began.elapsed()).min(IDLE));
        let mut heard: Vec<PollFd> = ports.iter().map(|port| PollFd::new(port.as_fd(), PollFlags::POLLIN)).collect();
        let _ = poll(&mut heard, PollTimeout::try_from(next).unwrap());
        for from in 0..ports.len() {
            while let Ok(size) = (&ports[from]).read(&mut buffer) {
                let Some(frame) = buffer.get(..size).filter(|frame| frame.len() >= HEADER + 14) else { continue };
                let address = |at: usize| <[u8; 6]>::try_from(&frame[HEADER + at..HEADER + at + 6]).unwrap();
                homes.insert(address(6), from);
                let known = homes.get(&address(0)).copied();
                let to = (0..ports.len()).filter(|to| *to != from && known.is_none_or(|known| known == *to));
                let now = began.elapsed();
                let mut links = shared.links.lock().unwrap();
                links.now = now.as_nanos() as u64;
                for to in to {
                    for delay in links.packet(from as u32, to as u32).into_iter().flatten() {
                        count += 1;
                        late.push(Reverse((now + Duration::from_nanos(delay), count, to, frame.to_vec())));
                    }
                }
            }
        }
        while late.peek().is_some_and(|Reverse((at, ..))| *at <= began.elapsed()) {
            let Some(Reverse((_, _, to, frame))) = late.pop() else { break };
            // What can't be sent is lost, as on any wire.
            let _ = ports[to].send(&frame);
        }
    }
}

/// `PACKET_VNET_HDR`: a `virtio_net_hdr` goes before every frame.
const VNET_HEADER: libc::c_int = 15;
/// `PACKET_IGNORE_OUTGOING`: what is sent here is not heard here.
const IGNORE_OUTGOING: libc::c_int = 23;
/// Its size.
const HEADER: usize = 10;
/// More than a kernel hands over at once.
const LARGEST: usize = 70_000;
/// Longest wait: an end is noticed.
const IDLE: Duration = Duration::from_millis(20);
