//! Page sets that fail in the middle of a transfer, where a test has planned it.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use ractor::ActorRef;

use super::report::End;
use super::{PageSetMsg, Side};

/// How a page set ends before its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Death {
    /// By a defect of its own.
    Panic,
    /// Somebody kills it.
    Kill,
    /// Somebody kills the worker, or the pool, that it is under.
    Whole,
}

/// Before which message of its kind, counted over all transfers of this end, a page set fails, and how; once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) end: End,
    /// What [`name`] says.
    pub(crate) before: &'static str,
    /// The first is 1.
    pub(crate) nth: u32,
    pub(crate) death: Death,
}

/// By the incarnation of the worker that takes pages in, which both ends know a transfer by.
static PLANS: Mutex<BTreeMap<u64, Plan>> = Mutex::new(BTreeMap::new());

/// Has a page set fail in a transfer to the worker in this life.
pub(crate) fn plan(generation: u64, plan: Plan) {
    PLANS.lock().unwrap_or_else(PoisonError::into_inner).insert(generation, plan);
}

/// Whether what was planned has not come about.
pub(crate) fn is_planned(generation: u64) -> bool {
    PLANS.lock().unwrap_or_else(PoisonError::into_inner).contains_key(&generation)
}

/// A page set is about to handle a message: its last one, if that is planned.
pub(super) async fn strike(side: &Side, message: &PageSetMsg, myself: &ActorRef<PageSetMsg>) {
    let (end, generation) = match side {
        Side::Own => return,
        Side::Receive(receiving) => (End::Receiver, receiving.key().generation),
        Side::Send(sending) => (End::Sender, sending.key().generation),
    };
    match due(end, generation, name(message)) {
        None => {}
        Some(Death::Panic) => panic!("planned"),
        Some(death) => {
            match myself.try_get_supervisor().filter(|_| death == Death::Whole) {
                Some(supervisor) => supervisor.kill(),
                None => myself.kill(),
            }
            // Nothing more is handled.
            std::future::pending::<()>().await;
        }
    }
}

fn due(end: End, generation: u64, name: &'static str) -> Option<Death> {
    let mut plans = PLANS.lock().unwrap_or_else(PoisonError::into_inner);
    let plan = plans.get_mut(&generation).filter(|plan| plan.end == end && plan.before == name)?;
    plan.nth -= 1;
    if plan.nth > 0 {
        return None;
    }
    plans.remove(&generation).map(|plan| plan.death)
}

/// Of a message from the other worker the kind of its header.
fn name(message: &PageSetMsg) -> &'static str {
    match message {
        PageSetMsg::Message(message) => message.header().kind().as_str(),
        PageSetMsg::Linked(_) => "linked",
        PageSetMsg::LinkLost(_) => "link_lost",
        PageSetMsg::Submitted(_) => "submitted",
        PageSetMsg::Begun => "begun here",
        PageSetMsg::Reserved { .. } => "reserved",
        PageSetMsg::Computed { .. } => "computed",
        PageSetMsg::Prefilled(_) => "prefilled",
        PageSetMsg::Exported { .. } => "exported",
        PageSetMsg::Imported { .. } => "imported",
        PageSetMsg::Dropped(_) => "dropped",
        PageSetMsg::Tick => "tick",
        PageSetMsg::Receive(_) => "receive",
        PageSetMsg::Over => "over",
        PageSetMsg::Crash => "crash",
    }
}
