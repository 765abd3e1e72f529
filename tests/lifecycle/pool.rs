//! The folder of a pool: one pool at a time, whatever its end.

use crate::harness::node::Node;

const CAPACITY: &str = "actor_node_pool_capacity_bytes";

#[test]
fn a_folder_is_one_pools_until_its_process_ends() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("pages");
    let folder = folder.to_str().unwrap();
    let keys = [("POOL__DISK", folder), ("POOL__DISK_SIZE", "64MiB"), ("CLUSTER__NAME", "first")];
    let mut node = Node::fake_with(&[], &keys);
    assert_eq!(node.figure_where(CAPACITY, "tier=\"disk\""), f64::from(64 << 20));

    let keys = [("ACTOR_NODE_POOL__DISK", folder), ("ACTOR_NODE_POOL__DISK_SIZE", "64MiB")];
    let (status, said) = Node::refused(&["--engine", "fake"], &keys);
    assert!(!status.success());
    for words in [folder, "pool.disk", "in use by node first (process "] {
        assert!(said.contains(words), "{said}");
    }

    node.restart();
    let mut node = node.until_ready();
    node.signal("TERM");
    assert!(node.wait().success(), "{}", node.log());
    let node = Node::fake_with(&[], &[("POOL__DISK", folder), ("POOL__DISK_SIZE", "64MiB")]);
    node.assert_idle();
}

/// The port for pages is where the configuration says, unless that is a worker's.
#[test]
fn a_pool_has_a_port_for_pages_in_a_cluster() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let args = ["--role", "pool", "--listen", "127.0.0.1:0"];
    let (status, said) = Node::refused(&args, &[("ACTOR_NODE_CLUSTER__KV_LISTEN", &address)]);
    assert!(!status.success());
    assert!(said.contains("cluster.kv-listen") && said.contains(&address), "{said}");
    drop(taken);
    let node = Node::fake_with(&["--listen", "127.0.0.1:0"], &[("CLUSTER__KV_LISTEN", &address)]);
    node.assert_idle();
}
