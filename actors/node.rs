//! A node: binds, starts the roles of this process, restarts what fails, drains and stops.
//!
//! Listeners are bound before anything is loaded, so that a taken port is known in the first second. The node actor
//! supervises the role actors; a role that fails is started again with backoff.

use std::io::Write;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use cluster::identity::next_incarnation;
use cluster::kv_events::{Feed, Publisher};
use config::{Config, EngineKind, Environment, Overrides, Role};
use metrics_exporter_prometheus::PrometheusHandle;
use policies::membership::Member;
use ractor::rpc::CallResult;
use ractor::{Actor, ActorRef};
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tracing::{error, info, warn};

use crate::admin::Control;
use crate::doors::Doors;
use crate::gateway::record::Recorder;
use crate::membership::{self, Board};
use crate::reload::Reloader;
use crate::supervise::{TaskKind, spawn};
use crate::worker::WorkerHealth;
use crate::worker::steps::StepLog;

mod parts;
mod trouble;

use parts::{Node, NodeArgs, NodeMsg};

/// How often a draining node looks whether it is empty.
const DRAIN_POLL: Duration = Duration::from_millis(20);
/// Longest wait for our own actors to do what they are told at the end.
const STOP: Duration = Duration::from_secs(2);

/// Runs a node until it is told to stop. The exit code is 0 after a clean drain.
///
/// # Errors
/// What keeps it from starting: a port, the cookie, certificates.
pub async fn run(
    config: Arc<Config>,
    overrides: Overrides,
    environment: Environment,
    figures: PrometheusHandle,
) -> Result<ExitCode> {
    let doors = Doors::default();
    let secrets = environment.cluster_secrets();
    let reloader = Arc::new(Reloader::new(overrides, environment, config.clone(), doors.clone()));
    let mut signals = Signals::new(reloader.clone())?;
    let roles = &config.node.roles;
    let listener = bind(config.http.listen_address(roles)).await?;
    let http = listener.local_addr().context("cannot read the address of http.listen")?;
    let entry = membership::prepare(&config, &secrets).await?;
    let kv = match &entry {
        // The whole mistral.rs engine has no pages that could travel.
        Some(entry) if roles.contains(Role::Worker) && config.engine.kind != EngineKind::Mistralrs => {
            Some(Arc::new(entry.kv(&config).await?))
        }
        _ => None,
    };
    let pool_kv = match &entry {
        Some(entry) if roles.contains(Role::Pool) => {
            Some(Arc::new(entry.pool_kv(&config, kv.is_some()).await?))
        }
        _ => None,
    };
    let me = me(&config, entry.as_ref().map(membership::Entry::address), http);
    info!(name = %me.id, roles = %roles, engine = ?config.engine.kind, "starting");
    announce(&format!("http://{http}"));
    if entry.is_some() {
        announce(&format!("cluster tcp://{}", me.address));
    }
    if let Some(kv) = &kv {
        announce(&format!("kv tcp://{}", kv.address()));
    }
    if let Some(kv) = &pool_kv {
        announce(&format!("pool tcp://{}", kv.address()));
    }
    let kv_events = publish_kv_events(&config).await?;
    let recorder = match &config.log.record {
        Some(path) if roles.contains(Role::Gateway) => {
            let opened = Recorder::open(path).await;
            Some(opened.with_context(|| format!("cannot open log.record = {path:?} (--record)"))?)
        }
        _ => None,
    };
    let step_log = match &config.log.record_steps {
        Some(path) if roles.contains(Role::Worker) => {
            let opened = StepLog::open(path).await;
            let failed = || format!("cannot open log.record-steps = {path:?} (--record-steps)");
            Some(opened.with_context(failed)?)
        }
        _ => None,
    };
    let (health, watching) = watch::channel(WorkerHealth::Loading);
    let (fatal, told) = watch::channel(None);
    let args = NodeArgs {
        config: config.clone(),
        secrets,
        me,
        doors: doors.clone(),
        control: Control { doors, board: Board::default(), reloader: Some(reloader.clone()) },
        listener: Arc::new(listener.into_std().context("cannot keep the HTTP listener")?),
        figures,
        health,
        fatal,
        kv,
        pool_kv,
        kv_events,
        recorder,
        step_log,
    };
    let (node, stopped) = Actor::spawn(None, Node, (args, entry)).await.context("cannot start the node")?;
    let code = tokio::select! {
        failed = first_load(watching) => {
            error!(reason = failed, "stopping: the worker cannot serve");
            ExitCode::FAILURE
        }
        reason = no_way_in(told) => {
            error!(reason, "stopping: this node cannot be part of the cluster");
            ExitCode::FAILURE
        }
        () = signals.stop() => drain(&node, &reloader.config(), &mut signals).await,
    };
    node.stop(None);
    // The actors' own shutdown is quick; what is stuck in an engine's step is left behind.
    let _ = tokio::time::timeout(STOP, stopped).await;
    Ok(code)
}

/// Who this node is to the others.
fn me(config: &Config, cluster: Option<SocketAddr>, http: SocketAddr) -> Member {
    let incarnation = next_incarnation();
    let roles = &config.node.roles;
    let name = config.cluster.name.clone().unwrap_or_else(|| match cluster {
        None => "node".to_owned(),
        // Two nodes that are started alike have to differ.
        Some(_) => {
            let random = policies::rng::mix64(incarnation ^ u64::from(std::process::id())) & 0xffff;
            let role = if roles.iter().count() == 1 { roles.to_string() } else { "node".to_owned() };
            format!("{role}-{random:04x}")
        }
    });
    Member {
        id: name.into(),
        incarnation,
        address: cluster.map(|bound| config.cluster.advertised(bound)).unwrap_or_default(),
        roles: roles.clone(),
        ready: !roles.contains(Role::Worker),
        draining: false,
        http: Some(http.to_string()),
    }
}

async fn bind(address: &str) -> Result<TcpListener> {
    TcpListener::bind(address)
        .await
        .with_context(|| format!("cannot listen on http.listen = \"{address}\" (--http-listen)"))
}

/// Opens the sockets that routers of others listen to, where this node is a worker and is told to.
async fn publish_kv_events(config: &Config) -> Result<Option<Feed>> {
    if !config.node.roles.contains(Role::Worker) {
        return Ok(None);
    }
    let Some((publisher, feed)) = Publisher::bind(&config.kv_events).await? else { return Ok(None) };
    let (events, replay) = (publisher.endpoint(), publisher.replay_endpoint());
    info!(endpoint = %events, replay = ?replay, "KV events are published");
    announce(&format!("kv-events tcp://{events}"));
    if let Some(replay) = replay {
        announce(&format!("kv-events-replay tcp://{replay}"));
    }
    if !events.ip().is_loopback() {
        warn!(endpoint = %events, "whoever reaches kv-events.endpoint can read the tokens of prompts and answers");
    }
    spawn(TaskKind::Role, "kv-events", publisher.run());
    Ok(Some(feed))
}

/// On standard output, for people and scripts: with port 0 it is the only way to learn the real one.
fn announce(line: &str) {
    // A reader that is gone does not want to know.
    let _ = writeln!(std::io::stdout(), "{line}");
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

/// Waits until the membership says that it cannot go on; never returns otherwise.
async fn no_way_in(mut told: watch::Receiver<Option<String>>) -> String {
    loop {
        if let Some(reason) = &*told.borrow_and_update() {
            return reason.clone();
        }
        if told.changed().await.is_err() {
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

/// Waits until no session lives here and no request of another gateway runs here.
async fn empty(node: &ActorRef<NodeMsg>) {
    while let Ok(CallResult::Success(1..)) = node.call(NodeMsg::Work, Some(STOP)).await {
        tokio::time::sleep(DRAIN_POLL).await;
    }
}

/// The signals that a node listens to.
struct Signals {
    term: Signal,
    int: Signal,
    hangup: Signal,
    reloader: Arc<Reloader>,
}

impl Signals {
    fn new(reloader: Arc<Reloader>) -> Result<Self> {
        let on = |kind| signal(kind).context("cannot listen for signals");
        Ok(Self {
            term: on(SignalKind::terminate())?,
            int: on(SignalKind::interrupt())?,
            hangup: on(SignalKind::hangup())?,
            reloader,
        })
    }

    /// Waits for SIGTERM or SIGINT; SIGHUP reloads meanwhile.
    async fn stop(&mut self) {
        loop {
            tokio::select! {
                _ = self.term.recv() => return,
                _ = self.int.recv() => return,
                _ = self.hangup.recv() => {
                    self.reloader.reload("SIGHUP").await;
                }
            }
        }
    }
}
