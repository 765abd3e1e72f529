//! Hand-off of a sequence's KV pages from the worker that computed them to the one that goes on.
//!
//! Two state machines, one at each end of a transfer, each driven by a page-set actor or by the simulator:
//!
//! ```text
//!  Receiver (decode worker)                                Sender (prefill worker)
//!  Ask ──────────────────────────────────────────────────▶ Submit to the scheduler
//!      ◀────────────────────────────────── Accept / Refuse
//!      ◀───────────────────────────────────────── Announce   when it is the prompt's turn
//!  Reserve, Open ────────────────────────────────────────▶
//!      ◀──────── pages, while the next chunk is computed   Export, SendPages   (within the credit)
//!  Import, GrantCredit ──────────────────────────────────▶
//!      ◀──── last: tail page, token count, drawn tokens    SendLast
//!  Commit, Ack ──────────────────────────────────────────▶ Release
//! ```
//!
//! The receiver takes pages when the sender begins, not when it asks: prompts that wait for their turn at a busy prefill worker
//! hold no memory of a decode worker. Where there is no room then, the sender goes on computing, and holds what it has
//! computed until there is. (A sequence that moves while it runs, and a prompt that a scheduler gives away, have their
//! pages before they ask; then there is neither Announce nor Open.)
//!
//! That nobody waits in a circle. Call a prompt *open* from when its receiver has reserved. Where a prompt waits for pages at a
//! worker W, those hold pages there:
//! 1. What generates. It ends, or gives its pages up to others ([`crate::batch`]).
//! 2. Pages reserved for a prompt that is computed elsewhere. That one is open: it needs no more than 3 and the link.
//! 3. An open prompt that W computes for another. It needs steps of W's engine, then the link, and ends. Where it has lost
//!    its pages it waits for pages at W again, and 4 never stands in its way: what is not open gives way to what is, where
//!    both do not fit ([`crate::batch::Batch::open`]).
//! 4. A prompt that W computes for another and that is not open: it waits for pages at its receiver. Those hold half of W's
//!    pages at most; what is beyond that is announced, and computed when it is open. So they keep no prompt for
//!    another receiver, which has room, from being computed.
//! 5. What is kept for a worker that asks for no more than is here already ([`crate::batch::Batch::hold_cached`]). It needs the
//!    link alone. The prompt that waits for it has its pages, and is one of 1 to 4 besides.
//!
//! Who computes prompts in this way (prefill workers, and unified ones for decode workers) never waits for one of its own at
//! somebody that it computes for: decode workers compute for nobody, and unified workers give prompts to each other only
//! with pages reserved. So 4 leads from W to a receiver further down the line, and 2 and 3 to what can be done whatever 4
//! does. Nothing leads back.
//!
//! What holds whatever is lost, late, doubled or cancelled:
//! - The receiver ends once: it commits, falls back to computing by itself, or is cancelled. None of these comes while
//!   an import is in flight, for each of them gives the pages to somebody who writes to them (the fence).
//! - The sender releases once, and not while an export reads the pages.
//! - What belongs to another transfer or generation, or comes after the end, changes nothing and is counted.
//! - Once the last message is there the receiver needs its peer no more, and the peer's death is nothing to it.
//! - Neither end waits for ever: each has time limits for what it needs of the other one. For its own engine an end
//!   waits as long as that takes; the driver reports every import and export that was begun, also those that fail.

use std::time::Duration;

use config::{DisaggregateConfig, Dur};

use crate::time::{Span, Time};

pub mod receiver;
pub mod sender;

mod asked;

pub mod chunking;

pub use asked::LEAST_PAGES;
pub use receiver::{Receiver, ReceiverEffect, ReceiverEvent, Wanted};
pub use sender::{Asked, Sender, SenderEffect, SenderEvent};

#[cfg(test)]
mod tests;

/// Which transfer an event is about, on the wire and inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TransferKey {
    /// Drawn by the receiver, unique in one life of its process.
    pub transfer: u64,
    /// The incarnation of the receiver's worker.
    pub generation: u64,
}

/// Limits of both ends of a hand-off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandoffConfig {
    /// Pages that may be under way or wait for their import at the receiver, at least 1.
    pub window_pages: u32,
    /// Pages in one message at most, at least 1.
    pub pages_per_message: u32,
    /// The receiver waits this long for the answer to its question, making a connection included.
    pub accept_within: Span,
    /// The receiver waits this long for the next page, or the last message, while the sender may send.
    pub progress_within: Span,
    /// Backstop of both ends: one that hears nothing for so long, from its peer or of its own work, gives up.
    pub lease: Span,
}

impl Default for HandoffConfig {
    fn default() -> Self {
        Self {
            window_pages: 64,
            pages_per_message: 16,
            accept_within: Span::from_secs(2),
            progress_within: Span::from_secs(10),
            lease: Span::from_secs(30),
        }
    }
}

impl From<&DisaggregateConfig> for HandoffConfig {
    fn from(disaggregate: &DisaggregateConfig) -> Self {
        let span = |dur: Dur| Span::from(Duration::from(dur));
        Self {
            window_pages: disaggregate.window_pages,
            accept_within: span(disaggregate.accept_within),
            progress_within: span(disaggregate.progress_within),
            lease: span(disaggregate.lease),
            ..Self::default()
        }
    }
}

/// Why a sender does not take a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RefusalCode {
    /// Too many requests wait there.
    QueueFull,
    /// The prompt exceeds what that worker can hold.
    TooLong,
    /// That worker is leaving.
    Draining,
    /// Other weights, layout or page size.
    Incompatible,
    /// The sequence is not there (any more), or cannot be moved.
    NotThere,
    /// Its engine failed.
    Failed,
}

impl RefusalCode {
    /// Name in logs and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::QueueFull => "queue_full",
            Self::TooLong => "too_long",
            Self::Draining => "draining",
            Self::Incompatible => "incompatible",
            Self::NotThere => "not_there",
            Self::Failed => "failed",
        }
    }
}

/// Why a transfer ended without a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// The sender refused, at once or later.
    Refused(RefusalCode),
    /// No answer in time.
    NotAccepted,
    /// No page in time.
    NoProgress,
    /// Nothing at all in time.
    Lease,
    /// The link broke.
    LinkLost,
    /// The other end cancelled.
    Peer,
    /// This end's own client or worker cancelled.
    Own,
    /// A page does not have the content that was sent.
    BadChecksum,
    /// The engine could not take a page in.
    ImportFailed,
    /// The engine could not give a page out.
    ExportFailed,
    /// The sender computed another number of tokens than was asked for.
    WrongTokens {
        /// What was asked for (the most, where it was a limit).
        expected: u32,
        /// What it says it computed.
        got: u32,
    },
    /// Pages that were not asked for, or fewer than the tokens take.
    WrongPages,
    /// A page came out of its order.
    OutOfOrder,
    /// More pages than there was credit for.
    OverCredit,
    /// The last message brings no drawn tokens.
    NoTokens,
}

impl Cause {
    /// Name in logs and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Refused(_) => "refused",
            Self::NotAccepted => "not_accepted",
            Self::NoProgress => "no_progress",
            Self::Lease => "lease",
            Self::LinkLost => "link_lost",
            Self::Peer => "cancelled_by_peer",
            Self::Own => "cancelled",
            Self::BadChecksum => "bad_checksum",
            Self::ImportFailed => "import_failed",
            Self::ExportFailed => "export_failed",
            Self::WrongTokens { .. } => "wrong_tokens",
            Self::WrongPages => "wrong_pages",
            Self::OutOfOrder => "out_of_order",
            Self::OverCredit => "over_credit",
            Self::NoTokens => "no_tokens",
        }
    }

    /// The sender did what no sound one does, so that nothing which came from it is used.
    const fn discredits_sender(self) -> bool {
        matches!(
            self,
            Self::WrongTokens { .. }
                | Self::WrongPages
                | Self::OutOfOrder
                | Self::OverCredit
                | Self::NoTokens
        )
    }
}

/// How a transfer ended, as one end sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// The receiver took the sequence over; the sender knows that from its acknowledgement.
    Committed,
    /// It failed; the receiver computes by itself.
    Failed(Cause),
    /// Nobody wants the sequence any more. At the sender: its receiver said so.
    Cancelled,
}

impl Outcome {
    /// Name in logs and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Committed => "committed",
            Self::Failed(cause) => cause.as_str(),
            Self::Cancelled => "cancelled",
        }
    }
}

/// What one end has to say of a transfer that is over. Times are of this end's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransferReport {
    /// Pages received, or handed to the link.
    pub pages: u32,
    /// Bytes of those.
    pub bytes: u64,
    /// The question was asked, or came.
    pub asked_at: Time,
    /// The sender accepted.
    pub accepted_at: Option<Time>,
    /// The first page came, or was handed to the link.
    pub first_page_at: Option<Time>,
    /// The last message came, or was handed to the link.
    pub last_at: Option<Time>,
    /// The commit, or its acknowledgement.
    pub committed_at: Option<Time>,
    /// How it ended.
    pub outcome: Outcome,
    /// Messages and reports up to the end that were not for this transfer, or came too late.
    pub ignored: u32,
}

impl TransferReport {
    const fn new() -> Self {
        Self {
            pages: 0,
            bytes: 0,
            asked_at: Time::ZERO,
            accepted_at: None,
            first_page_at: None,
            last_at: None,
            committed_at: None,
            outcome: Outcome::Cancelled,
            ignored: 0,
        }
    }
}

/// Consecutive pages of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    first: u32,
    count: u32,
}

impl Piece {
    /// The page after the last one.
    const fn end(self) -> u32 {
        self.first.saturating_add(self.count)
    }
}
