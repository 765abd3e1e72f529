//! Who may come in: the handshake of each connection asks here, and the membership's core decides.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use cluster::handshake::{Gate, Judgement, Refusal};
use policies::membership::{Member, Verdict};
use ractor::rpc::CallResult;

use super::MembershipMsg;
use crate::clock;
use crate::doors::Doors;

/// Longest wait for the membership's answer, which it gives at once unless the node is stopping.
const ANSWER: Duration = Duration::from_secs(2);

/// What this node says about itself in a handshake.
#[derive(Clone, Debug)]
pub(super) struct Hello(Arc<RwLock<(Member, Option<u32>)>>);

impl Hello {
    pub(super) fn new(me: Member, page_tokens: Option<u32>) -> Self {
        Self(Arc::new(RwLock::new((me, page_tokens))))
    }

    pub(super) fn member(&self) -> Member {
        self.read().0
    }

    pub(super) fn update(&self, change: impl FnOnce(&mut Member)) {
        change(&mut self.0.write().unwrap_or_else(PoisonError::into_inner).0);
    }

    /// A node without a worker follows the page size of the first worker that it meets: it hashes prompts by it.
    pub(super) fn adopt_page_tokens(&self, theirs: Option<u32>) {
        let mut own = self.0.write().unwrap_or_else(PoisonError::into_inner);
        own.1 = own.1.or(theirs);
    }

    fn read(&self) -> (Member, Option<u32>) {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The handshake's way to the membership.
#[derive(Debug)]
pub(super) struct Doorkeeper {
    pub(super) doors: Doors,
    pub(super) hello: Hello,
}

impl Doorkeeper {
    async fn ask(&self, newcomer: &Member) -> Result<Verdict, Refusal> {
        let stopping = || Refusal::Busy("the node is stopping".to_owned());
        let membership = self.doors.membership().ok_or_else(stopping)?;
        let asked = membership
            .call(|reply| MembershipMsg::Judge { newcomer: newcomer.clone(), reply }, Some(ANSWER))
            .await;
        match asked {
            Ok(CallResult::Success(verdict)) => Ok(verdict),
            _ => Err(stopping()),
        }
    }

    async fn decide(&self, newcomer: &Member) -> Result<(), Refusal> {
        loop {
            match self.ask(newcomer).await? {
                Verdict::Accept => return Ok(()),
                Verdict::AlreadyLinked => return Err(Refusal::AlreadyLinked(newcomer.id.clone())),
                Verdict::Itself => return Err(Refusal::Itself),
                Verdict::NameInUse { address } => {
                    return Err(Refusal::NameInUse { name: newcomer.id.clone(), address });
                }
                Verdict::Wait { until } => {
                    tokio::time::sleep(until.since(clock::now()).to_duration()).await;
                }
            }
        }
    }
}

impl Gate for Doorkeeper {
    fn hello(&self) -> (Member, Option<u32>) {
        self.hello.read()
    }

    fn judge<'a>(&'a self, peer: &'a Member, _page_tokens: Option<u32>, _inbound: bool) -> Judgement<'a> {
        // The handshake has compared the page sizes, and both ends are judged alike.
        Box::pin(self.decide(peer))
    }
}
