//! The worker's ordering policy, called inline: what it is told counts for the next step.

use std::time::Duration;

use config::WorkerPoliciesConfig;
use policies::batch::Batch;
use policies::invariant::Broken;
use policies::order::configured::{keeping, offloading, ordering};
use policies::order::offload::OffloadOptions;
use policies::order::{Ranks, WorkerPolicy};
use policies::time::{Span, Time};

/// How often a policy may forget, as live.
const TICK: Duration = Duration::from_secs(1);

/// The policies of a worker.
#[derive(Clone, Debug)]
pub struct Orders {
    /// As `runtime.worker-policy` lists them.
    pub list: Vec<String>,
    /// Their options.
    pub tables: WorkerPoliciesConfig,
}

impl Orders {
    /// Which prompts other workers compute; `step_tokens` are those of a step.
    pub(super) fn offloading(&self, step_tokens: u32) -> Option<OffloadOptions> {
        offloading(&self.list, &self.tables, step_tokens as usize)
    }
}

/// The policy that orders, if one does.
#[derive(Debug)]
pub(super) struct Orderer {
    policy: Option<Box<dyn WorkerPolicy>>,
    ticked: Time,
}

impl Orderer {
    /// Makes the policies, and has the batch listen to them.
    pub(super) fn new(orders: &Orders, core: &mut Batch) -> Self {
        let policy = orders.list.iter().find_map(|name| ordering(name, &orders.tables));
        core.keep_sessions(keeping(&orders.list, &orders.tables));
        if policy.is_some() {
            core.order_by_policy(true, Vec::new());
        }
        Self { policy, ticked: Time::ZERO }
    }

    /// Tells the policy what has happened, and the batch what it thinks of that.
    pub(super) fn order(&mut self, now: Time, core: &mut Batch) -> Result<(), Broken> {
        let Some(policy) = &mut self.policy else { return Ok(()) };
        let (mut events, mut ranks) = (Vec::new(), Ranks::default());
        core.take_order_events(&mut events);
        if !events.is_empty() {
            policy.observe(now, &events, &mut ranks);
        }
        if now.since(self.ticked) >= Span::from(TICK) {
            self.ticked = now;
            policy.tick(now, &mut ranks);
        }
        if !ranks.is_empty() {
            core.publish(&ranks);
        }
        policy.check()
    }
}
