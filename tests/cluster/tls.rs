//! TLS between nodes: a CA of the cluster's own, certificates at both ends.

use std::fs;
use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

use super::{assert_there, served_by};
use crate::harness::cluster::Cluster;
use crate::harness::wait_for;

/// Files of a CA and of one certificate by it for loopback.
struct Certificates {
    ca: PathBuf,
    cert: PathBuf,
    key: PathBuf,
}

impl Certificates {
    fn new(folder: &Path, hosts: &[&str]) -> Self {
        fs::create_dir(folder).unwrap();
        let root_key = KeyPair::generate().unwrap();
        let mut root = CertificateParams::new(Vec::new()).unwrap();
        root.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca = root.self_signed(&root_key).unwrap();
        let issuer = Issuer::new(root, root_key);
        let key = KeyPair::generate().unwrap();
        let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
        let cert = CertificateParams::new(hosts).unwrap().signed_by(&key, &issuer).unwrap();
        let write = |name: &str, text: String| {
            let path = folder.join(name);
            fs::write(&path, text).unwrap();
            path
        };
        Self {
            ca: write("ca.pem", ca.pem()),
            cert: write("cert.pem", cert.pem()),
            key: write("key.pem", key.serialize_pem()),
        }
    }

    fn keys(&self) -> [(&str, &str); 3] {
        [
            ("CLUSTER__TLS__CA", self.ca.to_str().unwrap()),
            ("CLUSTER__TLS__CERT", self.cert.to_str().unwrap()),
            ("CLUSTER__TLS__KEY", self.key.to_str().unwrap()),
        ]
    }
}

/// With certificates the cluster works; without the right ones nobody comes in, and nobody inside notices.
#[test]
fn certificates_are_demanded_of_both_ends() {
    let dir = tempfile::tempdir().unwrap();
    let ours = Certificates::new(&dir.path().join("ours"), &["127.0.0.1", "127.0.0.2"]);
    let theirs = Certificates::new(&dir.path().join("theirs"), &["127.0.0.1", "127.0.0.2"]);
    let mut cluster = Cluster::of_with(&["c1", "g1", "w1"], &ours.keys());
    assert_eq!(served_by(&cluster, "g1"), "w1");

    let plain = [("CLUSTER__TLS__CA", "none"), ("CLUSTER__TLS__CERT", "none"), ("CLUSTER__TLS__KEY", "none")];
    let half = [ours.keys()[0], theirs.keys()[1], theirs.keys()[2]];
    // Of another CA altogether; with a certificate of another CA only; without TLS.
    for keys in [theirs.keys(), half, plain] {
        cluster.node("w2", "worker", &["--engine", "fake"], &keys);
        // It tries for ever, as with any seed that does not answer as it should, and says so.
        wait_for("the log to say that no seed can be reached", || {
            let log = cluster["w2"].log();
            let lines = log.lines().filter(|line| line.contains("cannot reach a node"));
            (lines.count() >= 3).then_some(())
        });
        let (status, reason) = cluster.readiness("w2");
        assert_eq!(status, 503, "{reason}");
        assert_eq!(cluster.view("w2")["joined"], false);
        assert_there(&cluster, &["c1", "g1", "w1"], &["c1", "g1", "w1"]);
        drop(cluster.take("w2"));
    }
    cluster.worker("w2");
    cluster.until_whole();
    served_by(&cluster, "g1");
}

/// A certificate for another host than the one dialled is not accepted, unless the name to expect is given.
#[test]
fn the_name_in_a_certificate_counts() {
    let dir = tempfile::tempdir().unwrap();
    let named = Certificates::new(&dir.path().join("named"), &["node.example"]);
    let mut cluster = Cluster::new(&named.keys());
    cluster.controller("c1");
    cluster.gateway("g1");
    wait_for("the gateway to refuse the controller's certificate", || {
        let log = cluster["g1"].log();
        log.lines().any(|l| l.contains("cannot reach a node") && l.contains("tls")).then_some(())
    });
    assert_eq!(cluster.view("g1")["joined"], false);
    let [ca, cert, key] = named.keys();
    let mut cluster = Cluster::new(&[ca, cert, key, ("CLUSTER__TLS__SERVER_NAME", "node.example")]);
    cluster.controller("c1");
    cluster.gateway("g1");
    cluster.worker("w1");
    cluster.until_whole();
    assert_eq!(served_by(&cluster, "g1"), "w1");
}
