//! Carries out what an end wants at which pages come in.

use policies::kv::handoff::{ReceiverEffect, ReceiverEvent};

use super::Taking;
use crate::event::KvMessage;
use crate::node::pool::{Page, Side};

impl Taking {
    /// Carries out an effect; what its end has to hear of that at once.
    pub(super) fn effect(&mut self, effect: ReceiverEffect, side: &mut Side<'_>) -> Option<ReceiverEvent> {
        let message = match effect {
            ReceiverEffect::Ask { first_page, want_pages, window, .. } => {
                let asked = Self::asks(first_page, want_pages, window, side);
                let spec = self.spec.clone();
                KvMessage::Ask { asked, spec, takes: None, held: true, prefix: None }
            }
            ReceiverEffect::GrantCredit(pages) => KvMessage::Credit(pages),
            ReceiverEffect::Ack => KvMessage::Ack,
            ReceiverEffect::CancelPeer(_) => KvMessage::Cancel,
            ReceiverEffect::Import { first, count } => {
                return (!self.import(first, count, side))
                    .then_some(ReceiverEvent::ImportFailed { first, count });
            }
            ReceiverEffect::Commit { .. } => {
                if let Some(put) = self.put {
                    side.store(|store, now, fx| store.commit(now, put, fx));
                }
                return None;
            }
            // What is complete stays.
            ReceiverEffect::Fallback { .. } | ReceiverEffect::Free => {
                if let Some(put) = self.put {
                    side.store(|store, now, fx| store.abort(now, put, fx));
                }
                return None;
            }
            ReceiverEffect::Done(report) => {
                *side.tally.takes.entry(report.outcome.as_str()).or_default() += 1;
                return None;
            }
            // There is room when it asks.
            ReceiverEffect::Reserve | ReceiverEffect::Open { .. } => return None,
        };
        side.send(&self.from, self.id, self.key, message);
        None
    }

    /// Has the store keep pages that came; false where it does not, or they are not those that were asked for.
    fn import(&mut self, first: u32, count: u32, side: &mut Side<'_>) -> bool {
        let block = self.here.take_if(|block| block.first == first && block.count == count);
        let (Some(block), Some(put)) = (block, self.put) else { return false };
        self.imports.push_back((first, count));
        let bytes = side.bytes(1);
        for (index, page) in (first as usize..).zip(block.slots.chunks(side.layout.page_tokens as usize)) {
            self.came.insert(index, Page::from(page));
            side.store(|store, now, fx| store.arrived(now, put, index, bytes, fx));
        }
        true
    }
}
