//! What nodes are to each other: who a process is ([`identity`]), how two of them connect ([`link`], [`handshake`],
//! [`cookie`], [`tls`]), where messages come in ([`port`]) and what they look like ([`wire`]); and how KV pages travel
//! between workers ([`kv`]). Who is a member is decided in `policies::membership`; roles in one process need none of this
//! crate but the messages. What strangers are told about cached pages is in [`kv_events`].
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod cookie;
pub mod handshake;
pub mod identity;
pub mod kv;
pub mod kv_events;
pub mod link;
pub mod port;
pub mod tls;
pub mod wire;
