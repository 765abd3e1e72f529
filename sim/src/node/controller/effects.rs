//! Carries out what the core of a controller wants.

use policies::invariant::Broken;
use policies::placement::{PlacementEffect, PolicyWork};
use policies::policy::{PolicyAction, PolicyMode};
use policies::time::Time;

use super::Controller;
use crate::event::{Event, GatewayMsg, Outbox, PoolEvent, PoolMsg, WorkerMsg};

impl Controller {
    /// Carries out what the core wants, which is `fx` and what policies have to do, and looks whether it is in order.
    pub(super) fn finish(
        &mut self,
        now: Time,
        fx: Vec<PlacementEffect>,
        out: &mut Outbox,
    ) -> Result<(), Broken> {
        for effect in fx {
            out.send(Event::Gateway(GatewayMsg::Placement(effect)));
        }
        let mut work = Vec::new();
        self.core.take_policy_work(&mut work);
        for work in work {
            match work {
                PolicyWork::Resync(worker) => out.send(Event::Worker(worker, WorkerMsg::Resync)),
                PolicyWork::ResyncPool(pool) => {
                    out.send(Event::pool(PoolEvent::Message(pool, PoolMsg::Resync)));
                }
                // To be counted and said, where there are metrics and a log.
                PolicyWork::Note(_) => {}
                PolicyWork::Act { mode: PolicyMode::Shadow | PolicyMode::Off, .. } => {}
                PolicyWork::Act { mode: PolicyMode::Prod, action, .. } => {
                    let PolicyAction::SwitchRole { worker, role, .. } = action;
                    out.send(Event::Worker(worker, WorkerMsg::SetRole(role)));
                }
                // Policies are here, and were asked and told inline.
                PolicyWork::Consult { .. } | PolicyWork::Observe(_) => {
                    return Err(Broken { name: "sim_policies_are_inline", detail: format!("{work:?}") });
                }
            }
        }
        if let Some(next) = self.core.next_deadline()
            && self.tick.is_none_or(|t| next < t)
        {
            self.tick = Some(next);
            let tick = if self.stand_in { Event::StandInTick } else { Event::ControllerTick };
            out.after(next.since(now), tick);
        }
        let core = &self.core;
        let things =
            u64::from(core.booked() + core.queued() + core.consulting()) + core.worker_count() as u64;
        self.watch.check(things, || core.check(), || core.check_counts())
    }
}
