//! Workloads in whole runs: conversations, closed loops, kinds of clients, measured engines, public traces.

use std::collections::BTreeMap;
use std::path::PathBuf;

use config::{Choice, Dur};
use policies::request::Prop;
use policies::time::{Span, Time};
use sim::scenario::{Arrivals, Class, CurveCost, Degrees, Lengths, Phase, PropValue};
use sim::workload::Clients;
use sim::{Scenario, run, simulate};

fn quick() -> Scenario {
    let mut scenario = Scenario { seed: 11, ..Scenario::default() };
    let w = &mut scenario.workload;
    (w.requests, w.rate, w.think) = (60, 30.0, Dur::from_secs(2));
    (w.groups, w.shared_prefix) = (2, 64);
    w.prompt = Lengths::Uniform { min: 10, max: 50 };
    w.output = Lengths::Uniform { min: 1, max: 30 };
    scenario
}

#[test]
fn a_turn_begins_with_what_was_said_before_it_and_comes_after_it() {
    let mut scenario = quick();
    (scenario.workload.turns, scenario.workload.requests) = (4, 10);
    let mut clients = Clients::new(&scenario).unwrap();
    let first = clients.next().unwrap().unwrap();
    assert_eq!(first.spec.session.as_ref().unwrap().as_str(), "conversation-0");
    let answer = [1, 2, 3];
    let end = Time(9_000_000_000);
    let came = clients.ended(end, first.spec.id, &answer).unwrap();
    let [second] = &came[..] else { panic!("{came:?}") };
    let said: Vec<u32> = first.spec.prompt.iter().copied().chain(answer).collect();
    assert!(second.spec.prompt.starts_with(&said) && second.spec.prompt.len() > said.len());
    assert!(second.at > end && second.spec.session == first.spec.session);
    // Ten requests are two conversations of four and one of two.
    let heads: Vec<u64> = std::iter::from_fn(|| clients.next().unwrap()).map(|a| a.spec.id.number).collect();
    assert_eq!(heads, [5, 9]);
    let report = run(&scenario).unwrap();
    assert_eq!((report.requests, report.finished), (10, 10), "{report:?}");
}

#[test]
fn closed_loop_clients_wait_for_their_answers() {
    for (clients, turns) in [(1, 1), (4, 1), (3, 5)] {
        let mut scenario = quick();
        scenario.workload.arrivals = Arrivals::Closed { clients };
        (scenario.workload.turns, scenario.workload.think) = (turns, Dur::from_millis(0));
        let run = simulate(&scenario).unwrap();
        assert_eq!((run.report.requests, run.report.finished), (60, 60), "{:?}", run.report);
        // Without pauses, the clients together are busy all the time: so many answers at once, and never more.
        let busy = run.report.end_to_end_ms.mean * 60.0 / 1000.0 / run.report.seconds;
        let (low, high) = (0.75 * f64::from(clients), f64::from(clients) * 1.001);
        assert!((low..=high).contains(&busy), "{clients} clients, {turns} turns: {busy} at once");
    }
}

#[test]
fn speed_up_divides_all_times_of_clients() {
    let times = |speedup: f64| {
        let mut scenario = quick();
        scenario.workload.speedup = speedup;
        let mut clients = Clients::new(&scenario).unwrap();
        std::iter::from_fn(|| clients.next().unwrap()).map(|a| a.at.0).collect::<Vec<_>>()
    };
    for (slow, fast) in times(1.0).into_iter().zip(times(4.0)) {
        assert!(slow.abs_diff(4 * fast) < 1000, "{slow} and {fast}");
    }
}

#[test]
fn kinds_of_clients_have_tenants_hints_and_lengths_of_their_own() {
    let mut scenario = quick();
    let props = BTreeMap::from([("priority".to_owned(), PropValue::Int(7))]);
    scenario.workload.classes = vec![
        Class { tenant: Some("a".into()), weight: 2.5, props, ..Class::default() },
        Class { prompt: Some(Lengths::Fixed(200)), shared_prefix: Some(0), ..Class::default() },
    ];
    let mut clients = Clients::new(&scenario).unwrap();
    let specs: Vec<_> = std::iter::from_fn(|| clients.next().unwrap()).map(|a| a.spec).collect();
    let (a, b): (Vec<_>, Vec<_>) = specs.iter().partition(|spec| spec.tenant.is_some());
    assert!(a.len() > 15 && b.len() > 15, "{} and {}", a.len(), b.len());
    assert!(a.iter().all(|s| s.weight == 2500 && s.props["priority"] == Prop::Int(7)));
    assert!(b.iter().all(|s| s.prompt.len() == 200 && s.props.is_empty() && s.weight == 1000));
    assert_eq!(run(&scenario).unwrap().finished, 60);
}

#[test]
fn a_curve_sets_the_time_of_steps() {
    let mut scenario = quick();
    let degrees = |constant, linear, quadratic| Degrees { constant, linear, quadratic };
    scenario.cost.curve = Some(CurveCost {
        prefill_ms: degrees(10.0, 0.5, 0.001),
        decode_ms: degrees(4.0, 8.0, 0.0),
        decode_floor: Dur::from_millis(1),
    });
    let w = &mut scenario.workload;
    (w.requests, w.shared_prefix) = (1, 0);
    (w.prompt, w.output) = (Lengths::Fixed(100), Lengths::Fixed(3));
    let c = &mut scenario.cluster;
    (c.pages, c.page_tokens, c.network) = (20, 16, Dur::from_nanos(0));
    let report = run(&scenario).unwrap();
    let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-5, "{a} is not {b}");
    close(report.ttft_ms.mean, 10.0 + 50.0 + 10.0);
    // 101 and 102 tokens are 7 of 20 pages.
    close(report.inter_token_ms.mean, 4.0 + 8.0 * 0.35);
    for (text, part) in [
        ("[cost.curve]\nprefill-ms = { constant = 1e9 }", "cost.curve.prefill-ms"),
        ("[cost.curve]\ndecode-ms = { linear = nan }", "cost.curve.decode-ms"),
        ("[cost.curve]\ndecode = 3", "decode-ms"),
        ("[cost.steps]", "cost.steps.rows"),
        ("[cost.steps]\nrows = [1, 2]\ntook = [\"1ms\"]", "cost.steps.took"),
        ("[cost.steps]\nrows = [2, 2]\ntook = [\"1ms\", \"1ms\"]", "2 before 2"),
        ("[cost.steps]\nrows = [1, 2]\ntook = [\"2ms\", \"1ms\"]", "2ms before 1ms"),
        ("[cost.steps]\nrows = [0]\ntook = [\"2ms\"]", "cost.steps.rows"),
        ("[cost.steps]\nrows = [1]\ntook = [\"2ms\"]\nserving = 0", "cost.steps.serving"),
        ("[cost.steps]\nrows = [1]\ntook = [\"2ms\"]\n[cost.affine]", "not both"),
        ("[workload]\nspeedup = 0.0", "workload.speedup"),
        ("[workload]\nprompt = { fixed = 0 }", "`workload.prompt` is 0: use 1 to 1000000"),
        ("[workload]\nprompt = { uniform = { min = 9, max = 3 } }", "`workload.prompt` is 9 to 3"),
        ("[[fault]]\nat = \"1s\"", "`fault.worker` is missing: say who"),
        (
            "[runtime]\nworker-policy = \"offload\"\n[worker-policy.offload]\npeers = [\"gpu-7\"]",
            "`worker-policy.offload.peers` is gpu-7: simulated workers are w0 to w1",
        ),
        ("[cluster]\nheartbeat = \"0s\"", "`cluster.heartbeat` is 0ns: use 1ms to 60s"),
        ("[workload]\narrivals = { gamma = { cv = 0.0 } }", "gamma.cv"),
        ("[workload]\narrivals = { closed = { clients = 0 } }", "closed.clients"),
        ("[workload]\narrivals = \"whenever\"", "poisson"),
        ("[[workload.class]]\nshare = -1.0", "workload.class.share"),
        ("[workload]\nblock-tokens = 0", "workload.block-tokens"),
    ] {
        let error = Scenario::from_toml(text, "test").and_then(|s| run(&s)).unwrap_err();
        assert!(error.to_string().contains(part), "{text:?}: {error}");
    }
}

#[test]
fn bursts_are_harder_than_a_steady_stream() {
    let tail = |arrivals| {
        let mut scenario = quick();
        scenario.workload.arrivals = arrivals;
        (scenario.workload.requests, scenario.workload.rate) = (400, 60.0);
        scenario.cluster.max_running = 4;
        let report = run(&scenario).unwrap();
        assert_eq!(report.finished, 400, "{report:?}");
        report.ttft_ms.p90
    };
    let (steady, gamma) = (tail(Arrivals::Constant), tail(Arrivals::Gamma { cv: 4.0 }));
    let on_off = tail(Arrivals::OnOff { on: Dur::from_millis(500), off: Dur::from_millis(1500) });
    assert!(steady < gamma && steady < on_off, "{steady}, {gamma}, {on_off}");
}

/// The folder of public traces, where there is one on this machine.
fn traces() -> Option<PathBuf> {
    let parts = std::env::vars_os().find(|(name, _)| name == "ACTOR_NODE_TRACES");
    parts.map(|(_, path)| PathBuf::from(path))
}

/// The first requests of each public trace run to their ends, and Mooncake's share what the trace says.
#[test]
fn public_traces_replay() {
    let Some(folder) = traces() else { return };
    for (file, limit, hits) in [
        ("conversation_trace.jsonl", 300, true),
        ("synthetic_trace.jsonl", 200, true),
        ("azure_code_2023.csv", 500, false),
        ("azure_conv_2023.csv", 500, false),
    ] {
        let mut scenario = Scenario::default();
        scenario.workload.trace = Some(folder.join(file));
        (scenario.workload.limit, scenario.workload.speedup) = (limit, 2.0);
        scenario.workload.deadline = Dur::from_secs(10_000);
        let c = &mut scenario.cluster;
        (c.workers, c.page_tokens, c.pages, c.max_context) = (2, 64, 16_384, 262_144);
        (c.max_batch_tokens, c.choice) = (8192, Choice::RoundRobin);
        let report = run(&scenario).unwrap();
        assert_eq!((report.requests, report.finished), (limit, limit), "{file}: {report:?}");
        assert_eq!(report.cached_tokens > 0, hits, "{file}: {report:?}");
        assert!(Span((report.seconds * 1e9) as u64) > Span::from_secs(5), "{file}: {report:?}");
    }
}

#[test]
fn questions_come_in_turn_again_and_again() {
    let mut scenario = quick();
    (scenario.workload.questions, scenario.workload.groups) = (3, 4);
    let mut clients = Clients::new(&scenario).unwrap();
    let prompts: Vec<Vec<u32>> =
        std::iter::from_fn(|| clients.next().unwrap()).map(|a| a.spec.prompt.to_vec()).collect();
    assert_eq!(prompts.len(), 60);
    let (round, rest) = prompts.split_at(12);
    assert!(rest.chunks(12).all(|again| again == round), "each round asks the same in the same order");
    let distinct = |of: &dyn Fn(&Vec<u32>) -> Vec<u32>| {
        round.iter().map(of).collect::<std::collections::BTreeSet<_>>().len()
    };
    assert_eq!((distinct(&|prompt| prompt.clone()), distinct(&|prompt| prompt[..64].to_vec())), (12, 4));
    assert!(round.windows(2).any(|w| w[0][..64] != w[1][..64]), "in an order of chance");
}

#[test]
fn a_phase_begins_when_the_one_before_has_ended() {
    for at_once in [0, 3] {
        let mut scenario = quick();
        scenario.workload.phases =
            [(50.0, 20), (500.0, 30), (5.0, 4)].map(|(rate, requests)| Phase { rate, requests }).into();
        scenario.workload.at_once = at_once;
        scenario.workload.output = Lengths::Fixed(20);
        let run = simulate(&scenario).unwrap();
        assert_eq!((run.report.requests, run.report.finished), (54, 54), "{:?}", run.report);
        let phases = &run.report.phases;
        let counts: Vec<_> = phases.iter().map(|p| (p.rate, p.requests, p.finished)).collect();
        assert_eq!(counts, [(50.0, 20, 20), (500.0, 30, 30), (5.0, 4, 4)]);
        // One after the other, with nothing but a first gap between them.
        let together: f64 = phases.iter().map(|p| p.seconds).sum();
        assert!(
            (together..together + 2.0).contains(&run.report.seconds),
            "{together} {:?}",
            run.report.seconds
        );
        // So many at once, and never more.
        let busy = run.report.end_to_end_ms.mean * 54.0 / 1000.0 / together;
        assert!(at_once == 0 || busy <= f64::from(at_once) * 1.001, "{at_once}: {busy} at once");
        let tokens: f64 = phases.iter().map(|p| p.output_tokens_per_second * p.seconds).sum();
        assert!((tokens - 54.0 * 20.0).abs() < 1e-6 * tokens, "{tokens}");
        assert!(run.report.to_table().contains("500 requests/s"));
    }
    for (text, part) in [
        ("[workload]\nat-once = 4", "workload.at-once"),
        ("[workload]\nturns = 2\nphase = [{ rate = 1.0, requests = 3 }]", "workload.phase"),
        ("[workload]\nphase = [{ rate = 0.0, requests = 3 }]", "workload.phase.rate"),
        ("[workload]\nphase = [{ rate = 1.0, requests = 0 }]", "workload.phase.requests"),
        ("[workload]\nturns = 2\nquestions = 2", "workload.questions"),
        ("[workload]\ngroups = 2000\nquestions = 2000", "workload.questions"),
    ] {
        let error = Scenario::from_toml(text, "test").and_then(|s| run(&s)).unwrap_err();
        assert!(error.to_string().contains(part), "{text:?}: {error}");
    }
}
