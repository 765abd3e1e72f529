//! Prompts that wait here and are computed by another worker meanwhile ([`policies::order::offload`]).
//!
//! From when it leaves such a request is one whose prompt comes from another worker, like those for which the controller
//! has chosen one. Where it does not come, the scheduler's core puts it back to its place.

use config::ids::WorkerId;
use policies::batch::Batch;
use policies::order::RequestKey;
use policies::order::offload::{End, Offload, OffloadOptions, Peer};
use policies::time::Time;
use tracing::{info, warn};

use super::asking::Source;
use super::{Entry, Id, Transfers};
use crate::doors::Doors;
use crate::metrics as m;

/// What is away, and by which rule more may go.
#[derive(Debug, Default)]
pub(super) struct Offloads(Offload);

impl Offloads {
    /// A transfer has ended. Nothing where its prompt did not leave from here.
    pub(super) fn end(&mut self, now: Time, id: Id, end: End) {
        let key = RequestKey { request: id.0, attempt: id.1 };
        let Some(away) = self.0.ended(now, key, end) else { return };
        metrics::counter!(m::OFFLOADED, "outcome" => end.as_str()).increment(1);
        metrics::gauge!(m::OFFLOAD_OUTSTANDING).set(self.0.outstanding() as f64);
        if end == End::Computed {
            metrics::counter!(m::OFFLOADED_TOKENS).increment(away.missing.into());
        }
    }

    /// A prompt that had left, or not, does not come.
    pub(super) fn failed(&mut self, now: Time, id: Id, why: &str) {
        let before = self.0.outstanding();
        self.end(now, id, End::Failed);
        if self.0.outstanding() < before {
            warn!(request = %id.0, why, "a prompt that was offloaded is computed here, in its turn");
        }
    }
}

impl Transfers {
    /// Goes by these options from now on, or sends nothing more. What is away comes back all the same.
    pub(in crate::worker::scheduler) fn set_offload(&mut self, options: Option<OffloadOptions>) {
        self.offloads.0.set_options(options);
        metrics::gauge!(m::OFFLOAD_OUTSTANDING).set(self.offloads.0.outstanding() as f64);
    }

    /// Checks what is away.
    pub(in crate::worker::scheduler) fn check(&self) {
        m::enforce("offload", self.offloads.0.check());
    }

    /// Sends what had better be computed elsewhere.
    pub(in crate::worker::scheduler) fn offload(
        &mut self,
        core: &mut Batch,
        now: Time,
        doors: &Doors,
        own: &WorkerId,
    ) {
        if self.side.is_none() {
            return;
        }
        while let Some(options) = self.offloads.0.wants(core.load().queued_prefill_tokens) {
            let (least, busy) = (options.min_suffix, options.busy_tokens);
            let offers = doors.offers();
            let Some(me) = offers.get(own) else { return };
            let others = offers.values().filter(|ad| self.offloads.0.may_ask(&ad.info.id));
            let peers: Vec<Peer> =
                others.filter_map(|ad| Peer::of(&me.info, &ad.info, ad.draining, &ad.load)).collect();
            if peers.is_empty() {
                return;
            }
            let prompts = core.waiting_prompts(least, busy);
            let Some(choice) = self.offloads.0.choose(now, &prompts, &peers) else { return };
            let key = choice.prompt.key;
            let id = (key.request, key.attempt);
            let address = offers.get(&choice.to).and_then(|ad| ad.info.kv.clone());
            let sent = address.and_then(|peer| Some((core.offload(now, id.0, id.1)?, peer)));
            let Some((spec, peer)) = sent else {
                self.offloads.end(now, id, End::Withdrawn);
                return;
            };
            info!(
                request = %id.0, to = %choice.to, missing = choice.prompt.missing, ahead = choice.prompt.ahead,
                done_there = choice.done_there, "a prompt that would wait here is computed by another worker"
            );
            metrics::gauge!(m::OFFLOAD_OUTSTANDING).set(self.offloads.0.outstanding() as f64);
            let source = Source::prompt(peer);
            self.entries.insert(id, Entry::Waiting { spec: Box::new(spec), source });
        }
    }
}
