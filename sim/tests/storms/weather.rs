//! What goes wrong in a storm.

use config::Dur;
use sim::Scenario;

/// Nodes die, stand still and are slow, links break, are slow and lose messages, each seed in its own way; in every second
/// one that happens to nodes of every role. Pages go so slowly that they are under way whenever something happens.
pub(crate) fn storm(scenario: &mut Scenario) {
    scenario.cluster.detect = Dur::from_millis(100);
    scenario.network.bandwidth = Some(config::Size(400_000_000));
    (scenario.network.jitter, scenario.network.loss) = (Dur::from_millis(2), 0.005);
    scenario.network.detect_spread = Dur::from_millis(50);
    let random = &mut scenario.random_faults.random;
    (random.crashes, random.partitions, random.resets) = (3, 3, 3);
    (random.freezes, random.slow_nodes, random.slow_links) = (1, 1, 2);
    (random.within, random.lasting) = (Dur::from_secs(3), Dur::from_millis(400));
    random.all_roles = scenario.seed % 2 == 1;
}
