//! What comes from other nodes, and what is heard of the links to them.

use config::ids::{NodeId, WorkerId};
use policies::invariant::Broken;
use policies::time::Time;

use super::Gateway;
use crate::event::{ControllerMsg, GatewayMsg, Outbox};

impl Gateway {
    /// A message came.
    ///
    /// # Errors
    /// A broken invariant of a session that it is for.
    pub fn handle(&mut self, now: Time, message: GatewayMsg, out: &mut Outbox) -> Result<(), Broken> {
        match message {
            GatewayMsg::Produced(effects) => self.produced(now, effects, out),
            GatewayMsg::Placement(answer) => self.placement(now, answer, out),
            GatewayMsg::Accepted(request, attempt) => {
                if self.tells_accepted {
                    self.places.tell(request, ControllerMsg::Accepted(request, attempt), out);
                }
                self.with(now, request, out, |s, fx| s.accepted(now, attempt, fx))
            }
            GatewayMsg::Refused(request, attempt, refusal) => {
                self.with(now, request, out, |s, fx| s.refused(now, attempt, refusal, fx))
            }
            GatewayMsg::Fetched(request, attempt, result) => {
                self.with(now, request, out, |s, fx| s.fetched(now, attempt, result, fx))
            }
            GatewayMsg::Unreachable(request, worker) => {
                self.with(now, request, out, |s, fx| s.worker_lost(now, &worker, fx))
            }
            GatewayMsg::NodeLost(node, known) => self.node_lost(now, &node, known.as_ref(), out),
            GatewayMsg::NodeFound(node) => {
                self.places.node_found(&node);
                Ok(())
            }
            GatewayMsg::ControllerLost | GatewayMsg::ControllerFound => {
                self.places.controller(matches!(message, GatewayMsg::ControllerFound));
                self.each(now, out, |session, fx| session.ask_again(now, fx))
            }
        }
    }

    /// The link to a worker is gone; `known` is the life of it that was at the other end.
    fn node_lost(
        &mut self,
        now: Time,
        node: &NodeId,
        known: Option<&WorkerId>,
        out: &mut Outbox,
    ) -> Result<(), Broken> {
        self.places.node_lost(node.clone());
        self.each(now, out, |session, fx| {
            let both = [session.moving_to(), session.worker()].into_iter().flatten();
            let there: Vec<WorkerId> = both.filter(|worker| worker.node == *node).cloned().collect();
            for worker in known.into_iter().chain(&there) {
                session.worker_lost(now, worker, fx);
            }
        })
    }
}
