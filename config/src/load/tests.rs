use std::fs;

use super::*;
use crate::cli::Cli;
use crate::engine::EngineKind;
use crate::model::Isq;
use crate::policy::PrefillFallback;
use crate::role::{Role, WorkerRole};
use crate::units::{Dur, Size};

mod shipped;

const FAKE: &str = include_str!("../../profiles/fake.toml");

/// Loads `file`'s text, `variables` and `flags` the way `main` does.
fn loaded(file: &str, variables: &[(&str, &str)], flags: &[&str]) -> Result<Config, ConfigError> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("node.toml");
    fs::write(&path, file).unwrap();
    let mut all = vec![("HOME", "/home/someone"), ("ACTOR_NODE_CONFIG", path.to_str().unwrap())];
    all.extend(variables);
    let cli = Cli::parse_from_args([&["actor-node"], flags].concat(), "1.2.3").unwrap();
    load(&cli.overrides, &all.into_iter().collect())
}

/// The one line that a user would see, the file's directory left out.
fn complaint(file: &str, variables: &[(&str, &str)], flags: &[&str]) -> String {
    let text = loaded(file, variables, flags).expect_err("a complaint").to_string();
    assert!(!text.contains('\n'), "one line: {text:?}");
    text.find("node.toml:").map_or(text.clone(), |at| text[at..].to_owned())
}

#[test]
fn no_file_and_no_variable_serves_with_defaults() {
    let config = load(&Overrides::default(), &[("HOME", "/home/someone")].into_iter().collect()).unwrap();
    let cache_dir = Some(PathBuf::from("/home/someone/.cache/actor-node/models"));
    let expected =
        Config { model: crate::ModelConfig { cache_dir, ..Default::default() }, ..Config::default() };
    assert_eq!(config, expected);
    assert_eq!(config.http.listen_address(&config.node.roles), "127.0.0.1:8080");
    assert_eq!(config.http.listen_address(&"worker".parse().unwrap()), "127.0.0.1:0");
    assert_eq!(config.http.body_limit, Size::mib(16));
}

#[test]
fn each_layer_overrides_the_one_below() {
    let file = "[runtime]\nmax-batch-tokens = 1000\nmax-running = 20\nmax-waiting = 30\n";
    let variables =
        [("ACTOR_NODE_RUNTIME__MAX_BATCH_TOKENS", "2000"), ("ACTOR_NODE_RUNTIME__MAX_RUNNING", "21")];
    let runtime = loaded(file, &variables, &["--max-batch-tokens", "3000"]).unwrap().runtime;
    assert_eq!((runtime.max_batch_tokens, runtime.max_running, runtime.max_waiting), (3000, 21, 30));
    assert!(runtime.prefix_cache, "the default");
    let runtime = loaded(file, &variables, &[]).unwrap().runtime;
    assert_eq!(runtime.max_batch_tokens, 2000);
}

#[test]
fn the_flag_names_the_file_before_the_variable() {
    let dir = tempfile::tempdir().unwrap();
    let (flagged, named) = (dir.path().join("flagged.toml"), dir.path().join("named.toml"));
    fs::write(&flagged, "[cluster]\nname = \"flagged\"\n").unwrap();
    fs::write(&named, "[cluster]\nname = \"named\"\n").unwrap();
    let environment: Environment =
        [("HOME", "/h"), ("ACTOR_NODE_CONFIG", named.to_str().unwrap())].into_iter().collect();
    assert_eq!(load(&Overrides::default(), &environment).unwrap().cluster.name.as_deref(), Some("named"));
    let flags = Overrides { config: Some(flagged), ..Default::default() };
    assert_eq!(load(&flags, &environment).unwrap().cluster.name.as_deref(), Some("flagged"));
}

#[test]
fn seeds_are_a_list_or_one_text_with_commas_and_flags_replace_them() {
    let seeds = |file: &str, variables: &[(&str, &str)], flags: &[&str]| {
        loaded(file, variables, flags).unwrap().cluster.all_seeds()
    };
    let file = "[cluster]\nseeds = [\"a:1\", \"tcp://b:2\"]\ncontroller = \"tcp://c:3\"\n";
    assert_eq!(seeds(file, &[], &[]), ["a:1", "b:2", "c:3"]);
    let variable = [("ACTOR_NODE_CLUSTER__SEEDS", "d:4, e:5")];
    assert_eq!(seeds(file, &variable, &[]), ["d:4", "e:5", "c:3"]);
    assert_eq!(seeds(file, &variable, &["--seed", "f:6", "--seed", "g:7"]), ["f:6", "g:7", "c:3"]);
    assert!(complaint("", &[], &["--seed", "f"]).contains("cluster.seeds = f"));
}

#[test]
fn policies_are_listed_by_either_spelling() {
    for key in ["cluster_policies", "cluster-policies"] {
        let file = format!(
            "[cluster]\n{key} = [\"session-affinity\"]\n[policy.session-affinity]\nmode = \"shadow\"\n"
        );
        let config = loaded(&file, &[], &[]).unwrap();
        assert_eq!(config.cluster.cluster_policies, ["session-affinity"]);
        assert_eq!(config.policy.session_affinity.mode, crate::Mode::Shadow);
    }
    assert!(complaint("[policy.cache-aware]\ncache-threshold = 2.0\n", &[], &[]).contains("use 0 to 1"));
    assert!(
        complaint("[cluster]\ncluster-policies = [\"x\"]\n", &[], &[]).contains("cluster.cluster-policies")
    );
}

#[test]
fn secrets_of_the_cluster_are_found_and_never_shown() {
    let environment: Environment = [("HOME", "/h"), ("ACTOR_NODE_COOKIE", "s3cret")].into_iter().collect();
    let secrets = environment.cluster_secrets();
    assert_eq!(secrets.cookie.as_deref(), Some("s3cret"));
    assert_eq!(secrets.config_dir.as_deref(), Some(std::path::Path::new("/h/.config")));
    assert!(!format!("{secrets:?}").contains("s3cret"));
}

#[test]
fn variables_take_the_type_of_their_key() {
    let config = loaded(
        "",
        &[
            ("ACTOR_NODE_CLUSTER__NAME", "123"),
            ("ACTOR_NODE_MODEL__NAME", "7"),
            ("ACTOR_NODE_NODE__ROLES", "gateway,worker"),
            ("ACTOR_NODE_ENGINE__KV_PAGES", "64"),
            ("ACTOR_NODE_ENGINE__FAKE__STEP_OVERHEAD", "2ms"),
            ("ACTOR_NODE_ENGINE__KIND", "fake"),
            ("ACTOR_NODE_MODEL__ISQ", "q4_0"),
            ("ACTOR_NODE_MODEL__MAX_CONTEXT", "auto"),
            ("ACTOR_NODE_RUNTIME__PREFIX_CACHE", "false"),
            ("ACTOR_NODE_RUNTIME__WATERMARK", "0.25"),
            ("ACTOR_NODE_COOKIE", "secret"),
        ],
        &[],
    )
    .unwrap();
    assert_eq!(config.cluster.name.as_deref(), Some("123"));
    assert_eq!(config.model.name.as_deref(), Some("7"));
    assert!(config.node.roles.contains(Role::Worker) && !config.node.roles.contains(Role::Controller));
    assert_eq!(config.engine.kv_pages, Some(64));
    assert_eq!(config.engine.fake.step_overhead, Dur::from_millis(2));
    assert_eq!(config.engine.kind, EngineKind::Fake);
    assert_eq!(config.model.isq, Some(Isq::Q4_0));
    assert_eq!(config.model.max_context, None);
    assert!(!config.runtime.prefix_cache);
    assert!((config.runtime.watermark - 0.25).abs() < 1e-12);
    assert!(!config.to_toml().unwrap().contains("secret"), "a dump shows no secret");
}

/// Left to the program it depends on what computes; what is set counts, whatever computes.
#[test]
fn prompts_beside_decodes_have_less_of_a_step_on_the_cpu() {
    for (file, cpu, other) in [
        ("", 128, 512),
        ("max-mixed-tokens = \"auto\"", 128, 512),
        ("max-batch-tokens = 64\nmax-running = 64", 64, 64),
        ("max-batch-tokens = 2048", 128, 2048),
        ("max-mixed-tokens = 300", 300, 300),
        ("max-mixed-tokens = 16", 16, 16),
        ("max-mixed-tokens = 512", 512, 512),
    ] {
        let runtime = loaded(&format!("[runtime]\n{file}\n"), &[], &[]).unwrap().runtime;
        assert_eq!((runtime.mixed_tokens(true), runtime.mixed_tokens(false)), (cpu, other), "{file}");
    }
}

#[test]
fn unknown_keys_name_the_nearest() {
    for (file, expected) in [
        ("[htpp]\nlisten = \"x\"\n", "node.toml: unknown key `htpp`; did you mean `http`?"),
        ("[http]\nlistn = \"x\"\n", "node.toml: unknown key `http.listn`; did you mean `http.listen`?"),
        (
            "[engine.fake]\neos-evry = 3\n",
            "node.toml: unknown key `engine.fake.eos-evry`; did you mean `engine.fake.eos-every`?",
        ),
        (
            "[engine]\nmax-batch-tokens = 3\n",
            "node.toml: unknown key `engine.max-batch-tokens`; did you mean `runtime.max-batch-tokens`?",
        ),
        ("body-limit = 1\n", "node.toml: unknown key `body-limit`; did you mean `http.body-limit`?"),
        (
            "[engine]\npage_tokens = 32\n",
            "node.toml: unknown key `engine.page_tokens`; did you mean `engine.page-tokens`?",
        ),
        ("[zzz]\n", "node.toml: unknown key `zzz`"),
    ] {
        assert_eq!(complaint(file, &[], &[]), expected);
    }
}

#[test]
fn unknown_variables_name_the_nearest() {
    for (name, expected) in [
        (
            "ACTOR_NODE_HTTP_LISTEN",
            "environment: unknown key `ACTOR_NODE_HTTP_LISTEN`; did you mean `ACTOR_NODE_HTTP__LISTEN`?",
        ),
        (
            "ACTOR_NODE_ENGINE__KV_PAGE",
            "environment: unknown key `ACTOR_NODE_ENGINE__KV_PAGE`; did you mean `ACTOR_NODE_ENGINE__KV_PAGES`?",
        ),
    ] {
        assert_eq!(complaint("", &[(name, "1")], &[]), expected);
    }
    for odd in
        ["ACTOR_NODE_", "ACTOR_NODE___", "ACTOR_NODE_é", "ACTOR_NODE_HTTP", "ACTOR_NODE_HTTP__LISTEN__X"]
    {
        assert!(complaint("", &[(odd, "1")], &[]).contains(odd));
    }
}

#[test]
fn wrong_types_name_key_value_and_what_is_expected() {
    for (file, parts) in [
        ("[http]\nlisten = 8080\n", ["node.toml: `http.listen`", "the number 8080", "a text in quotes"]),
        (
            "[http]\nrequest-timeout = 90\n",
            ["node.toml: `http.request-timeout`", "90", "units: ns, us, ms, s"],
        ),
        ("[http]\nbody-limit = \"16\"\n", ["node.toml: `http.body-limit`", "\"16\"", "units: B, KB"]),
        (
            "[engine]\nkind = \"pagd\"\n",
            ["node.toml: `engine.kind`", "`pagd`", "one of paged, mistralrs, fake"],
        ),
        ("[engine]\nkv-memory = 1024\n", ["node.toml: `engine.kv-memory`", "1024", "units: B, KB"]),
        (
            "[engine]\nkv-pages = \"many\"\n",
            ["node.toml: `engine.kv-pages`", "the text \"many\"", "a whole number from 0 to 4294967295"],
        ),
        ("[engine]\nthreads = -1\n", ["node.toml: `engine.threads`", "-1", "a whole number, 0 or more"]),
        (
            "[engine.fake]\neos-every = 1.5\n",
            ["node.toml: `engine.fake.eos-every`", "1.5", "a whole number, 0 or more"],
        ),
        ("[node]\nroles = \"gatway\"\n", ["node.toml: `node.roles`", "\"gatway\"", "gateway, controller"]),
        ("[node]\nroles = []\n", ["node.toml: `node.roles`", "\"\"", "gateway, controller"]),
        ("[node]\nroles = 3\n", ["node.toml: `node.roles`", "the number 3", "gateway, controller"]),
        ("[cluster]\nname = { first = \"a\" }\n", ["node.toml: `cluster.name`", "a table", "\"auto\""]),
        ("[model]\nisq = \"q9\"\n", ["node.toml: `model.isq`", "`q9`", "one of q8_0, q4_0, q4_1"]),
        ("[model]\nmax-context = []\n", ["node.toml: `model.max-context`", "a list", "\"auto\""]),
        (
            "[runtime]\nprefix-cache = \"yes\"\n",
            ["node.toml: `runtime.prefix-cache`", "\"yes\"", "true or false"],
        ),
        ("http = 1\n", ["node.toml: `http`", "integer", "a table; its keys stand under [http]"]),
    ] {
        let text = complaint(file, &[], &[]);
        assert!(parts.iter().all(|part| text.contains(part)), "{text} lacks one of {parts:?}");
    }
}

#[test]
fn roles_may_be_a_list() {
    let roles = loaded("[node]\nroles = [\"worker\", \"gateway\"]\n", &[], &[]).unwrap().node.roles;
    assert_eq!(roles.to_string(), "gateway,worker");
}

#[test]
fn a_wrong_variable_is_named() {
    let name = "ACTOR_NODE_RUNTIME__MAX_RUNNING";
    let text = complaint("", &[(name, "lots")], &[]);
    assert!(
        text.contains(name) && text.contains("`runtime.max-running`") && text.contains("\"lots\""),
        "{text}"
    );
    let text = complaint("", &[(name, "-5")], &[]);
    assert!(text.contains(name) && text.contains("-5"), "{text}");
}

#[test]
fn broken_files_are_named_with_the_place() {
    let text = complaint("[node]\nname = \"a\"\nname = \"b\"\n", &[], &[]);
    assert!(text == "node.toml:3:1: duplicate key `name`", "{text}");
    let text = complaint("[node]\n[http]\n[node]\n", &[], &[]);
    assert!(text == "node.toml:3:2: duplicate key `node`", "{text}");
    let text = complaint("[node]\nname = \n", &[], &[]);
    assert!(text.starts_with("node.toml:2:"), "{text}");
    let text = complaint("[node", &[], &[]);
    assert!(text.starts_with("node.toml:1:"), "{text}");
}

#[test]
fn an_unreadable_file_is_named() {
    for file in ["/no/such/file.toml", "/"] {
        let text = complaint("", &[], &["--config", file]);
        assert!(text.starts_with(&format!("config file {file} cannot be read: ")), "{text}");
    }
}

#[test]
fn values_out_of_range_name_key_value_and_rule() {
    let long = "n".repeat(65);
    for (flags, expected) in [
        (&["--page-tokens", "24"][..], "`engine.page-tokens = 24`: use a multiple of 16 from 16 to 256"),
        (&["--page-tokens", "0"], "`engine.page-tokens = 0`: use a multiple of 16"),
        (&["--http-listen", "127.0.0.1"], "`http.listen = 127.0.0.1`: use HOST:PORT"),
        (&["--http-listen", "127.0.0.1:70000"], "`http.listen = 127.0.0.1:70000`: use HOST:PORT"),
        (&["--http-listen", "127.0.0.1:+80"], "use HOST:PORT"),
        (&["--http-listen", ":80"], "use HOST:PORT"),
        (&["--http-listen", "::1:80"], "use HOST:PORT"),
        (&["--model", "model.gguf"], "`model.source = model.gguf`: use file:PATH"),
        (&["--model", "file:"], "use file:PATH"),
        (&["--name", ""], "`cluster.name = `: use 1 to 64"),
        (&["--name", "a b"], "`cluster.name = a b`: use 1 to 64"),
        (&["--name", &long], "use 1 to 64"),
        (&["--kv-pages", "4", "--kv-memory", "1GiB"], "not both"),
        (&["--kv-memory", "1KiB"], "`engine.kv-memory = 1KiB`: use at least 64KiB"),
        (&["--max-context", "1"], "`model.max-context = 1`: use at least 16"),
        (
            &["--max-batch-tokens", "128"],
            "`runtime.max-running = 256`: use 1 to runtime.max-batch-tokens (now 128)",
        ),
        (&["--log-level", ""], "`log.level = \"\"`"),
    ] {
        let text = complaint("", &[], flags);
        assert!(text.contains(expected), "{flags:?}: {text}");
    }
    for good in ["[::1]:0", "localhost:80", "0.0.0.0:65535"] {
        assert_eq!(loaded("", &[], &["--http-listen", good]).unwrap().http.listen.as_deref(), Some(good));
    }
    for (file, range) in [
        ("max-mixed-tokens = 15", "use auto, or 16 (engine.page-tokens) to 512 (runtime.max-batch-tokens)"),
        ("max-mixed-tokens = 0", "use auto, or 16"),
        ("max-mixed-tokens = 513", "to 512 (runtime.max-batch-tokens)"),
        ("max-mixed-tokens = 32\n[engine]\npage-tokens = 64", "use auto, or 64 (engine.page-tokens)"),
    ] {
        let text = complaint(&format!("[runtime]\n{file}\n"), &[], &[]);
        assert!(text.contains("`runtime.max-mixed-tokens = ") && text.contains(range), "{file}: {text}");
    }
    for watermark in ["-0.1", "0.6", "nan"] {
        let file = format!("[runtime]\nwatermark = {watermark}\n");
        assert!(complaint(&file, &[], &[]).contains("runtime.watermark"), "{watermark}");
    }
}

#[test]
fn a_body_holds_a_prompt_as_long_as_the_window() {
    let file = "[http]\nbody-limit = \"1MiB\"\n";
    assert!(loaded(file, &[], &["--max-context", "131072"]).is_ok());
    let text = complaint(file, &[], &["--max-context", "131073"]);
    assert_eq!(
        text,
        "`http.body-limit = 1MiB`: use at least 1048584B, which model.max-context = 131073 tokens may take"
    );
}

#[test]
fn kv_pages_as_a_flag_replace_kv_memory_of_the_file() {
    let engine = loaded("[engine]\nkv-memory = \"1GiB\"\n", &[], &["--kv-pages", "64"]).unwrap().engine;
    assert_eq!((engine.kv_memory, engine.kv_pages), (None, Some(64)));
}

#[test]
fn the_cache_directory_is_found_in_order() {
    let xdg = ("XDG_CACHE_HOME", "/xdg");
    let ours = ("ACTOR_NODE_CACHE_DIR", "/ours");
    let dir = |file: &str, variables: &[_]| loaded(file, variables, &[]).unwrap().model.cache_dir.unwrap();
    assert_eq!(dir("", &[xdg]), Path::new("/xdg/actor-node/models"));
    assert_eq!(dir("", &[xdg, ours]), Path::new("/ours"));
    assert_eq!(dir("[model]\ncache-dir = \"/file\"\n", &[xdg, ours]), Path::new("/file"));
    assert_eq!(dir("", &[("XDG_CACHE_HOME", "")]), Path::new("/home/someone/.cache/actor-node/models"));
    let none = load(&Overrides::default(), &Environment::default()).unwrap_err().to_string();
    assert!(none.contains("model.cache-dir") && none.contains("ACTOR_NODE_CACHE_DIR"), "{none}");
}

#[test]
fn a_dump_has_every_key_and_reads_back() {
    let file = "[engine]\nkv-memory = \"300MiB\"\n[model]\nisq = \"q8_0\"\nname = \"auto-pilot\"\n";
    for (file, flags) in
        [("", &[][..]), (FAKE, &[]), (file, &["--role", "gateway,worker", "--max-context", "512"])]
    {
        let config = loaded(file, &[], flags).unwrap();
        let dump = config.to_toml().unwrap();
        assert_eq!(loaded(&dump, &[], &[]).unwrap(), config, "{dump}");
        let keys = |text: &str| text.lines().filter(|line| line.contains(" = ")).count();
        assert_eq!(keys(&dump), keys(&Config::default().to_toml().unwrap()), "{dump}");
    }
    let dump = Config::default().to_toml().unwrap();
    for line in
        ["kv-memory = \"auto\"", "chat-template = \"none\"", "body-limit = \"16MiB\"", "[engine.fake]"]
    {
        assert!(dump.lines().any(|l| l == line), "{line} in {dump}");
    }
}

#[test]
fn roles_machines_and_handing_off_come_from_every_layer() {
    let file = "[cluster]\nrole = \"decode\"\nkv-listen = \"0.0.0.0:0\"\n\
                [cluster.hardware]\nname = \"rack-7\"\nflops = 1e12\nmemory-bandwidth = \"1.5TB\"\nlink = \"12.5GB\"\n\
                [policy.disaggregate]\nmode = \"shadow\"\nfallback = \"none\"\nprefill-busy-tokens = 100\nlease = \"2m\"\n";
    let config = loaded(file, &[], &[]).unwrap();
    assert_eq!(config.cluster.role, WorkerRole::Decode);
    assert_eq!(config.cluster.hardware.flops, Some(1e12));
    assert_eq!(config.cluster.hardware.memory_bandwidth, Some(crate::Size(1_500_000_000_000)));
    let disaggregate = &config.policy.disaggregate;
    assert_eq!((disaggregate.fallback, disaggregate.prefill_busy_tokens), (PrefillFallback::None, Some(100)));
    assert_eq!(loaded(&config.to_toml().unwrap(), &[], &[]).unwrap(), config);
    let flops = ("ACTOR_NODE_CLUSTER__HARDWARE__FLOPS", "2000000");
    let busy = ("ACTOR_NODE_POLICY__DISAGGREGATE__PREFILL_BUSY_TOKENS", "auto");
    let over = loaded(file, &[flops, busy], &["--worker-role", "prefill"]).unwrap();
    assert_eq!((over.cluster.role, over.cluster.hardware.flops), (WorkerRole::Prefill, Some(2e6)));
    assert_eq!(over.policy.disaggregate.prefill_busy_tokens, None);
    let private = loaded("[engine]\nkind = \"mistralrs\"\n", &[], &["--worker-role", "prefill"]);
    let error = private.unwrap_err().to_string();
    assert!(error.contains("`cluster.role = prefill`") && error.contains("mistralrs"), "{error}");
    let fixed = loaded("[engine]\nkind = \"mistralrs\"\n[cluster]\nrole-switch = true\n", &[], &[]);
    assert!(fixed.unwrap_err().to_string().contains("`cluster.role-switch = true`"));
    let lines = Config::default().to_toml().unwrap();
    for line in [
        "role = \"unified\"",
        "role-switch = false",
        "rebalance-high = 2.0",
        "kv-listen = \"auto\"",
        "kv-advertise = \"auto\"",
        "[cluster.hardware]",
        "memory-bandwidth = \"auto\"",
        "[policy.disaggregate]",
        "min-remote-tokens = \"auto\"",
        "prefill-busy-tokens = \"auto\"",
        "effective-ratio = 0.7",
        "fallback = \"unified\"",
        "lease = \"1m\"",
    ] {
        assert!(lines.lines().any(|l| l == line), "{line} in {lines}");
    }
}

#[test]
fn every_key_can_be_set_by_a_variable() {
    let dump = Config::default();
    let table = toml::Table::try_from(&dump).unwrap();
    let mut seen = 0;
    let mut pending = vec![(String::from("ACTOR_NODE"), toml::Value::Table(table))];
    while let Some((name, value)) = pending.pop() {
        let separator = if name == "ACTOR_NODE" { "_" } else { "__" };
        match value {
            toml::Value::Table(table) => pending.extend(table.into_iter().map(|(key, value)| {
                (format!("{name}{separator}{}", key.replace('-', "_").to_uppercase()), value)
            })),
            toml::Value::String(text) => {
                loaded("", &[(&name, &text)], &[]).unwrap();
                seen += 1;
            }
            toml::Value::Array(_) => {
                let text = match &name {
                    name if name.ends_with("POLICIES") => "session-affinity",
                    name if name.ends_with("POLICY") => "fair, keep-session",
                    _ => "a:1,b:2",
                };
                loaded("", &[(&name, text)], &[]).unwrap();
                seen += 1;
            }
            other => {
                loaded("", &[(&name, &other.to_string())], &[]).unwrap();
                seen += 1;
            }
        }
    }
    assert!(seen > 40, "{seen} keys");
}

#[test]
fn a_worker_has_one_order_by_any_spelling() {
    let order = |text: &str| loaded(text, &[], &[]).map(|config| config.runtime.worker_policy);
    let names = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
    assert_eq!(order(""), Ok(names(&["fcfs"])));
    assert_eq!(order("[runtime]\nworker-policy = \"fair\"\n"), Ok(names(&["fair"])));
    assert_eq!(
        order("[runtime]\nworker_policy = [\"deadline\", \"keep-session\"]\n"),
        Ok(names(&["deadline", "keep-session"]))
    );
    assert_eq!(order("[runtime]\nworker-policy = \"keep-session\"\n"), Ok(names(&["keep-session"])));
    assert_eq!(order("[runtime]\nworker-policy = \"fair,offload\"\n"), Ok(names(&["fair", "offload"])));
    for (list, word) in [
        ("[\"fair\", \"priority\"]", "there is one order"),
        ("[\"fair\", \"fair\"]", "each policy once"),
        ("[\"offload\", \"offload\"]", "each policy once"),
        ("\"offloaded\"", "use one of fcfs, fair, priority, deadline, and any of keep-session, offload"),
    ] {
        let error = order(&format!("[runtime]\nworker-policy = {list}\n")).unwrap_err().to_string();
        assert!(error.contains("runtime.worker-policy") && error.contains(word), "{error}");
    }
    for (table, word) in [
        ("fair]\ninput-weight = 0\noutput-weight = 0", "worker-policy.fair.output-weight"),
        ("priority]\ndefault = 9000000", "worker-policy.priority.default"),
        ("keep-session]\nmax-share = 1.5", "worker-policy.keep-session.max-share"),
        ("keep-session]\nmax-keep = \"0s\"", "worker-policy.keep-session.max-keep"),
        ("keep-session]\nmax_keep = \"1s\"", "did you mean `worker-policy.keep-session.max-keep`"),
        ("offload]\nmin-suffix = 0", "worker-policy.offload.min-suffix"),
        ("offload]\nmax-outstanding = 0", "worker-policy.offload.max-outstanding"),
        ("offload]\nbusy-tokens = \"some\"", "worker-policy.offload.busy-tokens"),
        ("offload]\npeers = [\"\"]", "worker-policy.offload.peers"),
    ] {
        let error = loaded(&format!("[worker-policy.{table}\n"), &[], &[]).unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    }
}

#[cfg(unix)]
#[test]
fn a_variable_that_is_not_text_is_refused() {
    use std::os::unix::ffi::OsStringExt;
    let bytes = OsString::from_vec(vec![0xff, 0xfe]);
    for name in ["ACTOR_NODE_CLUSTER__NAME", "ACTOR_NODE_CACHE_DIR"] {
        let environment: Environment = [(name, bytes.clone())].into_iter().collect();
        let text = load(&Overrides::default(), &environment).unwrap_err().to_string();
        assert!(text.contains("UTF-8"), "{text}");
    }
}
