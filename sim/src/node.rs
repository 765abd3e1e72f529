//! The nodes of a simulated cluster: thin drivers around the cores, as the live actors are.
//!
//! A driver calls a core with what has come, and carries out what the core wants. It decides nothing, so that none of these
//! files needs a hundred lines of code: `driver` has the calls, `effects` what comes of them, and each of the others one
//! kind of thing that comes in, or that a node keeps book of.

pub mod controller;
pub mod gateway;
mod places;
pub mod pool;
pub mod pools;
pub mod worker;
pub mod workers;

pub use controller::Controller;
pub use gateway::{Gateway, History, Moving, Placed};
pub use pool::Pool;
pub use pools::Pools;
pub use worker::Worker;
pub use workers::Workers;
