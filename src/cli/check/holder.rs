//! Who holds a port: the system's tables of sockets, and the open files of processes. Best effort: another user's processes show
//! their sockets to root only, and other systems than Linux not at all.

use std::{
    fmt, fs,
    net::{IpAddr, SocketAddr},
};

/// A process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Holder {
    pub pid: u32,
    pub name: String,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (pid {})", self.name, self.pid)
    }
}

/// What kind of port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Tcp,
    Udp,
}

/// The process that holds it, where that can be seen.
pub(super) fn holder(kind: Kind, addr: SocketAddr) -> Option<Holder> {
    let tables = match kind {
        Kind::Tcp => ["/proc/net/tcp", "/proc/net/tcp6"],
        Kind::Udp => ["/proc/net/udp", "/proc/net/udp6"],
    };
    let inodes: Vec<u64> = tables
        .iter()
        .filter_map(|table| fs::read_to_string(table).ok())
        .flat_map(|text| inodes(&text, kind, addr))
        .collect();
    processes().find(|pid| holds(*pid, &inodes)).map(|pid| {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        Holder { pid, name: name.trim().to_owned() }
    })
}

/// Sockets of a table that are bound to the address or to all addresses of its port; of TCP those that listen.
fn inodes(table: &str, kind: Kind, addr: SocketAddr) -> Vec<u64> {
    let inode = |line: &str| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let (local, state, inode) = (fields.get(1)?, fields.get(3)?, fields.get(9)?);
        let (ip, port) = local.rsplit_once(':')?;
        let bound = address(ip)?;
        let here = u16::from_str_radix(port, 16).ok()? == addr.port()
            && (bound.is_unspecified() || bound.to_canonical() == addr.ip().to_canonical());
        let open = kind == Kind::Udp || *state == LISTENS;
        (here && open).then(|| inode.parse().ok())?
    };
    table.lines().skip(1).filter_map(inode).collect()
}

/// Words of four bytes, each in the machine's own order.
fn address(hex: &str) -> Option<IpAddr> {
    let words: Option<Vec<[u8; 4]>> = (0..hex.len() / 8)
        .map(|at| Some(u32::from_str_radix(hex.get(at * 8..at * 8 + 8)?, 16).ok()?.to_ne_bytes()))
        .collect();
    match words?[..] {
        [v4] => Some(IpAddr::from(v4)),
        [a, b, c, d] => <[u8; 16]>::try_from([a, b, c, d].concat()).ok().map(IpAddr::from),
        _ => None,
    }
}

fn processes() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn holds(pid: u32, inodes: &[u64]) -> bool {
    let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let mut sockets = files.filter_map(|file| {
        let target = fs::read_link(file.path()).ok()?;
        target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse::<u64>().ok()
    });
    sockets.any(|socket| inodes.contains(&socket))
}

/// `TCP_LISTEN`.
const LISTENS: &str = "0A";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_of_this_process_is_found() {
        let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let udp = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let found = [holder(Kind::Tcp, tcp.local_addr().unwrap()), holder(Kind::Udp, udp.local_addr().unwrap())];
        if cfg!(target_os = "linux") {
            assert!(
                found.iter().all(|holder| holder.as_ref().is_some_and(|h| h.pid == std::process::id())),
                "{found:?}"
            );
        }
    }

    #[cfg(target_endian = "little")]
    #[test]
    fn tables_are_read_as_the_system_writes_them() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n   \
                     0: 0100007F:3A99 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 4711 1\n   \
                     1: 00000000:3A9A 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 4712 1\n   \
                     2: 0100007F:3A99 0100007F:9999 01 00000000:00000000 00:00000000 00000000  1000        0 4713 1\n";
        assert_eq!(inodes(table, Kind::Tcp, "127.0.0.1:15001".parse().unwrap()), [4711]);
        assert_eq!(inodes(table, Kind::Tcp, "127.0.0.1:15002".parse().unwrap()), [4712], "all addresses");
        assert_eq!(inodes(table, Kind::Tcp, "127.0.0.2:15001".parse().unwrap()), [0; 0]);
        assert_eq!(address("00000000000000000000000001000000"), Some("::1".parse().unwrap()));
    }
}
