//! The end that takes pages in: the worker that goes on with the sequence.

use std::collections::VecDeque;

use super::{Cause, HandoffConfig, Outcome, Piece, RefusalCode, TransferKey, TransferReport};
use crate::time::{Span, Time};

mod check;
mod intake;

/// So many times a lease a receiver that waits for pages says that it is there.
const KEEP_ALIVE: u64 = 4;

/// What a receiver asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Tokens that the sender has to have computed, all in the pages.
    pub tokens: u32,
    /// Tokens a page.
    pub page_tokens: u32,
    /// Full pages from the sequence's start that this end holds already; they are not sent.
    pub cached_pages: u32,
    /// Pages are wanted. Not where the request ends with its first token in any case.
    pub pages: bool,
    /// Only what the sender holds is wanted, as far as that goes: it computes nothing and draws no token.
    pub held: bool,
}

/// What happened. Those about imports come from this end's engine, the others from the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceiverEvent {
    /// The sender took it.
    Accepted,
    /// The sender did not take it.
    Refused(RefusalCode),
    /// The sender begins to compute, or would if it were open.
    Begun,
    /// This end's scheduler has reserved the pages that were asked for; of them so many hold what they should.
    Reserved {
        /// Full pages from the sequence's start.
        cached_pages: u32,
    },
    /// Pages are here, their checksums right.
    Pages {
        /// Index of the first in the sequence.
        first: u32,
        /// How many.
        count: u32,
        /// Bytes of them.
        bytes: u64,
    },
    /// The last message is here, with pages whose checksums are right.
    Last {
        /// Tokens that the sender computed and that are in the pages.
        tokens: u32,
        /// Index of the first page in this message; the number of pages before, where it has none.
        first: u32,
        /// Pages in this message.
        count: u32,
        /// Bytes of them.
        bytes: u64,
        /// It brings a drawn token (or whatever is needed to go on) for each choice.
        drawn: bool,
        /// Those tokens end every choice, so that pages are of no use any more.
        ends: bool,
    },
    /// The sender gave up.
    PeerCancelled,
    /// A page of a message is not what was sent, or not of the content that the sequence has there. The message's pages
    /// are dropped.
    BadChecksum {
        /// The message's first page.
        first: u32,
    },
    /// An import is done.
    Imported {
        /// As it was asked for.
        first: u32,
        /// As it was asked for.
        count: u32,
    },
    /// An import came to nothing.
    ImportFailed {
        /// As it was asked for.
        first: u32,
        /// As it was asked for.
        count: u32,
    },
}

/// What the driver has to do, in the order given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceiverEffect {
    /// Ask the sender, connecting to it where needed; report [`Receiver::link_lost`] where that is impossible.
    Ask {
        /// The first page to send.
        first_page: u32,
        /// Whether to send any.
        want_pages: bool,
        /// Pages that it may send before it is granted more.
        window: u32,
        /// There are pages to send to. Where not, it sends nothing before [`ReceiverEffect::Open`].
        reserved: bool,
    },
    /// Ask the scheduler for the sequence's pages, and report [`ReceiverEvent::Reserved`].
    Reserve,
    /// Tell the sender that there are pages now.
    Open {
        /// The first page to send.
        first_page: u32,
        /// Pages that it may send before it is granted more.
        window: u32,
    },
    /// Write these pages, which just came, into the reserved pages of the engine.
    Import {
        /// Index of the first in the sequence.
        first: u32,
        /// How many.
        count: u32,
    },
    /// Tell the sender that it may send so many more; none: that this end is still there.
    GrantCredit(u32),
    /// The scheduler takes the sequence over as if it had computed it, with the reserved pages. A last effect.
    Commit {
        /// Tokens computed; of what was wanted as far as the sender holds it, those that are here now.
        tokens: u32,
        /// Pages from the start that hold what they should; all that the tokens take, except where the request ends.
        pages: u32,
        /// The drawn tokens end every choice.
        ends: bool,
    },
    /// The scheduler computes the sequence by itself, with the reserved pages. A last effect.
    Fallback {
        /// Full pages from the start that hold what they should, cached ones included. Where they hold the whole prompt
        /// its last token has to be computed all the same, for the logits.
        valid_pages: u32,
        /// Why.
        why: Cause,
    },
    /// Nobody needs the sequence: release the reserved pages. A last effect.
    Free,
    /// Tell the sender that it may release; comes after the commit.
    Ack,
    /// Tell the sender to stop and release.
    CancelPeer(Cause),
    /// It is over; comes after the last effect.
    Done(TransferReport),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    New,
    /// Asked, no answer.
    Asking,
    /// Pages come.
    Receiving,
    /// The last message is here; the engine has work left.
    Importing,
    /// It will end so, once no import is in flight.
    Settling(Outcome),
    Ended,
}

/// Whether there are pages to write to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Room {
    /// They are not needed yet.
    Later,
    /// The scheduler was asked for them; the sender was told then, or later, that this end is still there.
    Wanted(Time),
    /// There are.
    Reserved,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Import {
    Flying,
    Done,
    Failed,
}

/// The receiving end of one transfer.
#[derive(Debug)]
pub struct Receiver {
    config: HandoffConfig,
    key: TransferKey,
    wanted: Wanted,
    /// Tokens that the sender may have computed at most.
    most: u32,
    /// Pages from here on are not taken.
    limit: u32,
    phase: Phase,
    room: Room,
    /// The next page to come; those before came, or were here.
    received: u32,
    /// Pages from the start that are imported, or were here.
    run: u32,
    /// Pages from `run` to `received`, in order.
    imports: VecDeque<(Piece, Import)>,
    /// Pages before this one may be sent.
    allowed: u32,
    /// What the last message said.
    last: Option<Last>,
    /// Messages reach the sender, and it waits for them.
    peer: bool,
    /// The last event of this transfer.
    heard: Time,
    /// Since when the sender owes the next page.
    owes_since: Time,
    report: TransferReport,
    tally: Tally,
}

#[derive(Clone, Copy, Debug)]
struct Last {
    tokens: u32,
    ends: bool,
}

/// Counts for [`Receiver::check`].
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    last_effects: u32,
    done: u32,
}

impl Receiver {
    /// A transfer that is not asked for yet, of a sequence that gets its pages when the sender begins. How many of them are
    /// cached is known then.
    #[must_use]
    pub fn unreserved(config: HandoffConfig, key: TransferKey, wanted: Wanted) -> Self {
        let mut receiver = Self::new(config, key, Wanted { cached_pages: 0, ..wanted });
        receiver.room = Room::Later;
        receiver
    }

    /// A transfer that is not asked for yet, of a sequence that has its pages.
    #[must_use]
    pub fn new(config: HandoffConfig, key: TransferKey, wanted: Wanted) -> Self {
        let wanted = Wanted { page_tokens: wanted.page_tokens.max(1), ..wanted };
        let total = wanted.tokens.div_ceil(wanted.page_tokens);
        let cached = wanted.cached_pages.min(total);
        let limit = if wanted.pages { total } else { cached };
        Self {
            config: HandoffConfig { window_pages: config.window_pages.max(1), ..config },
            key,
            wanted: Wanted { cached_pages: cached, ..wanted },
            most: wanted.tokens,
            limit,
            phase: Phase::New,
            room: Room::Reserved,
            received: cached,
            run: cached,
            imports: VecDeque::new(),
            allowed: cached,
            last: None,
            peer: false,
            heard: Time::ZERO,
            owes_since: Time::ZERO,
            report: TransferReport::new(),
            tally: Tally::default(),
        }
    }

    /// The sequence is being generated at the sender, which may have computed up to `tokens` tokens of it by now.
    #[must_use]
    pub fn up_to(mut self, tokens: u32) -> Self {
        self.most = tokens.max(self.wanted.tokens);
        if self.wanted.pages {
            self.limit = self.most.div_ceil(self.wanted.page_tokens);
        }
        self
    }

    /// Asks for the pages.
    pub fn start(&mut self, now: Time, fx: &mut Vec<ReceiverEffect>) {
        if self.phase != Phase::New {
            return;
        }
        self.phase = Phase::Asking;
        self.peer = true;
        self.heard = now;
        self.report.asked_at = now;
        let reserved = self.room == Room::Reserved;
        if reserved {
            self.allowed = self.credit_line();
        }
        fx.push(ReceiverEffect::Ask {
            first_page: self.received,
            want_pages: self.wanted.pages,
            window: self.allowed - self.received,
            reserved,
        });
    }

    /// Something of transfer `key` happened. That of another one, or what comes too late, is counted and nothing else.
    pub fn on(&mut self, now: Time, key: TransferKey, event: ReceiverEvent, fx: &mut Vec<ReceiverEffect>) {
        if key != self.key || !self.take(now, event, fx) {
            self.report.ignored = self.report.ignored.saturating_add(1);
            return;
        }
        self.heard = self.heard.max(now);
        self.settle(now, fx);
    }

    /// The request is not wanted any more: its client is gone, or its deadline passed.
    pub fn cancel(&mut self, now: Time, fx: &mut Vec<ReceiverEffect>) {
        match self.phase {
            Phase::Ended => return,
            Phase::New | Phase::Settling(_) => {}
            Phase::Asking | Phase::Receiving | Phase::Importing => self.cancel_peer(Cause::Own, fx),
        }
        self.phase = Phase::Settling(Outcome::Cancelled);
        self.settle(now, fx);
    }

    /// The link to the sender broke, or cannot be made.
    pub fn link_lost(&mut self, now: Time, fx: &mut Vec<ReceiverEffect>) {
        self.peer = false;
        if self.needs_peer() {
            self.fail(Cause::LinkLost, fx);
            self.settle(now, fx);
        }
    }

    /// Gives up where a limit has passed. While it waits for pages of its own it tells the sender that it is still there.
    pub fn tick(&mut self, now: Time, fx: &mut Vec<ReceiverEffect>) {
        if self.next_deadline().is_none_or(|due| now < due) {
            return;
        }
        if self.waits_for_room() {
            self.room = Room::Wanted(now);
            fx.push(ReceiverEffect::GrantCredit(0));
            return;
        }
        let cause = match self.phase {
            _ if now >= self.heard + self.config.lease => Cause::Lease,
            Phase::Asking => Cause::NotAccepted,
            _ => Cause::NoProgress,
        };
        self.fail(cause, fx);
        self.settle(now, fx);
    }

    /// When [`Receiver::tick`] has to be called. None where nothing is expected from the peer.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Time> {
        let due = match self.phase {
            Phase::Asking => self.report.asked_at + self.config.accept_within,
            Phase::Receiving if self.waits_for_room() => {
                // The sender waits for this end, which is alive.
                let Room::Wanted(told) = self.room else { return None };
                return Some(told + Span((self.config.lease.0 / KEEP_ALIVE).max(1)));
            }
            // Without credit the sender owes nothing: the engine of this end is what is slow.
            Phase::Receiving if self.received == self.allowed && self.flying() > 0 => return None,
            Phase::Receiving => self.owes_since + self.config.progress_within,
            _ => return None,
        };
        Some(due.min(self.heard + self.config.lease))
    }

    /// It is over, and [`ReceiverEffect::Done`] was given.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.phase == Phase::Ended
    }

    /// Which transfer this is.
    #[must_use]
    pub const fn key(&self) -> TransferKey {
        self.key
    }

    /// Events that were not for this transfer, or came too late; goes on to count after the end.
    #[must_use]
    pub const fn ignored(&self) -> u32 {
        self.report.ignored
    }

    fn cancel_peer(&mut self, why: Cause, fx: &mut Vec<ReceiverEffect>) {
        if self.peer {
            self.peer = false;
            fx.push(ReceiverEffect::CancelPeer(why));
        }
    }

    /// The transfer has failed, unless its end is decided.
    fn fail(&mut self, cause: Cause, fx: &mut Vec<ReceiverEffect>) {
        if !matches!(self.phase, Phase::Asking | Phase::Receiving | Phase::Importing) {
            return;
        }
        self.cancel_peer(cause, fx);
        self.phase = Phase::Settling(Outcome::Failed(cause));
    }

    /// Ends the transfer where its end is decided and no import is in flight.
    fn settle(&mut self, now: Time, fx: &mut Vec<ReceiverEffect>) {
        if self.flying() > 0 {
            return;
        }
        let outcome = match (self.phase, self.last) {
            (Phase::Importing, Some(last)) => {
                self.report.committed_at = Some(now);
                // The sender may hold less than is here.
                let tokens = last.tokens.max(self.wanted.cached_pages * self.wanted.page_tokens);
                fx.push(ReceiverEffect::Commit { tokens, pages: self.run, ends: last.ends });
                if self.peer {
                    fx.push(ReceiverEffect::Ack);
                }
                Outcome::Committed
            }
            (Phase::Settling(outcome), _) => {
                fx.push(match outcome {
                    Outcome::Failed(why) => {
                        ReceiverEffect::Fallback { valid_pages: self.valid_pages(why), why }
                    }
                    Outcome::Cancelled | Outcome::Committed => ReceiverEffect::Free,
                });
                outcome
            }
            _ => return,
        };
        self.phase = Phase::Ended;
        self.peer = false;
        self.report.outcome = outcome;
        self.tally.last_effects += 1;
        self.tally.done += 1;
        fx.push(ReceiverEffect::Done(self.report));
    }

    /// Full pages from the start that can be used after a failure.
    fn valid_pages(&self, why: Cause) -> u32 {
        if why.discredits_sender() {
            return self.wanted.cached_pages;
        }
        let tokens = self.last.map_or(self.wanted.tokens, |last| last.tokens);
        self.run.min(tokens / self.wanted.page_tokens).max(self.wanted.cached_pages)
    }

    const fn waits_for_room(&self) -> bool {
        matches!((self.phase, self.room), (Phase::Receiving, Room::Wanted(_)))
    }

    const fn needs_peer(&self) -> bool {
        matches!(self.phase, Phase::Asking | Phase::Receiving)
    }

    /// Imports in flight.
    fn flying(&self) -> usize {
        self.imports.iter().filter(|(_, state)| *state == Import::Flying).count()
    }
}
