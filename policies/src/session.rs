//! Gateway core: the life of one request.
//!
//! `New → Placing → Submitted → Streaming → Ended`, with a way back from `Submitted` and `Streaming` to `Placing` when
//! the worker is lost: the request is placed again with its prompt and the tokens already produced, and since draws are
//! counter-based the stream goes on as if nothing had happened. The core counts tokens by index and drops what it has.

use config::ids::{Attempt, RequestId, WorkerId};

use crate::batch::TokenEvent;
use crate::placement::{PlaceRequest, Plan};
use crate::request::{Finish, Logprobs, RequestSpec};

/// Where a request stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Not started.
    New,
    /// Waits for the controller.
    Placing,
    /// Sent to a worker, which has produced nothing in this attempt.
    Submitted,
    /// Tokens arrive.
    Streaming,
    /// Over; nothing is held anywhere.
    Ended,
}

/// Why a request ended without all its choices finished.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The model is unknown.
    UnknownModel(String),
    /// Nobody can take it now; try later.
    Overloaded(String),
    /// No worker is ready.
    Unavailable(String),
    /// It can never run (too long); the client has to change it.
    Invalid(String),
    /// The worker died, and no retry is left.
    WorkerLost(String),
    /// The worker's engine failed on it.
    Engine(String),
    /// The deadline passed.
    Deadline,
    /// The client is gone.
    Cancelled,
}

/// What the driver has to do.
#[derive(Clone, Debug)]
pub enum SessionEffect {
    /// Ask the controller.
    Place(PlaceRequest),
    /// Send the request to the worker.
    Submit {
        /// Where.
        worker: WorkerId,
        /// What.
        spec: Box<RequestSpec>,
    },
    /// Show a token to the client. In index order for each choice, each index once.
    Deliver(TokenEvent),
    /// Show the prompt's log-probabilities.
    DeliverPrompt {
        /// Position of the first.
        first: u32,
        /// One a token.
        tokens: Vec<Logprobs>,
    },
    /// Tell the worker to stop this attempt, if it is still at it.
    CancelAt {
        /// The worker.
        worker: WorkerId,
        /// The request.
        request: RequestId,
        /// The attempt.
        attempt: Attempt,
    },
    /// Tell the worker to stop one choice (a stop string was found); the others go on.
    CancelChoice {
        /// The worker.
        worker: WorkerId,
        /// The request.
        request: RequestId,
        /// The attempt.
        attempt: Attempt,
        /// The choice.
        choice: u32,
    },
    /// Tell the controller that the booking of this attempt is over.
    Release {
        /// The request.
        request: RequestId,
        /// The attempt.
        attempt: Attempt,
    },
    /// All choices ended. Last effect.
    Finished,
    /// The request failed. Last effect.
    Failed(Failure),
}
