//! SIGHUP: the configuration is read again, and what can change in a running sidecar does (REQUIREMENTS O7).
//!
//! A configuration with faults changes nothing at all; every fault is logged, and the old one stays in force. So does one of
//! another sidecar. What is bound and how the mesh is found stays until the next start, and a change of it is said. Instances are compared with
//! the configuration that was in force, not with what operators have ordered meanwhile: where the file did not change, their
//! orders stand. The access log is opened anew in any case, for whoever rotates it.
//!
//! Not here: certificates, which need a restart.

use std::collections::BTreeMap;

use super::{Sidecar, check_certificates, compose::local_instances};
use crate::{
    agent::LocalInstance,
    config::{self, AccessLog, Config, Proxy},
    routing::Rules,
    telemetry,
    types::InstanceId,
};

impl Sidecar {
    /// Reads the configuration and puts in force what can change. `read` says every fault in its error.
    pub(super) async fn reload(&mut self, read: impl FnOnce() -> Result<Config, String>) {
        if let Some(proxy) = &self.proxy {
            proxy.reopen_access_log();
        }
        let wanted = match read() {
            Ok(wanted) => wanted,
            Err(faults) => return tracing::error!("the configuration in force stays: {faults}"),
        };
        if let Some(fault) = self.unfit(&wanted) {
            return tracing::error!("the configuration in force stays: {fault}");
        }
        for warning in config::warnings(&wanted) {
            tracing::warn!("{warning}");
        }
        let (next, later) = merge(&self.config, wanted);
        for key in later {
            tracing::warn!(key, "changed, but only the next start takes it");
        }
        if let Err(error) = telemetry::set_log_filter(&next.log_filter) {
            tracing::error!("{error}");
        }
        if let Some(proxy) = &self.proxy {
            proxy.reload(next.proxy.clone(), next.services.clone(), next.access_log.clone());
        }
        // The seed stays as it was drawn at the start.
        let rules = Rules::new(0, next.routing.clone(), &next.services).reading(&next.proxy);
        if let Err(error) = self.handle.set_rules(rules).await {
            tracing::error!("routing stays as it was: {error}");
        }
        self.reload_instances(&next).await;
        self.config = next;
        tracing::info!("configuration read again");
    }

    /// Why this process could not start with it: then it is not this sidecar's, or was cut short, and what it no longer names is not to
    /// be withdrawn.
    fn unfit(&self, wanted: &Config) -> Option<String> {
        let now = &self.config;
        let changed = [
            ("node", wanted.node != now.node),
            ("data_dir", wanted.data_dir != now.data_dir),
            ("identity", wanted.identity != now.identity),
        ];
        if let Some((key, _)) = changed.into_iter().find(|(_, changed)| *changed) {
            return Some(format!(
                "`{key}` differs, so it describes another sidecar or is cut short; if it is meant, restart"
            ));
        }
        check_certificates(wanted).faults.into_iter().next()
    }

    async fn reload_instances(&self, next: &Config) {
        let of = |config: &Config| local_instances(config, &self.node, &self.host);
        let (old, new) = match (of(&self.config), of(next)) {
            (Ok(old), Ok(new)) => (by_id(old), by_id(new)),
            (Err(error), _) | (_, Err(error)) => return tracing::error!("instances stay as they are: {error:#}"),
        };
        for (id, instance) in &new {
            if old.get(id) != Some(instance) {
                match self.handle.announce(instance.clone()).await {
                    Ok(_) => tracing::info!(instance = %id, "announced as configured"),
                    Err(error) => tracing::error!(instance = %id, "not announced: {error}"),
                }
            }
        }
        for id in old.keys().filter(|id| !new.contains_key(*id)) {
            match self.handle.deregister(id.clone()).await {
                Ok(()) => tracing::info!(instance = %id, "withdrawn: it is configured no more"),
                Err(error) => tracing::warn!(instance = %id, "not withdrawn: {error}"),
            }
        }
    }
}

fn by_id(instances: Vec<LocalInstance>) -> BTreeMap<InstanceId, LocalInstance> {
    instances.into_iter().map(|instance| (instance.spec.id.clone(), instance)).collect()
}

/// What is in force after a reload, and the keys (or sections) whose change has to wait for the next start.
fn merge(now: &Config, wanted: Config) -> (Config, Vec<&'static str>) {
    // Taken apart whole, so that a new field has to be decided upon here.
    let Config {
        // The same, or it was refused.
        node: _,
        data_dir: _,
        identity: _,
        mesh,
        gossip,
        proxy,
        admin,
        env,
        region,
        zone,
        instances,
        services,
        log_filter,
        log_format,
        access_log,
        shutdown,
        routing,
    } = wanted;
    let later = [
        ("mesh", mesh != now.mesh),
        ("gossip", gossip != now.gossip),
        ("proxy.bind", proxy.bind != now.proxy.bind),
        ("proxy.ports", proxy.ports != now.proxy.ports),
        ("proxy.tcp_ports", proxy.tcp_ports != now.proxy.tcp_ports),
        ("proxy.workers", proxy.workers != now.proxy.workers),
        ("admin", admin != now.admin),
        ("env", env != now.env),
        ("region", region != now.region),
        ("zone", zone != now.zone),
        ("log.format", log_format != now.log_format),
        ("access_log.path", access_log.path != now.access_log.path),
        ("access_log.format", access_log.format != now.access_log.format),
        ("access_log.hash_subject", access_log.hash_subject != now.access_log.hash_subject),
    ];
    let bound = now.proxy.clone();
    let next = Config {
        proxy: Proxy {
            bind: bound.bind,
            ports: bound.ports,
            tcp_ports: bound.tcp_ports,
            workers: bound.workers,
            ..proxy
        },
        access_log: AccessLog { sample: access_log.sample, ..now.access_log.clone() },
        instances,
        services,
        log_filter,
        shutdown,
        routing,
        ..now.clone()
    };
    (next, later.into_iter().filter(|(_, differs)| *differs).map(|(key, _)| key).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Overrides, resolve};

    fn config(text: &str) -> Config {
        resolve("x.toml", text, &BTreeMap::new(), &Overrides::new()).unwrap()
    }

    #[test]
    fn what_is_bound_stays_and_is_named_and_the_rest_changes() {
        let now = config("[proxy]\nbind = \"127.0.0.1:1\"\n");
        let text = "zone = \"b\"\n[proxy]\nbind = \"127.0.0.1:2\"\nexpose_decision = true\nmax_retries = 0\n\
                    [log]\nfilter = \"debug\"\n[access_log]\nsample = 1.0\npath = \"x\"\n[shutdown]\nlimit = \"3s\"\n\
                    [[instance]]\nservice = \"orders\"\nport = 8080\n[service.cart]\nslow_start = \"1s\"\n";
        let (next, later) = merge(&now, config(text));
        assert_eq!(later, ["proxy.bind", "zone", "access_log.path"]);
        assert_eq!((next.proxy.bind, next.zone, next.access_log.path), (now.proxy.bind, now.zone, None));
        assert!(next.proxy.expose_decision && next.proxy.max_retries == 0 && next.access_log.sample == 1.0);
        assert_eq!((next.log_filter.as_str(), next.instances.len(), next.shutdown.limit.as_secs()), ("debug", 1, 3));
    }

    #[test]
    fn the_same_configuration_changes_nothing() {
        let now = config("[[instance]]\nservice = \"orders\"\nport = 8080\n");
        assert_eq!(merge(&now, now.clone()), (now.clone(), vec![]));
    }
}
