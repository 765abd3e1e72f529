//! What comes in, from the peer and from this end's engine.

use super::super::{Cause, Piece};
use super::{Import, Last, Phase, Receiver, ReceiverEffect, ReceiverEvent, Room};
use crate::time::Time;

impl Receiver {
    /// False where the event means nothing (any more).
    pub(super) fn take(&mut self, now: Time, event: ReceiverEvent, fx: &mut Vec<ReceiverEffect>) -> bool {
        match event {
            ReceiverEvent::Imported { first, count } => {
                return self.imported(now, Piece { first, count }, fx);
            }
            ReceiverEvent::ImportFailed { first, count } => {
                return self.import_failed(Piece { first, count }, fx);
            }
            _ if !self.needs_peer() => return false,
            ReceiverEvent::Accepted => return self.accepted(now),
            ReceiverEvent::Begun => return self.begun(now, fx),
            ReceiverEvent::Reserved { cached_pages } => return self.reserved(now, cached_pages, fx),
            ReceiverEvent::Pages { first, count, bytes } => {
                return self.pages(now, Piece { first, count }, bytes, fx);
            }
            ReceiverEvent::Last { tokens, first, count, bytes, drawn, ends } => {
                let last = Last { tokens, ends };
                self.last(now, last, drawn, Piece { first, count }, bytes, fx);
            }
            ReceiverEvent::Refused(code) => {
                self.peer = false;
                self.fail(Cause::Refused(code), fx);
            }
            ReceiverEvent::PeerCancelled => {
                self.peer = false;
                self.fail(Cause::Peer, fx);
            }
            ReceiverEvent::BadChecksum { .. } => self.fail(Cause::BadChecksum, fx),
        }
        true
    }

    fn accepted(&mut self, now: Time) -> bool {
        let answers = self.phase == Phase::Asking;
        if answers {
            self.phase = Phase::Receiving;
            self.owes_since = now;
            self.report.accepted_at = Some(now);
        }
        answers
    }

    fn begun(&mut self, now: Time, fx: &mut Vec<ReceiverEffect>) -> bool {
        let first = self.room == Room::Later;
        if first {
            self.accepted(now);
            self.room = Room::Wanted(now);
            fx.push(ReceiverEffect::Reserve);
        }
        first
    }

    fn reserved(&mut self, now: Time, cached_pages: u32, fx: &mut Vec<ReceiverEffect>) -> bool {
        let asked = self.waits_for_room();
        if asked {
            let total = self.wanted.tokens.div_ceil(self.wanted.page_tokens);
            let cached = cached_pages.min(total);
            self.room = Room::Reserved;
            self.wanted.cached_pages = cached;
            self.limit = if self.wanted.pages { total } else { cached };
            (self.received, self.run) = (cached, cached);
            self.allowed = self.credit_line();
            self.owes_since = now;
            fx.push(ReceiverEffect::Open { first_page: cached, window: self.allowed - cached });
        }
        asked
    }

    fn pages(&mut self, now: Time, piece: Piece, bytes: u64, fx: &mut Vec<ReceiverEffect>) -> bool {
        // What came already is never written again.
        if piece.count == 0 || piece.end() <= self.received {
            return false;
        }
        self.accepted(now);
        match self.objection(piece) {
            Some(cause) => self.fail(cause, fx),
            None => self.import(now, piece, bytes, fx),
        }
        true
    }

    /// What is wrong with pages that came.
    const fn objection(&self, piece: Piece) -> Option<Cause> {
        if piece.first != self.received {
            Some(Cause::OutOfOrder)
        } else if piece.count > self.limit - self.received {
            Some(Cause::WrongPages)
        } else if piece.end() > self.allowed {
            Some(Cause::OverCredit)
        } else {
            None
        }
    }

    fn import(&mut self, now: Time, piece: Piece, bytes: u64, fx: &mut Vec<ReceiverEffect>) {
        self.received = piece.end();
        self.imports.push_back((piece, Import::Flying));
        self.owes_since = now;
        self.report.first_page_at.get_or_insert(now);
        self.report.pages += piece.count;
        self.report.bytes = self.report.bytes.saturating_add(bytes);
        fx.push(ReceiverEffect::Import { first: piece.first, count: piece.count });
    }

    fn last(
        &mut self,
        now: Time,
        last: Last,
        drawn: bool,
        piece: Piece,
        bytes: u64,
        fx: &mut Vec<ReceiverEffect>,
    ) {
        self.accepted(now);
        let (page, held) = (self.wanted.page_tokens, self.wanted.held);
        let mut all = last.tokens.div_ceil(page);
        let mut least = self.wanted.tokens;
        if held {
            (all, least) = (all.max(self.wanted.cached_pages), 0);
        }
        let cut = held && !last.tokens.is_multiple_of(page);
        let cause = if self.room != Room::Reserved {
            Some(Cause::OverCredit)
        } else if last.tokens < least || last.tokens > self.most || cut {
            Some(Cause::WrongTokens { expected: self.most, got: last.tokens })
        } else if !drawn && !held {
            Some(Cause::NoTokens)
        } else if let Some(cause) = self.objection(piece) {
            Some(cause)
        } else if piece.end() != all && !last.ends {
            Some(Cause::WrongPages)
        } else {
            None
        };
        if let Some(cause) = cause {
            return self.fail(cause, fx);
        }
        if piece.count > 0 {
            self.import(now, piece, bytes, fx);
        }
        self.report.last_at = Some(now);
        self.last = Some(last);
        self.phase = Phase::Importing;
    }

    fn imported(&mut self, now: Time, piece: Piece, fx: &mut Vec<ReceiverEffect>) -> bool {
        if !self.landed(piece, Import::Done) {
            return false;
        }
        while let Some((piece, Import::Done)) = self.imports.front().copied() {
            self.imports.pop_front();
            self.run = piece.end();
        }
        if self.phase == Phase::Receiving {
            self.owes_since = now;
            self.grant(fx);
        }
        true
    }

    fn import_failed(&mut self, piece: Piece, fx: &mut Vec<ReceiverEffect>) -> bool {
        if !self.landed(piece, Import::Failed) {
            return false;
        }
        // Where every choice has ended the pages are a gift to the cache, and not needed.
        if !self.last.is_some_and(|last| last.ends) {
            self.fail(Cause::ImportFailed, fx);
        }
        true
    }

    /// Notes how an import in flight came out; false where there is no such one.
    fn landed(&mut self, piece: Piece, how: Import) -> bool {
        let flying = self.imports.iter_mut().find(|(p, state)| *p == piece && *state == Import::Flying);
        flying.map(|(_, state)| *state = how).is_some()
    }

    /// Gives credit for pages that are imported: when half the window is free, so that there are few such messages, or
    /// when it is the last credit.
    fn grant(&mut self, fx: &mut Vec<ReceiverEffect>) {
        let line = self.credit_line();
        let more = line.saturating_sub(self.allowed);
        if more > 0 && (more >= self.config.window_pages / 2 || line == self.limit) {
            self.allowed = line;
            fx.push(ReceiverEffect::GrantCredit(more));
        }
    }

    /// The page up to which there is room.
    pub(super) fn credit_line(&self) -> u32 {
        self.run.saturating_add(self.config.window_pages).min(self.limit)
    }
}
