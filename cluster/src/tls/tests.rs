use std::fs;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tempfile::TempDir;

use super::*;

/// Certificates of a cluster, made for a test.
pub(crate) struct Authority {
    folder: TempDir,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(Vec::new()).expect("parameters");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let root = params.self_signed(&key).expect("a root");
        fs::write(folder.path().join("ca.pem"), root.pem()).expect("written");
        Self { folder, issuer: Issuer::new(params, key) }
    }

    pub(crate) fn ca(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }

    /// Certificate and key for these hosts.
    pub(crate) fn leaf(&self, name: &str, hosts: &[&str]) -> (PathBuf, PathBuf) {
        let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
        let key = KeyPair::generate().expect("a key");
        let cert = CertificateParams::new(hosts)
            .and_then(|params| params.signed_by(&key, &self.issuer))
            .expect("a certificate");
        let paths =
            (self.folder.path().join(format!("{name}.pem")), self.folder.path().join(format!("{name}.key")));
        fs::write(&paths.0, cert.pem()).expect("written");
        fs::write(&paths.1, key.serialize_pem()).expect("written");
        paths
    }

    /// TLS of a node at these hosts.
    pub(crate) fn tls(&self, hosts: &[&str]) -> Tls {
        let (cert, key) = self.leaf("node", hosts);
        Tls::load(&self.ca(), &cert, &key, None).expect("loaded")
    }

    /// A client without a certificate of its own.
    pub(crate) fn anonymous(&self) -> Tls {
        let mut roots = RootCertStore::empty();
        for root in certificates("tls-ca", &self.ca()).expect("read") {
            roots.add(root).expect("a root");
        }
        let client = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_root_certificates(roots)
            .with_no_client_auth();
        let connect = TlsConnector::from(Arc::new(client));
        Tls { connect, ..self.tls(&["127.0.0.1"]) }
    }
}

fn load_error(ca: &Path, cert: &Path, key: &Path, name: Option<&str>) -> String {
    Tls::load(ca, cert, key, name).expect_err("refused").to_string()
}

#[test]
fn errors_name_the_option_and_the_file() {
    let authority = Authority::new();
    let (cert, key) = authority.leaf("node", &["localhost"]);
    let (other_cert, _) = authority.leaf("other", &["localhost"]);
    let ca = authority.ca();
    let missing = authority.folder.path().join("missing.pem");
    let junk = authority.folder.path().join("junk.pem");
    fs::write(&junk, "no PEM at all").expect("written");

    for (error, words) in [
        (load_error(&missing, &cert, &key, None), ["tls-ca", "missing.pem"]),
        (load_error(&ca, &missing, &key, None), ["tls-cert", "missing.pem"]),
        (load_error(&ca, &cert, &missing, None), ["tls-key", "missing.pem"]),
        (load_error(&junk, &cert, &key, None), ["tls-ca", "no certificate"]),
        (load_error(&ca, &junk, &key, None), ["tls-cert", "no certificate"]),
        (load_error(&ca, &cert, &junk, None), ["tls-key", "no private key"]),
        (load_error(&ca, &key, &key, None), ["tls-cert", "no certificate"]),
        (load_error(&ca, &other_cert, &key, None), ["tls-key", "does not go with"]),
        (load_error(&ca, &cert, &key, Some("not a name")), ["tls-server-name", "not a name"]),
    ] {
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
    }
}

#[tokio::test]
async fn the_refusing_server_completes_no_handshake() {
    let authority = Authority::new();
    let tls = authority.tls(&["localhost"]);
    let (near, far) = tokio::io::duplex(64 * 1024);
    let refuse = refuse_all().expect("made");
    let (client, server) = tokio::join!(
        tls.connector().connect(tls.name_for("localhost").expect("a name"), near),
        refuse.accept(far)
    );
    assert!(client.is_err() && server.is_err());
}

#[test]
fn the_peer_name_is_the_dialled_host_unless_one_is_given() {
    let authority = Authority::new();
    let (cert, key) = authority.leaf("node", &["localhost"]);
    let tls = authority.tls(&["localhost"]);
    for host in ["localhost", "127.0.0.1", "::1", "node-1.example"] {
        assert_eq!(tls.name_for(host).expect("a name").to_str(), host);
    }
    assert!(tls.name_for("no host").is_err());
    let named = Tls::load(&authority.ca(), &cert, &key, Some("cluster.internal")).expect("loaded");
    assert_eq!(named.name_for("127.0.0.1").expect("a name").to_str(), "cluster.internal");
    assert!(!format!("{named:?}").contains("key"), "no key material in {named:?}");
}
