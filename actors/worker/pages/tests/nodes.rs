//! A gateway, a controller and workers that exchange pages, in one process: all but the membership is what serves.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cluster::cookie::Cookie;
use cluster::wire::WorkerAd;
use config::{EngineKind, WorkerRole};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::*;
use crate::admin::Control;
use crate::controller::consulted::makers;
use crate::controller::{Controller, ControllerArgs};
use crate::doors::{ControllerMsg, GatewayMsg, Offer, WorkerMsg};
use crate::gateway::{Gateway, GatewayArgs};
use crate::kv::{KvEntry, KvPortMsg};
use crate::membership::{Board, MembershipMsg};
use crate::worker::{Msg, Worker, WorkerArgs, WorkerHealth};

/// How long a test waits for what has to come about.
const PATIENCE: Duration = Duration::from_secs(60);

pub(super) struct Nodes {
    gateway: Gateway,
    pub(super) workers: Vec<Member>,
    controller: ActorRef<ControllerMsg>,
}

pub(super) struct Member {
    pub(super) id: WorkerId,
    door: ActorRef<Msg>,
}

impl Nodes {
    /// Workers `w0`, `w1` and so on, whose steps take this long. No time limit of a transfer passes.
    pub(super) async fn start(roles: &[WorkerRole], step: Dur) -> Self {
        Self::start_with(roles, step, |_| {}).await
    }

    /// As [`Nodes::start`], with other settings.
    pub(super) async fn start_with(roles: &[WorkerRole], step: Dur, set: impl FnOnce(&mut Config)) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1000);
        policies::invariant::panic_on_broken();
        let mut config = Config::default();
        config.engine.kind = EngineKind::Fake;
        config.engine.fake.step_overhead = step;
        config.runtime.max_batch_tokens = 64;
        config.runtime.max_running = 64;
        config.cluster.kv_listen = Some("127.0.0.1:0".into());
        config.controller.opinion_deadline = Dur::from_secs(60);
        let handoff = &mut config.policy.disaggregate;
        (handoff.min_remote_tokens, handoff.effective_tokens) = (Some(32), Some(32));
        // Less than there are to send, so that credit is granted.
        handoff.window_pages = 4;
        let never = Dur::from_secs(3600);
        (handoff.accept_within, handoff.progress_within, handoff.lease) = (never, never, never);
        set(&mut config);
        let doors = Doors::default();
        let args = ControllerArgs {
            node: "c".into(),
            doors: doors.clone(),
            config: config.controller.clone(),
            seed: 1,
            stand_in: false,
            policies: makers(&config),
        };
        let (controller, _) = Actor::spawn(None, Controller, args).await.unwrap();
        let args = GatewayArgs {
            node: "g".into(),
            incarnation: NEXT.fetch_add(1, Ordering::Relaxed),
            doors: doors.clone(),
            http: config.http.clone(),
            gateway: config.gateway.clone(),
            listener: TcpListener::bind("127.0.0.1:0").await.unwrap(),
            control: Control { doors: doors.clone(), board: Board::default(), reloader: None },
            metrics: Arc::new(String::new),
            trouble: Arc::new(|| None),
            keys: Default::default(),
            recorder: None,
        };
        let gateway = Gateway::start(args, None).await.unwrap();
        let (membership, _) = Actor::spawn(None, Membership, doors.clone()).await.unwrap();
        doors.set_membership(membership);
        let mut workers = Vec::new();
        for (number, role) in roles.iter().enumerate() {
            let mut config = config.clone();
            config.cluster.role = *role;
            let id =
                WorkerId::new(format!("w{number}").as_str().into(), NEXT.fetch_add(1, Ordering::Relaxed));
            let (cookie, _) = Cookie::load(None, Some("a cookie of tests"), None, true).unwrap();
            let args = WorkerArgs {
                node: id.node.clone(),
                incarnation: id.incarnation,
                doors: doors.clone(),
                reloader: None,
                health: watch::channel(WorkerHealth::Loading).0,
                kv: Some(Arc::new(KvEntry::prepare(&config, cookie, None).await.unwrap())),
                config: Arc::new(config),
                kv_events: None,
                step_log: None,
            };
            let (door, _) = Actor::spawn(None, Worker, args).await.unwrap();
            workers.push(Member { id, door });
        }
        let nodes = Self { gateway, workers, controller };
        let known = || async { doors.offers().len() == roles.len() && nodes.get_models().await > 0 };
        until("the workers are known", known).await;
        nodes
    }

    /// The controller knows that a worker holds so many pages.
    pub(super) async fn until_held(&self, worker: usize, pages: u64) {
        let id = &self.workers[worker].id;
        let held = || async {
            let view = call_t!(self.controller, ControllerMsg::ObserveDirectory, 60_000).unwrap();
            view.workers.iter().any(|row| row.worker == *id && row.pages == pages)
        };
        until(&format!("{id} is known to hold {pages} pages"), held).await;
    }

    async fn get_models(&self) -> usize {
        let answer = self.send("GET", "/v1/models", "").await;
        body_of(&answer)["data"].as_array().map_or(0, Vec::len)
    }

    /// The head and the body of an answer.
    async fn send(&self, method: &str, path: &str, body: &str) -> String {
        let mut stream = self.open(method, path, body).await;
        let mut answer = String::new();
        let read = tokio::time::timeout(PATIENCE, stream.read_to_string(&mut answer));
        read.await.expect("the answer ends").unwrap();
        answer
    }

    async fn open(&self, method: &str, path: &str, body: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.gateway.address()).await.unwrap();
        let head = "host: test\r\nconnection: close\r\ncontent-type: application/json\r\n";
        let length = body.len();
        let request = format!("{method} {path} HTTP/1.1\r\n{head}content-length: {length}\r\n\r\n{body}");
        stream.write_all(request.as_bytes()).await.unwrap();
        stream
    }

    /// What is generated after a prompt.
    pub(super) async fn complete(&self, prompt: &[u32], max_tokens: u32) -> Value {
        let answer = self.send("POST", "/v1/completions", &asked(prompt, max_tokens, false)).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        body_of(&answer)["choices"].clone()
    }

    pub(super) async fn stream(&self, prompt: &[u32], max_tokens: u32) -> Stream {
        let connection = self.open("POST", "/v1/completions", &asked(prompt, max_tokens, true)).await;
        Stream { connection, read: String::new() }
    }

    /// Asks for a move, to whichever worker it does not run on, and waits until that has ended, however.
    pub(super) async fn migrate(&self, request: &str) -> String {
        self.send("POST", &format!("/v1/sessions/{request}/migrate"), "").await
    }

    /// Nothing is left of requests, at either end.
    pub(super) async fn until_idle(&self) {
        for Member { id, door } in &self.workers {
            let idle = || async {
                let stats = call_t!(door, |reply| Msg::Door(WorkerMsg::Observe(reply)), 60_000).unwrap();
                stats.load.requests == 0 && stats.load.pages_used == 0
            };
            until(&format!("{id} holds nothing"), idle).await;
            let port: ActorRef<KvPortMsg> = children::<KvPortMsg>(door).pop().expect("a port");
            let left = || async { call_t!(port, KvPortMsg::Seats, 60_000).unwrap() == 0 };
            until(&format!("{id} is rid of its transfers"), left).await;
            // Only one that waits for the next request.
            until(&format!("{id} has no page sets"), || async { sets(door).len() <= 1 }).await;
        }
    }
}

/// The page sets under a worker, or under a scheduler without one.
pub(super) fn sets(supervisor: &ActorCell) -> Vec<ActorRef<PageSetMsg>> {
    children(supervisor)
}

fn children<M: ractor::Message>(supervisor: &ActorCell) -> Vec<ActorRef<M>> {
    let all = supervisor.get_children().into_iter();
    all.filter(|child| child.is_message_type_of::<M>() == Some(true)).map(Into::into).collect()
}

async fn until<F: Future<Output = bool>>(what: &str, holds: impl Fn() -> F) {
    let waiting = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    assert!(tokio::time::timeout(PATIENCE, waiting).await.is_ok(), "not in a minute: {what}");
}

fn asked(prompt: &[u32], max_tokens: u32, stream: bool) -> String {
    json!({"model": "default", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": true,
           "stream": stream})
    .to_string()
}

fn body_of(answer: &str) -> Value {
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    serde_json::from_str(body).unwrap_or(Value::Null)
}

/// A streamed answer.
pub(super) struct Stream {
    connection: TcpStream,
    read: String,
}

impl Stream {
    /// The request's number, once `tokens` tokens have come.
    pub(super) async fn after(&mut self, tokens: usize) -> String {
        while self.texts().len() < tokens {
            self.more().await;
        }
        let first: Value = serde_json::from_str(self.events().next().unwrap()).unwrap();
        first["id"].as_str().unwrap().rsplit('-').next().unwrap().to_owned()
    }

    /// All text.
    pub(super) async fn text(mut self) -> String {
        while !self.read.contains("data: [DONE]\n") {
            self.more().await;
        }
        self.texts().concat()
    }

    async fn more(&mut self) {
        let mut buffer = vec![0; 1 << 14];
        let read = tokio::time::timeout(PATIENCE, self.connection.read(&mut buffer));
        let read = read.await.expect("the stream goes on").unwrap();
        assert!(read > 0, "cut off: {}", self.read);
        self.read += std::str::from_utf8(&buffer[..read]).unwrap();
    }

    /// Whole events; a chunk has whole ones, and the text of the model at hand is ASCII.
    fn events(&self) -> impl Iterator<Item = &str> {
        let whole = self.read.rfind('\n').map_or("", |end| &self.read[..end]);
        whole.lines().filter_map(|line| line.strip_prefix("data: ")).filter(|data| *data != "[DONE]")
    }

    fn texts(&self) -> Vec<String> {
        let text = |event: &str| -> Option<String> {
            let event: Value = serde_json::from_str(event).unwrap_or_else(|e| panic!("{e}: {event}"));
            Some(event["choices"][0]["text"].as_str()?.to_owned()).filter(|text| !text.is_empty())
        };
        self.events().filter_map(text).collect()
    }
}

/// Tells the controller and the gateway what workers offer.
struct Membership;

impl Actor for Membership {
    type Msg = MembershipMsg;
    type State = (Doors, BTreeMap<WorkerId, WorkerAd>);
    type Arguments = Doors;

    async fn pre_start(
        &self,
        _: ActorRef<MembershipMsg>,
        doors: Doors,
    ) -> Result<Self::State, ActorProcessingErr> {
        Ok((doors, BTreeMap::new()))
    }

    async fn handle(
        &self,
        _: ActorRef<MembershipMsg>,
        message: MembershipMsg,
        (doors, ads): &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        let MembershipMsg::Worker(Some(ad)) = message else { return Ok(()) };
        ads.insert(ad.info.id.clone(), ad.clone());
        doors.set_offers(ads.clone());
        doors.to_controller(ControllerMsg::WorkerJoined(ad.info));
        let offer = |ad: &WorkerAd| Offer { model: ad.models[0].clone(), worker: ad.info.id.clone() };
        doors.to_own_gateways(|| GatewayMsg::Offers(ads.values().map(offer).collect()));
        Ok(())
    }
}
