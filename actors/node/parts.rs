//! The root of the supervision tree: starts the parts of this process, restarts what fails.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use cluster::identity::next_incarnation;
use cluster::kv_events::Feed;
use config::ids::WorkerId;
use config::{ClusterSecrets, Config, Role, RoleSet};
use metrics_exporter_prometheus::PrometheusHandle;
use policies::membership::Member;
use policies::rng;
use ractor::rpc::CallResult;
use ractor::{Actor, ActorCell, ActorProcessingErr, ActorRef, RpcReplyPort, SupervisionEvent};
use ractor_cluster::RactorMessage;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tracing::error;

use super::trouble::trouble;
use crate::admin::{self, Admin, Control};
use crate::controller::consulted::makers;
use crate::controller::{Controller, ControllerArgs};
use crate::doors::{Doors, WorkerMsg};
use crate::gateway::auth::Keys;
use crate::gateway::record::Recorder;
use crate::gateway::{Gateway, GatewayArgs, Trouble};
use crate::kv::KvEntry;
use crate::membership::{Entry, Membership, MembershipArgs, MembershipMsg};
use crate::pool::{Pool, PoolArgs, PoolMsg};
use crate::supervise::{Backoff, TaskKind, spawn};
use crate::worker::steps::StepLog;
use crate::worker::{self, Worker, WorkerArgs, WorkerHealth};

/// Longest wait for an answer of one of our own actors.
const OBSERVE: Duration = Duration::from_secs(1);

/// The root of the supervision tree.
#[derive(Debug)]
pub(super) struct Node;

/// What a node is started with.
#[derive(Debug)]
pub(super) struct NodeArgs {
    pub(super) config: Arc<Config>,
    pub(super) secrets: ClusterSecrets,
    pub(super) me: Member,
    pub(super) doors: Doors,
    pub(super) control: Control,
    pub(super) listener: Arc<std::net::TcpListener>,
    pub(super) figures: PrometheusHandle,
    pub(super) health: watch::Sender<WorkerHealth>,
    pub(super) fatal: watch::Sender<Option<String>>,
    pub(super) kv: Option<Arc<KvEntry>>,
    /// The pool's.
    pub(super) pool_kv: Option<Arc<KvEntry>>,
    pub(super) kv_events: Option<Feed>,
    pub(super) recorder: Option<Arc<Recorder>>,
    pub(super) step_log: Option<Arc<StepLog>>,
}

impl NodeArgs {
    /// The configuration as the last reload left it.
    fn config_now(&self) -> Arc<Config> {
        self.control.reloader.as_ref().map_or_else(|| self.config.clone(), |reloader| reloader.config())
    }
}

/// A part of a node that is started, and started again when it fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Membership,
    /// The controller role, or a stand-in for it beside a gateway.
    Controller,
    Pool,
    Gateway,
    Worker,
}

impl Part {
    /// In the order in which they start: each finds those that it tells about itself.
    const ALL: [Self; 5] = [Self::Membership, Self::Controller, Self::Pool, Self::Gateway, Self::Worker];

    fn is_part_of(self, roles: &RoleSet) -> bool {
        match self {
            Self::Membership => true,
            Self::Controller => roles.contains(Role::Controller) || roles.contains(Role::Gateway),
            Self::Pool => roles.contains(Role::Pool),
            Self::Gateway => roles.contains(Role::Gateway),
            Self::Worker => roles.contains(Role::Worker),
        }
    }

    const fn as_str(self) -> &'static str {
        match self {
            Self::Membership => "membership",
            Self::Controller => "controller",
            Self::Pool => "pool",
            Self::Gateway => "gateway",
            Self::Worker => "worker",
        }
    }
}

/// What a node takes.
#[derive(Debug, RactorMessage)]
pub(super) enum NodeMsg {
    /// Start a part again that has failed.
    Restart(Part),
    /// Take nothing new.
    Drain,
    /// How many sessions live here, and requests of other nodes' gateways; one more while the pool writes its pages.
    Work(RpcReplyPort<usize>),
    /// End what still runs, with this error.
    Abort(&'static str),
    /// Write the last responses and close the listener.
    Close(RpcReplyPort<()>),
}

/// The node's mutable state.
#[derive(Debug)]
pub(super) struct NodeState {
    args: NodeArgs,
    /// Used up by the membership's first start.
    entry: Option<Entry>,
    address: Option<SocketAddr>,
    admin: Option<watch::Sender<bool>>,
    children: Vec<Child>,
    gateway: Option<Gateway>,
    worker: Option<ActorRef<worker::Msg>>,
    pool: Option<ActorRef<PoolMsg>>,
}

#[derive(Debug)]
struct Child {
    part: Part,
    cell: Option<ActorCell>,
    backoff: Backoff,
}

impl Actor for Node {
    type Msg = NodeMsg;
    type State = NodeState;
    type Arguments = (NodeArgs, Option<Entry>);

    async fn pre_start(
        &self,
        myself: ActorRef<NodeMsg>,
        (args, entry): (NodeArgs, Option<Entry>),
    ) -> Result<NodeState, ActorProcessingErr> {
        let address = entry.as_ref().map(Entry::address);
        let (children, admin, gateway, worker, pool) = (Vec::new(), None, None, None, None);
        let mut state = NodeState { args, entry, address, admin, children, gateway, worker, pool };
        let roles = state.args.config.node.roles.clone();
        for part in Part::ALL {
            if part.is_part_of(&roles) {
                state.children.push(Child { part, cell: None, backoff: Backoff::default() });
                state.start(&myself, part).await?;
            }
        }
        if !roles.contains(Role::Gateway) {
            state.serve_admin()?;
        }
        Ok(state)
    }

    async fn handle(
        &self,
        myself: ActorRef<NodeMsg>,
        message: NodeMsg,
        state: &mut NodeState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            NodeMsg::Restart(part) => {
                if let Err(e) = state.start(&myself, part).await {
                    error!(part = part.as_str(), error = %e, "cannot restart a part of the node");
                    state.restart_later(&myself, part);
                }
            }
            NodeMsg::Drain => {
                state.args.doors.to_membership(MembershipMsg::Drain);
                if let Some(gateway) = &state.gateway {
                    gateway.drain();
                }
                if let Some(worker) = &state.worker {
                    // A worker that is being restarted takes nothing anyway.
                    let _ = worker.cast(worker::Msg::Door(WorkerMsg::Drain));
                }
                if let Some(pool) = &state.pool {
                    // One that is being restarted has nothing to write.
                    let _ = pool.cast(PoolMsg::Close);
                }
            }
            NodeMsg::Work(reply) => {
                let sessions = state.gateway.as_ref().map_or(0, Gateway::sessions);
                // The drain may have given up waiting.
                let _ = reply.send(sessions + state.requests().await + state.writing().await);
            }
            NodeMsg::Abort(why) => {
                if let Some(gateway) = &state.gateway {
                    gateway.abort_sessions(why);
                }
            }
            NodeMsg::Close(reply) => {
                if let Some(gateway) = state.gateway.take() {
                    gateway.stop().await;
                }
                state.say_goodbye().await;
                let _ = reply.send(());
            }
        }
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        myself: ActorRef<NodeMsg>,
        event: SupervisionEvent,
        state: &mut NodeState,
    ) -> Result<(), ActorProcessingErr> {
        if let SupervisionEvent::ActorFailed(who, reason) = event {
            let id = who.get_id();
            let failed =
                state.children.iter().find(|c| c.cell.as_ref().is_some_and(|cell| cell.get_id() == id));
            if let Some(part) = failed.map(|c| c.part) {
                error!(part = part.as_str(), reason = %reason, "a part of the node failed");
                state.restart_later(&myself, part);
            }
        }
        Ok(())
    }
}

impl NodeState {
    fn restart_later(&mut self, myself: &ActorRef<NodeMsg>, part: Part) {
        metrics::counter!(crate::metrics::RESTARTS, "actor" => part.as_str()).increment(1);
        if let Some(child) = self.children.iter_mut().find(|c| c.part == part) {
            myself.send_after(child.backoff.next_delay(std::time::Instant::now()), move || {
                NodeMsg::Restart(part)
            });
        }
    }

    /// Starts a part; the same path at the node's start and after a failure.
    async fn start(&mut self, myself: &ActorRef<NodeMsg>, part: Part) -> Result<(), ActorProcessingErr> {
        let (args, supervisor) = (&self.args, myself.get_cell());
        let node = args.me.id.clone();
        let cell = match part {
            Part::Membership => {
                let entry = match (self.entry.take(), self.address) {
                    (None, Some(address)) => Entry::reopen(&args.config, &args.secrets, address).await?,
                    (entry, _) => entry,
                };
                let args = MembershipArgs {
                    config: args.config.clone(),
                    doors: args.doors.clone(),
                    me: args.me.clone(),
                    entry,
                    board: args.control.board.clone(),
                    fatal: args.fatal.clone(),
                };
                let cell = Actor::spawn_linked(None, Membership, args, supervisor).await?.0.get_cell();
                if let Some(worker) = &self.worker {
                    // A worker that has failed too says what it offers when it is up again.
                    let _ = worker.cast(worker::Msg::Announce);
                }
                if let Some(pool) = &self.pool {
                    // As above.
                    let _ = pool.cast(PoolMsg::Announce);
                }
                cell
            }
            Part::Controller => {
                let config = args.config.controller.clone();
                let seed = rng::mix64(next_incarnation());
                let stand_in = !args.config.node.roles.contains(Role::Controller);
                // What was reloaded counts after a restart of the controller too.
                let policies = if stand_in { Vec::new() } else { makers(&args.config_now()) };
                let args =
                    ControllerArgs { node, doors: args.doors.clone(), config, seed, stand_in, policies };
                let cell = Actor::spawn_linked(None, Controller, args, supervisor).await?.0.get_cell();
                self.args.doors.to_membership(MembershipMsg::Reintroduce);
                cell
            }
            Part::Gateway => {
                let figures = args.figures.clone();
                let gateway_args = GatewayArgs {
                    node,
                    incarnation: next_incarnation(),
                    doors: args.doors.clone(),
                    http: args.config.http.clone(),
                    gateway: args.config_now().gateway.clone(),
                    listener: TcpListener::from_std(args.listener.try_clone()?)?,
                    metrics: Arc::new(move || figures.render()),
                    trouble: self.trouble(),
                    control: args.control.clone(),
                    keys: Keys::new(args.config_now().auth.api_keys()?),
                    recorder: args.recorder.clone(),
                };
                let gateway = Gateway::start(gateway_args, Some(supervisor)).await?;
                let cell = gateway.cell();
                self.gateway = Some(gateway);
                self.args.doors.to_membership(MembershipMsg::Reintroduce);
                cell
            }
            Part::Worker => {
                let args = WorkerArgs {
                    node,
                    incarnation: next_incarnation(),
                    doors: args.doors.clone(),
                    config: args.config.clone(),
                    reloader: args.control.reloader.clone(),
                    health: args.health.clone(),
                    kv: args.kv.clone(),
                    kv_events: args.kv_events.clone(),
                    step_log: args.step_log.clone(),
                };
                let (worker, _) = Actor::spawn_linked(None, Worker, args, supervisor).await?;
                self.worker = Some(worker.clone());
                worker.get_cell()
            }
            Part::Pool => {
                let id = WorkerId::new(node, next_incarnation());
                let args = PoolArgs::of(&args.config, id, args.doors.clone(), args.pool_kv.clone());
                let (pool, _) = Actor::spawn_linked(None, Pool, args, supervisor).await?;
                self.pool = Some(pool.clone());
                pool.get_cell()
            }
        };
        if let Some(child) = self.children.iter_mut().find(|c| c.part == part) {
            child.cell = Some(cell);
        }
        Ok(())
    }

    /// Requests at this node's worker, whoever's they are.
    async fn requests(&self) -> usize {
        let Some(worker) = &self.worker else { return 0 };
        let ask = |reply| worker::Msg::Door(WorkerMsg::Observe(reply));
        match worker.call(ask, Some(OBSERVE)).await {
            // Those that are kept for another worker to take are requests as well.
            Ok(CallResult::Success(stats)) => stats.load.requests as usize,
            // One that does not answer has nothing to wait for.
            _ => 0,
        }
    }

    /// 1 while pages have to be written to disk before the pool may end.
    async fn writing(&self) -> usize {
        let Some(pool) = &self.pool else { return 0 };
        match pool.call(PoolMsg::IsFlushed, Some(OBSERVE)).await {
            Ok(CallResult::Success(false)) => 1,
            // One that does not answer has nothing to wait for.
            _ => 0,
        }
    }

    /// The others need not find out by themselves that this node is gone.
    async fn say_goodbye(&self) {
        if let Some(membership) = self.args.doors.membership() {
            // One that does not answer is lost to the others anyway.
            let _ = membership.call(MembershipMsg::Leave, Some(OBSERVE)).await;
        }
    }

    fn trouble(&self) -> Trouble {
        let (config, control) = (self.args.config.clone(), self.args.control.clone());
        let health = self.args.health.subscribe();
        Arc::new(move || {
            // What was reloaded counts here too.
            let config = control.reloader.as_ref().map_or_else(|| config.clone(), |r| r.config());
            trouble(&config, &health.borrow(), &control.board.view())
        })
    }

    /// Health and figures of a node without a gateway.
    fn serve_admin(&mut self) -> Result<(), ActorProcessingErr> {
        let figures = self.args.figures.clone();
        let admin = Admin {
            control: self.args.control.clone(),
            http: self.args.config.http.clone(),
            metrics: Arc::new(move || figures.render()),
            trouble: self.trouble(),
        };
        let listener = TcpListener::from_std(self.args.listener.try_clone()?)?;
        let (stop, stopped) = watch::channel(false);
        spawn(TaskKind::Node, "http", admin::serve(admin, listener, stopped));
        self.admin = Some(stop);
        Ok(())
    }
}
