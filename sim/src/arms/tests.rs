use super::*;

const BASE: &str = "
seed = 4
[workload]
requests = 50
rate = 3.0
[cluster]
workers = 3
pages = 100
";

fn arms(text: &str, over: &str) -> Result<Vec<Arm>, SimError> {
    Arm::from_toml(text, "folder/file.toml", &toml::from_str(over).unwrap())
}

#[test]
fn without_arms_the_file_is_one() {
    let [arm] = &arms(BASE, "").unwrap()[..] else { panic!("one arm") };
    assert_eq!((arm.name.as_str(), &arm.scenario), ("file", &Scenario::from_toml(BASE, "").unwrap()));
    let [arm] = &arms(BASE, "seed = 9\nworkload.requests = 7").unwrap()[..] else { panic!("one arm") };
    assert_eq!((arm.scenario.seed, arm.scenario.workload.requests, arm.scenario.workload.rate), (9, 7, 3.0));
}

#[test]
fn an_arm_changes_what_it_names() {
    let text = format!(
        "{BASE}
[[arm]]
name = 'as it is'
[[arm]]
name = 'more'
seed = 5
workload.rate = 6
cluster.cluster-policies = ['cache-aware']
[arm.cluster]
workers = 8
"
    )
    .replace("cluster.cluster-policies", "policy.cache-aware.mode = 'shadow'\n#");
    let both = arms(&text, "workload.requests = 9").unwrap();
    let base = Scenario::from_toml(BASE, "").unwrap();
    let names: Vec<&str> = both.iter().map(|arm| arm.name.as_str()).collect();
    assert_eq!(names, ["as it is", "more"]);
    let mut want = base;
    want.workload.requests = 9;
    assert_eq!(both[0].scenario, want);
    (want.seed, want.workload.rate, want.cluster.workers) = (5, 6.0, 8);
    want.policy.cache_aware.mode = config::Mode::Shadow;
    assert_eq!(both[1].scenario, want);
    assert_eq!(both[1].scenario.cluster.pages, 100);
}

#[test]
fn lists_are_replaced_as_a_whole() {
    let text = "cluster.cluster-policies = ['cache-aware', 'session-affinity']
[[arm]]
name = 'a'
[[arm]]
name = 'b'
cluster.cluster-policies = []";
    let lists: Vec<usize> =
        arms(text, "").unwrap().iter().map(|arm| arm.scenario.cluster.cluster_policies.len()).collect();
    assert_eq!(lists, [2, 0]);
}

#[test]
fn what_is_wrong_with_an_arm_is_named() {
    for (text, parts) in [
        ("[[arm]]\nseed = 1", vec!["arm 1", "`name`"]),
        ("[[arm]]\nname = 'a'\n[[arm]]\nname = 'a'", vec!["arm 2", "`a`"]),
        ("[[arm]]\nname = 'a'\ncluster.worker = 3", vec!["arm `a`", "`worker`", "`workers`"]),
        ("[[arm]]\nname = 'a'\ncluster.workers = 'x'", vec!["arm `a`", "workers", "string"]),
        ("sed = 1\n[[arm]]\nname = 'a'", vec!["`sed`", "`seed`"]),
        ("arm = 1", vec!["[[arm]]"]),
        ("arm = []", vec!["[[arm]]"]),
        ("arm = [1]", vec!["[[arm]]"]),
        ("[cluster]\nworkers = 'x'", vec!["line 2", "string"]),
        ("[[arm]\n", vec!["line 1"]),
    ] {
        let error = arms(text, "").unwrap_err().to_string();
        assert!(error.contains("folder/file.toml"), "{error}");
        assert!(parts.iter().all(|part| error.contains(part)), "{error} lacks one of {parts:?}");
    }
}
