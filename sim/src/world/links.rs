//! What the nodes are told of their links.
//!
//! Each node hears of its own links, as live ones do from their membership: a controller forgets the workers that it
//! cannot reach and releases what a lost gateway has booked; a gateway places the requests of lost workers again, and by its
//! own choice while it has no controller; a worker cancels what a lost gateway has there, and takes another name once it was
//! cut off from everybody, since all have given up what it did.

use policies::time::Span;

use super::{World, life};
use crate::event::{ControllerMsg, Event, GatewayMsg, WorkerMsg};
use crate::network::Addr;
use crate::network::links::Linked;
use crate::workload::GATEWAY;

impl World {
    /// Two nodes have a link: who had not noticed that the former one was gone does so first.
    pub(super) fn linked(&mut self, linked: Linked) {
        let [a, b] = linked.nodes;
        for ((who, whom), unaware) in [(a, b), (b, a)].into_iter().zip(linked.unaware) {
            if unaware {
                self.link_lost(who, whom);
            }
        }
        match linked.nodes {
            [who @ (Addr::Gateway | Addr::Controller), Addr::Worker(index)] => self.worker_found(who, index),
            [Addr::Gateway, Addr::Controller] => {
                self.tell(Addr::Gateway, Event::Gateway(GatewayMsg::ControllerFound));
            }
            [Addr::Controller, Addr::Pool(index)] => self.pool_found(index),
            [a @ Addr::Worker(_), b @ Addr::Worker(_)] => {
                self.beats(a);
                self.beats(b);
            }
            _ => {}
        }
    }

    /// What a node does that has no link to another one any more.
    pub(super) fn link_lost(&mut self, who: Addr, whom: Addr) {
        match (who, whom) {
            (Addr::Controller, Addr::Worker(_)) => {
                if let Some(id) = self.met.remove(&(who, whom)) {
                    self.tell(who, Event::Controller(ControllerMsg::Left(id)));
                }
            }
            (Addr::Pool(_), _) | (_, Addr::Pool(_)) => self.pool_link_lost(who, whom),
            (Addr::Controller, _) => {
                self.tell(who, Event::Controller(ControllerMsg::GatewayLeft(GATEWAY)));
            }
            (Addr::Gateway, Addr::Worker(index)) => {
                let known = self.met.remove(&(who, whom));
                if let Some(id) = known.clone() {
                    self.tell(who, Event::StandIn(ControllerMsg::Left(id)));
                }
                let node = life(&self.lives, index).node;
                self.tell(who, Event::Gateway(GatewayMsg::NodeLost(node, known)));
            }
            (Addr::Gateway, _) => self.tell(who, Event::Gateway(GatewayMsg::ControllerLost)),
            (Addr::Worker(index), Addr::Worker(other)) => {
                let peer = life(&self.lives, other).node;
                self.tell(who, Event::Worker(life(&self.lives, index), WorkerMsg::PeerLost(peer)));
            }
            (Addr::Worker(index), Addr::Gateway) => {
                self.tell(who, Event::Worker(life(&self.lives, index), WorkerMsg::GatewayLeft));
            }
            (Addr::Worker(_), Addr::Controller) => {}
        }
        if self.network.links().is_some_and(|links| links.is_alone(who)) {
            match who {
                Addr::Worker(index) => self.renew(index),
                Addr::Pool(index) => self.pools.renew(index),
                Addr::Gateway | Addr::Controller => {}
            }
        }
    }

    /// Tells a node something that it finds out by itself.
    pub(super) fn tell(&mut self, node: Addr, event: Event) {
        self.out.from = node;
        self.out.after(Span::ZERO, event);
    }
}
