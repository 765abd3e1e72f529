//! The gateway and those that place for it, as a scenario has them start.

use config::Choice;
use policies::placement::{self, PlacementConfig};
use policies::policy::configured::configured;
use policies::session::SessionConfig;
use policies::time::Time;

use super::{faults, moves};
use crate::SimError;
use crate::event::{Came, Event, PoolEvent};
use crate::node::{Controller, Gateway};
use crate::queue::Queue;
use crate::report::Tally;
use crate::scenario::{Cluster, Fault, Scenario};
use crate::watch::Checks;
use crate::workload::{self, Clients};

/// What is certain to happen from the start, and the faults that are.
pub(super) fn queue(scenario: &Scenario, clients: &mut Clients) -> Result<(Queue, Vec<Fault>), SimError> {
    let mut queue = Queue::default();
    let (workers, pools) = (scenario.workers(), scenario.pool_count());
    (0..workers).for_each(|w| queue.push(Time::ZERO, Event::Start(w)));
    (0..pools).for_each(|p| queue.push(Time::ZERO, Event::pool(PoolEvent::Start(p))));
    let mut faults = scenario.faults.clone();
    faults.extend(scenario.random_faults.random.draw(scenario.seed, workers, pools));
    faults::schedule(&faults, &mut queue);
    moves::schedule(&scenario.moves, &mut queue);
    if let Some(first) = clients.next()? {
        queue.push(first.at, Event::Arrive(Box::new(first), Came::ByItself));
    }
    Ok((queue, faults))
}

/// A gateway without requests.
pub(super) fn gateway(scenario: &Scenario) -> Gateway {
    let c = &scenario.cluster;
    let mut gateway = Gateway::new(
        SessionConfig { retry_limit: c.retry_limit, backoff: c.retry_backoff.get().into() },
        !c.cluster_policies.is_empty(),
        Tally::new(scenario.slo, &scenario.workload.phases),
    );
    if scenario.check_answers && scenario.how_checked() == Checks::Every {
        gateway.check_answers(workload::model(&scenario.workload));
    }
    gateway
}

/// A controller that has just started.
pub(super) fn controller(scenario: &Scenario) -> Controller {
    let names = &scenario.cluster.cluster_policies;
    let policies = names.iter().filter_map(|name| configured(name, &scenario.policy)).collect();
    Controller::new(placement_config(&scenario.cluster, scenario.seed), policies)
}

/// One that stands in at the gateway's node, and has just started.
pub(super) fn stand_in(scenario: &Scenario) -> Controller {
    Controller::stand_in(&placement_config(&scenario.cluster, scenario.seed))
}

fn placement_config(cluster: &Cluster, seed: u64) -> PlacementConfig {
    PlacementConfig {
        max_queued: cluster.queue_limit,
        queue_timeout: cluster.queue_timeout.get().into(),
        choice: match cluster.choice {
            Choice::LeastLoaded => placement::Choice::LeastLoaded,
            Choice::PowerOfTwo => placement::Choice::PowerOfTwo,
            Choice::RoundRobin => placement::Choice::RoundRobin,
            Choice::Random => placement::Choice::Random,
        },
        seed,
        opinion_deadline: cluster.opinion_deadline.get().into(),
        directory: !cluster.cluster_policies.is_empty(),
    }
}
