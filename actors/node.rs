//! A node: binds, starts the roles of this process, restarts what fails, drains and stops.
//!
//! Listeners are bound before anything is loaded, so that a taken port is known in the first second. The node actor
//! supervises the role actors; a role that fails is started again with backoff.

use std::io::Write;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use cluster::identity::next_incarnation;
use config::ids::NodeId;
use config::{Config, Role};
use metrics_exporter_prometheus::PrometheusHandle;
use policies::rng;
use ractor::rpc::CallResult;
use ractor::{Actor, ActorCell, ActorProcessingErr, ActorRef, RpcReplyPort, SupervisionEvent};
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tracing::{error, info, warn};

use crate::controller::{Controller, ControllerArgs};
use crate::doors::{Doors, WorkerMsg};
use crate::gateway::{Gateway, GatewayArgs};
use crate::pool::{Pool, PoolArgs};
use crate::supervise::Backoff;
use crate::worker::{self, Worker, WorkerArgs, WorkerHealth};

/// How often a draining node looks whether it is empty.
const DRAIN_POLL: Duration = Duration::from_millis(20);
/// Longest wait for our own actors to do what they are told at the end.
const STOP: Duration = Duration::from_secs(2);

/// Runs a node until it is told to stop. The exit code is 0 after a clean drain.
pub async fn run(config: Arc<Config>, figures: PrometheusHandle) -> Result<ExitCode> {
    let mut signals = Signals::new()?;
    let listener = bind(&config.http.listen).await?;
    let address = listener.local_addr().context("cannot read the address of http.listen")?;
    info!(name = config.node.name, roles = %config.node.roles, engine = ?config.engine.kind, "starting");
    announce(address);
    let (health, watching) = watch::channel(WorkerHealth::Loading);
    let args = NodeArgs {
        config: config.clone(),
        doors: Doors::default(),
        listener: Arc::new(listener.into_std().context("cannot keep the HTTP listener")?),
        figures,
        health,
    };
    let (node, stopped) = Actor::spawn(None, Node, args).await.context("cannot start the node")?;
    let code = tokio::select! {
        failed = first_load(watching) => {
            error!(reason = failed, "stopping: the worker cannot serve");
            ExitCode::FAILURE
        }
        () = signals.stop() => drain(&node, &config, &mut signals).await,
    };
    node.stop(None);
    // The actors' own shutdown is quick; what is stuck in an engine's step is left behind.
    let _ = tokio::time::timeout(STOP, stopped).await;
    Ok(code)
}

/// Roles in separate processes need a cluster to find each other; alone in a process they would wait for ever.
///
/// # Errors
/// The role that is missing.
pub fn check_roles(config: &Config) -> Result<()> {
    for role in [Role::Gateway, Role::Controller, Role::Worker] {
        if !config.node.roles.contains(role) {
            bail!(
                "node.roles = \"{}\" lacks {role}: this version runs gateway, controller and worker in one process; \
                 use --role all",
                config.node.roles
            );
        }
    }
    Ok(())
}

async fn bind(address: &str) -> Result<TcpListener> {
    TcpListener::bind(address)
        .await
        .with_context(|| format!("cannot listen on http.listen = \"{address}\" (--http-listen)"))
}

/// On standard output, for people and scripts: with port 0 it is the only way to learn the real one.
fn announce(address: SocketAddr) {
    // A reader that is gone does not want to know.
    let _ = writeln!(std::io::stdout(), "http://{address}");
}

/// Waits for a first load that fails; never returns otherwise.
async fn first_load(mut health: watch::Receiver<WorkerHealth>) -> String {
    loop {
        if let WorkerHealth::Failed(reason) = &*health.borrow_and_update() {
            return reason.clone();
        }
        if health.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// Refuses new work and waits for what runs, up to `node.drain-timeout`; a second signal ends it at once.
async fn drain(node: &ActorRef<NodeMsg>, config: &Config, signals: &mut Signals) -> ExitCode {
    let limit = Duration::from(config.node.drain_timeout);
    info!(limit = ?limit, "draining; a second signal stops at once");
    // The node actor ends after us only; if it is gone already there is nothing to drain.
    let _ = node.cast(NodeMsg::Drain);
    tokio::select! {
        ended = tokio::time::timeout(limit, empty(node)) => {
            if ended.is_err() {
                warn!("node.drain-timeout has passed; what still runs is ended with an error");
                let _ = node.cast(NodeMsg::Abort("the node is shutting down"));
                let _ = tokio::time::timeout(STOP, empty(node)).await;
            }
            let closed = node.call(NodeMsg::Close, Some(STOP)).await;
            info!(clean = closed.is_ok_and(|c| c.is_success()), "drained");
            ExitCode::SUCCESS
        }
        () = signals.stop() => {
            warn!("second signal: stopping now");
            ExitCode::FAILURE
        }
    }
}

/// Waits until no session lives.
async fn empty(node: &ActorRef<NodeMsg>) {
    while let Ok(CallResult::Success(1..)) = node.call(NodeMsg::Sessions, Some(STOP)).await {
        tokio::time::sleep(DRAIN_POLL).await;
    }
}

/// The signals that a node listens to.
struct Signals {
    term: Signal,
    int: Signal,
    hangup: Signal,
}

impl Signals {
    fn new() -> Result<Self> {
        let on = |kind| signal(kind).context("cannot listen for signals");
        Ok(Self {
            term: on(SignalKind::terminate())?,
            int: on(SignalKind::interrupt())?,
            hangup: on(SignalKind::hangup())?,
        })
    }

    /// Waits for SIGTERM or SIGINT.
    async fn stop(&mut self) {
        loop {
            tokio::select! {
                _ = self.term.recv() => return,
                _ = self.int.recv() => return,
                _ = self.hangup.recv() => warn!("SIGHUP: no setting of this version can change without a restart"),
            }
        }
    }
}

/// The root of the supervision tree.
#[derive(Debug)]
struct Node;

#[derive(Debug)]
struct NodeArgs {
    config: Arc<Config>,
    doors: Doors,
    listener: Arc<std::net::TcpListener>,
    figures: PrometheusHandle,
    health: watch::Sender<WorkerHealth>,
}

#[derive(Debug)]
enum NodeMsg {
    /// Start a role again that has failed.
    Restart(Role),
    /// Take nothing new.
    Drain,
    /// How many sessions live.
    Sessions(RpcReplyPort<usize>),
    /// End what still runs, with this error.
    Abort(&'static str),
    /// Write the last responses and close the listener.
    Close(RpcReplyPort<()>),
}

#[derive(Debug)]
struct NodeState {
    args: NodeArgs,
    children: Vec<Child>,
    gateway: Option<Gateway>,
    worker: Option<ActorRef<worker::Msg>>,
}

#[derive(Debug)]
struct Child {
    role: Role,
    cell: Option<ActorCell>,
    backoff: Backoff,
}

impl Actor for Node {
    type Msg = NodeMsg;
    type State = NodeState;
    type Arguments = NodeArgs;

    async fn pre_start(
        &self,
        myself: ActorRef<NodeMsg>,
        args: NodeArgs,
    ) -> Result<NodeState, ActorProcessingErr> {
        let mut state = NodeState { children: Vec::new(), gateway: None, worker: None, args };
        // The controller first: gateways and workers register with it.
        for role in [Role::Controller, Role::Pool, Role::Gateway, Role::Worker] {
            if state.args.config.node.roles.contains(role) {
                state.children.push(Child { role, cell: None, backoff: Backoff::default() });
                state.start(&myself, role).await?;
            }
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
            NodeMsg::Restart(role) => {
                if let Err(e) = state.start(&myself, role).await {
                    error!(role = %role, error = %e, "cannot restart the role");
                    state.restart_later(&myself, role);
                }
            }
            NodeMsg::Drain => {
                if let Some(gateway) = &state.gateway {
                    gateway.drain();
                }
                if let Some(worker) = &state.worker {
                    // A worker that is being restarted takes nothing anyway.
                    let _ = worker.cast(worker::Msg::Door(WorkerMsg::Drain));
                }
            }
            NodeMsg::Sessions(reply) => {
                let _ = reply.send(state.gateway.as_ref().map_or(0, Gateway::sessions));
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
            if let Some(role) = failed.map(|c| c.role) {
                error!(role = %role, reason = %reason, "a role failed");
                state.restart_later(&myself, role);
            }
        }
        Ok(())
    }
}

impl NodeState {
    fn restart_later(&mut self, myself: &ActorRef<NodeMsg>, role: Role) {
        metrics::counter!(crate::metrics::RESTARTS, "actor" => role.as_str()).increment(1);
        if let Some(child) = self.children.iter_mut().find(|c| c.role == role) {
            myself.send_after(child.backoff.next_delay(std::time::Instant::now()), move || {
                NodeMsg::Restart(role)
            });
        }
    }

    /// Starts a role; the same path at the node's start and after a failure.
    async fn start(&mut self, myself: &ActorRef<NodeMsg>, role: Role) -> Result<(), ActorProcessingErr> {
        let (args, supervisor) = (&self.args, myself.get_cell());
        let node = NodeId::from(args.config.node.name.as_str());
        let cell = match role {
            Role::Controller => {
                let config = args.config.controller.clone();
                let seed = rng::mix64(next_incarnation());
                let args = ControllerArgs { doors: args.doors.clone(), config, seed };
                let cell = Actor::spawn_linked(None, Controller, args, supervisor).await?.0.get_cell();
                self.reintroduce();
                cell
            }
            Role::Gateway => {
                let figures = args.figures.clone();
                let health = args.health.subscribe();
                let gateway_args = GatewayArgs {
                    node,
                    incarnation: next_incarnation(),
                    doors: args.doors.clone(),
                    http: args.config.http.clone(),
                    gateway: args.config.gateway.clone(),
                    page_tokens: u32::try_from(args.config.engine.page_tokens)?,
                    listener: TcpListener::from_std(args.listener.try_clone()?)?,
                    metrics: Arc::new(move || figures.render()),
                    trouble: Arc::new(move || trouble(&health.borrow())),
                };
                let gateway = Gateway::start(gateway_args, Some(supervisor)).await?;
                let cell = gateway.cell();
                self.gateway = Some(gateway);
                cell
            }
            Role::Worker => {
                let args = WorkerArgs {
                    node,
                    incarnation: next_incarnation(),
                    doors: args.doors.clone(),
                    config: args.config.clone(),
                    health: args.health.clone(),
                };
                let (worker, _) = Actor::spawn_linked(None, Worker, args, supervisor).await?;
                self.worker = Some(worker.clone());
                worker.get_cell()
            }
            Role::Pool => {
                let args = PoolArgs { ram: args.config.pool.ram.0 };
                Actor::spawn_linked(None, Pool, args, supervisor).await?.0.get_cell()
            }
        };
        if let Some(child) = self.children.iter_mut().find(|c| c.role == role) {
            child.cell = Some(cell);
        }
        Ok(())
    }

    /// A new controller knows nobody.
    fn reintroduce(&self) {
        if let Some(gateway) = &self.gateway {
            gateway.announce();
        }
        if let Some(worker) = &self.worker {
            // A worker that has failed too registers when it is up again.
            let _ = worker.cast(worker::Msg::Announce);
        }
    }
}

/// Why the worker cannot serve just now, for the gateway's readiness.
fn trouble(health: &WorkerHealth) -> Option<String> {
    match health {
        WorkerHealth::Ready => None,
        WorkerHealth::Loading => Some("the model is loading".to_owned()),
        WorkerHealth::Restarting(why) => Some(format!("the engine is restarting: {why}")),
        WorkerHealth::Stalled(limit) => {
            Some(format!("the engine's step has been running for more than {limit}"))
        }
        WorkerHealth::Draining => Some("draining".to_owned()),
        WorkerHealth::Failed(why) => Some(format!("the model cannot be served: {why}")),
    }
}
