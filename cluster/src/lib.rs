//! What nodes are to each other. Today: who a process is ([`identity`]). Joining by seeds, membership and the wire
//! forms of messages live here too once nodes run apart; roles in one process need none of it.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod cookie;
pub mod handshake;
pub mod identity;
pub mod link;
pub mod port;
pub mod tls;
pub mod wire;
