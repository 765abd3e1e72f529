//! The ids that every crate names things by. Never a bare integer or string: a mix-up is then a compile error.
//!
//! All are cheap to clone, ordered (they key `BTreeMap`s, so that iteration is reproducible), and plain data.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

/// Declares a newtype over shared text.
macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub Arc<str>);

        impl $name {
            /// The id as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self(text.into())
            }
        }

        impl From<String> for $name {
            fn from(text: String) -> Self {
                Self(text.into())
            }
        }
    };
}

text_id! {
    /// A node's configured name (`node.name`), unique in a cluster.
    NodeId
}
text_id! {
    /// A conversation, as the client names it.
    SessionId
}
text_id! {
    /// A model as clients name it in the `model` field.
    ModelId
}
text_id! {
    /// Whom requests are accounted to.
    TenantId
}
text_id! {
    /// A policy as it is configured (`cache-aware`).
    PolicyName
}

/// One life of a worker: a restarted worker keeps its node's name and gets a higher incarnation, so that messages
/// about its former life are told apart.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct WorkerId {
    /// The node that the worker runs in.
    pub node: NodeId,
    /// Grows with each start of the node.
    pub incarnation: u64,
}

impl WorkerId {
    /// The worker of `node` in its life `incarnation`.
    #[must_use]
    pub fn new(node: NodeId, incarnation: u64) -> Self {
        Self { node, incarnation }
    }
}

impl fmt::Display for WorkerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{:x}", self.node, self.incarnation)
    }
}

/// One generation (one choice of one client request), unique across gateways and their restarts.
///
/// Ordered by gateway incarnation, then by arrival. Shown as 32 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RequestId {
    /// The gateway process that accepted the request.
    pub gateway: u64,
    /// The gateway's running number.
    pub number: u64,
}

impl RequestId {
    /// Request `number` of the gateway process `gateway`.
    #[must_use]
    pub const fn new(gateway: u64, number: u64) -> Self {
        Self { gateway, number }
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}{:016x}", self.gateway, self.number)
    }
}

impl FromStr for RequestId {
    type Err = BadRequestId;

    fn from_str(text: &str) -> Result<Self, BadRequestId> {
        if text.len() != 32 || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(BadRequestId);
        }
        let half = |digits| u64::from_str_radix(digits, 16).map_err(|_| BadRequestId);
        Ok(Self { gateway: half(&text[..16])?, number: half(&text[16..])? })
    }
}

/// The text is not a [`RequestId`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a request id is 32 hexadecimal digits")]
pub struct BadRequestId;

/// Hands out the request ids of one gateway process.
#[derive(Debug)]
pub struct RequestIds {
    gateway: u64,
    next: AtomicU64,
}

impl RequestIds {
    /// A fresh sequence; `gateway` has to differ between gateway processes and between restarts of one (the start time
    /// mixed with something random).
    #[must_use]
    pub const fn new(gateway: u64) -> Self {
        Self { gateway, next: AtomicU64::new(1) }
    }

    /// The next id; never the same twice.
    pub fn next_id(&self) -> RequestId {
        RequestId { gateway: self.gateway, number: self.next.fetch_add(1, Ordering::Relaxed) }
    }
}

/// A KV page in one worker's pool: an index into its page memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PageId(pub u32);

impl PageId {
    /// The page's index in the pool.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for PageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Which try of a request this is: 0 first, one more at each new placement. Messages of an older try are ignored.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Attempt(pub u32);

impl Attempt {
    /// The try after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }

    /// Set in the name of a fetch. No request is tried so often.
    const FETCH: u32 = 1 << 31;

    /// The name under which what another worker holds of this try's prompt travels, beside the try itself.
    #[must_use]
    pub const fn fetch(self) -> Self {
        Self(self.0 | Self::FETCH)
    }

    /// Set in the name of what a pool fetches to keep it.
    const STORE: u32 = 1 << 30;

    /// The name under which this try's prompt goes to a pool, beside the try itself and what it fetches.
    #[must_use]
    pub const fn store(self) -> Self {
        Self(self.0 | Self::STORE)
    }

    /// Of a fetch, the try that it is for.
    #[must_use]
    pub const fn fetched_for(self) -> Option<Self> {
        if self.0 & Self::FETCH == 0 { None } else { Some(Self(self.0 & !Self::FETCH)) }
    }
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_ids_are_distinct_and_round_trip() {
        let ids = RequestIds::new(0xfeed);
        let (a, b) = (ids.next_id(), ids.next_id());
        assert!(a < b);
        assert_eq!(a.to_string().parse(), Ok(a));
        assert_eq!(a.to_string().len(), 32);
        assert_ne!(a, RequestIds::new(0xfeee).next_id(), "another process");
    }

    #[test]
    fn malformed_request_ids_are_refused() {
        for text in ["", "12", &"g".repeat(32), &"é".repeat(16), &"+".repeat(32), &"0".repeat(33)] {
            assert_eq!(text.parse::<RequestId>(), Err(BadRequestId), "{text:?}");
        }
    }

    #[test]
    fn a_restarted_worker_is_a_later_one() {
        let first = WorkerId::new("w1".into(), 1);
        let second = WorkerId { incarnation: 2, ..first.clone() };
        assert!(first < second);
        assert_eq!(second.to_string(), "w1#2");
    }
}
