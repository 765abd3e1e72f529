//! What the frames of the handshake hold, as bytes.
//!
//! The head of a hello (tag, magic, versions) has the same shape in all versions for ever, and so have `Refused`'s: nodes
//! that share no version can still say so.

use std::ops::RangeInclusive;

use policies::membership::{LinkId, Member};

use super::{Agreed, Refusal};
use crate::wire::codec::{self, Decode, Encode};

/// What a hello begins with, after its tag.
const MAGIC: &[u8; 4] = b"ACTN";

const HELLO: u8 = 1;
const CHALLENGE: u8 = 2;
const PROOF: u8 = 3;
const WELCOME: u8 = 4;
const DONE: u8 = 5;
const REFUSED: u8 = 6;

/// Bytes of a proof.
const PROOF_BYTES: usize = 32;

/// The longest name or address that a peer may have, in bytes.
const LONGEST_TEXT: usize = 512;

pub(super) type Nonce = [u8; 32];

/// A fresh nonce.
pub(super) fn nonce() -> Result<Nonce, String> {
    let mut nonce = Nonce::default();
    getrandom::fill(&mut nonce).map_err(|e| format!("no random numbers: {e}"))?;
    Ok(nonce)
}

/// What an end says about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Introduction {
    pub(super) member: Member,
    pub(super) page_tokens: Option<u32>,
    pub(super) link: LinkId,
}

impl Introduction {
    pub(super) fn agreed(self) -> Agreed {
        Agreed { member: self.member, page_tokens: self.page_tokens, their_link: self.link }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    Hello { versions: RangeInclusive<u16>, nonce: Nonce, me: Introduction },
    Challenge { nonce: Nonce },
    Proof { proof: blake3::Hash },
    Welcome { version: u16, me: Introduction, proof: blake3::Hash },
    Done,
    Refused(Refusal),
}

impl Frame {
    pub(super) fn as_str(&self) -> &'static str {
        match self {
            Self::Hello { .. } => "hello",
            Self::Challenge { .. } => "challenge",
            Self::Proof { .. } => "proof",
            Self::Welcome { .. } => "welcome",
            Self::Done => "done",
            Self::Refused(_) => "refused",
        }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        match self {
            Self::Hello { versions, nonce, me } => [
                &[HELLO],
                MAGIC.as_slice(),
                &versions.start().to_be_bytes(),
                &versions.end().to_be_bytes(),
                nonce,
                &bytes(&IntroductionForm::from(me)),
            ]
            .concat(),
            Self::Challenge { nonce } => [&[CHALLENGE], nonce.as_slice()].concat(),
            Self::Proof { proof } => [&[PROOF], proof.as_bytes().as_slice()].concat(),
            Self::Welcome { version, me, proof } => Self::welcome(*version, me, |_| *proof),
            Self::Done => vec![DONE],
            Self::Refused(refusal) => [[REFUSED].as_slice(), &bytes(&RefusalForm::from(refusal))].concat(),
        }
    }

    /// A welcome with the proof of all that stands before it.
    pub(super) fn welcome(
        version: u16,
        me: &Introduction,
        prove: impl FnOnce(&[u8]) -> blake3::Hash,
    ) -> Vec<u8> {
        let mut said =
            [[WELCOME].as_slice(), &version.to_be_bytes(), &bytes(&IntroductionForm::from(me))].concat();
        let proof = prove(&said);
        said.extend_from_slice(proof.as_bytes());
        said
    }

    /// The part of a welcome that its proof is of.
    pub(super) fn before_proof(welcome: &[u8]) -> &[u8] {
        &welcome[..welcome.len().saturating_sub(PROOF_BYTES)]
    }

    /// The versions that a hello offers; looks at nothing that may change with them.
    pub(super) fn versions_of_hello(hello: &[u8]) -> Result<RangeInclusive<u16>, Refusal> {
        let rest = hello.strip_prefix(&[HELLO]).and_then(|rest| rest.strip_prefix(MAGIC));
        let Some([a, b, c, d, ..]) = rest else {
            return Err(Refusal::NotACluster("its first frame is no hello".to_owned()));
        };
        Ok(u16::from_be_bytes([*a, *b])..=u16::from_be_bytes([*c, *d]))
    }

    pub(super) fn decode(frame: &[u8]) -> Result<Self, Refusal> {
        let malformed = || Refusal::NotACluster("its frame is malformed".to_owned());
        let (tag, body) = frame.split_first().ok_or_else(malformed)?;
        match *tag {
            HELLO => {
                let versions = Self::versions_of_hello(frame)?;
                let body = body.get(MAGIC.len() + 4..).ok_or_else(malformed)?;
                let (nonce, me) = body.split_first_chunk().ok_or_else(malformed)?;
                Ok(Self::Hello { versions, nonce: *nonce, me: introduction(me).ok_or_else(malformed)? })
            }
            CHALLENGE => Ok(Self::Challenge { nonce: body.try_into().map_err(|_| malformed())? }),
            PROOF => Ok(Self::Proof { proof: hash(body).ok_or_else(malformed)? }),
            WELCOME => {
                let (version, body) = body.split_first_chunk().ok_or_else(malformed)?;
                let (me, proof) = body.split_last_chunk::<PROOF_BYTES>().ok_or_else(malformed)?;
                Ok(Self::Welcome {
                    version: u16::from_be_bytes(*version),
                    me: introduction(me).ok_or_else(malformed)?,
                    proof: blake3::Hash::from_bytes(*proof),
                })
            }
            DONE if body.is_empty() => Ok(Self::Done),
            REFUSED => {
                let form: RefusalForm = codec::decode(body).map_err(|_| malformed())?;
                Ok(Self::Refused(form.into()))
            }
            _ => Err(malformed()),
        }
    }
}

fn hash(bytes: &[u8]) -> Option<blake3::Hash> {
    bytes.try_into().ok().map(blake3::Hash::from_bytes)
}

fn bytes<T: Encode>(value: &T) -> Vec<u8> {
    codec::encode(value).expect("a few short fields are under the codec's limit")
}

fn introduction(bytes: &[u8]) -> Option<Introduction> {
    codec::decode::<IntroductionForm>(bytes).ok()?.into_introduction()
}

#[derive(Encode, Decode)]
struct IntroductionForm {
    name: String,
    incarnation: u64,
    address: String,
    roles: String,
    ready: bool,
    draining: bool,
    http: Option<String>,
    page_tokens: Option<u32>,
    link: u64,
}

impl From<&Introduction> for IntroductionForm {
    fn from(me: &Introduction) -> Self {
        let Introduction { member, page_tokens, link } = me;
        let Member { id, incarnation, address, roles, ready, draining, http } = member.clone();
        Self {
            name: id.as_str().to_owned(),
            incarnation,
            address,
            roles: roles.to_string(),
            ready,
            draining,
            http,
            page_tokens: *page_tokens,
            link: link.0,
        }
    }
}

impl IntroductionForm {
    fn into_introduction(self) -> Option<Introduction> {
        let texts = [&self.name, &self.address].into_iter().chain(&self.http);
        if self.name.is_empty() || texts.into_iter().any(|text| text != &clean(text)) {
            return None;
        }
        let member = Member {
            id: self.name.into(),
            incarnation: self.incarnation,
            address: self.address,
            roles: self.roles.parse().ok()?,
            ready: self.ready,
            draining: self.draining,
            http: self.http,
        };
        Some(Introduction { member, page_tokens: self.page_tokens, link: LinkId(self.link) })
    }
}

/// The variants' order is their number on the wire: add at the end only.
#[derive(Encode, Decode)]
enum RefusalForm {
    WrongCookie,
    Version { ours: (u16, u16), theirs: (u16, u16) },
    PageTokens { ours: u32, theirs: u32 },
    NameInUse { name: String, address: String },
    AlreadyLinked(String),
    Itself,
    NotACluster(String),
    Busy(String),
}

impl From<&Refusal> for RefusalForm {
    fn from(refusal: &Refusal) -> Self {
        let pair = |range: &RangeInclusive<u16>| (*range.start(), *range.end());
        match refusal {
            Refusal::WrongCookie => Self::WrongCookie,
            Refusal::Version { ours, theirs } => Self::Version { ours: pair(ours), theirs: pair(theirs) },
            Refusal::PageTokens { ours, theirs } => Self::PageTokens { ours: *ours, theirs: *theirs },
            Refusal::NameInUse { name, address } => {
                Self::NameInUse { name: name.as_str().to_owned(), address: address.clone() }
            }
            Refusal::AlreadyLinked(name) => Self::AlreadyLinked(name.as_str().to_owned()),
            Refusal::Itself => Self::Itself,
            Refusal::NotACluster(what) => Self::NotACluster(what.clone()),
            Refusal::Busy(why) => Self::Busy(why.clone()),
        }
    }
}

impl From<RefusalForm> for Refusal {
    fn from(form: RefusalForm) -> Self {
        match form {
            RefusalForm::WrongCookie => Self::WrongCookie,
            RefusalForm::Version { ours, theirs } => {
                Self::Version { ours: ours.0..=ours.1, theirs: theirs.0..=theirs.1 }
            }
            RefusalForm::PageTokens { ours, theirs } => Self::PageTokens { ours, theirs },
            RefusalForm::NameInUse { name, address } => {
                Self::NameInUse { name: clean(&name).into(), address: clean(&address) }
            }
            RefusalForm::AlreadyLinked(name) => Self::AlreadyLinked(clean(&name).into()),
            RefusalForm::Itself => Self::Itself,
            RefusalForm::NotACluster(what) => Self::NotACluster(clean(&what)),
            RefusalForm::Busy(why) => Self::Busy(clean(&why)),
        }
    }
}

/// Text of a peer, fit for a log line.
fn clean(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }) {
        if out.len() + c.len_utf8() > LONGEST_TEXT {
            break;
        }
        out.push(c);
    }
    out
}
