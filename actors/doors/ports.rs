//! What comes in from other nodes: a port hands over bytes, and here they become messages, or are counted as broken.

use std::sync::Arc;

use cluster::wire::{Door, Message, ToController, ToGateway, ToNode, ToPool, ToWorker, open};
use tracing::{debug, trace, warn};

use super::{ControllerMsg, Doors, WorkerMsg};
use crate::clock;
use crate::membership::MembershipMsg;
use crate::pool::PoolMsg;

/// Takes the parcels of one door.
pub(super) type Handler = Arc<dyn Fn(Vec<u8>) + Send + Sync>;

/// The handler of `door` for a node with these doors.
#[must_use]
pub fn handler(door: Door, doors: &Doors) -> Handler {
    let doors = doors.clone();
    match door {
        Door::Node => Arc::new(move |bytes| {
            if let Some(message) = opened::<ToNode>(&bytes) {
                doors.to_membership(MembershipMsg::Wire(message));
            }
        }),
        Door::Gateway => Arc::new(move |bytes| {
            if let Some(message) = opened::<ToGateway>(&bytes) {
                // While the gateway restarts its sessions are gone anyway.
                doors.to_own_gateway(message);
            }
        }),
        Door::Controller => Arc::new(move |bytes| {
            if let Some(message) = opened::<ToController>(&bytes) {
                // While it restarts: gateways ask again when it is back.
                doors.to_controller(ControllerMsg::Wire(message));
            }
        }),
        Door::Worker => Arc::new(move |bytes| {
            if let Some(message) = opened::<ToWorker>(&bytes) {
                worker(&doors, message);
            }
        }),
        Door::Pool => Arc::new(move |bytes| {
            if let Some(message) = opened::<ToPool>(&bytes) {
                // What a pool that restarts is not told costs a copy, or is asked for again.
                doors.to_own_pool(|| PoolMsg::Wire(message.clone()));
            }
        }),
    }
}

/// A submission to a worker that is not there any more is answered: its session must not wait for ever.
fn worker(doors: &Doors, message: ToWorker) {
    let (to, gateway) = match &message {
        ToWorker::Submit { to, gateway, .. }
        | ToWorker::Fetch { to, gateway, .. }
        | ToWorker::Take { to, gateway, .. } => (Some(to.clone()), Some(gateway.clone())),
        _ => (None, None),
    };
    let workers = doors.workers();
    let door = match &to {
        Some(to) => workers.into_iter().find(|(id, _)| id == to),
        // What is left has meaning for the worker that has the request only.
        None => workers.into_iter().next_back(),
    };
    let delivered = door.is_some_and(|(_, door)| door.send_message(WorkerMsg::Wire(message)).is_ok());
    if let (false, Some(to), Some(gateway)) = (delivered, to, gateway) {
        debug!(worker = %to, "a request came for a worker that is gone");
        doors.to_gateway(&gateway, ToGateway::WorkerLost(to));
    }
}

fn opened<M: Message>(bytes: &[u8]) -> Option<M> {
    match open::<M>(clock::now(), bytes) {
        Ok((envelope, message)) => {
            if let (Some((request, attempt)), Some(trace)) = (envelope.request, envelope.trace) {
                // The link between the logs of two nodes: spans do not travel.
                trace!(%request, %attempt, trace_id = format_args!("{:032x}", trace.trace_id), door = M::DOOR.as_str(),
                       remaining = ?envelope.remaining, "message received");
            }
            Some(message)
        }
        Err(e) => {
            warn!(door = M::DOOR.as_str(), error = %e, "a message of another node is not readable");
            metrics::counter!(crate::metrics::WIRE_FAILURES, "door" => M::DOOR.as_str()).increment(1);
            None
        }
    }
}
