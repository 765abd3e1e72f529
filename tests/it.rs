//! The integration tests, as one binary: Cargo builds `actor-node` before it and hands over its path.
#![expect(
    clippy::unwrap_used,
    clippy::needless_pass_by_value,
    reason = "a test may panic, and builds its values in place; all of the binary is tests"
)]

mod harness;

// What the code must look like: layers, file lengths, banned calls.
mod tidy;

// The command line and the configuration, as a user meets them.
mod cli;
// The OpenAI API on the fake engine: shapes, limits, errors, streams.
mod api;
// Clients that leave, floods, drains, engine failures.
mod lifecycle;
// Several processes as one cluster: joining, losses, refusals.
mod cluster;
// Routing by policy: who gets which request and why, and how that is changed.
mod routing;
// Inside a worker: fair shares, priorities, deadlines, conversations that stay, API keys.
mod order;
// Prompts computed on one worker and generated from on another.
mod handoff;
// Prompts that pools keep.
mod pool;
// The real model through the HTTP API: reference texts, equality under pressure, both engines.
mod model;
// The official Python client against a started node.
mod openai_client;
