//! The check of a peer's certificate during the handshake, the same for both directions.

use std::{net::SocketAddr, sync::Arc};

use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error as TlsError, OtherError, RootCertStore,
    SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::CryptoProvider,
    server::{
        WebPkiClientVerifier,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

use super::names::{self, CertFault};
use crate::types::{CertFacts, MeshName, NodeId, Wall};

/// Whom a dial expects, in the form that TLS wants: a server name.
///
/// It never leaves this process (the handshake carries no server name). It tells the verifier whom to expect, and it keys
/// the memory of sessions, so that a resumed session is always one with the same peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerName(String);

impl PeerName {
    /// This node and no other.
    pub fn node(node: &NodeId) -> Self {
        let hex = hex(node.as_str().as_bytes());
        // A label has at most 63 characters, a node id up to 126 hexadecimal digits.
        let (head, tail) = hex.split_at(hex.len().min(60));
        let dot = if tail.is_empty() { "" } else { "." };
        let (tail, rest) = tail.split_at(tail.len().min(60));
        let dot2 = if rest.is_empty() { "" } else { "." };
        Self(format!("{head}{dot}{tail}{dot2}{rest}{NODE_SUFFIX}"))
    }

    /// Whoever answers there.
    pub fn address(addr: SocketAddr) -> Self {
        let ip = match addr.ip() {
            std::net::IpAddr::V4(ip) => hex(&ip.octets()),
            std::net::IpAddr::V6(ip) => hex(&ip.octets()),
        };
        Self(format!("a{ip}p{}{ADDRESS_SUFFIX}", addr.port()))
    }

    /// As TLS libraries take it.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The node that a name made by [`PeerName::node`] stands for; `None` stands for anybody.
    pub(super) fn expected(name: &str) -> Option<NodeId> {
        let digits: Vec<u8> = name.strip_suffix(NODE_SUFFIX)?.bytes().filter(|c| *c != b'.').collect();
        let bytes: Option<Vec<u8>> =
            digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect();
        NodeId::new(std::str::from_utf8(&bytes?).ok()?).ok()
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Chain, dates, purpose, then mesh, then node.
#[derive(Debug)]
pub(super) struct Verifier {
    mesh: MeshName,
    server: Arc<WebPkiServerVerifier>,
    client: Arc<dyn ClientCertVerifier>,
    dns_name: ServerName<'static>,
}

impl Verifier {
    /// Trusts `roots` for this mesh; fails when there are none.
    pub(super) fn new(mesh: MeshName, roots: RootCertStore, provider: Arc<CryptoProvider>) -> Result<Self, CertFault> {
        let none = |e: rustls::server::VerifierBuilderError| CertFault::Malformed(e.to_string());
        let roots = Arc::new(roots);
        Ok(Self {
            mesh,
            server: WebPkiServerVerifier::builder_with_provider(roots.clone(), provider.clone())
                .build()
                .map_err(none)?,
            client: WebPkiClientVerifier::builder_with_provider(roots, provider)
                // The hints would tell strangers our authorities and make every handshake longer.
                .clear_root_hint_subjects()
                .build()
                .map_err(none)?,
            dns_name: ServerName::try_from(names::DNS_NAME).expect("a valid constant"),
        })
    }

    /// Checks a certificate as of `now`, whoever its node is.
    pub(super) fn check(
        &self,
        leaf: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<CertFacts, CertFault> {
        self.client.verify_client_cert(leaf, chain, now).map_err(|error| explain(&error, leaf))?;
        self.names(leaf)
    }

    /// Mesh and form of a certificate whose chain was checked.
    fn names(&self, leaf: &CertificateDer<'_>) -> Result<CertFacts, CertFault> {
        let facts = names::facts(leaf)?;
        if facts.mesh == self.mesh {
            return Ok(facts);
        }
        Err(CertFault::OtherMesh { node: facts.node, theirs: facts.mesh, ours: self.mesh.clone() })
    }
}

/// What the chain check found, in words that name the peer and the cure.
fn explain(error: &TlsError, leaf: &CertificateDer<'_>) -> CertFault {
    let who = || names::claimed(leaf);
    let date = |pick: fn(&CertFacts) -> Wall| names::facts(leaf).map_or_else(|_| "?".into(), |f| names::date(pick(&f)));
    match error {
        TlsError::InvalidCertificate(CertificateError::Expired | CertificateError::ExpiredContext { .. }) => {
            CertFault::Expired(who(), date(|f| f.not_after))
        }
        TlsError::InvalidCertificate(CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. }) => {
            CertFault::NotYetValid(who(), date(|f| f.not_before))
        }
        TlsError::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature) => {
            CertFault::UnknownAuthority(who())
        }
        other => CertFault::Malformed(other.to_string()),
    }
}

fn tls_error(fault: CertFault) -> TlsError {
    TlsError::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(fault))))
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, TlsError> {
        let verified = self
            .server
            .verify_server_cert(leaf, chain, &self.dns_name, ocsp, now)
            .map_err(|error| tls_error(explain(&error, leaf)))?;
        let facts = self.names(leaf).map_err(tls_error)?;
        match PeerName::expected(&name.to_str()) {
            Some(expected) if expected != facts.node => {
                Err(tls_error(CertFault::OtherNode { expected, found: facts.node }))
            }
            _ => Ok(verified),
        }
    }

    // TLS 1.2 is not offered; the two methods are the trait's.
    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        self.server.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        self.server.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }
}

impl ClientCertVerifier for Verifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.client.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        leaf: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, TlsError> {
        self.check(leaf, chain, now).map(|_| ClientCertVerified::assertion()).map_err(tls_error)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        self.client.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        self.client.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }
}

const NODE_SUFFIX: &str = ".node.lanemesh.internal";
const ADDRESS_SUFFIX: &str = ".addr.lanemesh.internal";
