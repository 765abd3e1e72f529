//! The node's place in the cluster: an actor around [`policies::membership`].
//!
//! It owns the links to other nodes, tells them by heartbeats that this one lives and what its worker offers, and tells
//! the roles of this process who is there: the controller hears of workers, the gateway of models and of losses, the
//! worker of gateways that are gone. A node alone has one too, with no links: roles then hear of each other the same way.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use cluster::handshake::Refusal;
use cluster::identity::next_incarnation;
use cluster::link::{LinkEvent, Links};
use cluster::port::{Door, PeerDoors};
use cluster::wire::{Beat, PoolAd, ToNode, WorkerAd};
use config::ids::{NodeId, WorkerId};
use config::{Config, Role};
use policies::batch::BatchLoad;
use policies::membership::{DialError, LinkId, Loss, Member, Membership as Core, MembershipEffect, Verdict};
use policies::time::Time;
use ractor::{Actor, ActorProcessingErr, ActorRef, RpcReplyPort, SupervisionEvent};
use ractor_cluster::RactorMessage;
use tokio::sync::watch;
use tracing::{debug, info, warn};

use crate::clock;
use crate::doors::{self, ControllerMsg, Doors, GatewayMsg, WorkerMsg};
use crate::pool::PoolMsg;

mod board;
mod gate;
mod offers;
mod pools;
mod start;

pub use board::{Board, ClusterView, NodeRow, PoolRow, WorkerRow};
pub use start::{Entry, prepare};

use gate::Hello;
use offers::Workers;
use pools::Pools;

/// The core's deadlines are looked at this often.
const TICK: Duration = Duration::from_millis(50);

/// What the membership takes.
#[derive(Debug, RactorMessage)]
pub enum MembershipMsg {
    /// From another node.
    Wire(ToNode),
    /// Something happened to a connection.
    Link(LinkEvent),
    /// A node is at the door: may it come in?
    Judge {
        /// What it says about itself.
        newcomer: Member,
        /// The answer.
        reply: RpcReplyPort<Verdict>,
    },
    /// What this node's worker offers; none while it cannot serve.
    Worker(Option<WorkerAd>),
    /// What this node's pool is; none while it takes no pages.
    Pool(Option<PoolAd>),
    /// The load of this node's worker.
    Load(WorkerId, BatchLoad),
    /// A role of this process was started again and knows nobody.
    Reintroduce,
    /// This node takes nothing new.
    Drain,
    /// Say goodbye to everybody; answered when it is said.
    Leave(RpcReplyPort<()>),
    /// Look at the time.
    Tick,
}

/// What a membership is started with.
#[derive(Debug)]
pub struct MembershipArgs {
    /// The effective configuration.
    pub config: Arc<Config>,
    /// The node's doors.
    pub doors: Doors,
    /// Who this node is.
    pub me: Member,
    /// The way to other nodes; none for a node alone.
    pub entry: Option<Entry>,
    /// Where the view of the cluster is published.
    pub board: Board,
    /// Told why the node cannot go on.
    pub fatal: watch::Sender<Option<String>>,
}

/// The membership of a node.
#[derive(Debug)]
pub struct Membership;

/// The membership's mutable state.
#[derive(Debug)]
pub struct MembershipState {
    config: Arc<Config>,
    doors: Doors,
    core: Core,
    links: Option<Links>,
    hello: Hello,
    peers: BTreeMap<LinkId, (NodeId, PeerDoors)>,
    /// Beats of nodes whose link is not reported yet.
    early: BTreeMap<(NodeId, u64), Beat>,
    sessions: BTreeMap<NodeId, u32>,
    workers: Workers,
    pools: Pools,
    next_beat: Time,
    /// Whom to tell when the goodbye has been read.
    leaving: Option<RpcReplyPort<()>>,
    board: Board,
    fatal: watch::Sender<Option<String>>,
}

impl Actor for Membership {
    type Msg = MembershipMsg;
    type State = MembershipState;
    type Arguments = MembershipArgs;

    async fn pre_start(
        &self,
        myself: ActorRef<MembershipMsg>,
        args: MembershipArgs,
    ) -> Result<MembershipState, ActorProcessingErr> {
        let MembershipArgs { config, doors, me, entry, board, fatal } = args;
        doors.set_membership(myself.clone());
        let seeds = config.cluster.all_seeds();
        let core = Core::new(start::core_config(&config.cluster), me.clone(), seeds);
        let page_tokens = u32::try_from(config.engine.page_tokens)?;
        let hello = Hello::new(me, config.node.roles.contains(Role::Worker).then_some(page_tokens));
        let links = match entry {
            Some(entry) => Some(entry.open(&doors, &hello, myself.get_cell()).await?),
            None => None,
        };
        let mut state = MembershipState {
            config,
            doors,
            core,
            links,
            hello,
            peers: BTreeMap::new(),
            early: BTreeMap::new(),
            sessions: BTreeMap::new(),
            workers: Workers::default(),
            pools: Pools::default(),
            next_beat: Time::ZERO,
            leaving: None,
            board,
            fatal,
        };
        state.refresh_me();
        let mut fx = Vec::new();
        state.core.start(clock::now(), &mut fx);
        state.carry_out(fx);
        state.publish();
        myself.send_interval(TICK, || MembershipMsg::Tick);
        Ok(state)
    }

    async fn handle(
        &self,
        _myself: ActorRef<MembershipMsg>,
        message: MembershipMsg,
        state: &mut MembershipState,
    ) -> Result<(), ActorProcessingErr> {
        state.handle(message);
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        _myself: ActorRef<MembershipMsg>,
        event: SupervisionEvent,
        _state: &mut MembershipState,
    ) -> Result<(), ActorProcessingErr> {
        match event {
            // The node server restarts nothing of ours; without it this node is deaf.
            SupervisionEvent::ActorFailed(who, why) => Err(format!("{who:?} failed: {why}").into()),
            _ => Ok(()),
        }
    }
}

impl MembershipState {
    fn handle(&mut self, message: MembershipMsg) {
        let now = clock::now();
        let mut fx = Vec::new();
        // What comes often is shown at the next tick.
        let shown = !matches!(
            message,
            MembershipMsg::Load(..) | MembershipMsg::Pool(_) | MembershipMsg::Wire(ToNode::Beat(_))
        );
        match message {
            MembershipMsg::Wire(ToNode::Beat(beat)) => self.beat(now, *beat, &mut fx),
            MembershipMsg::Wire(ToNode::Goodbye { id, incarnation, reason }) => {
                for link in self.links_to(&id, incarnation) {
                    info!(node = %id, reason, "a node said goodbye");
                    self.core.goodbye(now, link, &mut fx);
                }
            }
            MembershipMsg::Link(event) => self.link(now, event, &mut fx),
            MembershipMsg::Judge { newcomer, reply } => {
                // A newcomer that has given up meanwhile needs no answer.
                let _ = reply.send(self.core.judge(now, &newcomer));
            }
            MembershipMsg::Worker(ad) => {
                self.workers.set_own(ad);
                self.refresh_me();
                self.core.set_me(now, self.hello.member(), &mut fx);
                self.workers_changed();
                fx.push(MembershipEffect::BeatNow);
            }
            MembershipMsg::Pool(ad) => {
                self.pools.set_own(ad);
                self.pools.announce(&self.doors);
            }
            MembershipMsg::Load(worker, load) => self.workers.set_own_load(&worker, load),
            MembershipMsg::Reintroduce => {
                self.workers.forget_announced();
                self.pools.forget_announced();
                self.pools.announce(&self.doors);
                self.workers_changed();
            }
            MembershipMsg::Drain => {
                // What it holds goes with it, or is on disk.
                self.pools.set_own(None);
                self.pools.announce(&self.doors);
                self.hello.update(|me| me.draining = true);
                self.core.set_me(now, self.hello.member(), &mut fx);
                fx.push(MembershipEffect::BeatNow);
            }
            MembershipMsg::Leave(reply) => {
                self.leaving = Some(reply);
                let me = self.core.me();
                self.doors.to_peers(&ToNode::Goodbye {
                    id: me.id.clone(),
                    incarnation: me.incarnation,
                    reason: "it was stopped".to_owned(),
                });
                self.left();
            }
            MembershipMsg::Tick => {
                self.core.tick(now, &mut fx);
                if now >= self.next_beat {
                    fx.push(MembershipEffect::BeatNow);
                }
            }
        }
        self.carry_out(fx);
        if shown {
            self.publish();
        }
        crate::metrics::enforce("membership", self.core.check());
    }

    fn beat(&mut self, now: Time, beat: Beat, fx: &mut Vec<MembershipEffect>) {
        let (id, incarnation) = (beat.member.id.clone(), beat.member.incarnation);
        // It comes over each of its links, and does not say which.
        let mut links: Vec<LinkId> = self.links_to(&id, incarnation);
        if links.is_empty() {
            // It has taken a new incarnation on a link that it made under the old one.
            let former =
                self.core.links().into_iter().filter(|(_, of, life)| *of == id && *life < incarnation);
            links = former.map(|(link, ..)| link).collect();
        }
        if links.is_empty() {
            self.early.insert((id, incarnation), beat);
            return;
        }
        let Beat { member, worker, pool, peers, sessions } = beat;
        for link in links {
            self.core.beat(now, link, member.clone(), &peers, fx);
        }
        self.sessions.insert(id.clone(), sessions);
        self.workers.set_other(id.clone(), worker);
        self.pools.set_other(id, pool);
        self.pools.announce(&self.doors);
        self.workers_changed();
    }

    fn link(&mut self, now: Time, event: LinkEvent, fx: &mut Vec<MembershipEffect>) {
        match event {
            LinkEvent::Up { link, their_link: _, member, page_tokens, outbound, doors } => {
                self.hello.adopt_page_tokens(page_tokens);
                self.peers.insert(link, (member.id.clone(), doors));
                let key = (member.id.clone(), member.incarnation);
                self.core.linked(now, link, member, outbound.as_deref(), fx);
                self.refresh_doors(&key.0);
                let early = self.early.remove(&key);
                self.early.clear();
                if let Some(beat) = early {
                    self.beat(now, beat, fx);
                }
                fx.push(MembershipEffect::BeatNow);
            }
            LinkEvent::Down { link, why } => {
                debug!(link = link.0, why, "a link ended");
                self.core.unlinked(now, link, fx);
                if let Some((id, _)) = self.peers.remove(&link) {
                    self.refresh_doors(&id);
                }
                self.left();
            }
            LinkEvent::Doors { link, doors } => {
                if let Some((id, known)) = self.peers.get_mut(&link) {
                    *known = doors;
                    let id = id.clone();
                    self.refresh_doors(&id);
                }
            }
            LinkEvent::DialFailed { address, error } => {
                let (reason, trouble) = match &error {
                    DialError::Unreachable(why) | DialError::Refused(why) | DialError::Final(why) => {
                        (why.clone(), true)
                    }
                    DialError::AlreadyLinked(id) => (format!("already linked to {id}"), false),
                    DialError::Itself => ("it is this node".to_owned(), false),
                };
                if self.core.dial_failed(now, &address, error, fx) && trouble {
                    warn!(address, reason, "cannot reach a node; trying again");
                } else {
                    debug!(address, reason, "no connection to a node");
                }
            }
            LinkEvent::Refused { peer, name, refusal, by_peer } => {
                metrics::counter!(crate::metrics::REFUSED_NODES, "reason" => refusal.as_str()).increment(1);
                let name = name.map_or_else(|| "?".to_owned(), |name| name.to_string());
                // Both ends that dial at once, or a seed that is this node: no reason to worry anybody.
                if matches!(refusal, Refusal::AlreadyLinked(_) | Refusal::Itself) {
                    debug!(peer, name, by_peer, reason = %refusal, "a connection was not needed");
                } else {
                    warn!(peer, name, by_peer, reason = %refusal, "a node was turned away");
                }
            }
        }
    }

    fn carry_out(&mut self, fx: Vec<MembershipEffect>) {
        let mut beat = false;
        for effect in fx {
            match effect {
                MembershipEffect::Dial { address } => {
                    if let (Some(links), None) = (&self.links, &self.leaving) {
                        links.dial(address);
                    }
                }
                MembershipEffect::Close { link, why } => {
                    if let Some((id, _)) = self.peers.remove(&link) {
                        self.refresh_doors(&id);
                    }
                    if let Some(links) = &self.links {
                        links.close(link, why);
                    }
                }
                MembershipEffect::Up(member) => {
                    info!(node = %member.id, incarnation = member.incarnation, address = member.address,
                          roles = %member.roles, "node joined");
                    self.leader_changed();
                    beat = true;
                }
                MembershipEffect::Changed { member, state } => {
                    info!(node = %member.id, state = state.as_str(), draining = member.draining, "node changed");
                    self.leader_changed();
                }
                MembershipEffect::Down { id, incarnation, why } => self.down(&id, incarnation, why),
                MembershipEffect::Isolated if self.leaving.is_some() => {}
                MembershipEffect::Isolated => {
                    warn!("cut off from all other nodes; going on under a new incarnation");
                    let incarnation = next_incarnation();
                    self.hello.update(|me| me.incarnation = incarnation);
                    let mut more = Vec::new();
                    self.core.set_me(clock::now(), self.hello.member(), &mut more);
                    self.doors.to_own_workers(|| WorkerMsg::Renew);
                    self.doors.to_own_pool(|| PoolMsg::Renew);
                    self.carry_out(more);
                }
                MembershipEffect::Fatal(reason) => {
                    // The node is stopping already where nobody listens.
                    let _ = self.fatal.send(Some(reason));
                }
                MembershipEffect::BeatNow => beat = true,
            }
        }
        if beat {
            self.send_beats();
        }
    }

    /// Who was told goodbye closes the link: then it has been read, and the process may end.
    fn left(&mut self) {
        if self.peers.is_empty()
            && let Some(reply) = self.leaving.take()
        {
            // The node may have given up waiting.
            let _ = reply.send(());
        }
    }

    /// What that life of a node did for this one is lost.
    fn down(&mut self, id: &NodeId, incarnation: u64, why: Loss) {
        if why == Loss::Goodbye {
            info!(node = %id, incarnation, "node left");
        } else {
            warn!(node = %id, incarnation, why = why.as_str(), "node lost");
        }
        metrics::counter!(crate::metrics::LOST_NODES, "why" => why.as_str()).increment(1);
        self.sessions.remove(id);
        self.workers.set_other(id.clone(), None);
        self.pools.set_other(id.clone(), None);
        self.pools.announce(&self.doors);
        self.workers_changed();
        // Also what was placed on a life of its worker that this node has not heard of yet: a controller may be ahead.
        self.doors.to_own_gateways(|| GatewayMsg::NodeLost(id.clone()));
        self.doors.to_controller(ControllerMsg::GatewayLeft(id.clone()));
        self.doors.to_own_workers(|| WorkerMsg::GatewayLeft(id.clone()));
        self.leader_changed();
    }

    fn send_beats(&mut self) {
        let heartbeat = Duration::from(self.config.cluster.heartbeat);
        self.next_beat = clock::now() + heartbeat.into();
        metrics::gauge!(crate::metrics::ANNOUNCED_ACTORS).set(cluster::port::announced_actors() as f64);
        if self.peers.is_empty() {
            return;
        }
        let beat = Beat {
            member: self.core.me().clone(),
            worker: self.workers.own().cloned(),
            pool: self.pools.own().cloned(),
            peers: self.core.peers(),
            sessions: self.doors.sessions(),
        };
        let Some(bytes) = doors::sealed(&ToNode::Beat(Box::new(beat))) else { return };
        // Over every link, for each one's silence is watched.
        for (_, peer) in self.peers.values() {
            // A link that is breaking is reported.
            let _ = peer.send(Door::Node, bytes.clone());
        }
    }

    /// A node with a worker is ready when that serves, any other when it runs.
    fn refresh_me(&mut self) {
        let waits = self.config.node.roles.contains(Role::Worker) && self.workers.own().is_none();
        self.hello.update(|me| me.ready = !waits);
    }

    /// The doors of a node are those of the link that is used for it.
    fn refresh_doors(&mut self, id: &NodeId) {
        let used = self.core.link_of(id).and_then(|link| self.peers.get(&link));
        let any = || self.peers.values().find(|(of, _)| of == id);
        match used.or_else(any) {
            Some((_, doors)) => self.doors.set_peer(id.clone(), doors.clone()),
            None => self.doors.remove_peer(id),
        }
    }

    fn links_to(&self, id: &NodeId, incarnation: u64) -> Vec<LinkId> {
        let links = self.core.links().into_iter();
        links.filter(|(_, of, life)| of == id && *life == incarnation).map(|(link, ..)| link).collect()
    }

    fn workers_changed(&mut self) {
        self.workers.announce(&self.doors);
    }

    fn leader_changed(&self) {
        let leader = self.core.leader();
        metrics::gauge!(crate::metrics::WITHOUT_CONTROLLER).set(if leader.is_none() { 1.0 } else { 0.0 });
        let other = leader.clone().filter(|id| *id != self.core.me().id);
        if self.doors.set_leader(other.as_ref()) {
            match leader {
                Some(leader) => info!(%leader, "requests are placed by"),
                None => warn!("no controller is there; requests are placed by this node's own choice"),
            }
            self.doors.to_own_gateways(|| GatewayMsg::ControllerChanged);
        }
    }

    fn publish(&self) {
        let view = self.core.members();
        for state in ["joined", "ready", "suspect", "left"] {
            let count = view.iter().filter(|m| m.state.as_str() == state).count();
            metrics::gauge!(crate::metrics::NODES, "state" => state).set(count as f64);
        }
        let joined = self.core.is_joined();
        let offers = (&self.workers, &self.pools);
        self.board.publish(&view, joined, self.core.leader(), offers, &self.sessions, &self.doors);
    }
}
