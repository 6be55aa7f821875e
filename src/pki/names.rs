//! What a certificate says: reading and writing its URI names, and why one is not accepted.

use std::fmt;

use x509_parser::{
    extensions::GeneralName,
    oid_registry::OID_SIG_ED25519,
    prelude::{FromDer, X509Certificate},
};

use crate::types::{CertFacts, MeshName, NodeId, ServiceName, Wall};

/// The DNS name in every sidecar's certificate. The chain check wants one; who the peer is, the URI names say.
pub(super) const DNS_NAME: &str = "sidecar.lanemesh.internal";
const SCHEME: &str = "lanemesh://";

/// Why a certificate is not accepted. Each message names what was found and the cure, since it is shown at both ends.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
pub enum CertFault {
    /// Not X.509, or not as `lanemesh ca issue` makes it.
    #[error("the certificate is not one of a sidecar ({0}): issue it with `lanemesh ca issue`")]
    Malformed(String),
    /// Issued by somebody else.
    #[error("the certificate of {0} comes from an authority that is not trusted here: both sides need the same ca.pem")]
    UnknownAuthority(String),
    /// Its time is over.
    #[error("the certificate of {0} expired on {1}: issue a new one with `lanemesh ca issue`")]
    Expired(String, String),
    /// Its time has not come.
    #[error("the certificate of {0} is valid only from {1}: is one of the two clocks wrong?")]
    NotYetValid(String, String),
    /// Same authority, another mesh.
    #[error(
        "node `{node}` belongs to mesh `{theirs}`, this one is mesh `{ours}`: correct the seeds or the certificate"
    )]
    OtherMesh {
        /// The peer.
        node: NodeId,
        /// The mesh its certificate names.
        theirs: MeshName,
        /// The mesh of the side that checks.
        ours: MeshName,
    },
    /// Somebody else answers at the address.
    #[error("expected node `{expected}`, answered by node `{found}`: the address has moved, or a seed is wrong")]
    OtherNode {
        /// Who was called.
        expected: NodeId,
        /// Who answered.
        found: NodeId,
    },
}

/// As the message: TLS carries errors of other crates by their `Debug` text, and people read it at the far end.
impl fmt::Debug for CertFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What a certificate says, not checked against any authority or time.
pub fn facts(der: &[u8]) -> Result<CertFacts, CertFault> {
    let malformed = |what: &str| CertFault::Malformed(what.to_owned());
    let (rest, cert) = X509Certificate::from_der(der).map_err(|_| malformed("not X.509"))?;
    if !rest.is_empty() {
        return Err(malformed("bytes after its end"));
    }
    let spki = cert.public_key();
    if spki.algorithm.algorithm != OID_SIG_ED25519 {
        return Err(malformed("its key is not Ed25519"));
    }
    let key = spki.subject_public_key.data.as_ref().try_into().map_err(|_| malformed("its key is not 32 bytes"))?;
    let names = Names::read(&cert)?;
    let (Some(mesh), Some(node)) = (names.mesh, names.node) else {
        return Err(malformed("it names no node"));
    };
    let wall = |seconds: i64| Wall(u64::try_from(seconds).unwrap_or(0).saturating_mul(1000));
    Ok(CertFacts {
        node,
        mesh,
        services: names.services,
        any_service: names.any_service,
        key,
        not_before: wall(cert.validity().not_before.timestamp()),
        not_after: wall(cert.validity().not_after.timestamp()),
    })
}

/// The mesh of an authority's certificate, its common name and its last second.
pub(super) fn authority_facts(der: &[u8]) -> Result<(MeshName, String, Wall), CertFault> {
    let malformed = |what: &str| CertFault::Malformed(what.to_owned());
    let (_, cert) = X509Certificate::from_der(der).map_err(|_| malformed("not X.509"))?;
    let mesh = Names::read(&cert)?.mesh.ok_or_else(|| malformed("it names no mesh"))?;
    let common_name = cert.subject().iter_common_name().next().and_then(|name| name.as_str().ok()).unwrap_or_default();
    let not_after = u64::try_from(cert.validity().not_after.timestamp()).unwrap_or(0);
    Ok((mesh, common_name.to_owned(), Wall(not_after.saturating_mul(1000))))
}

/// `node `n1` of mesh `prod``, as far as it can be read.
pub(super) fn claimed(der: &[u8]) -> String {
    facts(der).map_or_else(|_| "an unnamed node".into(), |f| format!("node `{}` of mesh `{}`", f.node, f.mesh))
}

/// `lanemesh://<mesh>/authority`.
pub(super) fn authority_uri(mesh: &MeshName) -> String {
    format!("{SCHEME}{mesh}/authority")
}

/// `lanemesh://<mesh>/node/<node>`.
pub(super) fn node_uri(mesh: &MeshName, node: &NodeId) -> String {
    format!("{SCHEME}{mesh}/node/{node}")
}

/// `lanemesh://<mesh>/service/<service>`; `None` is any service.
pub(super) fn service_uri(mesh: &MeshName, service: Option<&ServiceName>) -> String {
    format!("{SCHEME}{mesh}/service/{}", service.map_or("*", ServiceName::as_str))
}

/// A moment for people: RFC 3339, to the second.
pub(super) fn date(at: Wall) -> String {
    // The formatter ends with the year 9999, a certificate may not.
    let at = at.0.min(253_402_300_799_000);
    humantime::format_rfc3339_seconds(std::time::UNIX_EPOCH + std::time::Duration::from_millis(at)).to_string()
}

#[derive(Default)]
struct Names {
    mesh: Option<MeshName>,
    node: Option<NodeId>,
    services: Vec<ServiceName>,
    any_service: bool,
}

impl Names {
    /// Reads the URI names. Those of other schemes, and of kinds that a later version may add, are skipped.
    fn read(cert: &X509Certificate<'_>) -> Result<Self, CertFault> {
        let malformed = |what: &str| CertFault::Malformed(what.to_owned());
        let extension = cert.subject_alternative_name().map_err(|_| malformed("unreadable alternative names"))?;
        let mut names = Self::default();
        for name in extension.iter().flat_map(|e| &e.value.general_names) {
            if let GeneralName::URI(uri) = name
                && let Some(rest) = uri.strip_prefix(SCHEME)
            {
                names.add(rest).map_err(|why| CertFault::Malformed(format!("`{}`: {why}", clip(uri))))?;
            }
        }
        names.services.sort();
        Ok(names)
    }

    fn add(&mut self, rest: &str) -> Result<(), String> {
        let (mesh, path) = rest.split_once('/').ok_or("no path")?;
        let mesh = MeshName::new(mesh).map_err(|e| e.to_string())?;
        if self.mesh.get_or_insert_with(|| mesh.clone()) != &mesh {
            return Err("a certificate is for one mesh".into());
        }
        match path.split_once('/') {
            Some(("node", _)) if self.node.is_some() => return Err("a certificate is for one node".into()),
            Some(("node", node)) => self.node = Some(NodeId::new(node).map_err(|e| e.to_string())?),
            Some(("service", "*")) => self.any_service = true,
            Some(("service", service)) => self.services.push(ServiceName::new(service).map_err(|e| e.to_string())?),
            _ => {}
        }
        Ok(())
    }
}

fn clip(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(120).collect()
}
