//! The nodes of a simulated cluster: thin drivers around the cores, as the live actors are.

pub mod controller;
pub mod gateway;
mod places;
pub mod worker;
pub mod workers;

pub use controller::Controller;
pub use gateway::{Gateway, History, Moving, Placed};
pub use worker::Worker;
pub use workers::Workers;
