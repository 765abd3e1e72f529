//! Carries out what an end wants that takes pages in.

use policies::kv::handoff::{Asked, ReceiverEffect};
use policies::order::offload::End;

use super::Receiving;
use crate::event::KvMessage;
use crate::node::worker::transfers::Side;

impl Receiving {
    /// The first `tokens` tokens of the prompt that this was for are here, and no more come.
    fn end_held(&self, tokens: u32, side: &mut Side<'_>) {
        if let Some(attempt) = self.id.1.fetched_for() {
            side.core.compute_here(side.now, self.id.0, attempt, tokens);
        }
    }

    pub(super) fn effect(&mut self, effect: ReceiverEffect, side: &mut Side<'_>) {
        let (id, key) = (self.id, self.key);
        let message = match effect {
            ReceiverEffect::Ask { first_page, want_pages, window, reserved } => {
                let page_bytes = self.layout.page_bytes() as u64;
                let page_tokens = self.layout.page_tokens;
                let asked = Asked { first_page, want_pages, window, page_tokens, page_bytes, reserved };
                let (spec, takes, held) = (self.spec.clone(), self.takes, self.wanted.held);
                KvMessage::Ask { asked, spec, takes, held, prefix: self.prefix.take() }
            }
            ReceiverEffect::Reserve => {
                // One that is gone has been dropped, which this end hears next.
                side.core.begun(side.now, id.0, id.1);
                return;
            }
            ReceiverEffect::Open { first_page, window } => KvMessage::Open { first_page, window },
            ReceiverEffect::GrantCredit(pages) => KvMessage::Credit(pages),
            ReceiverEffect::Ack => KvMessage::Ack,
            ReceiverEffect::CancelPeer(_) => KvMessage::Cancel,
            ReceiverEffect::Commit { tokens, .. } if self.wanted.held => {
                return self.end_held(tokens, side);
            }
            ReceiverEffect::Commit { tokens, ends, .. } => {
                if side.fetches.has(id) {
                    let result = if ends { Err("the request is about to end".to_owned()) } else { Ok(()) };
                    return side.end_fetch(id, if ends { 0 } else { tokens }, result);
                }
                let (cached, drawn) = self.last.take().unwrap_or_default();
                let taken = side.core.received(side.now, id.0, id.1, !ends, cached, &drawn);
                side.offloads.end(side.now, id, if taken { End::Computed } else { End::Failed });
                if !taken {
                    side.core.compute_here(side.now, id.0, id.1, if ends { 0 } else { tokens });
                }
                return;
            }
            ReceiverEffect::Fallback { valid_pages, why } => {
                let tokens = valid_pages * self.layout.page_tokens;
                if self.wanted.held {
                    return self.end_held(tokens, side);
                }
                if side.fetches.has(id) {
                    return side.end_fetch(id, tokens, Err(why.as_str().to_owned()));
                }
                side.offloads.end(side.now, id, End::Failed);
                side.core.compute_here(side.now, id.0, id.1, tokens);
                return;
            }
            ReceiverEffect::Done(report) => {
                self.report = Some(report);
                return;
            }
            // The scheduler has dropped the request already: that is how this end hears of it. Imports are done above.
            ReceiverEffect::Free | ReceiverEffect::Import { .. } => return,
        };
        side.send(&self.peer, id, key, message);
    }
}
