//! The address that peers use, and that instances are announced at by default.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};

use anyhow::{Result, bail};

use crate::config::Gossip;

/// The configured address, or the bound one; where that is `0.0.0.0` or `[::]`, the one that the system would use towards the
/// first seed (or, without one, towards the outside). Nothing is sent to find out.
pub(super) fn address(gossip: &Gossip, bound: SocketAddr) -> Result<SocketAddr> {
    let wanted = gossip.advertise.unwrap_or(bound);
    let port = if wanted.port() == 0 { bound.port() } else { wanted.port() };
    if gossip.advertise.is_some_and(|addr| addr.ip().is_unspecified()) {
        bail!("gossip.advertise {wanted} is no address that peers could use: name this pod's own IP address");
    }
    let ip = if wanted.ip().is_unspecified() { towards(gossip, bound)? } else { wanted.ip() };
    let addr = SocketAddr::new(ip, port);
    if ip.is_loopback()
        && gossip.seeds.iter().filter_map(|seed| seed.parse().ok()).any(|seed: SocketAddr| !seed.ip().is_loopback())
    {
        bail!(
            "this sidecar would advertise {addr}, which its seeds can't reach: set gossip.advertise to this pod's own IP address"
        );
    }
    Ok(addr)
}

fn towards(gossip: &Gossip, bound: SocketAddr) -> Result<IpAddr> {
    // Names are not resolved here: DNS may not be up yet, and any address outside leads to the same interface.
    let seed = gossip.seeds.iter().find_map(|seed| seed.parse::<SocketAddr>().ok());
    let outside: SocketAddr = match bound {
        SocketAddr::V4(_) => (Ipv4Addr::new(192, 0, 2, 1), 9).into(),
        SocketAddr::V6(_) => (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1), 9).into(),
    };
    let found = [seed, Some(outside)].into_iter().flatten().find_map(|target| local_towards(target).ok());
    match found.filter(|ip| !ip.is_unspecified()) {
        Some(ip) => Ok(ip),
        None => bail!(
            "no address to advertise was found for {bound}: set gossip.advertise (in Kubernetes LANEMESH_GOSSIP_ADVERTISE=$(POD_IP):{})",
            bound.port()
        ),
    }
}

/// Connecting a UDP socket only asks the routing table.
fn local_towards(target: impl ToSocketAddrs + Copy) -> std::io::Result<IpAddr> {
    let any: SocketAddr = match target.to_socket_addrs()?.next() {
        Some(SocketAddr::V6(_)) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        _ => (Ipv4Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(any)?;
    socket.connect(target)?;
    Ok(socket.local_addr()?.ip())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Profile;

    fn gossip(bind: &str, advertise: Option<&str>, seeds: &[&str]) -> Gossip {
        Gossip {
            bind: bind.parse().unwrap(),
            advertise: advertise.map(|addr| addr.parse().unwrap()),
            seeds: seeds.iter().map(|seed| (*seed).to_owned()).collect(),
            profile: Profile::Lan,
            coalesce: std::time::Duration::from_millis(300),
        }
    }

    #[test]
    fn the_bound_address_unless_it_means_anywhere() {
        let bound = "127.0.0.1:4321".parse().unwrap();
        assert_eq!(address(&gossip("127.0.0.1:0", None, &[]), bound).unwrap(), bound);
        let any = "0.0.0.0:4321".parse().unwrap();
        let found = address(&gossip("0.0.0.0:0", None, &["127.0.0.1:7946"]), any).unwrap();
        assert_eq!(found, bound, "towards a seed on loopback it is loopback");
    }

    #[test]
    fn an_address_that_peers_cannot_use_is_refused_with_a_cure() {
        let bound = "0.0.0.0:7946".parse().unwrap();
        let error = address(&gossip("0.0.0.0:7946", Some("0.0.0.0:7946"), &[]), bound).unwrap_err();
        assert!(error.to_string().contains("gossip.advertise"), "{error}");
        let lonely = "127.0.0.1:7946".parse().unwrap();
        let error = address(&gossip("127.0.0.1:7946", None, &["10.0.0.1:7946"]), lonely).unwrap_err();
        assert!(error.to_string().contains("can't reach"), "{error}");
    }
}
