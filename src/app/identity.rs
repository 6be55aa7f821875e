//! Who this sidecar is: its certificate files, and what the configuration says beside them.

use std::{os::unix::fs::PermissionsExt, path::Path};

use anyhow::{Result, bail};

use crate::{
    config::{Config, format_duration},
    pki::Identity,
    types::{NodeId, Wall},
};

/// Loads the certificate files; the names in the configuration, if any, must be theirs.
pub(super) fn load(config: &Config) -> Result<Identity> {
    let files = &config.identity;
    let identity = Identity::load(&files.certificate, &files.key, &files.ca)?;
    same_names(config, &identity)?;
    Ok(identity)
}

/// The certificate decides; the configuration may only agree.
fn same_names(config: &Config, identity: &Identity) -> Result<()> {
    let (facts, file) = (identity.facts(), config.identity.certificate.display());
    if let Some(node) = config.node.as_ref().filter(|node| **node != facts.node) {
        bail!("node = \"{node}\", but certificate {file} names node `{}`: change one of them", facts.node);
    }
    if let Some(mesh) = config.mesh.as_ref().filter(|mesh| **mesh != facts.mesh) {
        bail!("mesh = \"{mesh}\", but certificate {file} is for mesh `{}`: change one of them", facts.mesh);
    }
    Ok(())
}

/// What `lanemesh config check` can say of the certificate files on this machine.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct CertificateCheck {
    /// `run` would refuse to start, or the mesh to listen; each with its cure.
    pub faults: Vec<String>,
    /// What deserves a second look.
    pub warnings: Vec<String>,
}

/// Looks at the certificate files, where there are any: a file may be checked on another machine than it will run on.
pub fn check_certificates(config: &Config) -> CertificateCheck {
    let files = &config.identity;
    let all = [&files.certificate, &files.key, &files.ca];
    if all.iter().all(|file| !file.exists()) {
        let text = format!("identity: {} is not here, so certificates were not looked at", files.certificate.display());
        return CertificateCheck { faults: Vec::new(), warnings: vec![text] };
    }
    let identity = match load(config) {
        Ok(identity) => identity,
        Err(error) => return CertificateCheck { faults: vec![format!("{error:#}")], warnings: Vec::new() },
    };
    let facts = identity.facts();
    let unnamed = |instance: &&crate::config::Instance| !facts.may_announce(&instance.service);
    let faults = config.instances.iter().enumerate().filter(|(_, instance)| unnamed(instance)).map(|(at, instance)| {
        let (service, node) = (&instance.service, &facts.node);
        format!(
            "instance.{at}.service: certificate {} does not list service `{service}`: issue one with `lanemesh ca issue \
             --node {node} --service {service}`",
            files.certificate.display()
        )
    });
    CertificateCheck { faults: faults.collect(), warnings: warnings(config, &identity) }
}

/// Sentences for the log at start and for `config check`.
pub(super) fn warnings(config: &Config, identity: &Identity) -> Vec<String> {
    let (facts, now) = (identity.facts(), identity.now());
    let exposed = exposed(&config.identity.key).then(|| {
        let key = config.identity.key.display();
        format!("identity.key: others can read {key}, and with it take part as `{}`: chmod 600 {key}", facts.node)
    });
    let expiring = expires_soon(facts.not_before, facts.not_after, now).then(|| {
        let left = format_duration(std::time::Duration::from_secs(facts.not_after.0.saturating_sub(now.0) / 1000));
        format!(
            "identity.certificate: {} is valid for only {left} more; then every peer refuses `{}`: issue a new one and restart",
            config.identity.certificate.display(),
            facts.node
        )
    });
    exposed.into_iter().chain(expiring).collect()
}

fn exposed(key: &Path) -> bool {
    std::fs::metadata(key).is_ok_and(|meta| meta.permissions().mode() & 0o077 != 0)
}

/// Whether less than a tenth of its life is left.
fn expires_soon(from: Wall, until: Wall, now: Wall) -> bool {
    until.0.saturating_sub(now.0) < until.0.saturating_sub(from.0) / 10
}

/// Of a sidecar's own certificate: the node that it names.
pub(super) fn node(identity: &Identity) -> NodeId {
    identity.facts().node.clone()
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, time::Duration};

    use super::*;
    use crate::{
        config::{Overrides, resolve},
        pki::{Authority, LeafRequest},
        types::{MeshName, ServiceName},
    };

    fn wall() -> Wall {
        let since = std::time::UNIX_EPOCH.elapsed().unwrap();
        Wall(since.as_millis() as u64)
    }

    /// A configuration whose certificate files lie in `dir`.
    fn config(dir: &Path, more: &str) -> Config {
        let text = format!(
            "node = \"n1\"\n[identity]\ncertificate = \"{0}/n1.pem\"\nkey = \"{0}/n1-key.pem\"\nca = \"{0}/ca.pem\"\n{more}",
            dir.display()
        );
        resolve("x.toml", &text, &BTreeMap::new(), &Overrides::new()).unwrap()
    }

    fn issue(dir: &Path, node: &str, valid_for: Duration) {
        let mesh = MeshName::new("prod").unwrap();
        let authority = Authority::create(&dir.join("ca"), &mesh, wall(), true).unwrap();
        let request = LeafRequest {
            node: NodeId::new(node).unwrap(),
            services: vec![ServiceName::new("orders").unwrap()],
            any_service: false,
            valid_for,
        };
        authority.issue(&request, dir, wall(), true).unwrap();
    }

    #[test]
    fn files_that_are_elsewhere_are_said_and_files_that_are_wrong_are_faults() {
        let dir = tempfile::tempdir().unwrap();
        let absent = check_certificates(&config(dir.path(), ""));
        assert!(absent.faults.is_empty() && absent.warnings[0].contains("not looked at"), "{absent:?}");

        let year = Duration::from_secs(365 * 86_400);
        issue(dir.path(), "n1", year);
        assert_eq!(check_certificates(&config(dir.path(), "")), CertificateCheck::default());
        let other = check_certificates(&config(dir.path(), "[[instance]]\nservice = \"carts\"\nport = 9\n"));
        assert!(
            other.faults[0].contains("instance.0.service") && other.faults[0].contains("--service carts"),
            "{other:?}"
        );

        let key = dir.path().join("n1-key.pem");
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o644)).unwrap();
        let open = check_certificates(&config(dir.path(), ""));
        assert!(open.warnings[0].contains("chmod 600"), "{open:?}");

        std::fs::remove_file(&key).unwrap();
        let half = check_certificates(&config(dir.path(), ""));
        assert!(half.faults[0].contains("n1-key.pem"), "{half:?}");
    }

    #[test]
    fn the_last_tenth_of_a_certificates_life_is_told() {
        let (day, from) = (86_400_000, 1_000_000_000);
        let at = |days: u64| expires_soon(Wall(from), Wall(from + 100 * day), Wall(from + days * day));
        assert!(!at(0) && !at(89) && at(91) && at(200));
    }
}
