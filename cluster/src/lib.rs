//! What nodes are to each other: who a process is ([`identity`]), how two of them connect ([`link`], [`handshake`],
//! [`cookie`], [`tls`]), where messages come in ([`port`]) and what they look like ([`wire`]). Who is a member is decided
//! in `policies::membership`; roles in one process need none of this crate but the messages.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod cookie;
pub mod handshake;
pub mod identity;
pub mod link;
pub mod port;
pub mod tls;
pub mod wire;
