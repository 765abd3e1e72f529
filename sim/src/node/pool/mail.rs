//! What comes from the other ends of transfers, and from the links to them.

use config::ids::WorkerId;
use policies::invariant::Broken;
use policies::kv::handoff::{Asked, RefusalCode, Sender, SenderEvent, TransferKey};
use policies::request::RequestSpec;
use policies::time::{Span, Time};

use super::give::Giving;
use super::take::Taking;
use super::{Id, Pool, Side};
use crate::event::{Event, KvMail, KvMessage, Outbox};
use crate::workload;

impl Pool {
    pub(super) fn mail(&mut self, now: Time, mail: KvMail, out: &mut Outbox) -> Result<(), Broken> {
        let KvMail { id, key, from, at, message } = mail;
        if let KvMessage::Ask { asked, spec, held, .. } = message {
            return self.asked(now, (key, held), asked, &spec, from, out);
        }
        // As at a worker: the link is free again when this is here.
        if let KvMessage::Pages(block) | KvMessage::Last { block, .. } = &message {
            let message = KvMessage::Sent { first: block.first, count: block.count, took: now.since(at) };
            let sent = KvMail { id, key, from: self.info.id.clone(), at: now, message };
            out.after(Span::ZERO, Event::mail(from, sent));
        }
        if self.gives.contains_key(&id) {
            return self.at_give(now, id, out, |end, side| end.hear(key, &message, side));
        }
        self.at_take(now, id, out, |end, side| end.hear(key, message, side))
    }

    /// A worker asks for what is here of a prompt.
    fn asked(
        &mut self,
        now: Time,
        (key, held): (TransferKey, bool),
        asked: Asked,
        spec: &RequestSpec,
        to: WorkerId,
        out: &mut Outbox,
    ) -> Result<(), Broken> {
        let id = (spec.id, spec.attempt);
        let limits = self.limits;
        let (_, gives, mut side) = self.sides(now, out);
        if gives.contains_key(&id) {
            side.send(&to, id, key, KvMessage::Cancel);
            return Ok(());
        }
        let first = asked.first_page as usize;
        let fingerprint = workload::fingerprint().of_tenant(spec.tenant.as_ref());
        let hit = side.store(|store, now, _| store.look_up(now, &to, &fingerprint, &spec.hashes, first));
        // It computes nothing, and has other pages for nobody.
        let ours = held && asked.page_bytes == side.bytes(1) && hit.reader.is_some();
        let event = match ours {
            true => SenderEvent::Submitted,
            false => SenderEvent::RefusedLocally(RefusalCode::NotThere),
        };
        side.readers.extend(hit.reader.map(|reader| (reader, id)));
        let end = Sender::new(limits, key, asked);
        let (reader, pages, wants, here) = (hit.reader, hit.pages as u32, None, None);
        let mut giving = Giving { end, id, key, reader, to, pages, wants, got: Vec::new(), here };
        if !giving.start(event, &mut side)? {
            side.pace.begins(now);
            gives.insert(id, giving);
        }
        Ok(())
    }

    /// The link to a worker is gone.
    pub(super) fn lost(&mut self, now: Time, worker: &WorkerId, out: &mut Outbox) -> Result<(), Broken> {
        let node = worker.node.clone();
        self.each_end(now, |peer| peer.node == node, out, Taking::link_lost, Giving::link_lost)?;
        self.carry_out(now, out)?;
        let mut fx = Vec::new();
        self.store.owner_lost(now, worker, &mut fx);
        self.work.extend(fx);
        Ok(())
    }

    /// Calls all ends with certain peers.
    pub(super) fn each_end(
        &mut self,
        now: Time,
        with: impl Fn(&WorkerId) -> bool,
        out: &mut Outbox,
        take: impl Fn(&mut Taking, &mut Side<'_>) -> Result<bool, Broken>,
        give: impl Fn(&mut Giving, &mut Side<'_>) -> Result<bool, Broken>,
    ) -> Result<(), Broken> {
        let takes: Vec<Id> = self.takes.values().filter(|end| with(&end.from)).map(|end| end.id).collect();
        let gives: Vec<Id> = self.gives.values().filter(|end| with(&end.to)).map(|end| end.id).collect();
        for id in takes {
            self.at_take(now, id, out, &take)?;
        }
        for id in gives {
            self.at_give(now, id, out, &give)?;
        }
        Ok(())
    }
}
