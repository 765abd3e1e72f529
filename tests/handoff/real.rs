use super::*;

/// The real model: prompts around page and chunk boundaries, greedy and drawn, are continued as by one node.
#[test]
fn the_real_model_continues_what_another_worker_computed() {
    crate::harness::model::default_file();
    let engine = ["--kv-pages", "200", "--max-context", "1024", "--threads", "1"];
    let keys = [
        ("POLICY__DISAGGREGATE__MIN_REMOTE_TOKENS", "32"),
        ("POLICY__DISAGGREGATE__EFFECTIVE_TOKENS", "32"),
        ("CONTROLLER__OPINION_DEADLINE", "60s"),
    ];
    let pd = Pd::with_engine(&["p1", "d1"], &engine, &keys);
    let alone = Node::ready(&engine);
    let mut sent = 0.0;
    for (salt, len) in [47, 48, 49, 511, 512, 513, 700].into_iter().enumerate() {
        let plain = asked(&words(salt, len), 12);
        let drawn = with(&plain, json!({"temperature": 0.9, "seed": 5, "prompt": words(salt + 20, len)}));
        for request in [plain, drawn] {
            assert_eq!(answer_of(&pd["g1"], &request), answer_of(&alone, &request), "{len} tokens");
            sent += 1.0;
        }
    }
    assert_eq!((pd.committed("d1"), pd.prefilled("d1")), (sent, 0.0));
    pd.assert_idle(&["c1", "g1", "p1", "d1"]);
}

fn words(salt: usize, len: usize) -> Vec<u32> {
    (0..len).map(|i| u32::try_from(300 + (i * 37 + salt * 101 + i * i % 17) % 20_000).unwrap()).collect()
}
