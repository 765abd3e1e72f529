//! What leaves a session, and how the client's side takes it.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_util::Stream;
use policies::request::{Finish, Logprobs};
use policies::session::Failure;
use ractor::ActorRef;
use tokio::sync::mpsc;

use super::SessionMsg;
use crate::gateway::assemble::ScoredToken;
use crate::gateway::stages::Placed;

/// What the HTTP side gets. The last one is `Finished` or `Failed`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum SessionOut {
    /// A worker took the request (again, after a loss).
    Accepted(Placed),
    /// Log-probabilities of prompt tokens, the first for position `first`.
    Prompt { first: u32, tokens: Vec<Logprobs> },
    /// Text of a choice.
    Delta(Delta),
    /// All choices ended.
    Finished(SessionUsage),
    /// The request failed.
    Failed(Failure),
}

/// What one token added to a choice.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Delta {
    pub(crate) choice: u32,
    /// Tokens of the choice so far, this one included.
    pub(crate) total: u32,
    pub(crate) text: String,
    /// Where asked for.
    pub(crate) tokens: Vec<ScoredToken>,
    pub(crate) finish: Option<Finish>,
}

impl Delta {
    /// Nothing to show: the token's text is held back, or it has none.
    const fn is_silent(&self) -> bool {
        self.text.is_empty() && self.tokens.is_empty() && self.finish.is_none()
    }
}

/// Tokens of one request, for `usage`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SessionUsage {
    pub(crate) prompt: u64,
    pub(crate) completion: u64,
    pub(crate) cached: u64,
}

/// The client's end of a session. Dropping it before its last message cancels the request.
#[derive(Debug)]
pub(crate) struct SessionStream {
    pub(super) rx: mpsc::Receiver<SessionOut>,
    pub(super) actor: ActorRef<SessionMsg>,
    pub(super) done: bool,
    /// The session is told of this many tokens at a time.
    pub(super) step: u32,
    /// What it was told last, by choice.
    pub(super) told: Vec<u32>,
}

impl SessionStream {
    /// The client takes a delta: every so often the session hears of it.
    fn take(&mut self, delta: &Delta) {
        if let Some(told) = self.told.get_mut(delta.choice as usize)
            && delta.total.saturating_sub(*told) >= self.step
        {
            *told = delta.total;
            // One that has ended has nothing left to grant.
            let _ = self.actor.cast(SessionMsg::Taken { choice: delta.choice, total: delta.total });
        }
    }
}

impl Stream for SessionStream {
    type Item = SessionOut;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<SessionOut>> {
        if self.done {
            return Poll::Ready(None);
        }
        // Closed without a last message: the session was killed.
        let lost = || SessionOut::Failed(Failure::Engine("its session was stopped".into()));
        let out = loop {
            let out = ready!(self.rx.poll_recv(cx)).unwrap_or_else(lost);
            let SessionOut::Delta(delta) = &out else { break out };
            self.take(delta);
            if !delta.is_silent() {
                break out;
            }
        };
        self.done = matches!(out, SessionOut::Finished(_) | SessionOut::Failed(_));
        Poll::Ready(Some(out))
    }
}

impl Drop for SessionStream {
    fn drop(&mut self) {
        if !self.done {
            // It may have ended meanwhile.
            let _ = self.actor.cast(SessionMsg::ClientGone);
        }
    }
}
