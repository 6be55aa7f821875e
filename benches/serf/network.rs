//! A network of one's own: only this benchmark's traffic is on it, so its bytes can be counted, its datagrams lost and its
//! halves cut apart. Linux, as root; without that the shared loopback is used, and loss and partition are left out.

use std::{
    fs::File,
    io::Write,
    net::{IpAddr, Ipv4Addr},
    os::unix::process::CommandExt,
    process::{Command, Stdio},
};

use nix::sched::{CloneFlags, setns, unshare};

use crate::support::process::Owned;

/// Where agents live.
pub struct Network {
    private: bool,
}

/// A second namespace, joined to the first by one cable.
pub struct Far {
    holder: Owned,
}

impl Network {
    /// Call it before any thread is started.
    pub fn new() -> Self {
        let private = unshare(CloneFlags::CLONE_NEWNET).is_ok() && run(&mut ip("link set lo up"));
        Self { private }
    }

    /// Whether loss and partition can be had, and bytes are only this benchmark's.
    pub fn is_private(&self) -> bool {
        self.private
    }

    /// From now on this share of all UDP datagrams is lost on the way in, each by itself. Whether that can be done here.
    pub fn lose(&self, per_cent: u32) -> bool {
        if !self.private || !run(&mut tables("-F INPUT")) {
            return false;
        }
        let rule = format!("-A INPUT -p udp -m statistic --mode random --probability 0.{per_cent:02} -j DROP");
        per_cent == 0 || run(&mut tables(&rule))
    }

    /// Makes the second half, with addresses for `size` agents in both; `None` where that cannot be done.
    pub fn divide(&self, size: usize) -> Option<Far> {
        if !self.private {
            return None;
        }
        let mut hold = Command::new("sleep");
        hold.arg("infinity");
        // SAFETY: one system call between fork and exec.
        unsafe { hold.pre_exec(|| Ok(unshare(CloneFlags::CLONE_NEWNET)?)) };
        let far = Far { holder: Owned::spawn(&mut hold).ok()? };
        let made = run(&mut ip(&format!("link add {CABLE} type veth peer name {CABLE} netns {}", far.holder.pid())));
        let mut there = Command::new("ip");
        far.enter(&mut there);
        there.args(["link", "set", "lo", "up"]);
        let done = made && run(&mut there) && (0..2).all(|side| far.addresses(side, size));
        done.then_some(far)
    }
}

impl Far {
    /// Makes a command run in the second namespace.
    pub fn enter(&self, command: &mut Command) {
        let path = format!("/proc/{}/ns/net", self.holder.pid());
        let namespace = File::open(path).expect("the namespace's holder lives");
        // SAFETY: one system call between fork and exec.
        unsafe { command.pre_exec(move || Ok(setns(&namespace, CloneFlags::CLONE_NEWNET)?)) };
    }

    fn addresses(&self, side: usize, size: usize) -> bool {
        let mut batch = Command::new("ip");
        batch.args(["-batch", "-"]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        if side == 1 {
            self.enter(&mut batch);
        }
        let lines: String = (0..size)
            .filter(|at| side_of(*at, size) == side)
            .map(|at| format!("addr add {}/16 dev {CABLE}\n", divided_address(at, size)))
            .collect();
        let Ok(mut child) = batch.spawn() else { return false };
        let written = child.stdin.take().is_some_and(|mut to| writeln!(to, "{lines}link set {CABLE} up").is_ok());
        written && child.wait().is_ok_and(|status| status.success())
    }

    /// Cuts the cable, or joins it again; both ways, silently.
    pub fn cut(&self, cut: bool) -> bool {
        let change = if cut { "-I" } else { "-D" };
        run(&mut tables(&format!("{change} INPUT -i {CABLE} -j DROP")))
            && run(&mut tables(&format!("{change} OUTPUT -o {CABLE} -j DROP")))
    }
}

impl Drop for Far {
    fn drop(&mut self) {
        // By itself it would go some time after the namespace, and the next one has the same name.
        run(&mut ip(&format!("link del {CABLE}")));
    }
}

/// Address of an agent where nobody is cut off.
pub fn address(at: usize) -> IpAddr {
    Ipv4Addr::new(127, 0, 1 + (at / 200) as u8, 1 + (at % 200) as u8).into()
}

/// Address of an agent of a divided cluster.
pub fn divided_address(at: usize, size: usize) -> IpAddr {
    Ipv4Addr::new(10, 201, 1 + side_of(at, size) as u8, 1 + (at % 250) as u8).into()
}

/// The half in which an agent of a divided cluster lives.
pub fn side_of(at: usize, size: usize) -> usize {
    usize::from(at >= size / 2)
}

fn ip(arguments: &str) -> Command {
    words("ip", arguments)
}

fn tables(arguments: &str) -> Command {
    words("iptables", arguments)
}

fn words(program: &str, arguments: &str) -> Command {
    let mut command = Command::new(program);
    command.args(arguments.split(' '));
    command
}

fn run(command: &mut Command) -> bool {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

const CABLE: &str = "lmcable";
