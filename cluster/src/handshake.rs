//! How two nodes come to trust each other before either tells the other anything.
//!
//! | from | frame | says |
//! |---|---|---|
//! | dialler | `Hello` | wire versions, who it is, a nonce |
//! | acceptor | `Challenge` | a nonce |
//! | dialler | `Proof` | a hash, under a key derived from the cookie, of both nonces and the hello |
//! | acceptor | `Welcome` | the version agreed on, who it is, a proof of its own |
//! | dialler | `Done` | both are linked |
//!
//! Instead of each answer either end may send `Refused` with the reason, so that both can say it. A nonce is fresh, the
//! ends hash under different words, and all that an end said is hashed with it: no frame can be replayed, sent back or
//! changed. Up to the proof the dialler learns nothing but "wrong cookie", "wrong version" or "no node of ours".
//!
//! The frames have one time limit between them. Judging a proven peer ([`Gate::judge`]) has one of its own, for it may
//! have to wait for a sign of life of another node.

use std::future::Future;
use std::ops::RangeInclusive;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use config::ids::NodeId;
use policies::membership::{DialError, LinkId, Member};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};

mod frame;
mod message;

pub(crate) use frame::Budget;
use frame::{FrameError, read, write};
use message::{Frame, Introduction, Nonce};

#[cfg(test)]
mod tests;

/// Time that a [`Gate`] may take to judge a peer.
pub const JUDGE_LIMIT: Duration = Duration::from_secs(10);

/// What is waited for a peer's judging on top of its limit: a way there and back.
const ON_TOP: Duration = Duration::from_secs(2);

/// Why a node turns another away. Travels, so that both ends can say it; "ours" is always the side that shows it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The cookies differ.
    #[error(
        "wrong cookie: the two nodes have different ones; give both the same `--cookie-file` or ACTOR_NODE_COOKIE"
    )]
    WrongCookie,
    /// No wire version that both speak.
    #[error(
        "no common wire version: this node speaks {} to {}, the other {} to {}; update the older one",
        ours.start(), ours.end(), theirs.start(), theirs.end()
    )]
    Version {
        /// What this node reads.
        ours: RangeInclusive<u16>,
        /// What the other reads.
        theirs: RangeInclusive<u16>,
    },
    /// KV pages of different sizes.
    #[error(
        "different page layouts: pages of {ours} tokens here, of {theirs} there; set `page-tokens` to one value"
    )]
    PageTokens {
        /// Tokens a page here.
        ours: u32,
        /// Tokens a page there.
        theirs: u32,
    },
    /// Another live node has the name.
    #[error("name `{name}` in use by {address}; give one of the two another `--name`, or stop one")]
    NameInUse {
        /// The name.
        name: NodeId,
        /// The node that has it.
        address: String,
    },
    /// The two are linked already; with the name of the node at the other end.
    #[error("already linked to `{0}`")]
    AlreadyLinked(NodeId),
    /// Both ends are one process.
    #[error("this is the node itself")]
    Itself,
    /// The other end is no node of a cluster; says what it looks like.
    #[error("not a node of a cluster: {0}")]
    NotACluster(String),
    /// Not now; says why.
    #[error("busy: {0}")]
    Busy(String),
}

impl Refusal {
    /// Trying again is no use until somebody changes the configuration of a node.
    #[must_use]
    pub fn is_final(&self) -> bool {
        matches!(
            self,
            Self::WrongCookie | Self::Version { .. } | Self::PageTokens { .. } | Self::NameInUse { .. }
        )
    }

    /// Name in metrics.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::WrongCookie => "wrong-cookie",
            Self::Version { .. } => "version",
            Self::PageTokens { .. } => "page-tokens",
            Self::NameInUse { .. } => "name-in-use",
            Self::AlreadyLinked(_) => "already-linked",
            Self::Itself => "itself",
            Self::NotACluster(_) => "not-a-cluster",
            Self::Busy(_) => "busy",
        }
    }

    /// The same as the other end sees it.
    fn mirrored(self) -> Self {
        match self {
            Self::Version { ours, theirs } => Self::Version { ours: theirs, theirs: ours },
            Self::PageTokens { ours, theirs } => Self::PageTokens { ours: theirs, theirs: ours },
            other => other,
        }
    }
}

/// What [`Gate::judge`] gives.
pub type Judgement<'a> = Pin<Box<dyn Future<Output = Result<(), Refusal>> + Send + 'a>>;

/// What the node says about itself and whom it lets in.
pub trait Gate: Send + Sync + 'static {
    /// This node as it is now, and the tokens of its KV pages where it has any.
    fn hello(&self) -> (Member, Option<u32>);

    /// Whether a peer that knows the cookie may come in (`inbound`), or is whom this node wanted to reach. It has
    /// [`JUDGE_LIMIT`] to decide.
    fn judge<'a>(&'a self, peer: &'a Member, page_tokens: Option<u32>, inbound: bool) -> Judgement<'a>;
}

/// What this end brings to a handshake.
#[derive(Clone)]
pub(crate) struct Terms {
    /// Derived from the cookie ([`HANDSHAKE_KEY`]).
    pub(crate) key: [u8; 32],
    /// Wire versions that this build reads.
    pub(crate) versions: RangeInclusive<u16>,
    /// Who decides.
    pub(crate) gate: Arc<dyn Gate>,
    /// Time for that, here and at the peer: [`JUDGE_LIMIT`].
    pub(crate) judge_limit: Duration,
}

/// The purpose of [`Terms::key`].
pub(crate) const HANDSHAKE_KEY: &str = "actor-node cluster cookie v1";

/// A peer that has proven itself and was let in, and has let us in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Agreed {
    pub(crate) member: Member,
    pub(crate) page_tokens: Option<u32>,
    /// Its number for the connection.
    pub(crate) their_link: LinkId,
}

/// A handshake that came to nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failed {
    /// One end turned the other away.
    Refused {
        refusal: Refusal,
        /// The other end did.
        by_peer: bool,
        /// The name that the peer gave; proven or not.
        name: Option<NodeId>,
    },
    /// No answer in time.
    Silent,
    /// The connection broke.
    Broken(String),
}

impl Failed {
    /// As the outcome of a dial.
    pub(crate) fn into_dial_error(self) -> DialError {
        match self {
            Self::Silent => DialError::Unreachable("it does not answer in time".to_owned()),
            Self::Broken(why) => DialError::Unreachable(why),
            Self::Refused { refusal: Refusal::AlreadyLinked(name), .. } => DialError::AlreadyLinked(name),
            Self::Refused { refusal: Refusal::Itself, .. } => DialError::Itself,
            Self::Refused { refusal, .. } if refusal.is_final() => DialError::Final(refusal.to_string()),
            Self::Refused { refusal, .. } => DialError::Refused(refusal.to_string()),
        }
    }
}

/// The dialling end of a handshake over `stream`, which this end numbers `link`.
///
/// # Errors
/// Either end refuses, the peer is silent for longer than the `budget`, or the connection breaks.
pub(crate) async fn dial<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    terms: &Terms,
    link: LinkId,
    budget: &mut Budget,
) -> Result<Agreed, Failed> {
    let (me, page_tokens) = terms.gate.hello();
    let nonce = message::nonce().map_err(Failed::Broken)?;
    let hello = Frame::Hello {
        versions: terms.versions.clone(),
        nonce,
        me: Introduction { member: me.clone(), page_tokens, link },
    }
    .encode();
    budget.run(Duration::ZERO, write(stream, &hello)).await?;

    let theirs = match next(stream, budget, Duration::ZERO, None).await? {
        (Frame::Challenge { nonce }, _) => nonce,
        (other, _) => return Err(out_of_turn(stream, budget, &other).await),
    };
    let proof = prove(&terms.key, b"dial", &nonce, &theirs, &[&hello]);
    budget.run(Duration::ZERO, write(stream, &Frame::Proof { proof }.encode())).await?;

    let (version, peer, proof, said) = match next(stream, budget, terms.judge_limit + ON_TOP, None).await? {
        (Frame::Welcome { version, me, proof }, bytes) => (version, me, proof, bytes),
        (other, _) => return Err(out_of_turn(stream, budget, &other).await),
    };
    let said = Frame::before_proof(&said);
    let judged = if prove(&terms.key, b"accept", &nonce, &theirs, &[&hello, said]) != proof {
        Err(Refusal::WrongCookie)
    } else if !terms.versions.contains(&version) {
        Err(Refusal::Version { ours: terms.versions.clone(), theirs: version..=version })
    } else {
        judge(terms, &peer, false).await
    };
    match judged {
        Ok(()) => {
            budget.run(Duration::ZERO, write(stream, &Frame::Done.encode())).await?;
            Ok(peer.agreed())
        }
        Err(refusal) => Err(refuse(stream, budget, refusal, &me, Some(&peer.member.id)).await),
    }
}

/// The accepting end of a handshake over `stream`, which this end numbers `link`. `proven` is set as soon as the peer
/// has shown that it knows the cookie.
///
/// # Errors
/// As [`dial`].
pub(crate) async fn accept<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    terms: &Terms,
    link: LinkId,
    budget: &mut Budget,
    proven: &AtomicBool,
) -> Result<Agreed, Failed> {
    let (me, page_tokens) = terms.gate.hello();
    let hello = match read_raw(stream, budget, Duration::ZERO).await {
        Ok(bytes) => bytes,
        Err(failed) => return Err(turn_away(stream, budget, failed).await),
    };
    let parsed = Frame::versions_of_hello(&hello).and_then(|theirs| {
        crate::wire::agree(terms.versions.clone(), theirs.clone())
            .map_err(|_| Refusal::Version { ours: terms.versions.clone(), theirs })
    });
    let version = match parsed {
        Ok(version) => version,
        Err(refusal) => return Err(refuse(stream, budget, refusal, &me, None).await),
    };
    let (theirs, peer) = match Frame::decode(&hello) {
        Ok(Frame::Hello { nonce, me, .. }) => (nonce, me),
        Ok(other) => return Err(out_of_turn(stream, budget, &other).await),
        Err(refusal) => return Err(refuse(stream, budget, refusal, &me, None).await),
    };
    let name = peer.member.id.clone();

    let nonce = message::nonce().map_err(Failed::Broken)?;
    budget.run(Duration::ZERO, write(stream, &Frame::Challenge { nonce }.encode())).await?;
    let proof = match next(stream, budget, Duration::ZERO, Some(&name)).await? {
        (Frame::Proof { proof }, _) => proof,
        (other, _) => return Err(out_of_turn(stream, budget, &other).await),
    };
    let judged = if prove(&terms.key, b"dial", &theirs, &nonce, &[&hello]) == proof {
        proven.store(true, Ordering::Relaxed);
        judge(terms, &peer, true).await
    } else {
        Err(Refusal::WrongCookie)
    };
    if let Err(refusal) = judged {
        return Err(refuse(stream, budget, refusal, &me, Some(&name)).await);
    }

    let introduction = Introduction { member: me, page_tokens, link };
    let welcome = Frame::welcome(version, &introduction, |said| {
        prove(&terms.key, b"accept", &theirs, &nonce, &[&hello, said])
    });
    budget.run(Duration::ZERO, write(stream, &welcome)).await?;
    match next(stream, budget, terms.judge_limit + ON_TOP, Some(&name)).await? {
        (Frame::Done, _) => Ok(peer.agreed()),
        (other, _) => Err(out_of_turn(stream, budget, &other).await),
    }
}

/// BLAKE3 under the cookie's key; its equality takes the same time wherever two hashes differ.
fn prove(key: &[u8; 32], end: &[u8], dialler: &Nonce, acceptor: &Nonce, said: &[&[u8]]) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new_keyed(key);
    hasher.update(end).update(dialler).update(acceptor);
    for bytes in said {
        // Lengths keep two texts apart from the same bytes cut elsewhere.
        hasher.update(&(bytes.len() as u64).to_be_bytes()).update(bytes);
    }
    hasher.finalize()
}

async fn judge(terms: &Terms, peer: &Introduction, inbound: bool) -> Result<(), Refusal> {
    // Asked now: a node without pages of its own may have taken over a size since the handshake began.
    let (_, ours) = terms.gate.hello();
    if let (Some(ours), Some(theirs)) = (ours, peer.page_tokens)
        && ours != theirs
    {
        return Err(Refusal::PageTokens { ours, theirs });
    }
    match tokio::time::timeout(terms.judge_limit, terms.gate.judge(&peer.member, peer.page_tokens, inbound))
        .await
    {
        Ok(verdict) => verdict,
        Err(_) => Err(Refusal::Busy("the node could not decide in time".to_owned())),
    }
}

async fn read_raw<S: AsyncRead + Unpin>(
    stream: &mut S,
    budget: &mut Budget,
    extra: Duration,
) -> Result<Vec<u8>, Failed> {
    match budget.run(extra, async { Ok::<_, FrameError>(read(stream).await) }).await? {
        Ok(bytes) => Ok(bytes),
        Err(FrameError::Foreign(looks)) => Err(Failed::Refused {
            refusal: Refusal::NotACluster(looks.to_owned()),
            by_peer: false,
            name: None,
        }),
        Err(FrameError::Io(why)) => Err(Failed::Broken(why)),
    }
}

/// The next frame and its bytes; a refusal by the peer is an error.
async fn next<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    budget: &mut Budget,
    extra: Duration,
    peer: Option<&NodeId>,
) -> Result<(Frame, Vec<u8>), Failed> {
    let bytes = match read_raw(stream, budget, extra).await {
        Ok(bytes) => bytes,
        Err(failed) => return Err(turn_away(stream, budget, failed).await),
    };
    match Frame::decode(&bytes) {
        Ok(Frame::Refused(refusal)) => {
            Err(Failed::Refused { refusal: refusal.mirrored(), by_peer: true, name: peer.cloned() })
        }
        Ok(frame) => Ok((frame, bytes)),
        Err(refusal) => {
            let failed = Failed::Refused { refusal, by_peer: false, name: peer.cloned() };
            Err(turn_away(stream, budget, failed).await)
        }
    }
}

/// Tells the peer why, and gives the error that this end ends with.
async fn refuse<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    budget: &mut Budget,
    refusal: Refusal,
    me: &Member,
    peer: Option<&NodeId>,
) -> Failed {
    let refusal = match (refusal, peer) {
        (Refusal::AlreadyLinked(_), Some(peer)) => Refusal::AlreadyLinked(peer.clone()),
        (refusal, _) => refusal,
    };
    let told = match &refusal {
        Refusal::AlreadyLinked(_) => Refusal::AlreadyLinked(me.id.clone()),
        other => other.clone(),
    };
    tell(stream, budget, told).await;
    Failed::Refused { refusal, by_peer: false, name: peer.cloned() }
}

/// As [`refuse`], for what went wrong before there was anybody to name; does nothing where the peer refused or is gone.
async fn turn_away<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    budget: &mut Budget,
    failed: Failed,
) -> Failed {
    if let Failed::Refused { refusal, by_peer: false, .. } = &failed {
        tell(stream, budget, refusal.clone()).await;
    }
    failed
}

async fn out_of_turn<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    budget: &mut Budget,
    got: &Frame,
) -> Failed {
    let refusal = Refusal::NotACluster(format!("its frame `{}` came out of turn", got.as_str()));
    turn_away(stream, budget, Failed::Refused { refusal, by_peer: false, name: None }).await
}

async fn tell<S: AsyncRead + AsyncWrite + Unpin>(stream: &mut S, budget: &mut Budget, refusal: Refusal) {
    // The peer may be gone or may not read; what matters is that this end is done with it.
    let frame = Frame::Refused(refusal).encode();
    let _ = budget.run(Duration::ZERO, write(stream, &frame)).await;
    let _ = budget.run(Duration::ZERO, async { stream.shutdown().await.map_err(FrameError::from) }).await;
}

/// The bytes of a refusal, for a connection that gets no handshake.
pub(crate) fn refusal_bytes(refusal: Refusal) -> Vec<u8> {
    frame::framed(&Frame::Refused(refusal).encode())
}
