use super::*;
use crate::role::Role;

fn parse(args: &[&str]) -> Result<Cli, Exit> {
    Cli::parse_from_args([&["actor-node"], args].concat(), "1.2.3")
}

/// The problem and the usage of a refused command line.
fn refusal(args: &[&str]) -> (String, String) {
    let exit = parse(args).expect_err("a refusal");
    assert_eq!(exit.code, 2, "{exit:?}");
    let lines: Vec<&str> = exit.text.lines().collect();
    let [problem, usage] = lines[..] else { panic!("two lines: {exit:?}") };
    assert!(problem.starts_with("error: ") && usage.starts_with("Usage: actor-node"), "{exit:?}");
    (problem.to_owned(), usage.to_owned())
}

#[test]
fn the_definition_is_sound() {
    Cli::command().debug_assert();
}

#[test]
fn no_argument_runs_a_node() {
    let cli = parse(&[]).unwrap();
    assert!(cli.command.is_none() && cli.overrides.role.is_none() && !cli.overrides.dump_config);
}

#[test]
fn wrong_command_lines_name_what_is_wrong() {
    for (args, parts) in [
        (&["--role", "foo"][..], ["`foo`", "--role"]),
        (&["--role"], ["--role", "value"]),
        (&["--role", "gateway", "--prefill"], ["--prefill", "unexpected"]),
        (&["--worker-role", "prefil"], ["prefil", "possible values: unified, prefill, decode"]),
        (&["--engine", "pagd"], ["pagd", "possible values: paged, mistralrs, fake"]),
        (&["--threads", "-1"], ["-1", "unexpected"]),
        (&["--threads", "many"], ["many", "--threads"]),
        (&["--kv-memory", "12"], ["`12`", "units: B, KB"]),
        (&["--name", "a", "--name", "b"], ["--name", "multiple times"]),
        (&["serve"], ["serve", "unrecognized"]),
        (&["--confg", "x"], ["--confg", "--config"]),
        (&["model", "pul"], ["pul", "pull"]),
        (&["model", "remove"], ["SOURCE", "required"]),
        (&["sim", "--rate", "0"], ["--rate", "above 0"]),
        (&["sim", "--rate", "inf"], ["--rate", "above 0"]),
        (&["sim", "--rate", "-1"], ["--rate", "above 0"]),
        (&["sim", "--seed", "x"], ["--seed", "x"]),
    ] {
        let (problem, _) = refusal(args);
        assert!(parts.iter().all(|part| problem.contains(part)), "{problem} lacks one of {parts:?}");
    }
    refusal(&["model"]);
}

#[test]
fn a_simulation_takes_a_file_of_policies_and_several_scenarios() {
    let line = [
        "sim",
        "--config",
        "node.toml",
        "--seeds",
        "5",
        "--trace",
        "t.jsonl",
        "--compare",
        "a.toml",
        "b.toml",
    ];
    let Some(Command::Sim(args)) = parse(&line).unwrap().command else { panic!("sim") };
    assert_eq!(args.config.as_deref(), Some(std::path::Path::new("node.toml")));
    assert_eq!((args.scenario, args.seed, args.seeds), (None, None, Some(5)));
    assert_eq!(args.compare, [PathBuf::from("a.toml"), PathBuf::from("b.toml")]);
    assert_eq!(args.trace, Some(PathBuf::from("t.jsonl")));
    let line = ["sim", "a.toml", "--html", "page.html", "--seed", "3"];
    let Some(Command::Sim(args)) = parse(&line).unwrap().command else { panic!("sim") };
    let (scenario, html) = (Some(PathBuf::from("a.toml")), Some(PathBuf::from("page.html")));
    assert_eq!((args.scenario, args.html, args.seed, args.json), (scenario, html, Some(3), false));
    for (args, parts) in [
        (&["sim", "--seeds", "0"][..], ["--seeds", "0"]),
        (&["sim", "--seeds", "3", "--html", "a.html"], ["--seeds", "--html"]),
        (&["sim", "--compare"], ["--compare", "value"]),
    ] {
        let (problem, _) = refusal(args);
        assert!(parts.iter().all(|part| problem.contains(part)), "{problem} lacks one of {parts:?}");
    }
}

#[test]
fn flags_may_stand_before_and_after_a_command() {
    for args in
        [&["--model", "file:m.gguf", "model", "pull"][..], &["model", "pull", "--model", "file:m.gguf"]]
    {
        let cli = parse(args).unwrap();
        assert_eq!(cli.overrides.model.as_deref(), Some("file:m.gguf"));
        assert!(matches!(cli.command, Some(Command::Model { action: ModelCommand::Pull { source: None } })));
    }
}

#[test]
fn a_simulation_takes_its_own_flags() {
    let cli =
        parse(&["sim", "s.toml", "--seed", "7", "--requests", "50", "--rate", "2.5", "--json"]).unwrap();
    let Some(Command::Sim(args)) = cli.command else { panic!("{cli:?}") };
    assert_eq!((args.seed, args.requests, args.rate, args.workers), (Some(7), Some(50), Some(2.5), None));
    assert!(args.json && args.scenario == Some(PathBuf::from("s.toml")));
}

#[test]
fn every_flag_reaches_its_key() {
    let args = [
        "--role",
        "worker,gateway",
        "--name",
        "n1",
        "--listen",
        "127.0.0.1:0",
        "--advertise",
        "n1.example:0",
        "--seed",
        "a:1",
        "--seed",
        "tcp://b:2",
        "--cookie-file",
        "/c",
        "--http-listen",
        "[::1]:0",
        "--model",
        "file:m",
        "--model-name",
        "m",
        "--engine",
        "fake",
        "--device",
        "cpu",
        "--threads",
        "3",
        "--kv-memory",
        "1GiB",
        "--page-tokens",
        "32",
        "--kv-dtype",
        "f32",
        "--max-batch-tokens",
        "600",
        "--max-context",
        "99",
        "--log-level",
        "warn",
        "--log-format",
        "json",
    ];
    let mut config = Config::default();
    parse(&args).unwrap().overrides.apply(&mut config);
    assert!(config.node.roles.contains(Role::Worker) && !config.node.roles.contains(Role::Pool));
    assert_eq!(
        (config.cluster.name.as_deref(), config.http.listen.as_deref()),
        (Some("n1"), Some("[::1]:0"))
    );
    assert_eq!((config.model.source.as_deref(), config.model.name.as_deref()), (Some("file:m"), Some("m")));
    assert_eq!(config.model.max_context, Some(99));
    let engine = &config.engine;
    assert_eq!((engine.kind, engine.device, engine.threads), (EngineKind::Fake, Device::Cpu, 3));
    assert_eq!((engine.kv_memory, engine.page_tokens), (Some(Size::mib(1024)), 32));
    assert_eq!((engine.kv_pages, engine.kv_dtype), (None, KvDtype::F32));
    assert_eq!(config.runtime.max_batch_tokens, 600);
    assert_eq!((config.log.level.as_str(), config.log.format), ("warn", LogFormat::Json));
    parse(&["--kv-pages", "9"]).unwrap().overrides.apply(&mut config);
    assert_eq!((config.engine.kv_pages, config.engine.kv_memory), (Some(9), None));
}

#[test]
fn help_and_version_are_answers() {
    let version = parse(&["--version"]).unwrap_err();
    assert_eq!(version.code, 0);
    assert!(version.text.starts_with("actor-node 1.2.3"), "{version:?}");
    let help = parse(&["--help"]).unwrap_err();
    assert!(help.code == 0 && help.text.contains("--http-listen") && help.text.contains("model"), "{help:?}");
    assert_eq!(parse(&["model", "pull", "--help"]).unwrap_err().code, 0);
}
