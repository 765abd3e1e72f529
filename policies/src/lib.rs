//! Every decision of actor-node, and its bookkeeping, as pure state machines.
//!
//! The contract of this crate: no clock, no I/O, no tokio, no ractor, no global random numbers. A core is driven by
//! `&mut self` methods that take `now: Time` and give back a closed enum of effects; the driver (a live actor or the
//! simulator) carries the effects out and reports what came of them. The same inputs give the same effects, on every
//! machine and in every run: nothing here iterates a randomly seeded map.
//!
//! | core | driven live by | owns |
//! |---|---|---|
//! | [`session`] | the session actor at the gateway | one request's phases, retry, resume, cancel, deadline |
//! | [`placement`] | the controller actor | admission, wait queue, choice, booking, release, losses |
//! | [`membership`] | the membership actor | links, beats, losses, whom to dial, the oldest controller |
//! | [`batch`] | the worker's scheduler actor | queues, chunked prefill, token budget, pages, preemption |
//! | [`pool`] | the pool's actor | which KV pages are kept in RAM and on disk, and for whom |
//! | [`order`] | an actor a policy | whose turn it is at a worker |
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod time;

pub mod kv;
pub mod request;
pub mod step;

pub mod batch;
pub mod membership;
pub mod order;
pub mod placement;
pub mod policy;
pub mod pool;
pub mod session;

pub mod cost;
pub mod invariant;
pub mod rng;
