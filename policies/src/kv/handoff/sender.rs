//! The end that gives pages out: the worker that has computed the sequence, or computes it now.

use super::{Cause, HandoffConfig, Outcome, Piece, RefusalCode, TransferKey, TransferReport};
use crate::time::Time;

mod check;
mod flow;

/// What the receiver asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The first page to send; it holds those before.
    pub first_page: u32,
    /// Pages are wanted at all.
    pub want_pages: bool,
    /// Pages that may be sent before more credit comes.
    pub window: u32,
    /// Tokens a page.
    pub page_tokens: u32,
    /// Bytes a page, for the report.
    pub page_bytes: u64,
    /// The receiver has pages for them. Where not, it says later from which page on it needs any, and nothing is sent before.
    pub reserved: bool,
}

/// What happened. Credit, acknowledgement and cancel come from the peer, the rest from this end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SenderEvent {
    /// The scheduler took the request in.
    Submitted,
    /// The scheduler did not take it, or gave it up later.
    RefusedLocally(RefusalCode),
    /// The scheduler begins with the prompt, or would if the receiver had pages for it. May come again.
    Begun,
    /// A step is done: the sequence's first `pages` pages are full and computed. Not for the step that ends the prompt.
    Computed {
        /// Full pages so far, those from the prefix cache included.
        pages: u32,
    },
    /// The prompt is computed and its first tokens are drawn. The
    /// sequence is held: nothing is written to its pages any more.
    Prefilled {
        /// Tokens in its pages.
        tokens: u32,
        /// The drawn tokens end every choice, so that no page is needed any more.
        ends: bool,
    },
    /// An export is done.
    Exported {
        /// As it was asked for.
        first: u32,
        /// As it was asked for.
        count: u32,
    },
    /// An export came to nothing.
    ExportFailed {
        /// As it was asked for.
        first: u32,
        /// As it was asked for.
        count: u32,
    },
    /// The link has written a message of pages, the last one included.
    Sent {
        /// As it was asked for.
        first: u32,
        /// As it was asked for.
        count: u32,
    },
    /// The receiver has reserved pages.
    Opened {
        /// The first page to send; it holds those before.
        first_page: u32,
        /// Pages that may be sent before more credit comes.
        window: u32,
    },
    /// The receiver has room for more; or, with none, is there and waits for room.
    Credit {
        /// So many more.
        pages: u32,
    },
    /// The receiver has committed.
    Ack,
    /// The receiver does not want it any more.
    PeerCancelled,
}

/// What the driver has to do, in the order given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SenderEffect {
    /// Give the request to the scheduler, to be computed up to its first tokens and then held with its pages.
    Submit,
    /// Tell the receiver that it will be done.
    Accept,
    /// Tell the receiver that it will not. It ends the transfer.
    Refuse(RefusalCode),
    /// Tell the receiver that it is the prompt's turn, so that it reserves pages.
    Announce,
    /// Tell the scheduler that the receiver has reserved pages, and from which one on it needs any.
    Open {
        /// That page.
        first_page: u32,
    },
    /// Copy these pages out of the engine. One export is in flight at most.
    Export {
        /// Index of the first in the sequence.
        first: u32,
        /// How many.
        count: u32,
    },
    /// Send these pages, which were exported.
    SendPages {
        /// Index of the first in the sequence.
        first: u32,
        /// How many.
        count: u32,
    },
    /// Send the last message, with these pages, the number of tokens and what was drawn. What was exported beyond is
    /// dropped.
    SendLast {
        /// Index of the first page of it; the number of pages before, where it has none.
        first: u32,
        /// Pages of it, the partly filled one included; may be none.
        count: u32,
        /// Tokens computed.
        tokens: u32,
    },
    /// The sequence is not needed here any more: release what the scheduler holds for it, running or waiting. Comes
    /// once in every transfer, also where the scheduler refused and has nothing.
    Release,
    /// Tell the receiver that nothing more comes.
    CancelPeer(Cause),
    /// It is over; comes after the release.
    Done(TransferReport),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    New,
    /// The scheduler has not answered.
    Submitting,
    /// Waits, or is computed.
    Computing,
    /// Computed and held; pages are left to send.
    Flushing,
    /// The last message is with the link.
    Closing,
    /// It will end so, once no export is in flight.
    Settling(Outcome),
    Ended,
}

/// The sending end of one transfer.
#[derive(Debug)]
pub struct Sender {
    config: HandoffConfig,
    key: TransferKey,
    asked: Asked,
    /// Pages that make a message worth sending before the prompt is computed.
    flush_pages: u32,
    phase: Phase,
    /// The receiver has pages.
    open: bool,
    /// It was told that they are needed.
    announced: bool,
    /// Pages from the start that may be exported.
    computed: u32,
    /// What there is in all, once it is known.
    whole: Option<Whole>,
    /// The next page to export.
    next: u32,
    /// The page after the last that was handed to the link.
    sent: u32,
    exporting: Option<Piece>,
    exported: Option<Piece>,
    sending: Option<Piece>,
    /// Pages before this one may be sent.
    allowed: u32,
    /// The last event of this transfer.
    heard: Time,
    /// Messages reach the receiver, and it waits for them.
    peer: bool,
    report: TransferReport,
    tally: Tally,
}

#[derive(Clone, Copy, Debug)]
struct Whole {
    tokens: u32,
    pages: u32,
    ends: bool,
}

/// Counts for [`Sender::check`].
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    released: u32,
    done: u32,
}

impl Sender {
    /// A transfer that was asked for; nothing is done for it yet.
    #[must_use]
    pub fn new(config: HandoffConfig, key: TransferKey, asked: Asked) -> Self {
        Self {
            config: HandoffConfig { pages_per_message: config.pages_per_message.max(1), ..config },
            key,
            asked: Asked { page_tokens: asked.page_tokens.max(1), ..asked },
            flush_pages: 1,
            phase: Phase::New,
            open: asked.reserved,
            announced: false,
            computed: 0,
            whole: None,
            next: asked.first_page,
            sent: asked.first_page,
            exporting: None,
            exported: None,
            sending: None,
            allowed: asked.first_page.saturating_add(asked.window),
            heard: Time::ZERO,
            peer: false,
            report: TransferReport::new(),
            tally: Tally::default(),
        }
    }

    /// Begins: gives the request to the scheduler. Once; a question that comes twice is one.
    pub fn asked(&mut self, now: Time, fx: &mut Vec<SenderEffect>) {
        if self.phase != Phase::New {
            self.report.ignored = self.report.ignored.saturating_add(1);
            return;
        }
        self.phase = Phase::Submitting;
        self.peer = true;
        self.heard = now;
        self.report.asked_at = now;
        fx.push(SenderEffect::Submit);
    }

    /// From now on a message has `most` pages at most, and none is begun with fewer than `least` while more of the
    /// prompt is to be computed; see [`super::chunking::Chunking`].
    pub fn pace(&mut self, least: u32, most: u32) {
        self.config.pages_per_message = most.max(1);
        self.flush_pages = least.clamp(1, self.config.pages_per_message);
    }

    /// Something of transfer `key` happened. That of another one, or what comes too late, is counted and nothing else.
    pub fn on(&mut self, now: Time, key: TransferKey, event: SenderEvent, fx: &mut Vec<SenderEffect>) {
        if key != self.key || !self.take(now, event, fx) {
            self.report.ignored = self.report.ignored.saturating_add(1);
            return;
        }
        self.heard = self.heard.max(now);
        self.pump(now, fx);
        self.settle(fx);
    }

    /// This end gives up: it is leaving, or whoever decides took the transfer back.
    pub fn cancel(&mut self, fx: &mut Vec<SenderEffect>) {
        self.fail(Cause::Own, fx);
        self.settle(fx);
    }

    /// The link to the receiver broke.
    pub fn link_lost(&mut self, fx: &mut Vec<SenderEffect>) {
        self.peer = false;
        self.fail(Cause::LinkLost, fx);
        self.settle(fx);
    }

    /// Gives up where the lease has run out.
    pub fn tick(&mut self, now: Time, fx: &mut Vec<SenderEffect>) {
        if self.next_deadline().is_some_and(|due| now >= due) {
            self.fail(Cause::Lease, fx);
            self.settle(fx);
        }
    }

    /// When [`Sender::tick`] has to be called.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Time> {
        let waits = !matches!(self.phase, Phase::New | Phase::Settling(_) | Phase::Ended);
        waits.then(|| self.heard + self.config.lease)
    }

    /// It is over, and [`SenderEffect::Done`] was given.
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

    /// False where the event means nothing (any more).
    fn take(&mut self, now: Time, event: SenderEvent, fx: &mut Vec<SenderEffect>) -> bool {
        match event {
            SenderEvent::Exported { first, count } => {
                let landed = self.landed(Piece { first, count });
                if landed {
                    self.exported = Some(Piece { first, count });
                }
                return landed;
            }
            SenderEvent::ExportFailed { first, count } => {
                let landed = self.landed(Piece { first, count });
                if landed {
                    self.exported = None;
                    // Where every choice has ended no page is needed any more.
                    if !self.is_bare() {
                        self.fail(Cause::ExportFailed, fx);
                    }
                }
                return landed;
            }
            _ if !self.is_live() => return false,
            SenderEvent::Submitted => {
                let answers = self.phase == Phase::Submitting;
                if answers {
                    self.phase = Phase::Computing;
                    self.report.accepted_at = Some(now);
                    fx.push(SenderEffect::Accept);
                }
                return answers;
            }
            SenderEvent::RefusedLocally(code) => self.refused(code, fx),
            SenderEvent::Begun => {
                let news = matches!(self.phase, Phase::Submitting | Phase::Computing) && !self.open;
                if news && !std::mem::replace(&mut self.announced, true) {
                    fx.push(SenderEffect::Announce);
                }
                return news;
            }
            SenderEvent::Opened { first_page, window } => {
                let news = !self.open;
                if news {
                    self.open = true;
                    self.asked.first_page = first_page;
                    (self.next, self.sent) = (first_page, first_page);
                    self.allowed = first_page.saturating_add(window);
                    fx.push(SenderEffect::Open { first_page });
                }
                return news;
            }
            SenderEvent::Computed { pages } => {
                let counts = self.phase == Phase::Computing;
                if counts {
                    // What nobody has asked for yet may be lost to others, and computed again.
                    self.computed = if self.open { self.computed.max(pages) } else { pages };
                }
                return counts;
            }
            SenderEvent::Prefilled { tokens, ends } => {
                let counts = self.phase == Phase::Computing;
                if counts {
                    let pages = tokens.div_ceil(self.asked.page_tokens);
                    self.whole = Some(Whole { tokens, pages, ends });
                    self.computed = self.computed.max(pages);
                    self.phase = Phase::Flushing;
                }
                return counts;
            }
            SenderEvent::Sent { first, count } => {
                let ours = self.sending == Some(Piece { first, count });
                if ours {
                    self.sending = None;
                }
                return ours;
            }
            SenderEvent::Credit { pages } if self.open => self.allowed = self.allowed.saturating_add(pages),
            SenderEvent::Credit { .. } => {}
            SenderEvent::Ack if self.phase == Phase::Closing => {
                self.report.committed_at = Some(now);
                self.phase = Phase::Settling(Outcome::Committed);
            }
            // Nothing to acknowledge was sent.
            SenderEvent::Ack => return false,
            SenderEvent::PeerCancelled => self.phase = Phase::Settling(Outcome::Cancelled),
        }
        true
    }

    fn refused(&mut self, code: RefusalCode, fx: &mut Vec<SenderEffect>) {
        if self.phase == Phase::Submitting {
            self.peer = false;
            fx.push(SenderEffect::Refuse(code));
        }
        self.fail(Cause::Refused(code), fx);
    }

    fn landed(&mut self, piece: Piece) -> bool {
        let ours = self.exporting == Some(piece);
        if ours {
            self.exporting = None;
        }
        ours
    }

    /// The prompt is computed, and no (more) page goes with it.
    fn is_bare(&self) -> bool {
        self.whole.is_some_and(|whole| whole.ends || !self.asked.want_pages)
    }

    /// The transfer has failed, unless its end is decided.
    fn fail(&mut self, cause: Cause, fx: &mut Vec<SenderEffect>) {
        match self.phase {
            Phase::Settling(_) | Phase::Ended => return,
            Phase::New => {}
            _ if self.peer => fx.push(SenderEffect::CancelPeer(cause)),
            _ => {}
        }
        self.phase = Phase::Settling(Outcome::Failed(cause));
    }

    /// Ends the transfer where its end is decided and no export is in flight.
    fn settle(&mut self, fx: &mut Vec<SenderEffect>) {
        let Phase::Settling(outcome) = self.phase else { return };
        if self.exporting.is_some() {
            return;
        }
        self.phase = Phase::Ended;
        self.report.outcome = outcome;
        self.tally.released += 1;
        self.tally.done += 1;
        fx.push(SenderEffect::Release);
        fx.push(SenderEffect::Done(self.report));
    }

    const fn is_live(&self) -> bool {
        !matches!(self.phase, Phase::New | Phase::Settling(_) | Phase::Ended)
    }
}
