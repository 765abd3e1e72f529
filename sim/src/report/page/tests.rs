use super::*;
use crate::run;

fn small() -> Scenario {
    let mut scenario = Scenario::load(std::path::Path::new("scenarios/small.toml")).unwrap();
    scenario.workload.requests = 30;
    scenario
}

fn page(arms: &[(&str, &Scenario)]) -> String {
    let reports: Vec<Report> = arms.iter().map(|(_, scenario)| run(scenario).unwrap()).collect();
    let shown: Vec<Shown<'_>> = arms
        .iter()
        .zip(&reports)
        .map(|((name, scenario), report)| Shown { name, scenario, report })
        .collect();
    html(&shown).unwrap()
}

#[test]
fn the_page_is_complete_in_itself_and_has_all_sections() {
    let (a, mut b) = (small(), small());
    b.cluster.cluster_policies = vec!["cache-aware".into()];
    b.cluster.workers = 3;
    b.slo.ttft = Some(config::Dur::from_millis(300));
    let page = page(&[("as it <is>", &a), ("cache-aware", &b)]);
    for loaded in ["http:", "https:", "//", "src=", "@import", "url(", "<script", "<link"] {
        assert!(!page.contains(loaded), "{loaded} is in the page");
    }
    for section in [
        "Summary",
        "Latencies",
        "Time to first token",
        "Inter-token latency",
        "End to end",
        "Queue",
        "KV use",
        "Prefix hit rate",
        "Load by worker",
        "Workers",
        "Roles and hand-offs",
        "Stage decisions",
        "Failures and refusals",
        "Scenarios",
    ] {
        assert!(page.contains(&format!(">{section}</h")), "{section} is missing");
    }
    assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
    assert_eq!(page.matches("<svg").count(), 11);
    assert!(page.contains("<td>unified</td><td>3</td>") && page.contains(", checks every, "), "{page}");
    assert!(page.contains("as it &lt;is&gt;") && !page.contains("<is>"));
    for differs in ["cluster.workers", "cluster.cluster-policies", "slo.ttft"] {
        assert!(page.contains(&format!(">{differs}<")), "{differs} is not named as what differs");
    }
    assert!(page.contains("cache-aware</td><td class=\"text\">prod</td><td class=\"text\">"), "no decisions");
}

#[test]
fn a_run_of_nothing_has_a_page_too() {
    let mut scenario = small();
    // All are refused: no prompt fits into a page.
    scenario.workload.requests = 3;
    scenario.cluster.pages = 1;
    scenario.cluster.page_tokens = 1;
    let page = page(&[("nothing", &scenario)]);
    assert!(page.contains("refused: ") && page.contains("failed: "), "{page}");
    assert!(!page.contains("NaN") && !page.contains("inf"), "{page}");
}
