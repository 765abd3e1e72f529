//! What goes out: pages from the engine to the link.

use super::super::Piece;
use super::{Phase, Sender, SenderEffect};
use crate::time::Time;

impl Sender {
    /// Sends what is exported and exports what is computed. While one message is sent the next is exported, and not
    /// more.
    pub(super) fn pump(&mut self, now: Time, fx: &mut Vec<SenderEffect>) {
        if !self.open || !matches!(self.phase, Phase::Computing | Phase::Flushing) {
            return;
        }
        if self.is_bare() {
            self.exported = None;
        }
        if self.sending.is_none() {
            self.send(now, fx);
        }
        self.export(fx);
    }

    fn send(&mut self, now: Time, fx: &mut Vec<SenderEffect>) {
        let pages = self.exported.take();
        let piece = pages.unwrap_or(Piece { first: self.sent, count: 0 });
        let last = self.whole.filter(|whole| piece.end() >= whole.pages || self.is_bare());
        match last {
            // What the last message says has to be so: the pages in flight are dropped when they are exported.
            Some(whole) => {
                self.phase = Phase::Closing;
                self.report.last_at = Some(now);
                fx.push(SenderEffect::SendLast {
                    first: piece.first,
                    count: piece.count,
                    tokens: whole.tokens,
                });
            }
            None if piece.count > 0 => {
                fx.push(SenderEffect::SendPages { first: piece.first, count: piece.count });
            }
            None => return,
        }
        self.sent = piece.end();
        self.sending = Some(piece);
        if piece.count > 0 {
            self.report.first_page_at.get_or_insert(now);
            self.report.pages += piece.count;
            self.report.bytes = u64::from(self.report.pages).saturating_mul(self.asked.page_bytes);
        }
    }

    fn export(&mut self, fx: &mut Vec<SenderEffect>) {
        let busy = self.exporting.is_some() || self.exported.is_some();
        if busy || self.is_bare() || !self.asked.want_pages || self.phase == Phase::Closing {
            return;
        }
        let ready = self.computed.saturating_sub(self.next);
        if self.whole.is_none() && ready < self.flush_pages {
            return;
        }
        let credit = self.allowed.saturating_sub(self.next);
        let count = ready.min(credit).min(self.config.pages_per_message);
        if count > 0 {
            let piece = Piece { first: self.next, count };
            self.next = piece.end();
            self.exporting = Some(piece);
            fx.push(SenderEffect::Export { first: piece.first, count });
        }
    }
}
