//! What is asked of other workers, and the page sets that do it.

use config::ids::{Attempt, WorkerId};
use policies::batch::Batch;
use policies::kv::handoff::{TransferKey, Wanted};
use policies::placement::KvPeer;
use policies::request::RequestSpec;
use policies::time::Time;
use tracing::error;

use super::{Entry, Id, Transfers};
use crate::worker::pages::{self, HeldAt, Keeper, PageSetMsg, ReceiveArgs};
use crate::worker::scheduler::sets::Sets;

/// Where the content of a request's pages comes from.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) peer: KvPeer,
    /// It runs there, as this attempt.
    pub(super) takes: Option<Attempt>,
    /// A third worker holds the start of the prompt that is computed there.
    pub(super) prefix: Option<HeldAt>,
}

impl Source {
    /// A prompt that `peer` computes.
    pub(super) const fn prompt(peer: KvPeer) -> Self {
        Self { peer, takes: None, prefix: None }
    }
}

impl Transfers {
    /// Has a prompt asked for: of a request that has its pages, with so many tokens that are cached, or gets them later.
    pub(super) fn ask(
        &mut self,
        id: Id,
        spec: Box<RequestSpec>,
        source: Source,
        (cached, tokens): (Option<u32>, u32),
        worker: &WorkerId,
    ) {
        let Some(side) = &self.side else { return };
        self.last += 1;
        let wanted = Wanted::of(&spec, id.1, tokens, cached.unwrap_or(0), self.kv.layout.page_tokens);
        let args = ReceiveArgs {
            key: TransferKey { transfer: self.last, generation: worker.incarnation },
            wanted,
            takes: source.takes,
            prefix: source.prefix,
            reserved: cached.is_some(),
            limits: side.limits,
            spec,
            address: source.peer.address,
            fingerprint: self.fingerprint,
            layout: self.kv.layout,
            port: side.port.clone(),
            keeper: Keeper::Scheduler(self.scheduler.clone()),
        };
        self.starting.push((id, args));
    }

    /// Starts the page sets that are due.
    pub(in crate::worker::scheduler) async fn start(&mut self, core: &mut Batch, now: Time, sets: &mut Sets) {
        for (id, args) in std::mem::take(&mut self.starting) {
            let Some(side) = &self.side else { return };
            // That of the request, or one of its own for what is fetched ahead of a request.
            let started = match sets.use_of(id) {
                Some(set) => {
                    // One that has ended takes the request with it, of which the scheduler hears next.
                    let _ = set.cast(PageSetMsg::Receive(Box::new(args)));
                    Ok(set.clone())
                }
                None => pages::receive(args, side.supervisor.clone()).await,
            };
            match started {
                Ok(started) => {
                    if let Some(Entry::Receiving { set, .. }) = self.entries.get_mut(&id) {
                        *set = Some(started);
                    }
                }
                Err(e) => {
                    error!(request = %id.0, error = %e, "a page set does not start");
                    self.compute_here(core, now, id, 0, "no page set");
                }
            }
        }
    }
}
