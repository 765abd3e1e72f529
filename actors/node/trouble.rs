//! Whether this node could serve now, and what is the matter where it could not.

use config::{Config, Mode, PrefillFallback, Role};
use policies::policy::disaggregate::Disaggregate;

use crate::membership::ClusterView;
use crate::worker::WorkerHealth;

/// Why the node cannot serve just now, for its readiness.
pub(super) fn trouble(config: &Config, health: &WorkerHealth, view: &ClusterView) -> Option<String> {
    let roles = &config.node.roles;
    if roles.contains(Role::Worker)
        && let Some(why) = of_worker(health)
    {
        return Some(why);
    }
    if !view.joined {
        return Some("joining: no seed of cluster.seeds has answered yet".to_owned());
    }
    // A worker without a peer is ready all the same: its peers find it that way.
    if roles.contains(Role::Gateway) { want_of_prefill(config, view) } else { None }
}

/// Every prompt that is worth a prefill worker would be turned away. Where anything else is allowed in place of a prefill
/// worker, or a worker is there that computes its own prompts, there is no trouble; nor while gateways place by their own
/// choice, which knows no policies.
fn want_of_prefill(config: &Config, view: &ClusterView) -> Option<String> {
    let policy = &config.policy.disaggregate;
    let listed = config.cluster.cluster_policies.iter().any(|name| name == Disaggregate::NAME);
    let strict = listed && policy.mode == Mode::Prod && policy.fallback == PrefillFallback::None;
    if !strict || view.leader.is_none() || view.without_prefill.is_empty() {
        return None;
    }
    let workers = view.nodes.iter().filter_map(|node| node.worker.as_ref());
    let mut generate = workers.filter(|worker| !worker.draining && worker.role != "prefill");
    let alone = generate.all(|worker| view.without_prefill.contains(&worker.id));
    alone.then(|| {
        format!(
            "no prefill worker is there for {}, and policy.disaggregate.fallback is none",
            view.without_prefill.join(", ")
        )
    })
}

fn of_worker(health: &WorkerHealth) -> Option<String> {
    match health {
        WorkerHealth::Ready => None,
        WorkerHealth::Loading => Some("the model is loading".to_owned()),
        WorkerHealth::Restarting(why) => Some(format!("the engine is restarting: {why}")),
        WorkerHealth::Stalled(limit) => {
            Some(format!("the engine's step has been running for more than {limit}"))
        }
        WorkerHealth::Draining => Some("draining".to_owned()),
        WorkerHealth::Failed(why) => Some(format!("the model cannot be served: {why}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::membership::{NodeRow, WorkerRow};

    fn view(workers: &[(&str, bool)], without_prefill: &[&str]) -> ClusterView {
        let row = |(n, (role, draining)): (usize, &(&str, bool))| {
            let worker = WorkerRow {
                id: format!("w{n}"),
                role: (*role).to_owned(),
                draining: *draining,
                ..WorkerRow::default()
            };
            NodeRow { worker: Some(worker), ..NodeRow::default() }
        };
        ClusterView {
            joined: true,
            leader: Some("c".to_owned()),
            nodes: workers.iter().enumerate().map(row).collect(),
            without_prefill: without_prefill.iter().map(|id| (*id).to_owned()).collect(),
            ..ClusterView::default()
        }
    }

    fn strict(roles: &str) -> Config {
        let mut config = Config::default();
        config.node.roles = roles.parse().unwrap();
        config.policy.disaggregate.fallback = PrefillFallback::None;
        config
    }

    #[test]
    fn a_gateway_says_that_its_decode_workers_lack_a_prefill_worker() {
        let of = |config: &Config, view: &ClusterView| trouble(config, &WorkerHealth::Ready, view);
        let lacks = view(&[("decode", false), ("prefill", true)], &["w0"]);
        let why = of(&strict("gateway"), &lacks).unwrap();
        assert!(why.contains("w0") && why.contains("policy.disaggregate.fallback"), "{why}");
        // A worker of its own takes nothing from others' readiness; nor does a controller serve anybody.
        assert_eq!(of(&strict("worker"), &lacks), None);
        assert_eq!(of(&strict("controller"), &lacks), None);
        assert!(of(&strict("gateway,worker"), &lacks).is_some());
        for fine in [
            view(&[("decode", false), ("prefill", false)], &[]),
            view(&[("decode", false), ("unified", false)], &["w0"]),
            view(&[("decode", false), ("decode", false)], &["w0"]),
            ClusterView { leader: None, ..lacks.clone() },
        ] {
            assert_eq!(of(&strict("gateway"), &fine), None, "{fine:?}");
        }
        assert!(of(&strict("gateway"), &view(&[("decode", false), ("unified", true)], &["w0"])).is_some());
        let change: [fn(&mut Config); 4] = [
            |c| c.policy.disaggregate.fallback = PrefillFallback::Unified,
            |c| c.policy.disaggregate.fallback = PrefillFallback::Decode,
            |c| c.policy.disaggregate.mode = Mode::Shadow,
            |c| c.cluster.cluster_policies.retain(|name| name != "disaggregate"),
        ];
        for change in change {
            let mut config = strict("gateway");
            change(&mut config);
            assert_eq!(of(&config, &lacks), None);
        }
    }
}
