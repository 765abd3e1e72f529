//! Page sets: one actor for each request that the worker has taken, and one for each prompt or sequence that it gives to
//! another worker, under the worker's supervisor.
//!
//! A request has its pages as long as its page set lives ([`super::scheduler`] keeps the block tables, which steps read).
//! Where pages come from another worker, or go to one, the page set drives the hand-off core of its end
//! ([`policies::kv::handoff`]) and holds the pages on their way between the engine and the link. It gives everything back
//! when it ends, for whatever reason, and what it has not said to the other worker by then, is said: its state, which is
//! dropped then, sees to that ([`crate::kv::Seat`]), and the scheduler, which hears of it from the worker. What it wants of
//! engine and scheduler it asks of the scheduler actor, which does things with pages in the order in which it plans steps
//! ([`KvMsg`]). A pool's page sets are under the pool, and ask it for the same ([`Keeper`]).
//!
//! A page set whose request had nothing to do with another worker is that of another request afterwards.

use std::sync::Arc;
use std::time::Duration;

use cluster::kv::{self, Inbound, KvHeader, Outbound, PageBuf};
use config::ids::{Attempt, RequestId};
use policies::batch::Refusal;
use policies::kv::handoff::{HandoffConfig, RefusalCode, TransferKey};
use policies::kv::{Fingerprint, PageHash};
use policies::request::RequestSpec;
use policies::step::Drawn;
use ractor::{Actor, ActorCell, ActorId, ActorProcessingErr, ActorRef, SpawnErr};
use ractor_cluster::RactorMessage;
use tokio::task::JoinHandle;
use tracing::warn;

use crate::kv::{Asked, Seat};

#[cfg(test)]
pub(crate) mod chaos;
mod keeper;
mod receive;
mod report;
mod send;

pub use keeper::{Asker, Keeper};
pub use receive::ReceiveArgs;
pub(crate) use receive::Receiving;
#[cfg(test)]
pub(crate) use report::End;
use send::Sending;

/// How often a page set looks at its time limits, of which the shortest sensible one is ten times this.
const TICK: Duration = Duration::from_millis(50);

/// Why a page set ends whose request is over.
const OVER: &str = "its request is over";

/// What a page set takes.
#[derive(Debug, RactorMessage)]
pub enum PageSetMsg {
    /// The link to the other worker is there, or cannot be had.
    Linked(Result<Seat, String>),
    /// From the other worker.
    Message(Box<Inbound>),
    /// The link has ended.
    LinkLost(String),
    /// The scheduler took the request to compute its prompt, or not.
    Submitted(Result<Pace, Refusal>),
    /// It is the prompt's turn, and the other worker has no pages for it yet.
    Begun,
    /// The scheduler has reserved pages, of which the first `cached` are there.
    Reserved { cached: u32 },
    /// The first `full` pages are computed; some of them are here.
    Computed { full: u32, pages: Vec<(u32, PageBuf)> },
    /// The prompt is computed.
    Prefilled(Box<Prefilled>),
    /// An export that was asked for.
    Exported { first: u32, count: u32, pages: Option<Vec<PageBuf>> },
    /// An import that was asked for.
    Imported { first: u32, count: u32, done: bool },
    /// The scheduler has the request no more.
    Dropped(Option<String>),
    /// Time to look at the limits.
    Tick,
    /// The content of the request's pages comes from another worker.
    Receive(Box<ReceiveArgs>),
    /// The request is over.
    Over,
    /// Panics, as a defect would.
    #[cfg(test)]
    Crash,
}

/// How pages are best sent: see [`policies::kv::handoff::chunking`].
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Pages that are worth a message before the prompt is computed.
    pub least: u32,
    /// Pages in a message at most.
    pub most: u32,
}

/// A prompt that was computed for another worker.
#[derive(Debug)]
pub struct Prefilled {
    /// Tokens in its pages.
    pub tokens: u32,
    /// Of those, found in the cache.
    pub cached: u32,
    /// Every choice ends with its first token.
    pub ends: bool,
    /// The first tokens.
    pub drawn: Vec<Drawn>,
    /// The pages of its last step, by number, as far as there was room for them.
    pub pages: Vec<(u32, PageBuf)>,
}

/// The start of a prompt at another worker.
#[derive(Clone, Debug)]
pub struct HeldAt {
    /// Where that worker takes questions.
    pub address: String,
    /// Tokens of it, as far as is known.
    pub tokens: u32,
}

/// What page sets ask of the scheduler, or of the pool.
#[derive(Debug)]
pub enum KvMsg {
    /// Compute a prompt for another worker.
    Prefill {
        /// The request.
        spec: Box<RequestSpec>,
        /// The first page that is wanted; none where no page is, or it is not known yet.
        first_page: Option<u32>,
        /// Or give away what runs here as this attempt.
        takes: Option<Attempt>,
        /// The other worker has pages for it.
        reserved: bool,
        /// What a third worker holds of it.
        prefix: Option<HeldAt>,
        /// Who is told.
        set: ActorRef<PageSetMsg>,
    },
    /// Give away what is here of a prompt's start.
    Hold {
        /// That start, as a request.
        spec: Box<RequestSpec>,
        /// For whom.
        asker: Asker,
        /// Who is told.
        set: ActorRef<PageSetMsg>,
    },
    /// The prompt of an expected request is begun at the other worker: its pages are needed.
    Reserve((RequestId, Attempt)),
    /// The worker for which a prompt is computed has pages for it.
    Opened {
        /// The request.
        id: (RequestId, Attempt),
        /// The first page that is wanted; none where no page is.
        first_page: Option<u32>,
    },
    /// Write pages of a request into buffers.
    Export {
        /// The request.
        id: (RequestId, Attempt),
        /// Number of the first.
        first: u32,
        /// How many.
        count: u32,
        /// Who gets them.
        set: ActorRef<PageSetMsg>,
    },
    /// Write what has come into a request's pages.
    Import {
        /// The request.
        id: (RequestId, Attempt),
        /// Number of the first.
        first: u32,
        /// What has come.
        pages: Vec<PageBuf>,
        /// Who is told.
        set: ActorRef<PageSetMsg>,
    },
    /// Everything has come.
    Commit {
        /// The request.
        id: (RequestId, Attempt),
        /// Tokens computed.
        tokens: u32,
        /// All pages are there, not the tokens alone.
        pages: bool,
        /// Tokens of the prompt that the other worker had cached.
        cached: u32,
        /// The first tokens.
        drawn: Vec<Drawn>,
    },
    /// Nothing more comes: the request is computed here, after its first `tokens` tokens.
    ComputeHere {
        /// The request.
        id: (RequestId, Attempt),
        /// Tokens whose pages are whole.
        tokens: u32,
        /// Why nothing more comes.
        why: &'static str,
    },
    /// The request's pages are not needed here any more.
    Release {
        /// The request.
        id: (RequestId, Attempt),
        /// The other worker has taken it over.
        taken: bool,
    },
    /// A message with pages was sent.
    Sent {
        /// Their bytes.
        bytes: u64,
        /// How long it took.
        took: Duration,
    },
    /// A page set failed, or ended.
    SetGone(ActorId),
}

/// Answers the questions of others: where to compute or to look, and under whom.
#[derive(Clone, Debug)]
pub struct Provider {
    /// Who has the pages.
    pub keeper: Keeper,
    /// The worker, or the pool.
    pub supervisor: ActorCell,
    /// Identity of the pages that are computed here; none at a pool, which gives any that it holds and computes none.
    pub fingerprint: Option<Fingerprint>,
    /// Limits.
    pub limits: HandoffConfig,
}

impl Provider {
    /// Starts a page set for a question, or says why not.
    pub async fn asked(&self, asked: Asked) {
        let args = match Sending::of(self, &asked) {
            Ok(args) => args,
            Err((code, why)) => {
                warn!(worker = %asked.lane.peer().worker, code = code.as_str(), why, "turned a prompt away");
                return asked.refuse(code, &why).await;
            }
        };
        let (lane, key) = (args.lane(), args.key());
        let side = Side::Send(Box::new(args));
        let started = Actor::spawn_linked(None, PageSet, side, self.supervisor.clone()).await;
        let Err(e) = started else { return };
        let refusal = e.to_string();
        let code = kv::RefusalCode::Unavailable;
        let TransferKey { transfer, generation } = key;
        lane.send(KvHeader::Refused { transfer, generation, code, why: refusal }.into()).await;
    }
}

/// The actor.
#[derive(Debug)]
pub(crate) struct PageSet;

/// Which end of a transfer it is.
#[derive(Debug)]
pub(crate) enum Side {
    /// None: a request's pages, computed here.
    Own,
    Receive(Box<Receiving>),
    Send(Box<Sending>),
}

impl Side {
    /// Begins the transfer.
    async fn start(&mut self, myself: &ActorRef<PageSetMsg>) {
        match self {
            Self::Own => {}
            Self::Receive(end) => end.start(myself).await,
            Self::Send(end) => end.start(myself).await,
        }
    }

    /// Says whether the transfer is over.
    async fn handle(&mut self, message: PageSetMsg, myself: &ActorRef<PageSetMsg>) -> bool {
        match self {
            // What is left of a transfer that is over.
            Self::Own => false,
            Self::Receive(end) => end.handle(message, myself).await,
            Self::Send(end) => end.handle(message, myself).await,
        }
    }
}

/// Its state.
#[derive(Debug)]
pub(crate) struct PageSetState {
    side: Side,
    /// It is that of a request, and outlives transfers.
    of_request: bool,
    /// While there is a transfer.
    timer: Option<JoinHandle<()>>,
}

/// Starts the page set of a request under `supervisor`.
///
/// # Errors
/// The worker is stopping.
pub(crate) async fn of_request(supervisor: ActorCell) -> Result<ActorRef<PageSetMsg>, SpawnErr> {
    Ok(Actor::spawn_linked(None, PageSet, Side::Own, supervisor).await?.0)
}

/// Whether a page set that ended for this reason did so because its request was over.
pub(crate) fn is_over(reason: Option<&str>) -> bool {
    reason == Some(OVER)
}

/// Starts the receiving end of a transfer under `supervisor`.
///
/// # Errors
/// The worker is stopping.
pub(crate) async fn receive(
    args: ReceiveArgs,
    supervisor: ActorCell,
) -> Result<ActorRef<PageSetMsg>, SpawnErr> {
    let side = Side::Receive(Box::new(Receiving::new(args)));
    Ok(Actor::spawn_linked(None, PageSet, side, supervisor).await?.0)
}

impl Actor for PageSet {
    type Msg = PageSetMsg;
    type State = PageSetState;
    type Arguments = Side;

    async fn pre_start(
        &self,
        myself: ActorRef<PageSetMsg>,
        side: Side,
    ) -> Result<PageSetState, ActorProcessingErr> {
        let mut state = PageSetState { of_request: matches!(side, Side::Own), side: Side::Own, timer: None };
        state.begin(side, &myself).await;
        Ok(state)
    }

    async fn handle(
        &self,
        myself: ActorRef<PageSetMsg>,
        message: PageSetMsg,
        state: &mut PageSetState,
    ) -> Result<(), ActorProcessingErr> {
        #[cfg(test)]
        chaos::strike(&state.side, &message, &myself).await;
        match message {
            PageSetMsg::Over => myself.stop(Some(OVER.to_owned())),
            PageSetMsg::Receive(args) => {
                let end = Side::Receive(Box::new(Receiving::new(*args)));
                state.begin(end, &myself).await;
            }
            #[cfg(test)]
            PageSetMsg::Crash => panic!("asked to"),
            message => {
                if state.side.handle(message, &myself).await {
                    state.end(&myself);
                }
            }
        }
        Ok(())
    }
}

impl PageSetState {
    async fn begin(&mut self, side: Side, myself: &ActorRef<PageSetMsg>) {
        self.side = side;
        if self.timer.is_none() && !matches!(self.side, Side::Own) {
            self.timer = Some(myself.send_interval(TICK, || PageSetMsg::Tick));
        }
        self.side.start(myself).await;
    }

    /// A transfer is over.
    fn end(&mut self, myself: &ActorRef<PageSetMsg>) {
        if !self.of_request {
            return myself.stop(None);
        }
        self.side = Side::Own;
        if let Some(timer) = self.timer.take() {
            timer.abort();
        }
    }
}

/// A message without pages.
fn plain(header: KvHeader) -> Outbound {
    header.into()
}

/// Hashes as they travel, of pages `first..first + count` as far as they are full.
fn hashes(of: &Arc<[PageHash]>, first: u32, count: u32) -> Vec<[u8; 16]> {
    of.iter().skip(first as usize).take(count as usize).map(|hash| hash.0).collect()
}

/// Whether pages that have come are those of the sequence, as far as both ends know their hashes.
fn are_of(known: &Arc<[PageHash]>, first: u32, told: &[[u8; 16]]) -> bool {
    known.iter().skip(first as usize).zip(told).all(|(ours, theirs)| ours.0 == *theirs)
}

const fn to_wire(code: RefusalCode) -> kv::RefusalCode {
    match code {
        RefusalCode::QueueFull => kv::RefusalCode::QueueFull,
        RefusalCode::TooLong => kv::RefusalCode::TooLong,
        RefusalCode::Draining => kv::RefusalCode::Unavailable,
        RefusalCode::Incompatible => kv::RefusalCode::Fingerprint,
        RefusalCode::NotThere => kv::RefusalCode::Malformed,
        RefusalCode::Failed => kv::RefusalCode::Failed,
    }
}

const fn from_wire(code: kv::RefusalCode) -> RefusalCode {
    match code {
        kv::RefusalCode::QueueFull => RefusalCode::QueueFull,
        kv::RefusalCode::TooLong => RefusalCode::TooLong,
        kv::RefusalCode::Unavailable => RefusalCode::Draining,
        kv::RefusalCode::Fingerprint => RefusalCode::Incompatible,
        kv::RefusalCode::Malformed => RefusalCode::NotThere,
        kv::RefusalCode::Failed | kv::RefusalCode::Expired => RefusalCode::Failed,
    }
}

const fn of_refusal(refusal: &Refusal) -> RefusalCode {
    match refusal {
        Refusal::NeverFits { .. } | Refusal::TooLong { .. } => RefusalCode::TooLong,
        // Here too so much waits that it would come too late.
        Refusal::QueueFull { .. } | Refusal::Hopeless { .. } => RefusalCode::QueueFull,
        Refusal::Malformed(_) => RefusalCode::NotThere,
        Refusal::Draining => RefusalCode::Draining,
    }
}

#[cfg(test)]
mod tests;
