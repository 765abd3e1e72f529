use super::*;

/// The stage of the policy in an answer that asks for stages.
fn stage(answer: &Value) -> Option<Value> {
    let stages = answer["stages"][0]["stages"].as_array()?;
    stages.iter().find(|stage| stage["policy"] == "pd_disaggregation").cloned()
}

fn staged(pd: &Pd, salt: usize, len: usize) -> Option<Value> {
    let body = with(&asked(&prompt(salt, len), 4), json!({"include_stages": true}));
    stage(&pd["g1"].client().ok(COMPLETIONS, &body))
}

/// Short prompts stay, long ones go; off says nothing, shadow says what it would do and does not.
#[test]
fn modes_do_what_they_say() {
    let pd = Pd::of(&["p1", "d1"], &[]);
    let long = staged(&pd, 1, 100).expect("a stage");
    assert_eq!((&long["mode"], &long["action"]), (&json!("prod"), &json!("remote")), "{long}");
    let short = staged(&pd, 2, 20).expect("a stage");
    assert_eq!(short["action"], "local", "{short}");
    assert_eq!(pd.committed("d1"), 1.0);
    // What came of it, by where the prompt was computed.
    for (salt, len, prefill) in [(3, 100, "remote"), (4, 20, "local")] {
        let client = pd["g1"].client();
        let answer = client.ok(COMPLETIONS, &asked(&prompt(salt, len), 4));
        let path = format!("/v1/requests/{}", answer["id"].as_str().unwrap());
        let measured = client.get(&path).unwrap().json()["measured"].clone();
        assert_eq!(measured["prefill"], prefill, "{measured}");
        assert_eq!(measured["tokens"], 4, "{measured}");
        let figures = ["ttft_ms", "e2e_ms", "decode_tokens_per_second", "inter_token_p99_ms"];
        assert!(figures.iter().all(|name| measured[name].is_f64()), "{measured}");
        let label = format!("prefill=\"{prefill}\"");
        assert_eq!(pd["g1"].figure_where("actor_node_pd_decode_tokens_per_second_count", &label), 2.0);
        assert_eq!(pd["g1"].figure_where("actor_node_pd_inter_token_p99_seconds_count", &label), 2.0);
    }

    let shadow = Pd::of(&["p1", "d1"], &[("POLICY__DISAGGREGATE__MODE", "shadow")]);
    let long = staged(&shadow, 1, 100).expect("a stage");
    assert_eq!((&long["mode"], &long["action"]), (&json!("shadow"), &json!("would_disaggregate")), "{long}");
    assert!(long["numbers"].as_object().is_some_and(|numbers| !numbers.is_empty()), "{long}");
    assert_eq!((shadow.committed("d1"), shadow["d1"].figure(BYTES)), (0.0, 0.0));
    assert_eq!(shadow.prefilled("d1"), 100.0);

    let off = Pd::of(&["p1", "d1"], &[("POLICY__DISAGGREGATE__MODE", "off")]);
    assert_eq!(staged(&off, 1, 100), None);
    assert_eq!(off.committed("d1"), 0.0);
}

/// B55: without a prefill worker requests go on as configured, and come back to it by themselves; one warning each way.
#[test]
fn b55_without_a_prefill_worker() {
    for (workers, fallback, takes) in [
        (&["p1", "d1", "u1"][..], "unified", Some("u1")),
        (&["p1", "d1", "u1"], "decode", Some("d1")),
        (&["p1", "d1"], "none", None),
    ] {
        let mut pd = Pd::of(workers, &[("POLICY__DISAGGREGATE__FALLBACK", fallback)]);
        let mut p1 = pd.take("p1");
        p1.signal("TERM");
        p1.wait();
        let rest: Vec<&str> = workers.iter().copied().filter(|name| *name != "p1").collect();
        if takes.is_some() {
            pd.until_whole();
        } else {
            // B54, B91: where nothing else is allowed the gateway cannot serve, and says so.
            wait_for("the gateway to say what it lacks", || {
                let (status, reason) = pd.readiness("g1");
                (status == 503 && reason.contains("no prefill worker is there for d1#")).then_some(())
            });
            assert_eq!(pd.readiness("d1").0, 200);
        }
        pd.until_known(&rest);
        for salt in 0..5 {
            let body = asked(&prompt(salt, 100), 4);
            if takes.is_some() {
                assert_eq!(answer_of(&pd["g1"], &body), answer_of(reference(), &body));
            } else {
                let refused = pd["g1"].client().post(COMPLETIONS, &body);
                assert_eq!(refused.status, 503, "{}", refused.text());
                assert!(refused.header("retry-after").is_some());
            }
        }
        if let Some("u1") = takes {
            assert_eq!(pd.prefilled("u1"), 500.0);
        }
        let warnings = |pd: &Pd| {
            pd["c1"].log().lines().filter(|line| line.contains("prefill") && line.contains("WARN")).count()
        };
        assert_eq!(warnings(&pd), 1, "{}", pd["c1"].log());
        assert!(pd["c1"].figure("actor_node_pd_fallback_total") >= 5.0);
        pd.worker("p1", &FAKE);
        pd.until_whole();
        pd.until_known(workers);
        let before: f64 = rest.iter().map(|name| pd.committed(name)).sum();
        let body = asked(&prompt(50, 100), 4);
        assert_eq!(answer_of(&pd["g1"], &body), answer_of(reference(), &body));
        assert_eq!(rest.iter().map(|name| pd.committed(name)).sum::<f64>(), before + 1.0);
        pd.assert_idle(&["c1", "g1", "p1", "d1"]);
    }
}

/// B59: what moves pages is not for clients to say.
#[test]
fn b59_clients_do_not_steer_transfers() {
    let pd = Pd::of(&["p1", "d1"], &[]);
    let fields = json!({
        "kv_transfer_params": {"remote_host": "127.0.0.1", "remote_port": 22, "tp_size": 1_000_000_000, "remote_block_ids": [0, 1, 2]},
        "prefill_worker": "d1",
        "session_state": {"x": 1},
    });
    let plain = asked(&prompt(1, 20), 4);
    let answer = pd["g1"].client().post(COMPLETIONS, &with(&plain, fields));
    match answer.status {
        200 => assert_eq!(answer.json()["choices"], answer_of(reference(), &plain)["choices"]),
        status => assert_eq!(status, 400),
    }
    assert_eq!(pd["d1"].figure(TRANSFERS), 0.0);
}
