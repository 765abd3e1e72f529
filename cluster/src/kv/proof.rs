//! How the two ends of a connection come to trust each other: the handshake of the cluster link (see
//! [`crate::handshake`]), under a key of its own, so that a proof for one kind of link opens none of the other.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use config::ids::WorkerId;
use config::role::Role;
use policies::kv::PageLayout;
use policies::membership::{LinkId, Member};
use tokio::io::{AsyncRead, AsyncWrite};

use super::error::KvError;
use super::frame::KV_VERSION;
use super::page::PagePool;
use super::shape::{Pages, Shape, Shelf};
use super::tcp::TcpLink;
use crate::cookie::Cookie;
use crate::handshake::{self, Agreed, Budget, Failed, Gate, Judgement, Refusal, Terms};
use crate::link::Stream;
use crate::tls::Tls;

/// The purpose of the key that ends of KV links prove themselves with.
const KV_KEY: &str = "actor-node cluster kv link v1";

/// Time that an end has to judge the other: it only compares.
const JUDGE_LIMIT: Duration = Duration::from_secs(1);

/// How long nothing may move in the middle of a message, unless configured otherwise.
pub const STALL_TIMEOUT: Duration = Duration::from_secs(20);

/// Who is at an end of a link: a worker, or a pool, in one of its lives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvPeer {
    /// Name and incarnation.
    pub worker: WorkerId,
    /// Where it listens for KV links, as it says.
    pub address: String,
}

/// What this worker or pool brings to its links. Cheap to clone.
#[derive(Clone, Debug)]
pub struct KvTerms {
    me: KvPeer,
    key: Key,
    tls: Option<Tls>,
    handshake_timeout: Duration,
    stall: Duration,
    shape: Shape,
}

/// Shows nothing of itself.
#[derive(Clone)]
struct Key([u8; 32]);

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(..)")
    }
}

impl KvTerms {
    /// The terms of the worker `me`: whoever knows `cookie` may link, over `tls` where that is given, and exchange pages of
    /// `layout`. What is received lies in buffers of a pool that lets `pages` be out at a time and keeps as many.
    ///
    /// The times are [`HANDSHAKE_TIMEOUT`](crate::link::HANDSHAKE_TIMEOUT) and [`STALL_TIMEOUT`].
    #[must_use]
    pub fn new(me: KvPeer, cookie: &Cookie, tls: Option<Tls>, layout: PageLayout, pages: usize) -> Self {
        let pool = PagePool::new(layout.page_bytes(), pages, pages);
        Self::of(me, cookie, tls, Shape::One(Pages { layout, pool }))
    }

    /// The terms of the pool `me`: as those of a worker, for pages of any layout. A link that is opened to it has that of the
    /// first question; one that it opens itself has a layout from the start ([`KvTerms::with_layout`]). What is received lies in
    /// buffers, of each size as many at a time as fit into `bytes`, however many links have it.
    #[must_use]
    pub fn of_pool(me: KvPeer, cookie: &Cookie, tls: Option<Tls>, bytes: usize) -> Self {
        Self::of(me, cookie, tls, Shape::Any(Shelf::new(bytes)))
    }

    fn of(me: KvPeer, cookie: &Cookie, tls: Option<Tls>, shape: Shape) -> Self {
        let (handshake_timeout, stall) = (crate::link::HANDSHAKE_TIMEOUT, STALL_TIMEOUT);
        Self { me, key: Key(cookie.key(KV_KEY)), tls, handshake_timeout, stall, shape }
    }

    /// For links with pages of `layout`, where that is not settled; a worker's terms are what they were.
    ///
    /// # Errors
    /// There are no such pages, or one exceeds [`MAX_BODY_BYTES`](super::MAX_BODY_BYTES).
    pub fn with_layout(&self, layout: PageLayout) -> Result<Self, KvError> {
        Ok(Self { shape: self.shape.of(layout)?, ..self.clone() })
    }

    /// The same with other times: for a handshake's frames, and how long nothing may move in the middle of a message.
    #[must_use]
    pub fn with_timeouts(mut self, handshake: Duration, stall: Duration) -> Self {
        self.handshake_timeout = handshake;
        self.stall = stall;
        self
    }

    /// The buffers that received pages lie in; none where their layout is not settled.
    #[must_use]
    pub fn pool(&self) -> Option<&PagePool> {
        self.shape.pages().map(|pages| &pages.pool)
    }

    /// The worker or pool that these are the terms of.
    #[must_use]
    pub fn me(&self) -> &KvPeer {
        &self.me
    }

    /// Sizes of pages that a pool has buffers of.
    #[cfg(test)]
    pub(super) fn sizes(&self) -> usize {
        match &self.shape {
            Shape::One(_) => 1,
            Shape::Any(shelf) => shelf.sizes(),
        }
    }

    /// Another key, for tests of strangers.
    #[cfg(test)]
    pub(super) fn replace_key(&mut self, key: [u8; 32]) {
        self.key = Key(key);
    }

    pub(super) fn tls(&self) -> Option<&Tls> {
        self.tls.as_ref()
    }

    pub(super) fn budget(&self) -> Budget {
        Budget::new(self.handshake_timeout)
    }

    /// The dialling end's proof, to the worker `expected` where one is.
    pub(super) async fn dial(
        &self,
        mut stream: Stream,
        expected: Option<&WorkerId>,
        budget: &mut Budget,
    ) -> Result<TcpLink, Failed> {
        let terms = self.handshake(expected);
        let agreed = match &mut stream {
            Stream::Plain(tcp) => dial(tcp, &terms, budget).await?,
            Stream::Secured(tls) => dial(tls, &terms, budget).await?,
        };
        Ok(TcpLink::over(stream, peer_of(agreed), self.shape.settings(self.stall)))
    }

    /// The accepting end's proof. `proven` is set as soon as the other end has shown that it knows the cookie.
    pub(super) async fn accept(
        &self,
        mut stream: Stream,
        budget: &mut Budget,
        proven: &AtomicBool,
    ) -> Result<TcpLink, Failed> {
        let terms = self.handshake(None);
        let agreed = match &mut stream {
            Stream::Plain(tcp) => handshake::accept(tcp, &terms, NO_NUMBER, budget, proven).await?,
            Stream::Secured(tls) => handshake::accept(tls, &terms, NO_NUMBER, budget, proven).await?,
        };
        Ok(TcpLink::over(stream, peer_of(agreed), self.shape.settings(self.stall)))
    }

    fn handshake(&self, expected: Option<&WorkerId>) -> Terms {
        let role = if matches!(self.shape, Shape::One(_)) { Role::Worker } else { Role::Pool };
        let me = Member {
            id: self.me.worker.node.clone(),
            incarnation: self.me.worker.incarnation,
            address: self.me.address.clone(),
            roles: role.as_str().parse().expect("the name of a role stands for the set of it"),
            ready: true,
            draining: false,
            http: None,
        };
        let page_tokens = self.shape.pages().map(|pages| pages.layout.page_tokens);
        Terms {
            key: self.key.0,
            versions: KV_VERSION..=KV_VERSION,
            gate: Arc::new(KvGate { me, page_tokens, expected: expected.cloned() }),
            judge_limit: JUDGE_LIMIT,
        }
    }
}

/// KV links have no numbers.
const NO_NUMBER: LinkId = LinkId(0);

async fn dial<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    terms: &Terms,
    budget: &mut Budget,
) -> Result<Agreed, Failed> {
    handshake::dial(stream, terms, NO_NUMBER, budget).await
}

fn peer_of(agreed: Agreed) -> KvPeer {
    let Member { id, incarnation, address, .. } = agreed.member;
    KvPeer { worker: WorkerId { node: id, incarnation }, address }
}

struct KvGate {
    me: Member,
    page_tokens: Option<u32>,
    expected: Option<WorkerId>,
}

impl Gate for KvGate {
    fn hello(&self) -> (Member, Option<u32>) {
        (self.me.clone(), self.page_tokens)
    }

    fn judge<'a>(&'a self, peer: &'a Member, _page_tokens: Option<u32>, _inbound: bool) -> Judgement<'a> {
        let is = |id: &WorkerId| id.node == peer.id && id.incarnation == peer.incarnation;
        let verdict = match &self.expected {
            _ if self.me.id == peer.id && self.me.incarnation == peer.incarnation => Err(Refusal::Itself),
            // It was restarted since, or another one has its address: what was to be said is for the one that was.
            Some(expected) if !is(expected) => Err(Refusal::Busy(format!(
                "worker `{}` (incarnation {}) was wanted, and `{}` (incarnation {}) answers",
                expected.node, expected.incarnation, peer.id, peer.incarnation
            ))),
            _ => Ok(()),
        };
        Box::pin(async move { verdict })
    }
}
