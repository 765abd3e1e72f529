//! Flags, the file, the environment.

use std::fs;

use super::{ok, run};
use crate::harness::node::Node;

/// B95: a wrong command line or configuration is one line that names what is wrong, and exit code 2.
#[test]
fn b95_wrong_settings_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let unknown = file("unknown.toml", "[http]\nlistn = \"127.0.0.1:0\"\n");
    let section = file("section.toml", "[htpp]\nlisten = \"127.0.0.1:0\"\n");
    let wrong = file("wrong.toml", "[engine]\nkv-pages = \"many\"\n");
    let twice = file("twice.toml", "[node]\nname = \"a\"\nname = \"b\"\n");
    let broken = file("broken.toml", "[node\n");
    let none = dir.path().join("none.toml").to_str().unwrap().to_owned();
    for (args, words) in [
        (vec!["--role", "foo"], vec!["--role", "foo", "gateway, controller, worker, pool"]),
        (vec!["--role", "gateway", "--prefill"], vec!["--prefill"]),
        (vec!["--confg", "x"], vec!["--confg", "--config"]),
        (vec!["--engine", "pagd"], vec!["pagd", "paged"]),
        (vec!["serve"], vec!["serve"]),
        (vec!["--http-listen"], vec!["--http-listen"]),
        (vec!["--http-listen", "localhost"], vec!["http.listen", "localhost", "HOST:PORT"]),
        (vec!["--http-listen", "localhost:99999"], vec!["http.listen", "99999"]),
        (vec!["--page-tokens", "24"], vec!["engine.page-tokens", "24", "multiple of 16"]),
        (vec!["--kv-memory", "12"], vec!["--kv-memory", "12", "units"]),
        (vec!["--model", "model.gguf"], vec!["model.source", "model.gguf", "file:PATH"]),
        (vec!["--log-level", "loud=much=too"], vec!["log.level", "loud=much=too"]),
        (vec!["--config", &unknown], vec!["unknown.toml", "http.listn", "http.listen"]),
        (vec!["--config", &section], vec!["section.toml", "htpp", "http"]),
        (vec!["--config", &wrong], vec!["wrong.toml", "engine.kv-pages", "many"]),
        (vec!["--config", &twice], vec!["twice.toml:3:1", "duplicate key", "name"]),
        (vec!["--config", &broken], vec!["broken.toml:1"]),
        (vec!["--config", &none], vec!["none.toml", "No such file"]),
        (vec!["model"], vec!["pull", "list", "remove"]),
        (vec!["model", "pul"], vec!["pul", "pull"]),
        (vec!["model", "remove"], vec!["SOURCE"]),
        (vec!["sim", "--rate", "-1"], vec!["--rate", "-1"]),
    ] {
        let said = run(&args, &[]);
        assert_eq!(said.code, Some(2), "{args:?}: {said:?}");
        assert_eq!(said.out, "", "{args:?}");
        let mut lines = said.err.lines();
        let first = lines.next().unwrap();
        assert!(first.starts_with("error: "), "{args:?}: {said:?}");
        assert!(
            words.iter().all(|word| said.err.contains(word)),
            "{args:?}: {said:?} lacks one of {words:?}"
        );
        // A wrong flag is followed by the usage, and nothing else is.
        assert!(lines.all(|line| line.starts_with("Usage: actor-node")), "{args:?}: {said:?}");
    }
    for (name, value, words) in [
        ("ACTOR_NODE_HTTP__LISTN", "x", ["ACTOR_NODE_HTTP__LISTN", "ACTOR_NODE_HTTP__LISTEN"]),
        ("ACTOR_NODE_RUNTIME__MAX_RUNNING", "lots", ["ACTOR_NODE_RUNTIME__MAX_RUNNING", "lots"]),
        ("ACTOR_NODE_ENGINE__PAGE_TOKENS", "24", ["engine.page-tokens", "24"]),
        ("ACTOR_NODE_POOL__DISK", "pages", ["pool.disk = pages", "pool.disk-size"]),
        ("ACTOR_NODE_POOL__DISK_SIZE", "2GiB", ["pool.disk-size = 2GiB", "pool.disk too"]),
    ] {
        let said = run(&["--dump-config"], &[(name, value)]);
        assert_eq!(said.code, Some(2), "{said:?}");
        assert!(words.iter().all(|word| said.err.contains(word)), "{said:?}");
        assert_eq!(said.err.lines().count(), 1, "{said:?}");
    }
}

#[test]
fn help_and_version_are_answers() {
    assert!(ok(&["--version"], &[]).starts_with(concat!("actor-node ", env!("CARGO_PKG_VERSION"))));
    let help = ok(&["--help"], &[]);
    for word in ["--role", "--http-listen", "--model", "--engine", "--dump-config", "sim", "model"] {
        assert!(help.contains(word), "{word} in {help}");
    }
    for command in [&["sim", "--help"][..], &["model", "--help"], &["model", "pull", "--help"]] {
        ok(command, &[]);
    }
}

/// A dump holds every setting and reads back as itself; each layer overrides the one below.
#[test]
fn a_dump_reads_back_and_layers_override() {
    let dir = tempfile::tempdir().unwrap();
    let home = [("HOME", dir.path().to_str().unwrap())];
    let dump = |args: &[&str], more: &[(&str, &str)]| {
        ok(&[args, &["--dump-config"]].concat(), &[&home[..], more].concat())
    };
    let defaults = dump(&[], &[]);
    let file = dir.path().join("node.toml");
    let path = file.to_str().unwrap();
    fs::write(&file, &defaults).unwrap();
    assert_eq!(dump(&["--config", path], &[]), defaults);
    assert_eq!(dump(&[], &[("ACTOR_NODE_CONFIG", path)]), defaults);

    fs::write(&file, "[cluster]\nname = \"from-file\"\n[runtime]\nmax-running = 20\nmax-waiting = 30\n")
        .unwrap();
    let variables = [("ACTOR_NODE_CLUSTER__NAME", "from-env"), ("ACTOR_NODE_RUNTIME__MAX_RUNNING", "21")];
    let layered = dump(&["--config", path, "--name", "from-flag"], &variables);
    for line in ["name = \"from-flag\"", "max-running = 21", "max-waiting = 30", "max-batch-tokens = 512"] {
        assert!(layered.lines().any(|l| l == line), "{line} in {layered}");
    }
    let again = dir.path().join("again.toml");
    fs::write(&again, &layered).unwrap();
    assert_eq!(dump(&["--config", again.to_str().unwrap()], &[]), layered);
    let secret = dump(&[], &[("ACTOR_NODE_COOKIE", "very-secret")]);
    assert!(!secret.contains("very-secret"));
}

/// The profiles that come with the source are read as they are.
#[test]
fn the_profiles_are_valid() {
    let profiles = "config/profiles";
    let mut seen = 0;
    for entry in fs::read_dir(profiles).unwrap() {
        let path = entry.unwrap().path();
        ok(&["--config", path.to_str().unwrap(), "--dump-config"], &[]);
        seen += 1;
    }
    assert!(seen >= 2);
}

/// Standard output has the address and nothing else; the log goes to standard error, in the form that was asked for.
#[test]
fn logs_are_json_when_asked_for() {
    let node = Node::fake(&["--log-format", "json", "--log-level", "info,actors=debug"]);
    let log = node.log();
    assert!(log.lines().count() >= 2, "{log}");
    for line in log.lines() {
        let line: serde_json::Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{e} in {line}"));
        assert!(line["level"].is_string() && line["target"].is_string(), "{line}");
    }
    let quiet = Node::fake(&["--log-level", "off"]);
    assert_eq!(quiet.log(), "");
}
