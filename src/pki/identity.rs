//! A sidecar's own certificate and key with the authorities it trusts.

use std::{path::Path, sync::Arc, time::Duration};

use ring::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use rustls::{
    ClientConfig, RootCertStore, ServerConfig, client::Resumption, crypto::CryptoProvider,
    server::ServerSessionMemoryCache, time_provider::DefaultTimeProvider, time_provider::TimeProvider,
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, UnixTime};

use super::{
    ALPN,
    files::{self, PkiError},
    names::{self, CertFault},
    verify::Verifier,
};
use crate::types::{CertFacts, PublicKey, Signature, Trust, TrustError, Wall};

/// What an [`Identity`] is made of.
pub struct IdentityParts {
    /// Own certificate, DER.
    pub certificate: CertificateDer<'static>,
    /// Its key, PKCS #8.
    pub key: PrivatePkcs8KeyDer<'static>,
    /// Trusted authorities; more than one while they are being rotated.
    pub authorities: Vec<CertificateDer<'static>>,
    /// Cryptography and its randomness; the simulator's is seeded.
    pub provider: Arc<CryptoProvider>,
    /// Wall clock that certificates are checked against; the simulator's is virtual.
    pub clock: Arc<dyn TimeProvider>,
}

/// A sidecar's own certificate and key with the authorities it trusts. Implements [`Trust`].
pub struct Identity {
    facts: CertFacts,
    certificate: CertificateDer<'static>,
    key: Ed25519KeyPair,
    verifier: Arc<Verifier>,
    clock: Arc<dyn TimeProvider>,
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Identity").field("facts", &self.facts).finish_non_exhaustive()
    }
}

impl Identity {
    /// Reads three PEM files and checks that they belong together and are valid now.
    pub fn load(certificate: &Path, key: &Path, ca: &Path) -> Result<Self, PkiError> {
        let unusable = |path: &Path, reason: String| PkiError::Unusable { path: path.into(), reason };
        let parts = IdentityParts {
            certificate: files::certificates(certificate)?.swap_remove(0),
            key: files::private_key(key)?,
            authorities: files::certificates(ca)?,
            provider: Arc::new(rustls::crypto::ring::default_provider()),
            clock: Arc::new(DefaultTimeProvider),
        };
        Self::from_parts(parts).map_err(|fault| match fault {
            PartsFault::Certificate(fault) => PkiError::Certificate { path: certificate.into(), fault },
            PartsFault::Key(why) => unusable(key, format!("{why} (the certificate is {})", certificate.display())),
            PartsFault::Authority(why) => unusable(ca, why),
        })
    }

    /// The same from memory.
    pub fn from_parts(parts: IdentityParts) -> Result<Self, PartsFault> {
        let IdentityParts { certificate, key, authorities, provider, clock } = parts;
        let malformed = |why: String| PartsFault::Certificate(CertFault::Malformed(why));
        let facts = names::facts(&certificate).map_err(PartsFault::Certificate)?;
        // Keys of RFC 5958 version 1 hold no public key to compare with; the certificate's does that below.
        let pair = Ed25519KeyPair::from_pkcs8_maybe_unchecked(key.secret_pkcs8_der())
            .map_err(|e| PartsFault::Key(format!("not an Ed25519 key ({e}): issue it with `lanemesh ca issue`")))?;
        if pair.public_key().as_ref() != facts.key {
            let text = "does not belong to the certificate: both files must come from one `lanemesh ca issue`";
            return Err(PartsFault::Key(text.into()));
        }
        let mut roots = RootCertStore::empty();
        for authority in authorities {
            roots.add(authority).map_err(|e| PartsFault::Authority(format!("not usable as an authority: {e}")))?;
        }
        let verifier = Verifier::new(facts.mesh.clone(), roots, provider.clone())
            .map_err(|fault| PartsFault::Authority(fault.to_string()))?;
        let now = clock.current_time().ok_or_else(|| malformed("the clock gives no time".into()))?;
        verifier.check(&certificate, &[], now).map_err(PartsFault::Certificate)?;
        let verifier = Arc::new(verifier);
        let tls = Tls { certificate: &certificate, key: &key, verifier: &verifier, provider: &provider, clock: &clock };
        let fault = |e: rustls::Error| malformed(e.to_string());
        let (client, server) = (tls.client().map_err(fault)?, tls.server().map_err(fault)?);
        Ok(Self { facts, certificate, key: pair, verifier, clock, client: Arc::new(client), server: Arc::new(server) })
    }

    /// What the own certificate says.
    pub fn facts(&self) -> &CertFacts {
        &self.facts
    }

    /// Time by the clock that certificates are checked against.
    pub fn now(&self) -> Wall {
        let since = self.clock.current_time().map_or(0, |t| t.as_secs());
        Wall(since.saturating_mul(1000))
    }

    /// For dialing; the server name must be a [`PeerName`](super::PeerName).
    pub fn client_config(&self) -> Arc<ClientConfig> {
        self.client.clone()
    }

    /// For accepting.
    pub fn server_config(&self) -> Arc<ServerConfig> {
        self.server.clone()
    }

    /// What the certificate of an established connection says now: a resumed session skips the handshake's own check, and
    /// the certificate may have expired since.
    pub fn peer(&self, certificate: &CertificateDer<'_>) -> Result<CertFacts, CertFault> {
        let now = UnixTime::since_unix_epoch(Duration::from_millis(self.now().0));
        self.verifier.check(certificate, &[], now)
    }
}

/// Which of the parts of an identity is at fault, and why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PartsFault {
    /// The certificate.
    #[error("certificate: {0}")]
    Certificate(CertFault),
    /// The key.
    #[error("key: {0}")]
    Key(String),
    /// The authorities.
    #[error("authority: {0}")]
    Authority(String),
}

impl Trust for Identity {
    fn check_certificate(&self, der: &[u8], at: Wall) -> Result<CertFacts, TrustError> {
        let at = UnixTime::since_unix_epoch(Duration::from_millis(at.0));
        self.verifier.check(&CertificateDer::from(der), &[], at).map_err(|fault| TrustError(fault.to_string()))
    }

    fn verify(&self, key: &PublicKey, message: &[u8], signature: &Signature) -> bool {
        UnparsedPublicKey::new(&ED25519, key).verify(message, signature).is_ok()
    }

    fn sign(&self, message: &[u8]) -> Signature {
        self.key.sign(message).as_ref().try_into().expect("an Ed25519 signature has 64 bytes")
    }

    fn own_certificate(&self) -> &[u8] {
        &self.certificate
    }
}

struct Tls<'a> {
    certificate: &'a CertificateDer<'static>,
    key: &'a PrivatePkcs8KeyDer<'static>,
    verifier: &'a Arc<Verifier>,
    provider: &'a Arc<CryptoProvider>,
    clock: &'a Arc<dyn TimeProvider>,
}

impl Tls<'_> {
    fn client(&self) -> Result<ClientConfig, rustls::Error> {
        let mut config = ClientConfig::builder_with_details(self.provider.clone(), self.clock.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .dangerous() // means: own verifier
            .with_custom_certificate_verifier(self.verifier.clone())
            .with_client_auth_cert(vec![self.certificate.clone()], self.private_key())?;
        config.alpn_protocols = vec![ALPN.to_vec()];
        config.resumption = Resumption::in_memory_sessions(CLIENT_SESSIONS);
        // Names of peers are not for the network to read; see `PeerName`.
        config.enable_sni = false;
        Ok(config)
    }

    fn server(&self) -> Result<ServerConfig, rustls::Error> {
        let mut config = ServerConfig::builder_with_details(self.provider.clone(), self.clock.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_client_cert_verifier(self.verifier.clone())
            .with_single_cert(vec![self.certificate.clone()], self.private_key())?;
        config.alpn_protocols = vec![ALPN.to_vec()];
        config.session_storage = ServerSessionMemoryCache::new(SERVER_SESSIONS);
        // One per handshake, so that the memory reaches twice as far back.
        config.send_tls13_tickets = 1;
        Ok(config)
    }

    fn private_key(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::Pkcs8(self.key.clone_key())
    }
}

/// rustls counts 8 tickets a peer: sessions with 256 peers.
const CLIENT_SESSIONS: usize = 8 * 256;
/// Sessions that this side remembers; the default of 256 is gone before a pair meets again in a mesh of 300.
const SERVER_SESSIONS: usize = 1024;
