//! What has to hold between events, and at the end.

use policies::ensure_invariant;
use policies::invariant::Broken;

use super::World;
use crate::network::{self, Addr};

/// Events between two looks at everything, at least.
const CHECK_EVERY: u64 = 4096;

impl World {
    /// What is too dear to look at after each event: where no link can break, each request at a worker is booked there.
    pub(super) fn check(&mut self) -> Result<(), Broken> {
        if self.network.links().is_some() || self.trace.events() < self.next_check {
            return Ok(());
        }
        self.next_check = self.trace.events() + CHECK_EVERY.max(16 * self.gateway.live() as u64);
        let core = self.controller.core();
        let lost = self.gateway.at_workers().find(|id| !core.is_booked(*id));
        ensure_invariant!(lost.is_none(), "sim_requests_at_workers_are_booked", "{lost:?} is not");
        Ok(())
    }

    /// The leak check: whatever happened, nothing is held anywhere when it is over.
    pub(super) fn nothing_left(&self) -> Result<(), Broken> {
        let stands_still = |node| self.network.is_frozen(node) || self.network.is_dead(node);
        ensure_invariant!(
            self.gateway.live() == 0 || stands_still(Addr::Gateway),
            "sim_requests_end",
            "{} sessions live",
            self.gateway.live()
        );
        for (node, controller) in [(Addr::Controller, &self.controller), (Addr::Gateway, &self.stand_in)] {
            if stands_still(node) {
                continue;
            }
            let core = controller.core();
            core.check()?;
            ensure_invariant!(
                core.booked() == 0 && core.queued() == 0 && core.consulting() == 0,
                "sim_bookings_end",
                "at the {node:?}: {} requests are booked, {} wait, {} are asked about",
                core.booked(),
                core.queued(),
                core.consulting()
            );
            for row in core.workers() {
                ensure_invariant!(
                    row.booked == 0 && row.booked_tokens == 0 && row.handoffs == 0 && row.handoff_tokens == 0,
                    "sim_bookings_end",
                    "at the {node:?}: {} requests, {} tokens on {}; prompts for others: {}, {} tokens",
                    row.booked,
                    row.booked_tokens,
                    row.info.id,
                    row.handoffs,
                    row.handoff_tokens
                );
            }
        }
        for (id, worker) in self.workers.iter() {
            if stands_still(Addr::Worker(network::index_of(id))) {
                continue;
            }
            worker.core().check()?;
            let load = worker.core().load();
            ensure_invariant!(
                worker.core().is_idle()
                    && load.pages_used == 0
                    && load.running + load.waiting + load.paused == 0,
                "sim_pages_end",
                "{id}: {load:?}"
            );
            ensure_invariant!(
                worker.transfers_left() == 0 && worker.offloads_left() == 0,
                "sim_transfers_end",
                "{id}: {} transfers, {} prompts that others compute",
                worker.transfers_left(),
                worker.offloads_left()
            );
        }
        self.nothing_left_at_pools()
    }
}
