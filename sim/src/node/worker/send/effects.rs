//! Carries out what an end wants that gives pages out.

use policies::kv::handoff::{Outcome, SenderEffect};

use super::{Prefilled, Sending};
use crate::event::{KvMessage, PageBlock};
use crate::node::worker::transfers::Side;

impl Sending {
    pub(super) fn effect(&mut self, effect: SenderEffect, side: &mut Side<'_>) {
        let (id, key) = (self.id, self.key);
        let message = match effect {
            SenderEffect::Accept => KvMessage::Accepted,
            SenderEffect::Announce => KvMessage::Begun,
            SenderEffect::Open { .. } => {
                side.core.open(id.0, id.1);
                return;
            }
            SenderEffect::Refuse(code) => KvMessage::Refused(code),
            SenderEffect::CancelPeer(_) => KvMessage::Cancel,
            SenderEffect::SendPages { first, count } => {
                let message = KvMessage::Pages(self.take(first, count));
                return side.send_pages(&self.peer, id, key, self.bytes(count), message);
            }
            SenderEffect::SendLast { first, count, tokens } => {
                let block = self.take(first, count);
                let Some(Prefilled { cached, drawn, .. }) = self.prefilled.take() else { return };
                let message = KvMessage::Last { tokens, cached, drawn, block };
                return side.send_pages(&self.peer, id, key, self.bytes(count), message);
            }
            // What runs here goes on, unless it was taken over; what was computed for the other one is not needed any more.
            SenderEffect::Done(report) => {
                let taken = report.outcome == Outcome::Committed;
                if !side.core.end_lending(side.now, id.0, id.1, taken) {
                    side.core.cancel(side.now, id.0, id.1);
                }
                return;
            }
            // How it has ended says what becomes of the request, and comes next.
            SenderEffect::Release => return,
            // It was submitted when it came, and exports are done above.
            SenderEffect::Submit | SenderEffect::Export { .. } => return,
        };
        side.send(&self.peer, id, key, message);
    }

    /// Copies pages out, as far as they are (still) there.
    pub(super) fn export(&self, first: u32, count: u32, side: &Side<'_>) -> Option<PageBlock> {
        let table = self.table.get(first as usize..(first + count) as usize)?;
        let mut slots = Vec::with_capacity(count as usize * self.asked.page_tokens as usize);
        for page in table {
            slots.extend_from_slice(side.pages.page(page.index())?);
        }
        Some(PageBlock { first, count, slots })
    }

    fn take(&mut self, first: u32, count: u32) -> PageBlock {
        let here = self.here.take_if(|block| block.first == first && block.count == count);
        here.unwrap_or(PageBlock { first, count, slots: Vec::new() })
    }

    fn bytes(&self, pages: u32) -> u64 {
        u64::from(pages) * self.asked.page_bytes
    }
}
