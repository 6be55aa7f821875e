//! Seeds: names are resolved again and again, since a pod's address changes and DNS may come up after us.

use std::{collections::BTreeSet, net::SocketAddr, time::Duration};

use tokio::sync::mpsc;

/// Between look-ups.
const EVERY: Duration = Duration::from_secs(5);

/// One configured seed, resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Resolved {
    /// As it is written.
    pub name: String,
    /// Its addresses in order, or why there are none.
    pub addrs: Result<BTreeSet<SocketAddr>, String>,
}

/// All addresses.
pub(super) fn addresses(seeds: &[Resolved]) -> Vec<SocketAddr> {
    let all: BTreeSet<SocketAddr> =
        seeds.iter().filter_map(|seed| seed.addrs.as_ref().ok()).flatten().copied().collect();
    all.into_iter().collect()
}

/// Starts resolving; sends what was found at once and whenever they change. No seed at all is said at once as well: until it is
/// told, a node waits for seeds to ask.
pub(super) fn watch(seeds: Vec<String>) -> mpsc::Receiver<Vec<Resolved>> {
    let (out, addrs) = mpsc::channel(1);
    if seeds.is_empty() {
        // Kept open for ever: the agent's loop only ever hears of changes.
        tokio::spawn(async move {
            // Fails only when the agent has ended.
            let _ = out.send(Vec::new()).await;
            out.closed().await
        });
        return addrs;
    }
    tokio::spawn(async move {
        let mut known = Vec::new();
        let literal = seeds.iter().all(|seed| seed.parse::<SocketAddr>().is_ok());
        while !out.is_closed() {
            let found = resolve(&seeds, &known).await;
            if found != known {
                known = found;
                if out.send(known.clone()).await.is_err() {
                    return;
                }
            }
            if literal {
                return out.closed().await;
            }
            tokio::time::sleep(EVERY).await;
        }
    });
    addrs
}

async fn resolve(seeds: &[String], before: &[Resolved]) -> Vec<Resolved> {
    let mut found = Vec::new();
    for seed in seeds {
        let addrs = match tokio::net::lookup_host(seed.as_str()).await {
            Ok(addrs) => Ok(addrs.collect()),
            Err(error) => {
                // Once per outage, not once per look-up.
                if !before.iter().any(|known| known.name == *seed && known.addrs.is_err()) {
                    let every = EVERY.as_secs();
                    tracing::warn!("seed `{seed}` does not resolve: {error}; it is tried again every {every} s");
                }
                Err(error.to_string())
            }
        };
        found.push(Resolved { name: seed.clone(), addrs });
    }
    found
}
