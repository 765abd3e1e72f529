//! KV events over ZeroMQ: what a router made for vLLM knows of a worker is what the worker holds.

use std::collections::{BTreeMap, BTreeSet};
use std::net::TcpListener;

use rmpv::Value;
use tokio::runtime::Runtime;
use zeromq::{DealerSocket, Socket, SocketRecv, SocketSend, SubSocket, ZmqMessage};

use super::{PAGE, PATIENT, Routed, ask, completion, text};
use crate::harness::DEADLINE;
use crate::harness::cluster::Cluster;
use crate::harness::node::Node;

const BATCHES: &str = "actor_node_kv_event_batches_total";
const EVENTS: &str = "actor_node_kv_events_total";
const DROPPED: &str = "actor_node_kv_events_dropped_total";

/// A block as it was stored.
#[derive(Clone, Debug, PartialEq)]
struct Block {
    parent: Option<u64>,
    tokens: Vec<u64>,
}

/// What events tell.
#[derive(Debug, Default, PartialEq)]
struct Blocks {
    held: BTreeMap<u64, Block>,
    /// Number of the next batch.
    next: Option<u64>,
    removed: usize,
}

impl Blocks {
    /// Takes a batch; gives whether it tells everything anew.
    fn apply(&mut self, number: u64, payload: &[u8]) -> bool {
        let batch = rmpv::decode::read_value(&mut &payload[..]).unwrap();
        assert!(batch[0].as_f64().unwrap() > 1.7e9, "seconds since 1970: {}", batch[0]);
        let events = batch[1].as_array().unwrap();
        let whole = events[0][0] == Value::from("AllBlocksCleared");
        assert!(whole || self.next == Some(number), "{number} after {:?} is not whole", self.next);
        for event in events {
            let hashes = || event[1].as_array().unwrap().iter().map(|hash| hash.as_u64().unwrap());
            match event[0].as_str().unwrap() {
                "AllBlocksCleared" => self.held.clear(),
                "BlockRemoved" => {
                    for hash in hashes() {
                        assert!(self.held.remove(&hash).is_some(), "what is removed was there: {event}");
                        self.removed += 1;
                    }
                }
                "BlockStored" => {
                    assert_eq!((&event[4], &event[6]), (&Value::from(PAGE), &Value::from("GPU")));
                    let tokens: Vec<u64> =
                        event[3].as_array().unwrap().iter().map(|t| t.as_u64().unwrap()).collect();
                    assert_eq!(tokens.len(), hashes().len() * PAGE as usize);
                    let mut parent = event[2].as_u64();
                    for (hash, tokens) in hashes().zip(tokens.chunks(PAGE as usize)) {
                        assert!(
                            parent.is_none_or(|p| self.held.contains_key(&p)),
                            "a chain is broken: {event}"
                        );
                        let block = Block { parent, tokens: tokens.to_vec() };
                        assert_eq!(self.held.insert(hash, block), None, "stored once: {event}");
                        parent = Some(hash);
                    }
                }
                other => panic!("an event {other}"),
            }
        }
        for block in self.held.values() {
            assert!(block.parent.is_none_or(|p| self.held.contains_key(&p)), "{block:?} outlives its parent");
        }
        self.next = Some(number + 1);
        whole
    }

    /// All prompts that the blocks begin with, as text: the fake engine's tokens are bytes.
    fn prompts(&self) -> Vec<String> {
        let parents: BTreeSet<u64> = self.held.values().filter_map(|block| block.parent).collect();
        let leaves = self.held.keys().filter(|hash| !parents.contains(hash));
        leaves
            .map(|leaf| {
                let mut chain = Vec::new();
                let mut at = Some(*leaf);
                while let Some(hash) = at {
                    chain.push(&self.held[&hash]);
                    at = self.held[&hash].parent;
                }
                let tokens = chain.iter().rev().flat_map(|block| &block.tokens);
                tokens.map(|token| char::from(u8::try_from(*token).unwrap_or(b'?'))).collect()
            })
            .collect()
    }
}

/// A router of somebody else.
struct Router {
    runtime: Runtime,
    socket: SubSocket,
    blocks: Blocks,
}

impl Router {
    fn subscribed(endpoint: &str) -> Self {
        let runtime = Runtime::new().unwrap();
        let socket = runtime.block_on(async {
            let mut socket = SubSocket::new();
            socket.subscribe("").await.unwrap();
            socket.connect(endpoint).await.unwrap();
            socket
        });
        Self { runtime, socket, blocks: Blocks::default() }
    }

    /// Takes the next batch.
    fn follow(&mut self) -> bool {
        let next = async { tokio::time::timeout(DEADLINE, self.socket.recv()).await };
        let message = self.runtime.block_on(next).expect("a batch comes").unwrap();
        assert_eq!((message.len(), message.get(0).unwrap().len()), (3, 0));
        let number = u64::from_be_bytes(message.get(1).unwrap()[..].try_into().unwrap());
        self.blocks.apply(number, message.get(2).unwrap())
    }

    /// Follows until everything has been told anew.
    fn until_whole(&mut self) {
        while !self.follow() {}
    }

    /// Follows until it knows so many blocks, which tells that nothing is missing only while none are evicted.
    fn until_blocks(&mut self, blocks: usize) {
        while self.blocks.held.len() != blocks {
            self.follow();
        }
    }

    /// Follows until it knows a chain that begins with these tokens.
    fn until_prompt(&mut self, start: &str) {
        while !self.blocks.prompts().iter().any(|prompt| prompt.starts_with(start)) {
            self.follow();
        }
    }

    /// What one knows that asks for everything from `start` on.
    fn replayed(&self, endpoint: &str, start: u64) -> Blocks {
        self.runtime.block_on(async {
            let mut socket = DealerSocket::new();
            socket.connect(endpoint).await.unwrap();
            let mut request = ZmqMessage::from(Vec::new());
            request.push_back(start.to_be_bytes().to_vec().into());
            socket.send(request).await.unwrap();
            let mut blocks = Blocks::default();
            loop {
                let answer = tokio::time::timeout(DEADLINE, socket.recv()).await.expect("an answer").unwrap();
                let number = i64::from_be_bytes(answer.get(1).unwrap()[..].try_into().unwrap());
                if number == -1 {
                    return blocks;
                }
                blocks.apply(number.cast_unsigned(), answer.get(2).unwrap());
            }
        })
    }
}

/// Pages of `w1` as the directory has them, which are also those that the worker counts.
fn pages(cluster: &Routed) -> usize {
    cluster.settle();
    let rows = cluster.directory();
    usize::try_from(rows[0]["pages"].as_u64().unwrap()).unwrap()
}

#[test]
fn a_foreign_router_knows_what_the_worker_holds() {
    let mut cluster = Cluster::new(&[PATIENT]);
    let endpoint = format!("tcp://{}", cluster.reserve());
    let replay = format!("tcp://{}", cluster.reserve());
    cluster.controller("c1");
    cluster.gateway("g1");
    let keys = [
        ("KV_EVENTS__ENDPOINT", endpoint.as_str()),
        ("KV_EVENTS__REPLAY_ENDPOINT", replay.as_str()),
        ("ENGINE__KV_PAGES", "100"),
    ];
    cluster.node("w1", "worker", &["--engine", "fake"], &keys);
    let mut cluster = Routed::from(cluster);
    let client = cluster["g1"].client();
    let prefix = text("shared", 600);
    let asked = |n: usize| completion(&format!("{prefix} and then {n} {}", text("tail", 40)), 8);

    // It comes late and is told everything.
    for n in 0..3 {
        ask(&client, &asked(n));
    }
    let known = pages(&cluster);
    assert!(known > 600 / PAGE as usize, "{known}");
    let mut router = Router::subscribed(&endpoint);
    router.until_whole();
    assert_eq!(router.blocks.held.len(), known);
    let prompts = router.blocks.prompts();
    assert_eq!(prompts.len(), 3, "three prompts begin alike: {prompts:?}");
    assert!(prompts.iter().all(|p| p.contains(&prefix[..600])), "{prompts:?}");

    // It follows every change, evictions too.
    for n in 3..12 {
        ask(&client, &asked(n));
        let other = text(&format!("other {n}"), 300);
        ask(&client, &completion(&other, 4));
        let known = pages(&cluster);
        // The last full page of the last request is the last that happened.
        router.until_prompt(&other[..288]);
        assert_eq!(router.blocks.held.len(), known);
    }
    assert!(router.blocks.removed > 0, "100 pages are not enough for all");
    let before = router.blocks.next.unwrap();
    assert!(router.replayed(&replay, 0).held == router.blocks.held, "a replay tells the same");
    assert_eq!(router.replayed(&replay, before).next, None, "nothing was missed");
    cluster["w1"].wait_for_figure(BATCHES, before as f64);
    assert!(cluster["w1"].figure(EVENTS) >= before as f64);
    assert_eq!(cluster["w1"].figure(DROPPED), 0.0);

    // Nothing of that is left after the worker's end.
    cluster["w1"].kill();
    cluster["w1"].restart();
    router.until_whole();
    assert_eq!(router.blocks.held.len(), 0);
    assert!(router.blocks.next.unwrap() < before, "a new life counts from 0");
    cluster.until_whole();
    ask(&client, &asked(0));
    let known = pages(&cluster);
    router.until_blocks(known);
}

/// The process lives on, and so do its sockets and numbers; the pages do not.
#[test]
fn an_engine_that_is_lost_takes_its_blocks_along() {
    let keys = [PATIENT, ("KV_EVENTS__ENDPOINT", "tcp://127.0.0.1:0"), ("ENGINE__FAKE__PANIC_AT_STEP", "6")];
    let node = Node::fake_with(&[], &keys);
    // A free port was taken, and the log says which.
    let log = node.log();
    let (_, after) = log.split_once("KV events are published endpoint=").expect("the log names the endpoint");
    let endpoint = format!("tcp://{}", after.split_whitespace().next().unwrap());
    let mut router = Router::subscribed(&endpoint);
    router.until_whole();
    ask(&node.client(), &completion(&text("first", 100), 1));
    router.until_blocks(6);
    let before = router.blocks.next.unwrap();
    // Its first tokens are computed by the engine that fails, the others by the one that is loaded then.
    ask(&node.client(), &completion(&text("second", 100), 8));
    router.until_whole();
    assert!(router.blocks.next.unwrap() > before, "the numbers go on");
    router.until_blocks(6);
    assert!(router.blocks.prompts()[0].contains("second"), "{:?}", router.blocks.prompts());
}

#[test]
fn a_taken_port_ends_the_start_and_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("tcp://{}", taken.local_addr().unwrap());
    let args = ["--engine", "fake", "--http-listen", "127.0.0.1:0"];
    let (status, log) = Node::refused(&args, &[("ACTOR_NODE_KV_EVENTS__ENDPOINT", &endpoint)]);
    assert!(!status.success());
    assert!(log.contains(&format!("kv-events.endpoint = \"{endpoint}\"")), "{log}");
}
