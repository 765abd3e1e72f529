//! Whom the gateway asks for places: the controller, or while there is none, one that stands in at its own node and knows
//! the workers that this node is linked to.

use std::collections::{BTreeMap, BTreeSet};

use config::ids::{Attempt, NodeId, RequestId};
use policies::placement::{PlaceRequest, Rejection};
use policies::time::Span;

use crate::event::{ControllerMsg, Event, Outbox};

/// Where the gateway's requests are placed.
#[derive(Debug)]
pub(super) struct Places {
    /// There is a link to the controller.
    controller: bool,
    /// Requests that this node's own controller was asked about last.
    here: BTreeSet<RequestId>,
    /// The next place is this node's own choice.
    own_choice: bool,
    /// Nodes that there is no link to.
    lost: BTreeSet<NodeId>,
    /// Requests for which a target is asked for, or booked; whether at this node's own controller.
    choosing: BTreeMap<RequestId, bool>,
}

impl Places {
    pub(super) const fn new() -> Self {
        Self {
            controller: true,
            here: BTreeSet::new(),
            own_choice: false,
            lost: BTreeSet::new(),
            choosing: BTreeMap::new(),
        }
    }

    /// Asks for a place. Where another one was asked before, that one may have booked, and is told to release.
    pub(super) fn ask(&mut self, request: PlaceRequest, out: &mut Outbox) {
        let (id, attempt) = (request.request, request.attempt);
        let here = std::mem::take(&mut self.own_choice) || !self.controller;
        let was_here = if here { !self.here.insert(id) } else { self.here.remove(&id) };
        self.to(here, ControllerMsg::Place(Box::new(request)), out);
        if here != was_here && (was_here || self.controller) {
            self.to(was_here, ControllerMsg::Release(id, attempt), out);
        }
    }

    /// Tells whoever has placed a request.
    pub(super) fn tell(&self, id: RequestId, message: ControllerMsg, out: &mut Outbox) {
        self.to(self.here.contains(&id), message, out);
    }

    pub(super) fn release(&mut self, id: RequestId, attempt: Attempt, out: &mut Outbox) {
        let here = self.here.remove(&id);
        self.to(here, ControllerMsg::Release(id, attempt), out);
    }

    /// Asks for a target of a request that is to move.
    pub(super) fn choose(&mut self, request: PlaceRequest, out: &mut Outbox) {
        let here = !self.controller;
        self.choosing.insert(request.request, here);
        self.to(here, ControllerMsg::Place(Box::new(request)), out);
    }

    /// Gives back what was asked for a target.
    pub(super) fn unchoose(&mut self, id: RequestId, attempt: Attempt, out: &mut Outbox) {
        if let Some(here) = self.choosing.remove(&id) {
            self.to(here, ControllerMsg::Release(id, attempt), out);
        }
    }

    /// A request is at its target. What was booked for that is its place from now on.
    pub(super) fn switched(&mut self, id: RequestId) {
        match self.choosing.remove(&id) {
            Some(true) => _ = self.here.insert(id),
            _ => _ = self.here.remove(&id),
        }
    }

    /// A request moves no more.
    pub(super) fn moved(&mut self, id: RequestId) {
        self.choosing.remove(&id);
    }

    /// A request is over.
    pub(super) fn forget(&mut self, id: RequestId) {
        self.here.remove(&id);
        self.choosing.remove(&id);
    }

    /// The controller knows no worker for it, and may not have met those yet that this node sees: then this node's own
    /// choice counts.
    pub(super) fn is_own_choice_next(&mut self, id: RequestId, reason: &Rejection) -> bool {
        let knows_none = matches!(reason, Rejection::UnknownModel(_) | Rejection::NoWorker(_));
        self.own_choice = knows_none && !self.here.contains(&id);
        self.own_choice
    }

    /// What a rejection led to is done.
    pub(super) const fn was_rejected(&mut self) {
        self.own_choice = false;
    }

    /// What the controller cannot reach may be fine for this node, whose own links tell what is lost.
    pub(super) fn is_hearsay(&self, id: RequestId, node: &NodeId) -> bool {
        !self.here.contains(&id) && !self.lost.contains(node)
    }

    pub(super) fn node_lost(&mut self, node: NodeId) {
        self.lost.insert(node);
    }

    pub(super) fn node_found(&mut self, node: &NodeId) {
        self.lost.remove(node);
    }

    pub(super) const fn controller(&mut self, there: bool) {
        self.controller = there;
    }

    fn to(&self, here: bool, message: ControllerMsg, out: &mut Outbox) {
        if here {
            out.after(Span::ZERO, Event::StandIn(message));
        } else {
            out.send(Event::Controller(message));
        }
    }
}
