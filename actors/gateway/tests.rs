//! The gateway over a real socket, with a controller and a worker that follow a script.

mod api;
mod cancel;
mod early;
mod faults;
pub(crate) mod fixture;
mod streams;
