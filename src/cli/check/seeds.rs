//! Seeds: what their names resolve to, and who answers there. A running sidecar is asked what it knows; before a start each is
//! called with the sidecar's own certificate, and let go at once.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use tokio::{sync::mpsc, time::timeout};

use super::{
    Live, Loaded,
    finding::{Finding, fail, ok, skip, warn, with_cure},
};
use crate::{
    agent::{SeedAddr, SeedInfo},
    config::Config,
    net::{self, Net, NetConfig},
    pki::Identity,
};

/// The group `seeds`.
pub(super) async fn seeds(loaded: &Loaded, identity: Option<&Arc<Identity>>, live: &Live) -> Vec<Finding> {
    let seeds = match (&live.diagnostics, loaded, identity) {
        (Ok(diagnostics), ..) => diagnostics.seeds.clone(),
        (Err(_), Loaded::Good { config, .. }, _) if config.gossip.seeds.is_empty() => Vec::new(),
        (Err(_), Loaded::Good { config, .. }, Some(identity)) => called(config, identity).await,
        (Err(_), Loaded::Good { config, .. }, None) => {
            return judged_names(&resolved(config).await)
                .into_iter()
                .chain([skip(ANSWER, "the certificate files can't be used")])
                .collect();
        }
        (Err(_), ..) => return [RESOLVE, ANSWER].map(|name| skip(name, loaded.why_not())).into(),
    };
    let mut findings = judged_names(&seeds);
    findings.extend(judged_answers(&seeds));
    findings
}

fn judged_names(seeds: &[SeedInfo]) -> Vec<Finding> {
    if seeds.is_empty() {
        return vec![ok(RESOLVE, "no seeds are configured: this is to be the first of its mesh, or others name it")];
    }
    let wrong: Vec<Finding> = seeds
        .iter()
        .filter_map(|seed| {
            let why = seed.fault.as_ref()?;
            let cure = "correct the name in gossip.seeds, or the DNS that is to know it";
            Some(fail(RESOLVE, format!("`{}` does not resolve: {why}", seed.seed), cure))
        })
        .collect();
    if !wrong.is_empty() {
        return wrong;
    }
    let each = |seed: &SeedInfo| {
        let addrs: Vec<String> = seed.addrs.iter().map(|addr| addr.addr.to_string()).collect();
        if addrs[..] == [seed.seed.clone()] {
            seed.seed.clone()
        } else {
            format!("{} is {}", seed.seed, addrs.join(", "))
        }
    };
    vec![ok(RESOLVE, seeds.iter().map(each).collect::<Vec<_>>().join("; "))]
}

/// One that answers is enough to join; another certificate than it should have is wrong in any case.
fn judged_answers(seeds: &[SeedInfo]) -> Vec<Finding> {
    let addrs: Vec<&SeedAddr> = seeds.iter().flat_map(|seed| &seed.addrs).collect();
    if addrs.is_empty() || addrs.iter().all(|addr| addr.own) {
        return vec![ok(ANSWER, "there is no other to ask")];
    }
    let good: Vec<String> = addrs
        .iter()
        .filter(|addr| !addr.own)
        .filter_map(|addr| Some(format!("{} is `{}`", addr.addr, addr.node.as_ref()?)))
        .collect();
    let silent = addrs.iter().filter_map(|addr| {
        let (seen, cure) = with_cure(addr.fault.as_ref()?, DEAD);
        let seen = if seen.contains(&addr.addr.to_string()) { seen } else { format!("{}: {seen}", addr.addr) };
        let refused = addr.fault.as_ref().is_some_and(|fault| fault.contains(REFUSED));
        Some(if refused || good.is_empty() { fail(ANSWER, seen, cure) } else { warn(ANSWER, seen, cure) })
    });
    let mut findings: Vec<Finding> = silent.collect();
    if !good.is_empty() {
        findings.insert(0, ok(ANSWER, good.join("; ")));
    } else if findings.is_empty() {
        findings.push(skip(ANSWER, "no seed has been asked yet"));
    }
    findings
}

/// Names looked up, nobody called.
async fn resolved(config: &Config) -> Vec<SeedInfo> {
    let mut seeds = Vec::new();
    for seed in &config.gossip.seeds {
        let found = match timeout(LOOK_UP, tokio::net::lookup_host(seed.as_str())).await {
            Ok(found) => found.map(Iterator::collect::<Vec<SocketAddr>>).map_err(|error| error.to_string()),
            Err(_) => Err(format!("no answer in {} s", LOOK_UP.as_secs())),
        };
        let own = |addr: SocketAddr| addr == config.gossip.bind || Some(addr) == config.gossip.advertise;
        let addr = |addr: &SocketAddr| SeedAddr { addr: *addr, own: own(*addr), node: None, fault: None };
        seeds.push(SeedInfo {
            seed: seed.clone(),
            fault: found.as_ref().err().cloned(),
            addrs: found.iter().flatten().map(addr).collect(),
        });
    }
    seeds
}

/// Each address called once, all at the same time.
async fn called(config: &Config, identity: &Arc<Identity>) -> Vec<SeedInfo> {
    let mut seeds = resolved(config).await;
    let net = match caller(config, identity) {
        Ok(net) => net,
        Err(error) => {
            let each = seeds.iter_mut().flat_map(|seed| &mut seed.addrs).filter(|addr| !addr.own);
            each.for_each(|addr| addr.fault = Some(format!("no socket to call it from: {error}")));
            return seeds;
        }
    };
    let calls = seeds.iter().flat_map(|seed| &seed.addrs).filter(|addr| !addr.own).map(|addr| {
        let (net, addr) = (net.clone(), addr.addr);
        tokio::spawn(async move { (addr, net.who_answers(addr).await) })
    });
    for call in calls.collect::<Vec<_>>() {
        // A call that panicked says nothing of the seed.
        let Ok((addr, answer)) = call.await else { continue };
        for at in seeds.iter_mut().flat_map(|seed| &mut seed.addrs).filter(|at| at.addr == addr) {
            match &answer {
                Ok(facts) => at.node = Some(facts.node.clone()),
                Err(net::NetFault::Itself(_)) => at.own = true,
                Err(fault) => at.fault = Some(fault.to_string()),
            }
        }
    }
    net.close().await;
    seeds
}

/// An endpoint on a port of its own, that nobody knows.
fn caller(config: &Config, identity: &Arc<Identity>) -> std::io::Result<Net> {
    let from = SocketAddr::new(config.gossip.bind.ip(), 0);
    let runtime: Arc<dyn quinn::Runtime> = Arc::new(quinn::TokioRuntime);
    let socket = net::bind(from, &*runtime)?;
    // Nothing is to survive this process, so the key is nobody's.
    let (events, _) = mpsc::channel(1);
    Net::start(NetConfig::new(identity.clone(), runtime, socket, [0; 32]), events).map(|(net, _)| net)
}

/// What the certificates' faults begin with.
const REFUSED: &str = "handshake with";
const DEAD: &str = "start it, or take it out of gossip.seeds; a firewall must let UDP pass both ways";
/// For one name.
const LOOK_UP: Duration = Duration::from_secs(3);
const RESOLVE: &str = "seeds.resolve";
const ANSWER: &str = "seeds.answer";
