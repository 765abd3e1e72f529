//! What comes to a pool: messages, what its disk has done, and the time.

use config::ids::WorkerId;
use policies::invariant::Broken;
use policies::kv::handoff::{Receiver, TransferKey, Wanted};
use policies::pool::Run;
use policies::request::RequestSpec;
use policies::time::Time;

use super::take::Taking;
use super::{Id, Pool};
use crate::event::{Event, Outbox, PoolEvent, PoolMsg};
use crate::workload;

impl Pool {
    /// A message came.
    ///
    /// # Errors
    /// A broken invariant of a core.
    pub fn handle(&mut self, now: Time, message: PoolMsg, out: &mut Outbox) -> Result<(), Broken> {
        match message {
            PoolMsg::Store(from, spec) => self.keep(now, from, spec, out)?,
            PoolMsg::Resync => self.tell_all_pages(out),
            PoolMsg::Kv(mail) => self.mail(now, *mail, out)?,
            PoolMsg::PeerLost(worker) => self.lost(now, &worker, out)?,
        }
        self.go_on(now, out)
    }

    /// The disk has done what it was at.
    ///
    /// # Errors
    /// As [`Pool::handle`].
    pub fn disk_done(&mut self, now: Time, out: &mut Outbox) -> Result<(), Broken> {
        if let Some(done) = self.disk.done() {
            self.disk_did(now, done);
        }
        self.go_on(now, out)
    }

    /// The time that was asked for.
    ///
    /// # Errors
    /// As [`Pool::handle`].
    pub fn tick(&mut self, now: Time, out: &mut Outbox) -> Result<(), Broken> {
        self.timer = self.timer.filter(|timer| *timer > now);
        let mut fx = Vec::new();
        self.store.tick(now, &mut fx);
        self.work.extend(fx);
        self.carry_out(now, out)?;
        self.each_end(now, |_| true, out, |end, side| end.tick(side), |end, side| end.tick(side))?;
        self.go_on(now, out)
    }

    /// Carries out what there is to do, and looks whether all is in order.
    ///
    /// # Errors
    /// As [`Pool::handle`].
    pub fn go_on(&mut self, now: Time, out: &mut Outbox) -> Result<(), Broken> {
        self.carry_out(now, out)?;
        self.disk.go_on(&self.info.id, out);
        self.tell_pages(out);
        self.tell_pace(now, out);
        let ends = self.takes.values().filter_map(|end| end.end.next_deadline());
        let ends = ends.chain(self.gives.values().filter_map(|end| end.end.next_deadline()));
        let due = ends.chain(self.store.next_deadline()).min();
        if let Some(due) = due.filter(|due| self.timer.is_none_or(|timer| *due < timer)) {
            self.timer = Some(due);
            out.after(due.since(now), Event::pool(PoolEvent::Timer(self.info.id.clone())));
        }
        let store = &self.store;
        self.watch.check(store.stats().pages, || store.check(), || store.check_bounds())
    }

    /// A prompt is computed, and its pages are to be kept: those that are not here are asked for.
    fn keep(
        &mut self,
        now: Time,
        from: WorkerId,
        spec: Box<RequestSpec>,
        out: &mut Outbox,
    ) -> Result<(), Broken> {
        let id: Id = (spec.id, spec.attempt);
        if self.takes.contains_key(&id) {
            return Ok(());
        }
        let fingerprint = workload::fingerprint().of_tenant(spec.tenant.as_ref());
        let page_bytes = self.layout.page_bytes() as u64;
        let run = Run { fingerprint, parent: None, pages: spec.hashes.to_vec(), page_bytes };
        let begun = match self.store.begin(now, &from, run) {
            Ok(begun) => begun,
            Err(refusal) => {
                *self.tally.refused.entry(refusal.to_string()).or_default() += 1;
                return Ok(());
            }
        };
        self.last += 1;
        let key = TransferKey { transfer: self.last, generation: self.info.id.incarnation };
        let page_tokens = self.layout.page_tokens;
        let (tokens, cached) = (spec.hashes.len() as u32 * page_tokens, begun.first as u32 * page_tokens);
        let wanted = Wanted::of(&spec, id.1.fetch(), tokens, cached, page_tokens);
        self.puts.insert(begun.put, id);
        let end = Receiver::new(self.limits, key, wanted);
        let (here, came, imports) = Default::default();
        self.takes.insert(id, Taking { end, id, key, put: Some(begun.put), from, spec, here, came, imports });
        self.at_take(now, id, out, Taking::start)
    }
}
