//! What comes for the transfers of a worker, and what the core has to say about them.

use policies::batch::BatchEffect;
use policies::invariant::Broken;
use policies::time::{Span, Time};

use super::Worker;
use super::transfers::{Id, Side, Transfers};
use crate::event::{Event, KvMail, KvMessage, Outbox};

impl Worker {
    /// A transfer asked to be called.
    ///
    /// # Errors
    /// A broken invariant of it, or of the core.
    pub fn kv_timer(&mut self, now: Time, id: Id, out: &mut Outbox) -> Result<(), Broken> {
        let (transfers, mut side) = self.transfers(now, out);
        transfers.timer(id, &mut side)?;
        self.go_on(now, Vec::new(), true, out)
    }

    pub(super) fn mail(&mut self, now: Time, mail: KvMail, out: &mut Outbox) -> Result<(), Broken> {
        // The link carries one message of pages of a transfer at a time, so that it is free again when this one is here.
        if let KvMessage::Pages(block) | KvMessage::Last { block, .. } = &mail.message {
            let message =
                KvMessage::Sent { first: block.first, count: block.count, took: now.since(mail.at) };
            let sent = KvMail { id: mail.id, key: mail.key, from: self.info.id.clone(), at: now, message };
            out.after(Span::ZERO, Event::mail(mail.from.clone(), sent));
        }
        let (transfers, mut side) = self.transfers(now, out);
        transfers.mail(mail, &mut side)
    }

    pub(super) fn transfers<'a>(
        &'a mut self,
        now: Time,
        out: &'a mut Outbox,
    ) -> (&'a mut Transfers, Side<'a>) {
        let (core, pages, offloads) = (&mut self.core, self.engine.pages(), &mut self.offloads);
        let side = Side { now, me: &self.info.id, core, pages, offloads, fetches: &mut self.fetches, out };
        (&mut self.transfers, side)
    }

    /// Takes what the core has to say: effects for gateways, and what is to be done for transfers. False where nothing was
    /// to be done.
    pub(super) fn news(
        &mut self,
        now: Time,
        fx: &mut Vec<BatchEffect>,
        out: &mut Outbox,
    ) -> Result<bool, Broken> {
        self.core.take_effects(fx);
        // What is computed for another worker is that one's to tell.
        if self.transfers.len() > 0 {
            fx.retain(|effect| !self.transfers.is_for_another(effect));
        }
        let (transfers, mut side) = self.transfers(now, out);
        let any = transfers.news(&mut side)?;
        if any {
            self.core.take_effects(fx);
        }
        Ok(any)
    }
}
