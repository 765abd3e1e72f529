//! The files that are shipped: profiles, and what deployments set.

use super::*;

const DEV: &str = include_str!("../../../profiles/dev.toml");
const COMPOSE: &str = include_str!("../../../deploy/compose.yaml");
const DOCKERFILE: &str = include_str!("../../../deploy/Dockerfile");
const UNIT: &str = include_str!("../../../deploy/actor-node@.service");

#[test]
fn the_shipped_profiles_load() {
    let dev = loaded(DEV, &[], &[]).unwrap();
    assert_eq!((dev.engine.kind, dev.engine.kv_memory), (EngineKind::Paged, Some(Size::mib(256))));
    let fake = loaded(FAKE, &[], &[]).unwrap();
    assert_eq!((fake.engine.kind, fake.engine.kv_pages), (EngineKind::Fake, Some(1024)));
}

/// The variables that a deployment file sets, comments with examples included.
fn set_in(file: &str) -> Vec<(&str, &str)> {
    let set = |line| -> Option<_> {
        let text: &str = line;
        let text = &text[text.find("ACTOR_NODE_")?..];
        let (name, value) = text.split_once(": ").or_else(|| text.split_once('='))?;
        // What systemd puts in: the instance, and the folder of caches.
        let value = if value == "%i" { "worker1" } else { value };
        Some((name, value.trim_start_matches("%C").trim_matches('"')))
    };
    file.lines().filter_map(set).collect()
}

#[test]
fn what_the_deployment_files_set_loads() {
    let image = set_in(DOCKERFILE);
    let unit = loaded("", &set_in(UNIT), &[]).unwrap();
    assert_eq!(unit.cluster.name.as_deref(), Some("worker1"));
    assert!(unit.cluster.is_clustered(&unit.node.roles) && unit.node.roles == "worker".parse().unwrap());
    assert_eq!(unit.cluster.seeds.len(), 2);
    let commands =
        COMPOSE.lines().filter_map(|line| line.trim().strip_prefix("command: [")?.strip_suffix(']'));
    let mut names = Vec::new();
    for command in commands {
        let flags: Vec<&str> = command.split(", ").map(|flag| flag.trim_matches('"')).collect();
        let config = loaded("", &[image.clone(), set_in(COMPOSE)].concat(), &flags).unwrap();
        let cluster = &config.cluster;
        let name = cluster.name.clone().unwrap();
        assert_eq!(cluster.advertise, Some(format!("{name}:7946")), "others find a container by its service");
        assert_eq!(cluster.listen.as_deref(), Some("0.0.0.0:7946"));
        assert_eq!(cluster.all_seeds(), ["controller:7946", "gateway:7946"]);
        assert!(cluster.cookie_file.is_some(), "a listener beyond loopback demands one");
        assert!(COMPOSE.contains(&format!("\n  {name}:\n")), "a service is named as its node");
        names.push(name);
    }
    assert_eq!(names, ["controller", "gateway", "worker1", "worker2"]);
}
