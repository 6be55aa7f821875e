//! The mesh's own certificate authority: two files in a directory, made by `ca init`, used by `ca issue`.
//!
//! A sidecar never needs the authority's key, only its certificate. Keys are Ed25519 made from 32 random bytes, so that
//! the simulator can make the same ones again from its seed.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PublicKeyData, SanType, SerialNumber, string::Ia5String,
};
use ring::rand::SecureRandom;
use rustls_pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use sha2::{Digest, Sha256};

use super::{
    files::{self, Output, PkiError},
    names,
};
use crate::types::{MeshName, NodeId, ServiceName, Wall};

/// What a certificate is asked for.
#[derive(Debug, Clone)]
pub struct LeafRequest {
    /// The node it names.
    pub node: NodeId,
    /// Services it may announce.
    pub services: Vec<ServiceName>,
    /// Whether it may announce any service.
    pub any_service: bool,
    /// From now; the authority's own end comes first. 1 minute to 100 years.
    pub valid_for: Duration,
}

impl LeafRequest {
    /// One year, as `ca issue` does unless told otherwise.
    pub const DEFAULT_VALIDITY: Duration = Duration::from_secs(365 * DAY);
}

/// A certificate and its key.
pub struct Leaf {
    /// X.509, DER.
    pub certificate: CertificateDer<'static>,
    /// PKCS #8, DER.
    pub key: PrivatePkcs8KeyDer<'static>,
    certificate_pem: String,
    key_pem: String,
}

/// Where `ca issue` wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IssuedFiles {
    /// `<node>.pem`.
    pub certificate: PathBuf,
    /// `<node>-key.pem`, mode 0600.
    pub key: PathBuf,
    /// `ca.pem`.
    pub ca: PathBuf,
}

/// A certificate authority of one mesh.
pub struct Authority {
    mesh: MeshName,
    certificate: CertificateDer<'static>,
    pem: String,
    not_after: Wall,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// Makes one in memory. The same `seed` and `now` make the same one.
    pub fn new(mesh: &MeshName, seed: [u8; 32], now: Wall) -> Self {
        let key = key_pair(&seed);
        let not_after = Wall(now.0 / 1000 * 1000 + 10 * 365 * DAY * 1000);
        let mut params = authority_params(mesh);
        params.serial_number = Some(serial(&seed));
        set_validity(&mut params, now, not_after);
        let certificate = params.self_signed(&key).expect("our own parameters are well-formed");
        let (certificate, pem) = (certificate.der().clone(), certificate.pem());
        Self { mesh: mesh.clone(), certificate, pem, not_after, issuer: Issuer::new(params, key) }
    }

    /// Makes one and writes `ca.pem` and `ca-key.pem` to `dir`, which is created. Valid for 10 years.
    pub fn create(dir: &Path, mesh: &MeshName, now: Wall, force: bool) -> Result<Self, PkiError> {
        let made = Self::new(mesh, random()?, now);
        let key = made.issuer.key().serialize_pem();
        let outputs = [
            Output { path: dir.join(CA_KEY), text: key, secret: true },
            Output { path: dir.join(CA), text: made.pem.clone(), secret: false },
        ];
        files::write_all(&outputs, force)?;
        Ok(made)
    }

    /// Reads what [`Authority::create`] wrote.
    pub fn open(dir: &Path) -> Result<Self, PkiError> {
        let path = dir.join(CA);
        if !path.exists() {
            let reason = "there is no authority here: make one with `lanemesh ca init`, or name its directory";
            return Err(PkiError::Unusable { path: dir.into(), reason: reason.into() });
        }
        let unusable = |reason: String| PkiError::Unusable { path: path.clone(), reason };
        let certificate = files::certificates(&path)?.swap_remove(0);
        let key_path = dir.join(CA_KEY);
        let key = files::private_key(&key_path)?;
        let key = KeyPair::try_from(&key)
            .map_err(|e| PkiError::Unusable { path: key_path.clone(), reason: format!("not an Ed25519 key ({e})") })?;
        let (mesh, common_name, not_after) =
            names::authority_facts(&certificate).map_err(|e| unusable(e.to_string()))?;
        // The issuer is rebuilt from the mesh name, which fits certificates of `ca init` and no others.
        if common_name != authority_name(&mesh) {
            return Err(unusable("was not made by `lanemesh ca init`".into()));
        }
        if !spki_holds(&certificate, key.der_bytes()) {
            return Err(unusable(format!("does not belong to the key in {}", key_path.display())));
        }
        let issuer = Issuer::new(authority_params(&mesh), key);
        Ok(Self { mesh, pem: files::text(&path)?, certificate, not_after, issuer })
    }

    /// The mesh it issues for.
    pub fn mesh(&self) -> &MeshName {
        &self.mesh
    }

    /// Its own certificate, which every sidecar of the mesh trusts.
    pub fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// Its own certificate as PEM.
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// Issues a certificate in memory, for a key made from `seed`.
    pub fn sign(&self, request: &LeafRequest, seed: [u8; 32], now: Wall) -> Result<Leaf, PkiError> {
        if now >= self.not_after {
            let date = names::date(self.not_after);
            let text =
                format!("the authority of mesh `{}` expired on {date}: make a new one with `ca init`", self.mesh);
            return Err(PkiError::Request(text));
        }
        if request.valid_for < Duration::from_secs(60) || request.valid_for > Duration::from_secs(100 * 365 * DAY) {
            let text = "a certificate is valid for at least 1 minute and at most 100 years, such as `365d`";
            return Err(PkiError::Request(text.into()));
        }
        let wanted = now.0.saturating_add(request.valid_for.as_secs() * 1000);
        let key = key_pair(&seed);
        let mut params = leaf_params(&self.mesh, request);
        params.serial_number = Some(serial(&seed));
        set_validity(&mut params, now, Wall(wanted).min(self.not_after));
        let certificate = params
            .signed_by(&key, &self.issuer)
            .map_err(|e| PkiError::Request(format!("cannot issue for node `{}`: {e}", request.node)))?;
        Ok(Leaf {
            certificate: certificate.der().clone(),
            key: PrivatePkcs8KeyDer::from(key.serialize_der()),
            certificate_pem: certificate.pem(),
            key_pem: key.serialize_pem(),
        })
    }

    /// Issues a certificate and writes it with its key, and the authority's certificate, to `dir`, which is created.
    pub fn issue(&self, request: &LeafRequest, dir: &Path, now: Wall, force: bool) -> Result<IssuedFiles, PkiError> {
        let leaf = self.sign(request, random()?, now)?;
        let node = &request.node;
        let paths = IssuedFiles {
            certificate: dir.join(format!("{node}.pem")),
            key: dir.join(format!("{node}-key.pem")),
            ca: dir.join(CA),
        };
        let mut outputs = vec![
            Output { path: paths.key.clone(), text: leaf.key_pem, secret: true },
            Output { path: paths.certificate.clone(), text: leaf.certificate_pem, secret: false },
        ];
        // The same authority may be there from an earlier node; another one is not replaced unasked.
        let same_ca = files::certificates(&paths.ca).is_ok_and(|found| found.contains(&self.certificate));
        if !same_ca {
            outputs.push(Output { path: paths.ca.clone(), text: self.pem.clone(), secret: false });
        }
        files::write_all(&outputs, force)?;
        Ok(paths)
    }
}

/// A PKCS #8 key (RFC 8410) from 32 random bytes.
fn key_pair(seed: &[u8; 32]) -> KeyPair {
    const PREFIX: [u8; 16] = [0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20];
    let der = [&PREFIX[..], &seed[..]].concat();
    KeyPair::try_from(der).expect("every 32 bytes are an Ed25519 key")
}

fn authority_name(mesh: &MeshName) -> String {
    format!("lanemesh authority of {mesh}")
}

fn authority_params(mesh: &MeshName) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = common_name(&authority_name(mesh));
    params.subject_alt_names = vec![SanType::URI(ia5(&names::authority_uri(mesh)))];
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

fn leaf_params(mesh: &MeshName, request: &LeafRequest) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = common_name(request.node.as_str());
    let mut uris = vec![names::node_uri(mesh, &request.node)];
    let mut services = request.services.clone();
    services.sort();
    services.dedup();
    uris.extend(services.iter().map(|service| names::service_uri(mesh, Some(service))));
    if request.any_service {
        uris.push(names::service_uri(mesh, None));
    }
    params.subject_alt_names = vec![SanType::DnsName(ia5(names::DNS_NAME))];
    params.subject_alt_names.extend(uris.iter().map(|uri| SanType::URI(ia5(uri))));
    params.use_authority_key_identifier_extension = true;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    params
}

fn common_name(name: &str) -> DistinguishedName {
    let mut dn = DistinguishedName::new();
    dn.push(DnType::CommonName, name);
    dn
}

fn ia5(text: &str) -> Ia5String {
    Ia5String::try_from(text).expect("names are ASCII")
}

/// 127 bits that nobody guesses: derived from the key's seed, which is random, and telling nothing of it.
fn serial(seed: &[u8; 32]) -> SerialNumber {
    let mut digest: [u8; 32] = Sha256::new().chain_update(b"lanemesh serial").chain_update(seed).finalize().into();
    digest[0] = digest[0] & 0x7f | 0x40;
    SerialNumber::from_slice(&digest[..16])
}

fn spki_holds(certificate: &[u8], public_key: &[u8]) -> bool {
    use x509_parser::prelude::{FromDer, X509Certificate};
    X509Certificate::from_der(certificate).is_ok_and(|(_, c)| c.public_key().subject_public_key.data == public_key)
}

/// Sets both ends of the validity, in the time type of the X.509 library.
fn set_validity(params: &mut CertificateParams, now: Wall, not_after: Wall) {
    let moment = |at: Wall| rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs(at.0 / 1000);
    params.not_before = moment(Wall(now.0.saturating_sub(BACKDATE.as_secs() * 1000)));
    params.not_after = moment(not_after);
}

fn random() -> Result<[u8; 32], PkiError> {
    let mut bytes = [0; 32];
    let fault = |_| PkiError::Request("the operating system gives no random numbers".into());
    ring::rand::SystemRandom::new().fill(&mut bytes).map_err(fault)?;
    Ok(bytes)
}

const DAY: u64 = 24 * 60 * 60;
/// Clocks of a mesh may differ by this much without refusing a new certificate.
const BACKDATE: Duration = Duration::from_secs(5 * 60);
const CA: &str = "ca.pem";
const CA_KEY: &str = "ca-key.pem";

#[cfg(test)]
impl Authority {
    /// The same key, issuing for another mesh: what a careless operator does.
    pub(crate) fn for_mesh(mut self, mesh: &str) -> Self {
        self.mesh = MeshName::new(mesh).unwrap();
        self
    }
}
