//! Seeds: names are resolved again and again, since a pod's address changes and DNS may come up after us.

use std::{collections::BTreeSet, net::SocketAddr, time::Duration};

use tokio::sync::mpsc;

/// Between look-ups.
const EVERY: Duration = Duration::from_secs(5);

/// Starts resolving; sends the addresses at once and whenever they change. No seed at all is said at once as well: until it is
/// told, a node waits for seeds to ask.
pub(super) fn watch(seeds: Vec<String>) -> mpsc::Receiver<Vec<SocketAddr>> {
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
        let mut known = BTreeSet::new();
        let literal = seeds.iter().all(|seed| seed.parse::<SocketAddr>().is_ok());
        let mut failing = BTreeSet::new();
        while !out.is_closed() {
            let found = resolve(&seeds, &mut failing).await;
            if found != known {
                known = found;
                if out.send(known.iter().copied().collect()).await.is_err() {
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

async fn resolve(seeds: &[String], failing: &mut BTreeSet<String>) -> BTreeSet<SocketAddr> {
    let mut found = BTreeSet::new();
    for seed in seeds {
        match tokio::net::lookup_host(seed.as_str()).await {
            Ok(addrs) => {
                failing.remove(seed);
                found.extend(addrs);
            }
            Err(error) => {
                // Once per outage, not once per look-up.
                if failing.insert(seed.clone()) {
                    tracing::warn!(
                        "seed `{seed}` does not resolve: {error}; it is tried again every {} s",
                        EVERY.as_secs()
                    );
                }
            }
        }
    }
    found
}
