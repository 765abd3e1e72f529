//! A gateway with scripted neighbours, and a client.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use cluster::wire::{ModelAd, ToController, ToGateway, ToWorker};
use config::ids::{NodeId, WorkerId};
use config::{GatewayConfig, HttpConfig};
use engine::ModelCard;
use engine::text::{NamedTemplate, TextDescriptor};
use policies::batch::{BatchEffect, Refusal, TokenEvent, Usage};
use policies::kv::Fingerprint;
use policies::placement::{PlacementEffect, Plan, Rejection};
use policies::request::{Finish, Logprobs, RequestSpec, Token};
use policies::step::SeqKey;
use ractor::{Actor, ActorProcessingErr, ActorRef};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::admin::Control;
use crate::doors::{ControllerMsg, Doors, GatewayMsg, Offer, WorkerMsg};
use crate::gateway::{Gateway, GatewayArgs};
use crate::membership::Board;

/// The end token of the test model; its other tokens are the 256 bytes and a begin token.
pub(crate) const END: Token = 256;
pub(crate) const BEGIN: Token = 257;
pub(crate) const VOCAB: u32 = 258;
pub(crate) const WINDOW: u32 = 512;

/// What the worker does with a request.
#[derive(Clone)]
pub(super) enum Script {
    /// Each choice says its text, then ends.
    Say(fn(u32) -> Vec<Token>),
    /// Says this many tokens of the text, then nothing more.
    Stall(fn(u32) -> Vec<Token>, usize),
    /// Says this many tokens, then is lost.
    Die(fn(u32) -> Vec<Token>, usize),
    /// The engine fails after this many tokens.
    Fail(fn(u32) -> Vec<Token>, usize),
    Refuse(Refusal),
}

/// What happened outside of the gateway.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Seen {
    Placed,
    Released,
    Submitted(Box<(Vec<Token>, u32)>),
    Cancelled,
    ChoiceCancelled(u32),
}

#[derive(Clone)]
pub(super) struct World {
    pub(super) doors: Doors,
    pub(super) gateway: NodeId,
    pub(super) script: Arc<Mutex<Script>>,
    pub(super) rejection: Arc<Mutex<Option<Rejection>>>,
    pub(super) seen: Arc<Mutex<Vec<Seen>>>,
    pub(super) specs: Arc<Mutex<Vec<RequestSpec>>>,
    worker: WorkerId,
}

impl World {
    fn note(&self, seen: Seen) {
        self.seen.lock().unwrap().push(seen);
    }

    pub(super) fn count(&self, wanted: impl Fn(&Seen) -> bool) -> usize {
        self.seen.lock().unwrap().iter().filter(|s| wanted(s)).count()
    }

    pub(super) fn play(&self, script: Script) {
        *self.script.lock().unwrap() = script;
    }

    /// The worker offers this model from now on, whose card this process has.
    pub(super) fn offer(&self, card: ModelCard) {
        let described = crate::card::describe(&card).unwrap();
        let model = ModelAd {
            name: card.name.as_str().into(),
            descriptor: described.hash,
            bytes: described.bytes.len() as u64,
        };
        self.doors.add_card(described.hash, Arc::new(card));
        let offer = Offer { model, worker: self.worker.clone() };
        self.doors.to_own_gateways(|| GatewayMsg::Offers(vec![offer.clone()]));
    }

    fn send(&self, message: ToGateway) {
        assert!(self.doors.to_gateway(&self.gateway, message));
    }

    /// Tokens of all choices, one step a token, as a worker would batch them.
    fn say(&self, spec: &RequestSpec, text: fn(u32) -> Vec<Token>, limit: usize) -> bool {
        let mut complete = true;
        if spec.prompt_logprobs {
            let tokens =
                (1..spec.prompt.len()).map(|i| scores(spec.prompt[i], spec.sampling.logprobs)).collect();
            let prompt =
                BatchEffect::PromptLogprobs { request: spec.id, attempt: spec.attempt, first: 1, tokens };
            self.send(ToGateway::Step { worker: self.worker.clone(), events: vec![prompt] });
        }
        let texts: Vec<_> = (0..spec.choices() as u32).map(|c| [text(c), vec![END]].concat()).collect();
        for index in 0..texts.iter().map(Vec::len).max().unwrap_or(0) {
            let mut events = Vec::new();
            for (choice, tokens) in texts.iter().enumerate() {
                let done = spec.resumed[choice].tokens.len();
                if index >= tokens.len() || index >= spec.max_tokens as usize || index < done {
                    continue;
                }
                if index >= limit {
                    complete = false;
                    continue;
                }
                let token = tokens[index];
                let finish = if token == END && !spec.ignore_end {
                    Some(Finish::EndToken)
                } else {
                    (index + 1 == spec.max_tokens as usize).then_some(Finish::Length)
                };
                events.push(BatchEffect::Token(TokenEvent {
                    seq: SeqKey { request: spec.id, attempt: spec.attempt, choice: choice as u32 },
                    index: index as u32,
                    token,
                    logprobs: spec.sampling.logprobs.map(|_| scores(token, spec.sampling.logprobs)),
                    finish,
                    cached_tokens: 3,
                }));
            }
            self.send(ToGateway::Step { worker: self.worker.clone(), events });
        }
        complete
    }
}

fn scores(token: Token, top: Option<u8>) -> Logprobs {
    let top = (0..u32::from(top.unwrap_or(0)))
        .map(|i| (i, if i == 0 { -0.5 } else { f32::NEG_INFINITY }))
        .collect();
    Logprobs { own: -(token as f32) / 100.0, top }
}

struct ControllerStub;

impl Actor for ControllerStub {
    type Msg = ControllerMsg;
    type State = World;
    type Arguments = World;

    async fn pre_start(&self, _: ActorRef<ControllerMsg>, world: World) -> Result<World, ActorProcessingErr> {
        Ok(world)
    }

    async fn handle(
        &self,
        _: ActorRef<ControllerMsg>,
        message: ControllerMsg,
        world: &mut World,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            ControllerMsg::Wire(ToController::Place { request, .. }) => {
                world.note(Seen::Placed);
                let (request, attempt) = (request.request, request.attempt);
                let rejection = world.rejection.lock().unwrap().clone();
                world.send(ToGateway::Placement(match rejection {
                    Some(reason) => PlacementEffect::Rejected { request, attempt, reason },
                    None => {
                        let plan = Plan {
                            worker: world.worker.clone(),
                            prefill: None,
                            fetch: None,
                            store: None,
                            why: "only-worker",
                            stages: std::sync::Arc::default(),
                        };
                        PlacementEffect::Placed { request, attempt, plan }
                    }
                }));
            }
            ControllerMsg::Wire(ToController::Release { .. }) => world.note(Seen::Released),
            ControllerMsg::Observe(reply) => {
                let _ = reply.send(Vec::new());
            }
            _ => {}
        }
        Ok(())
    }
}

struct WorkerStub;

impl Actor for WorkerStub {
    type Msg = WorkerMsg;
    type State = World;
    type Arguments = World;

    async fn pre_start(&self, _: ActorRef<WorkerMsg>, world: World) -> Result<World, ActorProcessingErr> {
        Ok(world)
    }

    async fn handle(
        &self,
        _: ActorRef<WorkerMsg>,
        message: WorkerMsg,
        world: &mut World,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            WorkerMsg::Wire(ToWorker::Submit { spec, .. }) => submit(world, &spec),
            WorkerMsg::Wire(ToWorker::Cancel { .. }) => world.note(Seen::Cancelled),
            WorkerMsg::Wire(ToWorker::CancelChoice { choice, .. }) => {
                world.note(Seen::ChoiceCancelled(choice));
            }
            _ => {}
        }
        Ok(())
    }
}

fn submit(world: &World, spec: &RequestSpec) {
    world.note(Seen::Submitted(Box::new((spec.prompt.to_vec(), spec.max_tokens))));
    world.specs.lock().unwrap().push(spec.clone());
    let script = world.script.lock().unwrap().clone();
    let (worker, request, attempt) = (world.worker.clone(), spec.id, spec.attempt);
    let result = if let Script::Refuse(why) = &script { Err(why.clone()) } else { Ok(()) };
    world.send(ToGateway::Admission { worker: worker.clone(), request, attempt, result });
    match script {
        Script::Say(text) => {
            world.say(spec, text, usize::MAX);
            let events = vec![BatchEffect::Done { request, attempt, usage: Usage::default() }];
            world.send(ToGateway::Step { worker, events });
        }
        Script::Stall(text, limit) => {
            world.say(spec, text, limit);
        }
        Script::Die(text, limit) => {
            if !world.say(spec, text, limit) {
                world.send(ToGateway::WorkerLost(worker));
            }
        }
        Script::Fail(text, limit) => {
            world.say(spec, text, limit);
            let events = vec![BatchEffect::Failed { request, attempt, reason: "non-finite logits".into() }];
            world.send(ToGateway::Step { worker, events });
        }
        Script::Refuse(_) => {}
    }
}

/// Settings of a test's gateway.
pub(super) struct Setup {
    pub(super) http: HttpConfig,
    pub(super) gateway: GatewayConfig,
    pub(super) add_bos: bool,
    pub(super) ready: bool,
}

impl Default for Setup {
    fn default() -> Self {
        Self { http: HttpConfig::default(), gateway: GatewayConfig::default(), add_bos: false, ready: true }
    }
}

pub(super) struct Rig {
    pub(super) gateway: Gateway,
    pub(super) world: World,
}

/// A gateway whose worker answers "Hi".
pub(super) async fn rig() -> Rig {
    rig_with(Setup::default()).await
}

pub(super) async fn rig_with(setup: Setup) -> Rig {
    policies::invariant::panic_on_broken();
    let doors = Doors::default();
    let world = World {
        doors: doors.clone(),
        gateway: "g".into(),
        script: Arc::new(Mutex::new(Script::Say(|_| bytes("Hi")))),
        rejection: Arc::default(),
        seen: Arc::default(),
        specs: Arc::default(),
        worker: WorkerId::new("w1".into(), 1),
    };
    let (controller, _) = Actor::spawn(None, ControllerStub, world.clone()).await.unwrap();
    doors.set_controller("c".into(), controller, false);
    let (worker, _) = Actor::spawn(None, WorkerStub, world.clone()).await.unwrap();
    doors.add_worker(world.worker.clone(), worker.get_derived());
    let args = GatewayArgs {
        node: world.gateway.clone(),
        incarnation: 7,
        doors,
        http: setup.http,
        gateway: setup.gateway,
        listener: TcpListener::bind("127.0.0.1:0").await.unwrap(),
        control: Control { doors: Doors::default(), board: Board::default(), reloader: None },
        metrics: Arc::new(|| "some_metric 1\n".into()),
        trouble: Arc::new(|| None),
        keys: Default::default(),
        recorder: None,
    };
    let gateway = Gateway::start(args, None).await.unwrap();
    let rig = Rig { gateway, world };
    if setup.ready {
        rig.world.offer(card(setup.add_bos));
        eventually(|| !rig.gateway.shared.models.usable().is_empty()).await;
    }
    rig
}

/// The tokens of a text.
pub(crate) fn bytes(text: &str) -> Vec<Token> {
    text.bytes().map(Token::from).collect()
}

/// Polls until `done`, for a minute at most.
pub(super) async fn eventually(done: impl Fn() -> bool) {
    let waiting = async {
        while !done() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), waiting).await.expect("it came about");
}

pub(super) fn card(add_bos: bool) -> ModelCard {
    ModelCard {
        name: "m".into(),
        description: "bytes".into(),
        text: Arc::new(descriptor(add_bos)),
        fingerprint: Fingerprint([7; 32]),
        max_context: WINDOW,
        vocab: VOCAB,
        page_tokens: 16,
    }
}

/// A model whose tokens are bytes.
pub(crate) fn descriptor(add_bos: bool) -> TextDescriptor {
    // GPT-2's alphabet: printable bytes stand for themselves, the others follow from U+0100 on.
    let plain = |b: &u8| matches!(b, 33..=126 | 161..=172 | 174..=255);
    let mut next = 256;
    let mut vocab = serde_json::Map::new();
    for byte in 0..=255_u8 {
        let code = if plain(&byte) { u32::from(byte) } else { next };
        next += u32::from(!plain(&byte));
        vocab.insert(char::from_u32(code).unwrap().into(), byte.into());
    }
    let special = |id: Token, content: &str| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
               "normalized": false, "special": true})
    };
    let level =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [special(END, "<|end|>"), special(BEGIN, "<|begin|>")],
        "normalizer": null, "pre_tokenizer": level, "post_processor": null, "decoder": level,
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                  "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
                  "vocab": vocab, "merges": []},
    });
    let template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}\
                    {% if add_generation_prompt %}<assistant>{% endif %}";
    TextDescriptor {
        tokenizer_json: tokenizer.to_string(),
        templates: vec![NamedTemplate { name: "default".into(), source: template.into() }],
        bos: Some(BEGIN),
        eos: Some(END),
        end_ids: vec![END],
        add_bos,
        special_ids: vec![END, BEGIN],
        vocab_size: VOCAB as usize,
        warnings: Vec::new(),
    }
}

/// An answer as it came.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    /// In lower case, one a line.
    pub(super) head: String,
    pub(super) body: String,
}

impl Answer {
    pub(super) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }

    pub(super) fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.into_iter().find(|(n, _)| *n == name).map(|(_, value)| value.trim())
    }

    /// The data of a stream's events; the last one has to be `[DONE]`.
    pub(super) fn events(&self) -> Vec<Value> {
        assert_eq!(self.header("content-type"), Some("text/event-stream; charset=utf-8"), "{self:?}");
        let mut events: Vec<&str> = self.body.split("\n\n").filter(|e| !e.is_empty()).collect();
        assert_eq!(events.pop(), Some("data: [DONE]"), "{self:?}");
        let data = |e: &str| serde_json::from_str(e.strip_prefix("data: ").expect("data")).expect("JSON");
        events.into_iter().map(data).collect()
    }
}

impl Rig {
    pub(super) async fn open(&self) -> TcpStream {
        TcpStream::connect(self.gateway.address()).await.unwrap()
    }

    /// Sends bytes, reads the answer to the end of the connection.
    pub(super) async fn raw(&self, request: &[u8]) -> Answer {
        let mut stream = self.open().await;
        // A server that has answered early may have closed its side.
        let _ = stream.write_all(request).await;
        let mut answer = Vec::new();
        let read = stream.read_to_end(&mut answer);
        let _ = tokio::time::timeout(Duration::from_secs(60), read).await.expect("the answer ends");
        parse(&answer)
    }

    pub(super) async fn send(&self, method: &str, path: &str, headers: &str, body: &[u8]) -> Answer {
        self.raw(&message(method, path, headers, body)).await
    }

    pub(super) async fn get(&self, path: &str) -> Answer {
        self.send("GET", path, "", b"").await
    }

    pub(super) async fn post(&self, path: &str, body: &Value) -> Answer {
        self.send("POST", path, JSON, body.to_string().as_bytes()).await
    }

    pub(super) async fn chat(&self, fields: Value) -> Answer {
        self.post("/v1/chat/completions", &chat_body(&fields)).await
    }

    pub(super) async fn complete(&self, fields: Value) -> Answer {
        let mut body = json!({"model": "m", "prompt": "abc"});
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        self.post("/v1/completions", &body).await
    }
}

pub(super) const JSON: &str = "content-type: application/json\r\n";

pub(super) fn chat_body(fields: &Value) -> Value {
    let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "hello"}]});
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    body
}

pub(super) fn message(method: &str, path: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let length = if body.is_empty() && method == "GET" {
        String::new()
    } else {
        format!("content-length: {}\r\n", body.len())
    };
    let head =
        format!("{method} {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n{headers}{length}\r\n");
    [head.as_bytes(), body].concat()
}

fn parse(answer: &[u8]) -> Answer {
    let text = String::from_utf8(answer.to_vec()).expect("UTF-8");
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no head in {text:?}"));
    let status = head.split(' ').nth(1).and_then(|s| s.parse().ok()).expect("a status");
    let (first, rest) = head.split_once("\r\n").unwrap_or((head, ""));
    let head = format!("{}\r\n{}", first, rest).to_lowercase();
    let chunked = head.contains("transfer-encoding: chunked");
    let body = if chunked { unchunk(body) } else { body.to_owned() };
    Answer { status, head, body }
}

fn unchunk(mut body: &str) -> String {
    let mut out = String::new();
    loop {
        let (size, rest) = body.split_once("\r\n").expect("a chunk size");
        let size = usize::from_str_radix(size, 16).expect("hexadecimal");
        if size == 0 {
            return out;
        }
        out.push_str(&rest[..size]);
        body = &rest[size + 2..];
    }
}
