//! Authority and identity as an operator and a sidecar see them.

use std::{fs, os::unix::fs::PermissionsExt, path::Path, sync::Arc, time::Duration};

use rustls_pki_types::{CertificateDer, UnixTime};

use super::{names, *};
use crate::types::{MeshName, NodeId, ServiceName, Trust, Wall};

const YEAR: Duration = LeafRequest::DEFAULT_VALIDITY;

fn mesh(name: &str) -> MeshName {
    MeshName::new(name).unwrap()
}

fn service(name: &str) -> ServiceName {
    ServiceName::new(name).unwrap()
}

fn now() -> Wall {
    Wall(UnixTime::now().as_secs() * 1000)
}

fn request(node: &str, services: &[&str]) -> LeafRequest {
    let services = services.iter().map(|name| service(name)).collect();
    LeafRequest { node: NodeId::new(node).unwrap(), services, any_service: false, valid_for: YEAR }
}

fn parts(authority: &Authority, leaf: Leaf) -> IdentityParts {
    IdentityParts {
        certificate: leaf.certificate,
        key: leaf.key,
        authorities: vec![authority.certificate().clone()],
        provider: Arc::new(rustls::crypto::ring::default_provider()),
        clock: Arc::new(rustls::time_provider::DefaultTimeProvider),
    }
}

fn identity(authority: &Authority, node: &str, seed: u8) -> Identity {
    let leaf = authority.sign(&request(node, &[]), [seed; 32], now()).unwrap();
    Identity::from_parts(parts(authority, leaf)).unwrap()
}

fn load(dir: &Path, certificate: &str, key: &str, ca: &str) -> Result<Identity, PkiError> {
    Identity::load(&dir.join(certificate), &dir.join(key), &dir.join(ca))
}

#[test]
fn what_is_issued_can_be_loaded_and_says_what_was_asked() {
    let dir = tempfile::tempdir().unwrap();
    let (ca, out) = (dir.path().join("ca"), dir.path().join("n1"));
    Authority::create(&ca, &mesh("prod"), now(), false).unwrap();
    let authority = Authority::open(&ca).unwrap();
    assert_eq!(authority.mesh(), &mesh("prod"));
    let files = authority.issue(&request("n1", &["orders", "cart", "orders"]), &out, now(), false).unwrap();
    let identity = Identity::load(&files.certificate, &files.key, &files.ca).unwrap();
    let facts = identity.facts();
    assert_eq!((facts.node.as_str(), facts.mesh.as_str()), ("n1", "prod"));
    assert_eq!(facts.services, [service("cart"), service("orders")]);
    assert!(facts.may_announce(&service("orders")) && !facts.may_announce(&service("shop")));
    let days = facts.not_after.since(facts.not_before).as_secs() / 86_400;
    assert_eq!(days, 365);
    assert!(now().since(facts.not_before) >= Duration::from_secs(299), "clocks may differ by five minutes");
    for (path, mode) in [(&files.key, 0o600), (&files.certificate, 0o644), (&ca.join("ca-key.pem"), 0o600)] {
        assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, mode, "{}", path.display());
    }
    let left: Vec<_> = fs::read_dir(&out).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 3, "no temporary files: {left:?}");
}

#[test]
fn any_service_is_a_star() {
    let authority = Authority::new(&mesh("prod"), [1; 32], now());
    let request = LeafRequest { any_service: true, ..request("gateway", &[]) };
    let facts = facts(&authority.sign(&request, [2; 32], now()).unwrap().certificate).unwrap();
    assert!(facts.any_service && facts.may_announce(&service("whatever")));
}

#[test]
fn nothing_is_overwritten_unless_asked() {
    let dir = tempfile::tempdir().unwrap();
    Authority::create(dir.path(), &mesh("prod"), now(), false).unwrap();
    let before = fs::read(dir.path().join("ca-key.pem")).unwrap();
    let error = Authority::create(dir.path(), &mesh("prod"), now(), false).err().unwrap().to_string();
    assert!(error.contains("ca-key.pem") && error.contains("--force"), "{error}");
    assert_eq!(fs::read(dir.path().join("ca-key.pem")).unwrap(), before);
    let authority = Authority::open(dir.path()).unwrap();
    authority.issue(&request("n1", &[]), dir.path(), now(), false).unwrap();
    authority.issue(&request("n2", &[]), dir.path(), now(), false).expect("a second node beside the same ca.pem");
    let error = authority.issue(&request("n1", &[]), dir.path(), now(), false).unwrap_err().to_string();
    assert!(error.contains("n1-key.pem"), "{error}");
    authority.issue(&request("n1", &[]), dir.path(), now(), true).unwrap();
    load(dir.path(), "n1.pem", "n1-key.pem", "ca.pem").expect("both files were replaced");
    let other = Authority::new(&mesh("prod"), [9; 32], now());
    let error = other.issue(&request("n3", &[]), dir.path(), now(), false).unwrap_err().to_string();
    assert!(error.contains("ca.pem"), "another authority's certificate stays: {error}");
    assert!(!dir.path().join("n3.pem").exists(), "all or nothing");
}

#[test]
fn every_mistake_with_files_names_the_file_and_the_cure() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path();
    let open = Authority::open(path).err().unwrap().to_string();
    assert!(open.contains("ca init"), "{open}");
    let authority = Authority::create(path, &mesh("prod"), now(), false).unwrap();
    for node in ["n1", "n2"] {
        authority.issue(&request(node, &[]), path, now(), false).unwrap();
    }
    Authority::create(&path.join("other"), &mesh("prod"), now(), false).unwrap();
    let brief = LeafRequest { valid_for: Duration::from_secs(60), ..request("old", &[]) };
    authority.issue(&brief, path, Wall(now().0 - 3_600_000), false).unwrap();
    authority.issue(&request("future", &[]), path, Wall(now().0 + 3_600_000), false).unwrap();
    fs::write(path.join("junk.pem"), "hello").unwrap();
    let cases = [
        (("none.pem", "n1-key.pem", "ca.pem"), "cannot read", "none.pem"),
        (("junk.pem", "n1-key.pem", "ca.pem"), "BEGIN CERTIFICATE", "junk.pem"),
        (("n1-key.pem", "n1-key.pem", "ca.pem"), "is it the key file", "n1-key.pem"),
        (("n1.pem", "n1.pem", "ca.pem"), "is it the certificate file", "n1.pem"),
        (("n1.pem", "n2-key.pem", "ca.pem"), "does not belong to the certificate", "n2-key.pem"),
        (("n1.pem", "n1-key.pem", "other/ca.pem"), "authority that is not trusted", "n1.pem"),
        (("old.pem", "old-key.pem", "ca.pem"), "expired on 2", "old.pem"),
        (("future.pem", "future-key.pem", "ca.pem"), "clocks wrong", "future.pem"),
        (("ca.pem", "ca-key.pem", "ca.pem"), "names no node", "ca.pem"),
    ];
    for ((certificate, key, ca), reason, place) in cases {
        let error = load(path, certificate, key, ca).unwrap_err().to_string();
        assert!(error.contains(reason) && error.contains(place), "{certificate} {key} {ca}: {error}");
    }
}

#[test]
fn an_authority_is_opened_only_with_its_own_key() {
    let dir = tempfile::tempdir().unwrap();
    Authority::create(dir.path(), &mesh("prod"), now(), false).unwrap();
    Authority::create(&dir.path().join("b"), &mesh("prod"), now(), false).unwrap();
    fs::copy(dir.path().join("b/ca-key.pem"), dir.path().join("ca-key.pem")).unwrap();
    let error = Authority::open(dir.path()).err().unwrap().to_string();
    assert!(error.contains("does not belong to the key"), "{error}");
    let authority = Authority::open(&dir.path().join("b")).unwrap();
    authority.issue(&request("n1", &[]), dir.path(), now(), true).unwrap();
    fs::copy(dir.path().join("n1.pem"), dir.path().join("b/ca.pem")).unwrap();
    let error = Authority::open(&dir.path().join("b")).err().unwrap().to_string();
    assert!(error.contains("not made by `lanemesh ca init`"), "{error}");
}

#[test]
fn senseless_requests_are_refused() {
    let start = now();
    let authority = Authority::new(&mesh("prod"), [1; 32], start);
    let brief = LeafRequest { valid_for: Duration::from_secs(59), ..request("n1", &[]) };
    assert!(authority.sign(&brief, [2; 32], start).err().unwrap().to_string().contains("at least 1 minute"));
    let eleven_years = Wall(start.0 + 11 * 365 * 86_400_000);
    let error = authority.sign(&request("n1", &[]), [2; 32], eleven_years).err().unwrap().to_string();
    assert!(error.contains("expired on") && error.contains("ca init"), "{error}");
    let long = LeafRequest { valid_for: 20 * YEAR, ..request("n1", &[]) };
    let leaf = authority.sign(&long, [2; 32], start).unwrap();
    let years = facts(&leaf.certificate).unwrap().not_after.since(start).as_secs() / YEAR.as_secs();
    assert!((9..=10).contains(&years), "no longer than its authority");
}

#[test]
fn the_same_seed_makes_the_same_certificate_and_another_one_another_serial() {
    let at = Wall(1_800_000_000_000);
    let make = |seed| {
        let authority = Authority::new(&mesh("sim"), [1; 32], at);
        authority.sign(&request("n1", &["orders"]), [seed; 32], at).unwrap().certificate
    };
    assert_eq!(make(2), make(2));
    assert_ne!(make(2), make(3));
}

#[test]
fn a_certificate_is_checked_as_of_the_time_given() {
    let authority = Authority::new(&mesh("prod"), [1; 32], now());
    let trust = identity(&authority, "n1", 2);
    let peer = authority.sign(&request("n2", &["orders"]), [3; 32], now()).unwrap();
    let facts = trust.check_certificate(&peer.certificate, now()).unwrap();
    assert_eq!(facts.node.as_str(), "n2");
    assert!(facts.may_announce(&service("orders")));
    let later = Wall(now().0 + 366 * 86_400_000);
    let error = trust.check_certificate(&peer.certificate, later).unwrap_err().to_string();
    assert!(error.contains("`n2`") && error.contains("expired on"), "{error}");
    let earlier = Wall(now().0 - 3_600_000);
    assert!(trust.check_certificate(&peer.certificate, earlier).unwrap_err().to_string().contains("valid only from"));
    assert!(trust.check_certificate(trust.own_certificate(), now()).is_ok());
}

#[test]
fn strangers_other_meshes_and_authorities_are_no_members() {
    let authority = Authority::new(&mesh("prod"), [1; 32], now());
    let trust = identity(&authority, "n1", 2);
    let check = |authority: &Authority| {
        let leaf = authority.sign(&request("n2", &[]), [3; 32], now()).unwrap();
        trust.check_certificate(&leaf.certificate, now()).unwrap_err().to_string()
    };
    let stranger = Authority::new(&mesh("prod"), [8; 32], now());
    assert!(check(&stranger).contains("not trusted here"));
    let staging = Authority::new(&mesh("prod"), [1; 32], now()).for_mesh("staging");
    let error = check(&staging);
    assert!(error.contains("`staging`") && error.contains("`prod`"), "{error}");
    assert!(trust.check_certificate(authority.certificate(), now()).is_err(), "an authority is no member");
    let mut bent = trust.own_certificate().to_vec();
    let middle = bent.len() / 2;
    bent[middle] ^= 1;
    assert!(trust.check_certificate(&bent, now()).is_err());
    bent.push(0);
    assert!(trust.check_certificate(&bent, now()).is_err());
    assert!(trust.check_certificate(b"", now()).is_err());
}

#[test]
fn a_signature_is_for_one_key_and_one_message() {
    let authority = Authority::new(&mesh("prod"), [1; 32], now());
    let (a, b) = (identity(&authority, "a", 2), identity(&authority, "b", 3));
    let signature = a.sign(b"message");
    assert!(b.verify(&a.facts().key, b"message", &signature));
    assert!(!b.verify(&a.facts().key, b"another", &signature));
    assert!(!b.verify(&b.facts().key, b"message", &signature));
    assert!(!b.verify(&[0; 32], b"message", &signature));
}

#[test]
fn authorities_can_be_rotated_by_trusting_two() {
    let (old, new) = (Authority::new(&mesh("prod"), [1; 32], now()), Authority::new(&mesh("prod"), [2; 32], now()));
    let leaf = old.sign(&request("n1", &[]), [3; 32], now()).unwrap();
    let mut both = parts(&old, leaf);
    both.authorities.push(new.certificate().clone());
    let trust = Identity::from_parts(both).unwrap();
    for authority in [&old, &new] {
        let peer = authority.sign(&request("n2", &[]), [4; 32], now()).unwrap();
        assert!(trust.check_certificate(&peer.certificate, now()).is_ok());
    }
}

#[test]
fn names_of_peers_are_valid_for_tls_and_lead_back_to_the_node() {
    let long = "x".repeat(63);
    for node in ["a", "a_b.c-d", "0", long.as_str()] {
        let node = NodeId::new(node).unwrap();
        let name = PeerName::node(&node);
        assert!(rustls_pki_types::ServerName::try_from(name.as_str()).is_ok(), "{name:?}");
        assert_eq!(PeerName::expected(name.as_str()), Some(node));
    }
    for addr in ["1.2.3.4:5", "[::1]:65535", "[2001:db8::1]:1"] {
        let name = PeerName::address(addr.parse().unwrap());
        assert!(rustls_pki_types::ServerName::try_from(name.as_str()).is_ok(), "{name:?}");
        assert_eq!(PeerName::expected(name.as_str()), None);
    }
}

#[test]
fn a_certificate_with_two_names_or_another_key_type_is_no_identity() {
    let two = custom(&["lanemesh://prod/node/a", "lanemesh://prod/node/b"], &rcgen::PKCS_ED25519);
    assert!(facts(&two).unwrap_err().to_string().contains("one node"));
    let meshes = custom(&["lanemesh://prod/node/a", "lanemesh://staging/service/x"], &rcgen::PKCS_ED25519);
    assert!(facts(&meshes).unwrap_err().to_string().contains("one mesh"));
    let bad = custom(&["lanemesh://prod/node/UPPER"], &rcgen::PKCS_ED25519);
    assert!(facts(&bad).unwrap_err().to_string().contains("not a valid node id"));
    let ecdsa = custom(&["lanemesh://prod/node/a"], &rcgen::PKCS_ECDSA_P256_SHA256);
    assert!(facts(&ecdsa).unwrap_err().to_string().contains("not Ed25519"));
    let newer =
        custom(&["lanemesh://prod/node/a", "lanemesh://prod/role/gateway", "spiffe://x/y"], &rcgen::PKCS_ED25519);
    assert_eq!(facts(&newer).unwrap().node.as_str(), "a", "names of later versions and other schemes are skipped");
}

/// A self-signed certificate with these URI names.
fn custom(uris: &[&str], algorithm: &'static rcgen::SignatureAlgorithm) -> CertificateDer<'static> {
    let key = rcgen::KeyPair::generate_for(algorithm).unwrap();
    let mut params = rcgen::CertificateParams::default();
    params.subject_alt_names = uris.iter().map(|uri| rcgen::SanType::URI((*uri).try_into().unwrap())).collect();
    params.self_signed(&key).unwrap().der().clone()
}

#[test]
fn dates_beyond_what_can_be_printed_are_no_panic() {
    assert_eq!(names::date(Wall(0)), "1970-01-01T00:00:00Z");
    assert!(names::date(Wall(u64::MAX)).starts_with("9999-12-31"));
}
