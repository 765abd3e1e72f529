//! The gateway: a [`policies::session`] for each live request, and what clients saw of it.
//!
//! What comes in is in `clients`, `messages`, `placements` and `steps`. It calls a session through `driver`, and what that
//! then wants becomes messages in `effects`.

use config::ids::RequestId;
use policies::cost::fake::FakeModel;
use policies::request::Token;
use policies::session::{SessionConfig, SessionEffect};

use super::places::Places;
use crate::checks::Truth;
use crate::report::tally::Tally;

mod clients;
mod driver;
mod effects;
mod ends;
mod history;
mod live;
mod messages;
mod moves;
mod placements;
mod steps;

pub use history::{History, Placed};
use live::{Live, LiveRequests};
pub use moves::Moving;

/// The simulated gateway.
#[derive(Debug)]
pub struct Gateway {
    config: SessionConfig,
    /// Tell the controller what workers have taken; without policies it makes no difference there.
    tells_accepted: bool,
    live: LiveRequests,
    /// What clients saw of all requests that have ended.
    tally: Tally,
    history: Option<History>,
    /// Requests that have ended since somebody asked, with the answers of their first choices.
    ended: Vec<(RequestId, Vec<Token>)>,
    /// Effects of the call under way; empty between two.
    fx: Vec<SessionEffect>,
    places: Places,
    /// What clients have to be told, where that is checked.
    truth: Option<Truth>,
}

impl Gateway {
    /// A gateway without requests.
    #[must_use]
    pub fn new(config: SessionConfig, tells_accepted: bool, tally: Tally) -> Self {
        Self {
            config,
            tells_accepted,
            live: LiveRequests::new(),
            tally,
            history: None,
            ended: Vec::new(),
            fx: Vec::new(),
            places: Places::new(),
            truth: None,
        }
    }

    /// From now on every answer and every placement is kept.
    pub fn keep_history(&mut self) {
        self.history = Some(History::default());
    }

    /// From now on each token is held against what this model says.
    pub fn check_answers(&mut self, model: FakeModel) {
        self.truth = Some(Truth::new(model));
    }

    /// Whether a request has arrived and not ended.
    #[must_use]
    pub fn is_live(&self, id: RequestId) -> bool {
        self.live.get(id).is_some()
    }

    /// Requests that a worker has, or is being sent.
    pub fn at_workers(&self) -> impl Iterator<Item = RequestId> {
        self.live.iter().filter(|live| live.session.worker().is_some()).map(|live| live.session.spec().id)
    }

    /// Requests that have not ended.
    #[must_use]
    pub const fn live(&self) -> usize {
        self.live.len()
    }
}
