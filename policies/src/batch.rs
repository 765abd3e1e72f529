//! Worker core: who runs in the next step.
//!
//! Continuous batching with chunked prefill under a token budget (Sarathi-Serve, OSDI'24): decodes first, then the
//! prefill that is under way, then new ones; beside decodes fewer tokens of prompts than alone, so that no stream waits for
//! a long prompt. The core owns the page table; pages of a step in flight are fenced until
//! its outcome is reported.

use std::collections::{BTreeMap, BTreeSet};

use config::ids::{Attempt, PageId, RequestId};

use crate::kv::events::{KvEvent, Recording};
use crate::kv::table::PageTable;
use crate::kv::{Fingerprint, PageHash};
use crate::order::keep_session::KeepSession;
use crate::request::{Finish, Logprobs, Token};
use crate::step::SeqKey;
use crate::time::{Span, Time};

use fresh::Fresh;
use order::Order;
use seq::{Request, Seq};
use slab::{Key, Slab};

mod limits;

mod slab;

mod block_table;

mod fresh;

mod seq;

mod submit;

mod plan;

mod admit;

mod complete;

mod credit;
mod expected;

mod release;

mod order;

mod keep;

mod kv_work;
mod transfer;

mod held;

mod lend;

mod offload;

mod view;

mod check;

pub use held::Held;
pub use kv_work::{KvWork, SetAside};
pub use limits::BatchConfig;
pub use offload::WaitingPrompt;
pub use view::SeqView;

/// Times that a sequence is preempted at most, by whomever.
const MOST_PREEMPTIONS: u32 = 3;

/// Hash of a page's content after its parent: [`PageHash::chained`], or another one where all that hash a page agree on it.
pub type PageHasher = fn(&Fingerprint, Option<PageHash>, &[Token]) -> PageHash;

/// The scheduler of one worker.
///
/// One step is in flight at most: [`Batch::plan`] gives a step, the driver runs it and hands its outcome to
/// [`Batch::complete`] (or [`Batch::step_failed`]). Requests come and go at any time. After any other call the driver
/// asks [`Batch::take_effects`] for effects that do not belong to a step.
///
/// Order. Sequences that have run before go first, then new ones in the order that a policy publishes
/// ([`crate::order`]), which without one is that of arrival; a request that does not fit is not overtaken by smaller ones
/// behind it, so that big ones are never starved (the price is some idle memory). The one exception is a request whose
/// next page is being computed by a running prefill: it waits for that page while those behind it go on. Where the policy
/// has levels, a new one of a higher level goes before those that ran before, and may take slot and pages of running ones
/// of a lower level.
///
/// Memory. All pages of a prompt are taken at admission, later ones one at a time. When they run out, the sequence that
/// was admitted last gives up its pages and is computed again later, from what the prefix cache still has. Each time it
/// is admitted again more room for growth is asked for, the third time room for everything that runs to reach its
/// limit, and then it gives way to nobody: no sequence is preempted more than three times, requests of higher levels
/// included. Among running ones those of the lowest level give way first. Before any of them go the pages that are kept
/// for conversations between their turns ([`crate::order::keep_session`]).
///
/// Credit. A choice that has as many tokens as its gateway has granted is *paused*: it is in no step, counts against
/// nothing but the deadline, and keeps its pages until others need them, before any running sequence gives up its own.
/// A grant lets it go on where it was. One that lost its pages starts over when a grant comes, as a new one with the
/// place in the queue that it arrived with; such losses are its client's doing and do not count towards the three.
///
/// Offload. A prompt that waits may get its pages before its turn for another worker to fill ([`Batch::offload`]), where
/// enough is left for all that is before it. It gives them up before any running sequence does.
#[derive(Debug)]
pub struct Batch {
    config: BatchConfig,
    hasher: PageHasher,
    table: PageTable,
    requests: Slab<Request>,
    by_id: BTreeMap<(RequestId, Attempt), Key>,
    seqs: Slab<Seq>,
    /// By seniority.
    running: Vec<Key>,
    resuming: BTreeMap<Rank, Key>,
    fresh: Fresh,
    /// Tokens of all sequences in `resuming` and `fresh`.
    waiting_tokens: u64,
    /// Of those, tokens of pages that the table counts as wanted, for each sequence that wants them.
    wanted_tokens: u64,
    /// The work that they stand for, as [`BatchLoad::outstanding_tokens`] counts it.
    waiting_work: u64,
    /// Those of them whose pages the table has not been told of ([`Seq::told`]), and some that wait no more.
    untold: Vec<Key>,
    /// Pages of those, at most.
    untold_pages: u32,
    /// Out of credit, with pages, by seniority.
    paused: BTreeMap<Rank, Key>,
    /// Out of credit, without pages, by arrival.
    stalled: BTreeMap<Rank, Key>,
    /// A sequence in `paused` has been granted tokens.
    woken: bool,
    /// With pages whose content comes from elsewhere. They have their slots.
    receiving: BTreeMap<Rank, Key>,
    /// Without pages, their prompts not begun where they are computed; or, computed here, not open ([`Batch::open`]).
    expected: BTreeMap<Rank, Key>,
    /// Computed, and kept for another worker.
    held: BTreeMap<Rank, Key>,
    /// Requests that another worker takes over, by the attempt that they have there.
    lent: BTreeMap<(RequestId, Attempt), Key>,
    /// Tokens that a step computes at most of a prompt that is taken for another worker now.
    transfer_chunk: u32,
    /// News about transfers that the driver has not seen.
    kv_work: Vec<KvWork>,
    deadlines: BTreeSet<(Time, Key)>,
    flight: Option<Flight>,
    /// Pages given up while a step was in flight, which may still read or write them.
    fenced: Vec<PageId>,
    /// Effects that the driver has not seen.
    effects: Vec<BatchEffect>,
    steps: u64,
    submitted: u64,
    arrivals: u64,
    admissions: u64,
    draining: bool,
    totals: Totals,
    order: Order,
    /// Pages between the turns of conversations; none where nothing is kept.
    kept: Option<KeepSession>,
    /// When it was called last.
    clock: Time,
    spare: plan::Spare,
}

/// Order of sequences that are not fresh: of levels, the highest first; seniority; choice.
type Rank = (u64, u64, u32);

/// The step that the engine is running.
#[derive(Debug)]
struct Flight {
    step: u64,
    slices: Vec<FlightSlice>,
}

#[derive(Debug)]
struct FlightSlice {
    seq: Key,
    key: SeqKey,
    tokens: u32,
    prefill: bool,
    /// Draws follow the slice's last token.
    last: bool,
}

#[derive(Debug, Default)]
struct Totals {
    prefix_queries: u64,
    prefix_hits: u64,
    prefilled_tokens: u64,
    drawn_tokens: u64,
    preemptions: u64,
}

impl Batch {
    /// An idle scheduler. Limits of zero are taken as one; no more sequences run than a step has tokens.
    #[must_use]
    pub fn new(config: BatchConfig) -> Self {
        Self::with_hasher(config, PageHash::chained)
    }

    /// As [`Batch::new`], with another hash of pages: a simulation has cheaper ones, tests have ones that collide.
    #[must_use]
    pub fn with_hasher(mut config: BatchConfig, hasher: PageHasher) -> Self {
        config.page_tokens = config.page_tokens.max(1);
        config.max_batch_tokens = config.max_batch_tokens.max(1);
        config.max_mixed_tokens = config.max_mixed_tokens.clamp(1, config.max_batch_tokens);
        config.max_running = config.max_running.clamp(1, config.max_batch_tokens);
        config.max_waiting = config.max_waiting.max(1);
        let mut table = PageTable::new(config.pages, config.page_tokens);
        table.record(config.kv_events);
        Self {
            table,
            config,
            hasher,
            requests: Slab::new(),
            by_id: BTreeMap::new(),
            seqs: Slab::new(),
            running: Vec::new(),
            resuming: BTreeMap::new(),
            fresh: Fresh::default(),
            waiting_tokens: 0,
            wanted_tokens: 0,
            waiting_work: 0,
            untold: Vec::new(),
            untold_pages: 0,
            paused: BTreeMap::new(),
            stalled: BTreeMap::new(),
            woken: false,
            receiving: BTreeMap::new(),
            expected: BTreeMap::new(),
            held: BTreeMap::new(),
            lent: BTreeMap::new(),
            transfer_chunk: u32::MAX,
            kv_work: Vec::new(),
            deadlines: BTreeSet::new(),
            flight: None,
            fenced: Vec::new(),
            effects: Vec::new(),
            steps: 0,
            submitted: 0,
            arrivals: 0,
            admissions: 0,
            draining: false,
            totals: Totals::default(),
            order: Order::default(),
            kept: None,
            clock: Time::ZERO,
            spare: plan::Spare::default(),
        }
    }

    /// The limits in force.
    #[must_use]
    pub const fn config(&self) -> &BatchConfig {
        &self.config
    }

    /// Moves effects that came up outside of [`Batch::complete`] (preemption, a passed deadline, a request that ended
    /// without a step) to the end of `effects`.
    pub fn take_effects(&mut self, effects: &mut Vec<BatchEffect>) {
        effects.append(&mut self.effects);
    }

    /// Moves what changed since the last call in the set of pages that can be found to the end of `events`, in order.
    /// Nothing changes while nothing is recorded; a driver that has recording on takes the events with every step, for
    /// they are kept until then.
    pub fn take_kv_events(&mut self, events: &mut Vec<KvEvent>) {
        self.table.take_events(events);
    }

    /// From now on records this. What was recorded and not taken is dropped: whoever starts to listen begins with
    /// [`Batch::kv_snapshot`].
    pub fn record_kv_events(&mut self, what: Recording) {
        self.config.kv_events = what;
        self.table.record(what);
    }

    /// All pages that can be found, in order of their hashes: what replaying all events gives, those included that
    /// [`Batch::take_kv_events`] has not given yet.
    #[must_use]
    pub fn kv_snapshot(&self) -> Vec<PageHash> {
        self.table.findable().collect()
    }

    /// As [`Batch::kv_snapshot`], as the events that make those pages findable, parents first and with their tokens.
    #[must_use]
    pub fn kv_contents(&self) -> Vec<KvEvent> {
        self.table.contents()
    }

    /// Takes nothing new from now on; what is here goes on to its end.
    pub const fn drain(&mut self) {
        self.draining = true;
    }

    /// Whether nothing is left: no request, no step in flight.
    #[must_use]
    pub const fn is_idle(&self) -> bool {
        self.requests.len() == 0 && self.flight.is_none()
    }
}

/// Why a request was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It can never run here; sending it again does not help.
    #[error(
        "the request needs {needed} KV pages of {page_tokens} tokens and this worker has {pages}; shorten the prompt or raise engine.kv-memory"
    )]
    NeverFits {
        /// Pages that the prompt and one token need.
        needed: u32,
        /// Pages that there are.
        pages: u32,
        /// Tokens a page.
        page_tokens: u32,
    },
    /// The prompt leaves no room for a token in the model's window.
    #[error(
        "the prompt has {prompt} tokens and the context window has {window}; at least one is needed for the answer"
    )]
    TooLong {
        /// The prompt's tokens.
        prompt: u32,
        /// The window.
        window: u32,
    },
    /// The queue is full; elsewhere or later it may run.
    #[error("{waiting} requests are waiting, the limit of runtime.max-waiting; try again later")]
    QueueFull {
        /// Requests waiting.
        waiting: u32,
    },
    /// The same attempt is here already, or the spec is malformed (no tokens, no choices).
    #[error("malformed request: {0}")]
    Malformed(&'static str),
    /// It cannot be done in the time that it has.
    #[error("the prompt takes about {needed} here and the request has {left} left (deadline-ms)")]
    Hopeless {
        /// For the part of the prompt that the cache does not have, at the speed measured.
        needed: Span,
        /// Until its deadline.
        left: Span,
    },
    /// The worker is draining and takes nothing new.
    #[error("the worker is draining")]
    Draining,
}

/// What the driver has to do.
#[derive(Clone, Debug, PartialEq)]
pub enum BatchEffect {
    /// Send a token of a choice to the request's gateway.
    Token(TokenEvent),
    /// Send log-probabilities of prompt tokens; before the request's first token.
    PromptLogprobs {
        /// The request.
        request: RequestId,
        /// Its attempt.
        attempt: Attempt,
        /// Position in the prompt of the first one.
        first: u32,
        /// One entry a token.
        tokens: Vec<Logprobs>,
    },
    /// All choices of the request have ended and its pages are released.
    Done {
        /// The request.
        request: RequestId,
        /// Its attempt.
        attempt: Attempt,
        /// What it cost.
        usage: Usage,
    },
    /// The request failed alone; its pages are released.
    Failed {
        /// The request.
        request: RequestId,
        /// Its attempt.
        attempt: Attempt,
        /// For the log and the client.
        reason: String,
    },
    /// The request waited until it could not be done in time any more ([`Refusal::Hopeless`]), and is given up.
    Late {
        /// The request.
        request: RequestId,
        /// Its attempt.
        attempt: Attempt,
        /// For the log and the client.
        reason: String,
    },
    /// The worker has let go of the attempt: another one goes on with it ([`Batch::lend`]), or its pages were lost. Nothing
    /// more comes of it here.
    TakenOver {
        /// The request.
        request: RequestId,
        /// Its attempt.
        attempt: Attempt,
    },
    /// A request lost its pages to others and waits to be computed again.
    Preempted {
        /// The sequence.
        seq: SeqKey,
        /// Tokens whose KV was dropped and that are computed again.
        dropped: u32,
    },
}

/// A token of a choice.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenEvent {
    /// The sequence.
    pub seq: SeqKey,
    /// Index in the choice's output, from 0, those of earlier attempts included. The gateway drops what it has.
    pub index: u32,
    /// The token.
    pub token: Token,
    /// Where asked for.
    pub logprobs: Option<Logprobs>,
    /// The choice ends with this token.
    pub finish: Option<Finish>,
    /// Prompt tokens that were found in the cache; the same in all events of an attempt.
    pub cached_tokens: u32,
}

/// What a request cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Prompt tokens reused from the cache at first admission.
    pub cached_tokens: u32,
    /// Tokens computed in prefill, recomputation after preemption included.
    pub prefilled_tokens: u32,
    /// Tokens drawn.
    pub drawn_tokens: u32,
    /// Times that a choice was preempted.
    pub preemptions: u32,
}

/// Figures of a worker for placement, metrics and tests. All are levels, except those that say "in all".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchLoad {
    /// Requests that have not ended.
    pub requests: u32,
    /// Sequences that are being computed.
    pub running: u32,
    /// Requests (or preempted sequences) that wait.
    pub waiting: u32,
    /// Sequences that have used their credit and wait for a grant, or have it and wait for a slot.
    pub paused: u32,
    /// Tokens still to prefill, waiting ones included: of these what the cache does not have now, and what several share
    /// once.
    pub queued_prefill_tokens: u64,
    /// Tokens still to prefill and to draw, paused sequences included; of each choice as many as answers are expected
    /// to have at most ([`crate::placement::GENERATION_ESTIMATE`]).
    pub outstanding_tokens: u64,
    /// Pages that a sequence holds.
    pub pages_used: u32,
    /// Pages that hold reusable content and that no sequence holds.
    pub pages_cached: u32,
    /// Pages in all.
    pub pages_total: u32,
    /// Prompt tokens looked up in the prefix cache, in all.
    pub prefix_queries: u64,
    /// Prompt tokens found there, in all.
    pub prefix_hits: u64,
    /// Tokens computed in prefill, in all.
    pub prefilled_tokens: u64,
    /// Tokens drawn, in all.
    pub drawn_tokens: u64,
    /// Preemptions, in all.
    pub preemptions: u64,
}

#[cfg(test)]
mod tests;
