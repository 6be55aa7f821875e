//! N agents of one kind, every one a process of its own: Serf's, or lanemesh's sidecars. Both are asked for the same things.

use std::{
    io::{Read, Write},
    net::{IpAddr, SocketAddr, TcpStream},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::{
    journal::{Journal, Word},
    network::{Far, address, divided_address, side_of},
    support::{
        http::Connection,
        process::Owned,
        sidecar::{Announced, Mesh},
    },
};

/// Whose agents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Serf,
    Ours,
}

/// The agents.
pub struct Cluster<'a> {
    pub kind: Kind,
    pub size: usize,
    pub journal: Journal,
    far: Option<&'a Far>,
    processes: Vec<Option<Owned>>,
    mesh: Option<Mesh>,
}

impl<'a> Cluster<'a> {
    /// None is started yet. With `far` its second half lives there.
    pub fn new(kind: Kind, size: usize, far: Option<&'a Far>) -> Self {
        let mesh = (kind == Kind::Ours).then(|| {
            let mut mesh = Mesh::new(&format!("serf-{size}"));
            for at in 0..size {
                // Nobody listens: what is measured is the mesh.
                let app = Announced { port: 9, check: "none" };
                let sidecar = mesh.add(&name(at), Some(app));
                sidecar.gossip = SocketAddr::new(place(at, size, far), PORT);
                sidecar.set = vec!["log.format=text".into()];
            }
            mesh
        });
        let processes = (0..size).map(|_| None).collect();
        Self { kind, size, journal: Journal::new(size), far, processes, mesh }
    }

    /// All agents but these.
    pub fn others(&self, without: &[usize]) -> Vec<usize> {
        (0..self.size).filter(|at| !without.contains(at)).collect()
    }

    /// Starts one; returns the moment before.
    pub fn start(&mut self, at: usize) -> Instant {
        let mut command = self.command(at);
        if let Some(far) = self.far.filter(|_| side_of(at, self.size) == 1) {
            far.enter(&mut command);
        }
        let before = Instant::now();
        let mut process = Owned::spawn(&mut command).expect("an agent starts");
        match self.kind {
            Kind::Serf => {
                let log = process.child().stdout.take().expect("it is piped");
                self.journal.read(at, log, serf_line);
            }
            Kind::Ours => {
                let log = process.child().stderr.take().expect("it is piped");
                self.journal.read(at, log, our_line);
            }
        }
        self.processes[at] = Some(process);
        before
    }

    fn command(&self, at: usize) -> Command {
        let ip = self.place(at);
        if let Some(mesh) = &self.mesh {
            let seeds: Vec<String> = mesh.sidecars.iter().take(SEEDS).map(|seed| seed.gossip.to_string()).collect();
            let mut command = mesh.sidecars[at].command(&seeds);
            command.stdout(Stdio::null()).stderr(Stdio::piped());
            return command;
        }
        let mut command = Command::new("serf");
        command.args(["agent", "-profile=lan", "-log-level=info"]);
        command.args([format!("-node={}", name(at)), format!("-bind={ip}:{PORT}"), format!("-rpc-addr={ip}:{RPC}")]);
        // Whoever is not the first has three seeds as well; Serf waits 30 s after a failed try of all.
        for seed in (0..SEEDS.min(self.size)).filter(|seed| *seed != at && at > 0) {
            command.arg(format!("-retry-join={}:{PORT}", self.place(seed)));
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        command
    }

    fn place(&self, at: usize) -> IpAddr {
        place(at, self.size, self.far)
    }

    /// kill -9.
    pub fn kill(&mut self, at: usize) {
        self.processes[at] = None;
    }

    /// Stops a process, or lets it go on.
    pub fn pause(&self, at: usize, stop: bool) {
        let pid = Pid::from_raw(self.pid(at) as i32);
        kill(pid, if stop { Signal::SIGSTOP } else { Signal::SIGCONT }).expect("the process is there");
    }

    /// Process id.
    pub fn pid(&self, at: usize) -> u32 {
        self.processes[at].as_ref().map_or(0, Owned::pid)
    }

    /// Orders a goodbye; returns when the order was sent. The process ends by itself.
    pub fn leave(&self, at: usize) -> Instant {
        let before = Instant::now();
        match &self.mesh {
            Some(mesh) => {
                let (admin, order) = (&mesh.sidecars[at], ("POST", "/v1/leave", "{}"));
                // Its answer comes when peers know; what counts is when they do.
                std::thread::scope(|scope| drop(scope.spawn(|| admin.order(order.0, order.1, order.2))));
            }
            None => Rpc::open(self.place(at)).leave(),
        }
        before
    }

    /// Waits until a process that was told to has ended.
    pub fn ended(&mut self, at: usize, limit: Duration) -> bool {
        let process = self.processes[at].as_mut();
        let ended = process.is_none_or(|process| {
            crate::support::until(limit, Duration::from_millis(5), || process.ended().then_some(())).is_some()
        });
        self.processes[at] = None;
        ended
    }

    /// Changes what an agent says of itself. How long until half and until all agents have it: with Serf in the member list,
    /// with lanemesh in the routing snapshot that requests are decided on.
    pub fn change(&self, at: usize, round: usize, limit: Duration) -> Option<(Duration, Duration)> {
        let others = self.others(&[at]);
        let Some(mesh) = &self.mesh else {
            let (mark, mut rpc) = (self.journal.mark(), Rpc::open(self.place(at)));
            let before = Instant::now();
            rpc.tag(&format!("v{round}"));
            let times = self.journal.each_says(mark, &others, at, &[Word::Updated], limit)?;
            return Some((times[times.len() / 2] - before, *times.last()? - before));
        };
        let sidecar = &mesh.sidecars[at];
        // 256 points at weight 100.
        let weight = if round.is_multiple_of(2) { 50 } else { 150 };
        let points = 256 * (self.size as u64 - 1) + 256 * weight / 100;
        let mut left: Vec<Connection> =
            others.iter().map(|other| Connection::new(mesh.sidecars[*other].admin)).collect();
        // Opened before, so that opening is not measured.
        left.iter_mut().for_each(|connection| drop(connection.json("/v1/route/orders?key=u1")));
        let before = Instant::now();
        sidecar.order("PATCH", &format!("/v1/instances/{}", sidecar.name), &format!("{{\"weight\": {weight}}}"));
        let mut half = None;
        let all = crate::support::until(limit, Duration::from_millis(4), || {
            let has = |connection: &mut Connection| {
                connection.json("/v1/route/orders?key=u1").is_some_and(|route| route["ring_points"] == points)
            };
            left.retain_mut(|connection| !has(connection));
            if left.len() <= others.len() / 2 {
                half.get_or_insert(before.elapsed());
            }
            left.is_empty().then(|| before.elapsed())
        })?;
        Some((half?, all))
    }
}

fn place(at: usize, size: usize, far: Option<&Far>) -> IpAddr {
    if far.is_some() { divided_address(at, size) } else { address(at) }
}

fn name(at: usize) -> String {
    format!("n{at}")
}

fn serf_line(line: &str) -> Option<(Word, &str)> {
    let words = [
        ("serf: EventMemberJoin: ", Word::Alive),
        ("serf: EventMemberFailed: ", Word::Down),
        ("serf: EventMemberLeave: ", Word::Left),
        ("serf: EventMemberUpdate: ", Word::Updated),
        ("memberlist: Suspect ", Word::Suspect),
    ];
    let (rest, word) = words.into_iter().find_map(|(text, word)| Some((line.split_once(text)?.1, word)))?;
    Some((word, rest.split(' ').next()?))
}

fn our_line(line: &str) -> Option<(Word, &str)> {
    let (name, state) = line.split_once(" member node=")?.1.split_once(" state=")?;
    let word = match state.trim_end() {
        "Alive" => Word::Alive,
        "Doubtful" => Word::Doubtful,
        "Down" => Word::Down,
        "Left" => Word::Left,
        _ => return None,
    };
    Some((word, name))
}

/// Serf's RPC: MessagePack over TCP, of which these few messages need next to nothing.
struct Rpc {
    stream: TcpStream,
    sequence: u8,
}

impl Rpc {
    fn open(ip: IpAddr) -> Self {
        let stream = TcpStream::connect((ip, RPC)).expect("Serf's RPC answers");
        stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a time limit can be set");
        let mut rpc = Self { stream, sequence: 0 };
        rpc.call("handshake", &[b"\x81".as_slice(), &text("Version"), b"\x01"].concat());
        rpc.answer();
        rpc
    }

    /// Replaces all tags by one. Does not wait for the answer, which comes when Serf has spread them.
    fn tag(&mut self, value: &str) {
        self.call("tags", &[b"\x81".as_slice(), &text("Tags"), b"\x81", &text("version"), &text(value)].concat());
    }

    fn leave(&mut self) {
        self.call("leave", b"");
        self.answer();
    }

    fn call(&mut self, command: &str, body: &[u8]) {
        let head = [b"\x82".as_slice(), &text("Command"), &text(command), &text("Seq"), &[self.sequence]].concat();
        self.sequence += 1;
        self.stream.write_all(&[&head, body].concat()).expect("Serf's RPC takes the request");
    }

    fn answer(&mut self) {
        let mut answer = [0; 256];
        let read = self.stream.read(&mut answer).unwrap_or(0);
        assert!(read > 0, "Serf's RPC answers");
    }
}

/// A short string in MessagePack.
fn text(text: &str) -> Vec<u8> {
    [&[0xa0 | text.len() as u8], text.as_bytes()].concat()
}

const PORT: u16 = 7946;
const RPC: u16 = 7373;
/// Agents that all others have as seeds.
const SEEDS: usize = 3;
