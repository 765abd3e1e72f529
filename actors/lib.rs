//! The live side of actor-node: ractor actors around the cores of `policies`, HTTP, and the wiring of roles.
//!
//! ```text
//! Node                       starts the roles of this process, restarts what fails, drains on SIGTERM
//! ├─ Membership              links to other nodes, heartbeats; tells the roles who is there
//! │  └─ Links, Ports          ractor_cluster behind a handshake of ours; the doors that other nodes reach
//! ├─ Controller              actor around policies::placement
//! ├─ Worker                  loads the model; restarts scheduler and engine
//! │  ├─ Scheduler            actor around policies::batch; drives the engine's own OS thread
//! │  │  (or Whole            bridge to the whole mistral.rs engine)
//! │  └─ PageSet × n         one a request taken, and one for each that is computed for or handed to another worker
//! ├─ Gateway                 HTTP listener, and the door that events of workers and controllers come through
//! │  └─ Session × n          one a request, actor around policies::session
//! └─ Pool                    KV pages in RAM and, on a thread of its own, on disk
//! ```
//!
//! Roles know each other only through [`doors`]: ids and plain messages.
#![forbid(unsafe_code)]

pub mod doors;
pub mod membership;

pub mod controller;
pub mod gateway;
pub mod kv;
pub mod node;
pub mod pool;
pub mod worker;

pub mod admin;
pub mod calibrate;
pub mod card;
pub mod clock;
mod lines;
pub mod metrics;
pub mod models;
pub mod reload;
pub mod status;
pub mod supervise;
pub mod telemetry;

#[cfg(test)]
mod testing;
