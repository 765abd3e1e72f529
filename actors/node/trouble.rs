//! Whether this node could serve now, and what is the matter where it could not.

use config::{Config, Role};

use crate::membership::Board;
use crate::worker::WorkerHealth;

/// Why the node cannot serve just now, for its readiness.
pub(super) fn trouble(config: &Config, health: &WorkerHealth, board: &Board) -> Option<String> {
    if config.node.roles.contains(Role::Worker)
        && let Some(why) = of_worker(health)
    {
        return Some(why);
    }
    (!board.view().joined).then(|| "joining: no seed of cluster.seeds has answered yet".to_owned())
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
