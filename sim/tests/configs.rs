//! A node's configuration file as the policy part of a scenario.

use std::path::{Path, PathBuf};

use config::{Choice, Dur, Mode};
use sim::scenario::Lengths;
use sim::{Scenario, SimError, run};

/// As somebody runs it: policies beside much that is no policy.
const PRODUCTION: &str = r#"
[node]
drain-timeout = "20s"
[cluster]
name = "front-1"
listen = "0.0.0.0:7000"
seeds = ["10.0.0.2:7000"]
cluster_policies = "session-affinity, cache-aware"
role = "decode"
[engine]
page-tokens = 32
[runtime]
max-batch-tokens = 1024
max-running = 64
worker_policy = "fair, keep-session"
[worker-policy.fair]
output-weight = 3
[gateway]
retry-limit = 7
stream-credit = 32
[controller]
queue-limit = 99
choice = "power-of-two"
[policy.cache-aware]
mode = "shadow"
cache-threshold = 0.75
"#;

fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&folder).expect("the tests have a folder to write to");
    folder
}

#[test]
fn a_nodes_configuration_is_the_policy_part() {
    let folder = folder("configs-policies");
    std::fs::write(folder.join("config.toml"), PRODUCTION).unwrap();
    let text = r#"
        config = "config.toml"
        [workload]
        requests = 30
        output = { fixed = 20 }
        [cluster]
        workers = 3
        max-running = 16
        [controller]
        queue-timeout = "9s"
        [policy.cache-aware]
        mode = "prod"
        [worker-policy.fair]
        input-weight = 2
    "#;
    std::fs::write(folder.join("scenario.toml"), text).unwrap();
    let scenario = Scenario::load(&folder.join("scenario.toml")).unwrap();
    let c = &scenario.cluster;
    assert_eq!(c.cluster_policies, ["session-affinity", "cache-aware"]);
    assert_eq!(c.worker_policy, ["fair", "keep-session"]);
    assert_eq!((c.max_batch_tokens, c.max_running, c.max_waiting), (1024, 16, 1024));
    // A node finds it by itself, and so does the simulator; what a file or a scenario sets counts.
    assert_eq!(c.max_mixed_tokens, None);
    assert_eq!((c.queue_limit, c.queue_timeout, c.choice), (99, Dur::from_secs(9), Choice::PowerOfTwo));
    assert_eq!((c.retry_limit, c.credit, c.workers), (7, 32, 3));
    // What a node is remains the scenario's.
    assert_eq!((c.page_tokens, scenario.nodes.len()), (16, 0));
    let cache = &scenario.policy.cache_aware;
    assert_eq!((cache.mode, cache.cache_threshold), (Mode::Prod, 0.75));
    let fair = &scenario.worker_policy.fair;
    assert_eq!((fair.input_weight, fair.output_weight), (2, 3));
    assert_eq!(scenario.workload.output, Lengths::Fixed(20));
    assert_eq!(run(&scenario).unwrap().finished, 30);
}

#[test]
fn prompts_beside_decodes_have_the_share_of_a_step_that_is_set() {
    let folder = folder("configs-mixed");
    std::fs::write(folder.join("config.toml"), "[runtime]\nmax-mixed-tokens = 64").unwrap();
    let load = |text: &str| {
        std::fs::write(folder.join("scenario.toml"), format!("config = \"config.toml\"\n{text}")).unwrap();
        Scenario::load(&folder.join("scenario.toml"))
    };
    assert_eq!(load("").unwrap().cluster.max_mixed_tokens, Some(64));
    assert_eq!(load("[cluster]\nmax-mixed-tokens = 32").unwrap().cluster.max_mixed_tokens, Some(32));
    assert_eq!(load("[cluster]\nmax-mixed-tokens = \"auto\"").unwrap().cluster.max_mixed_tokens, None);
    let error = load("[cluster]\nmax-mixed-tokens = \"some\"").unwrap_err().to_string();
    assert!(error.contains("use a number, or auto"), "{error}");
    let nodes = load("[cluster]\n[[node]]\nmax-mixed-tokens = 16\n[[node]]\ncount = 2").unwrap();
    let of_class = |at: usize| nodes.classes()[at].over(&nodes.cluster).max_mixed_tokens;
    assert_eq!((of_class(0), of_class(1)), (Some(16), Some(64)));
    // The longest gap in a stream while long prompts come is shorter the smaller their share.
    let p99 = |tokens: u32| {
        let text = format!(
            "[workload]\nrequests = 60\nprompt = {{ fixed = 2000 }}\noutput = {{ fixed = 60 }}\n\
             [cluster]\nworkers = 1\nmax-mixed-tokens = {tokens}"
        );
        run(&load(&text).unwrap()).unwrap().inter_token_ms.p99
    };
    assert!(p99(16) < p99(512), "{} {}", p99(16), p99(512));
}

#[test]
fn the_configuration_that_is_given_counts_more_than_the_one_that_is_named() {
    let folder = folder("configs-given");
    std::fs::write(folder.join("config.toml"), "[gateway]\nretry-limit = 1").unwrap();
    std::fs::write(folder.join("other.toml"), "[gateway]\nretry-limit = 2").unwrap();
    std::fs::write(folder.join("scenario.toml"), "config = \"config.toml\"").unwrap();
    let load = |given| Scenario::load_with(&folder.join("scenario.toml"), given).unwrap();
    assert_eq!(load(None).cluster.retry_limit, 1);
    let given = load(Some(&folder.join("other.toml")));
    assert_eq!(given.cluster.retry_limit, 2);
    // What the file leaves out is as at a node: there all policies are asked.
    assert_eq!(given.cluster.cluster_policies, config::PoliciesConfig::DEFAULT);
    assert!(Scenario::default().cluster.cluster_policies.is_empty());
}

#[test]
fn what_a_node_would_refuse_is_refused() {
    let folder = folder("configs-refused");
    let load = |config: &str, scenario: &str| -> Result<Scenario, SimError> {
        std::fs::write(folder.join("config.toml"), config).unwrap();
        let text = format!("config = \"config.toml\"\n{scenario}");
        std::fs::write(folder.join("scenario.toml"), text).unwrap();
        let scenario = Scenario::load(&folder.join("scenario.toml"))?;
        scenario.validate()?;
        Ok(scenario)
    };
    for (config, scenario, part) in [
        ("[policy.cache-aware]\nmod = \"off\"", "", "policy.cache-aware.mod"),
        ("[runtime]\nworker-policy = \"fair, priority\"", "", "there is one order"),
        ("", "[runtime]\nworker-policy = \"unfair\"", "runtime.worker-policy"),
        ("", "[runtime]\nmax-running = 4\n[cluster]\nmax-running = 5", "max-running"),
        ("", "[controller]\nqueue = 4", "queue"),
        ("", "[policy.disaggregate]\nlease = \"1s\"", "policy.disaggregate.lease"),
        ("", "[worker-policy.keep-session]\nmax-share = 2.0", "max-share"),
    ] {
        let error = load(config, scenario).unwrap_err().to_string();
        assert!(error.contains(part), "{config} {scenario}: {error}");
    }
    let error = Scenario::from_toml("config = \"no-such-file.toml\"", "here").unwrap_err().to_string();
    assert!(error.contains("no-such-file.toml"), "{error}");
    assert!(Scenario::from_toml("config = 7", "here").unwrap_err().to_string().contains("path"));
}
