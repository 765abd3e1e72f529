//! The publisher against subscribers of the same library.

use std::collections::BTreeMap;
use std::time::Duration;

use config::KvEventsConfig;
use policies::kv::PageHash;
use policies::kv::events::KvEvent;
use rmpv::Value;
use tokio::task::JoinHandle;
use zeromq::{DealerSocket, Socket, SocketRecv, SocketSend, SubSocket, ZmqMessage};

use super::*;

const LIMIT: Duration = Duration::from_secs(60);
const TOKENS: u32 = 2;

/// A running publisher.
struct Run {
    feed: Feed,
    endpoint: String,
    replay: String,
    _task: Abort,
}

struct Abort(JoinHandle<()>);

impl Drop for Abort {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn run(change: impl FnOnce(&mut KvEventsConfig)) -> Run {
    let mut config = KvEventsConfig {
        endpoint: Some("tcp://127.0.0.1:0".into()),
        replay_endpoint: Some("tcp://127.0.0.1:0".into()),
        topic: "kv".into(),
        ..KvEventsConfig::default()
    };
    change(&mut config);
    let (publisher, feed) = Publisher::bind(&config).await.unwrap().expect("it is on");
    let endpoint = format!("tcp://{}", publisher.endpoint());
    let replay = publisher.replay_endpoint().map(|at| format!("tcp://{at}")).unwrap_or_default();
    #[expect(clippy::disallowed_methods, reason = "aborted with its handle")]
    let task = Abort(tokio::spawn(publisher.run()));
    Run { feed, endpoint, replay, _task: task }
}

fn page(n: u8) -> PageHash {
    PageHash([n; 16])
}

fn stored(n: u8, parent: Option<u8>) -> KvEvent {
    KvEvent::Stored { parent: parent.map(page), pages: vec![page(n)], tokens: vec![u32::from(n); 2] }
}

fn removed(n: u8) -> KvEvent {
    KvEvent::Removed { pages: vec![page(n)] }
}

/// A subscriber that keeps the set of blocks, and knows which number comes next.
#[derive(Debug, Default, PartialEq)]
struct Mirror {
    /// By hash, the parent.
    blocks: BTreeMap<u64, Option<u64>>,
    next: Option<u64>,
}

impl Mirror {
    fn of(blocks: &[(u8, Option<u8>)]) -> BTreeMap<u64, Option<u64>> {
        let short = |n: u8| block_hash(&page(n));
        blocks.iter().map(|(block, parent)| (short(*block), parent.map(short))).collect()
    }

    fn apply(&mut self, number: u64, payload: &[u8]) {
        let batch = rmpv::decode::read_value(&mut &payload[..]).unwrap();
        for event in batch[1].as_array().unwrap() {
            let hashes = || event[1].as_array().unwrap().iter().map(|h| h.as_u64().unwrap());
            match event[0].as_str().unwrap() {
                "AllBlocksCleared" => self.blocks.clear(),
                "BlockRemoved" => hashes().for_each(|hash| {
                    self.blocks.remove(&hash).expect("what goes was there");
                }),
                "BlockStored" => {
                    let mut parent = event[2].as_u64();
                    assert_eq!(event[3].as_array().unwrap().len(), hashes().len() * TOKENS as usize);
                    assert_eq!(event[4], Value::from(TOKENS));
                    for hash in hashes() {
                        assert!(parent.is_none_or(|p| self.blocks.contains_key(&p)), "its parent is there");
                        self.blocks.insert(hash, parent);
                        parent = Some(hash);
                    }
                }
                other => panic!("an event {other}"),
            }
        }
        self.next = Some(number + 1);
    }
}

fn number(frame: &[u8]) -> u64 {
    u64::from_be_bytes(frame.try_into().unwrap())
}

async fn receive(socket: &mut (impl SocketRecv + Send)) -> ZmqMessage {
    tokio::time::timeout(LIMIT, socket.recv()).await.expect("a message comes").unwrap()
}

async fn subscriber(run: &Run) -> SubSocket {
    let mut socket = SubSocket::new();
    socket.subscribe("kv").await.unwrap();
    socket.connect(&run.endpoint).await.unwrap();
    socket
}

/// Waits until so many batches are numbered and sent.
async fn until_published(feed: &Feed, batches: u64) {
    let published = async {
        while feed.figures().batches < batches {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(LIMIT, published).await.expect("batches are published");
}

/// Waits until the publisher wants a whole batch, and gives it.
async fn give_whole(run: &Run, events: Vec<KvEvent>) {
    let wanted = async {
        while !run.feed.take_whole_wanted() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(LIMIT, wanted).await.expect("a whole batch is wanted");
    run.feed.publish_whole(TOKENS, events);
}

/// The next batch that is published: its number and payload.
async fn next_batch(socket: &mut SubSocket) -> (u64, Vec<u8>) {
    let message = receive(socket).await;
    assert_eq!(message.len(), 3);
    assert_eq!(&message.get(0).unwrap()[..], b"kv");
    (number(message.get(1).unwrap()), message.get(2).unwrap().to_vec())
}

/// All that a replay from `start` sends.
async fn replay(run: &Run, start: u64) -> Vec<(u64, Vec<u8>)> {
    let mut socket = DealerSocket::new();
    socket.connect(&run.replay).await.unwrap();
    let mut request = ZmqMessage::from(Vec::new());
    request.push_back(start.to_be_bytes().to_vec().into());
    socket.send(request).await.unwrap();
    let mut batches = Vec::new();
    loop {
        let message = receive(&mut socket).await;
        assert_eq!((message.len(), message.get(0).unwrap().len()), (3, 0));
        let (seq, payload) = (number(message.get(1).unwrap()), message.get(2).unwrap().to_vec());
        if seq == u64::MAX {
            assert!(payload.is_empty());
            return batches;
        }
        batches.push((seq, payload));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_subscribes_is_told_everything_and_then_every_change() {
    let run = run(|_| {}).await;
    let mut socket = subscriber(&run).await;
    give_whole(&run, vec![stored(1, None), stored(2, Some(1))]).await;
    run.feed.publish(TOKENS, vec![stored(3, Some(2)), stored(4, Some(1))]);
    run.feed.publish(TOKENS, vec![]);
    run.feed.publish(TOKENS, vec![removed(3)]);
    let mut mirror = Mirror::default();
    for expected in 0..3 {
        let (seq, payload) = next_batch(&mut socket).await;
        assert_eq!(seq, expected, "numbers begin at 0 and no empty batch takes one");
        mirror.apply(seq, &payload);
    }
    assert_eq!(mirror.blocks, Mirror::of(&[(1, None), (2, Some(1)), (4, Some(1))]));
    let figures = run.feed.figures();
    assert_eq!((figures.batches, figures.events, figures.dropped), (3, 6, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_missed_is_replayed() {
    let run = run(|_| {}).await;
    run.feed.publish_whole(TOKENS, vec![stored(1, None)]);
    run.feed.publish(TOKENS, vec![stored(2, Some(1))]);
    run.feed.publish(TOKENS, vec![stored(3, Some(2))]);
    // Not until they are numbered can they be missed.
    until_published(&run.feed, 3).await;
    let mut mirror = Mirror::default();
    let batches = replay(&run, 0).await;
    assert_eq!(batches.iter().map(|b| b.0).collect::<Vec<_>>(), [0, 1, 2]);
    batches.iter().for_each(|(seq, payload)| mirror.apply(*seq, payload));
    assert_eq!(mirror.blocks, Mirror::of(&[(1, None), (2, Some(1)), (3, Some(2))]));
    assert_eq!(replay(&run, 2).await.iter().map(|b| b.0).collect::<Vec<_>>(), [2]);
    assert!(replay(&run, 3).await.is_empty());
    // A subscriber that remembers an earlier life of the process.
    assert_eq!(replay(&run, 1000).await.len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_that_cannot_reach_back_begins_whole() {
    let run = run(|config| config.buffer_steps = 2).await;
    run.feed.publish_whole(TOKENS, vec![]);
    for n in 1..6 {
        run.feed.publish(TOKENS, vec![stored(n, (n > 1).then(|| n - 1))]);
    }
    until_published(&run.feed, 6).await;
    assert_eq!(replay(&run, 4).await.iter().map(|b| b.0).collect::<Vec<_>>(), [4, 5]);
    let whole = (1..6).map(|n| stored(n, (n > 1).then(|| n - 1))).collect();
    let (batches, ()) = tokio::join!(replay(&run, 1), give_whole(&run, whole));
    let mut mirror = Mirror::default();
    batches.iter().for_each(|(seq, payload)| mirror.apply(*seq, payload));
    assert_eq!(mirror.blocks.len(), 5);
    assert_eq!(mirror.next, Some(7));
}

/// The publisher does not run yet, so that exactly one batch fits.
#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_fit_is_counted_and_made_good_by_a_whole_batch() {
    let config = KvEventsConfig {
        endpoint: Some("tcp://127.0.0.1:0".into()),
        max_queue_size: 1,
        ..KvEventsConfig::default()
    };
    let (publisher, feed) = Publisher::bind(&config).await.unwrap().expect("it is on");
    assert_eq!(publisher.replay_endpoint(), None);
    feed.begin();
    assert!(feed.take_whole_wanted());
    assert!(!feed.take_whole_wanted(), "it is told once");
    feed.publish_whole(TOKENS, vec![]);
    feed.publish(TOKENS, vec![stored(1, None), stored(2, None)]);
    assert_eq!(feed.figures().dropped, 2);
    assert!(!feed.take_whole_wanted(), "it would not fit either");
    #[expect(clippy::disallowed_methods, reason = "aborted with its handle")]
    let _task = Abort(tokio::spawn(publisher.run()));
    until_published(&feed, 1).await;
    // Changes to what nobody knows are of no use.
    feed.publish(TOKENS, vec![stored(3, Some(2))]);
    assert_eq!(feed.figures().dropped, 3);
    assert!(feed.take_whole_wanted());
    feed.publish_whole(TOKENS, vec![stored(1, None), stored(2, None), stored(3, Some(2))]);
    until_published(&feed, 2).await;
    feed.publish(TOKENS, vec![removed(3)]);
    until_published(&feed, 3).await;
    assert_eq!(feed.figures(), Figures { batches: 3, events: 6, dropped: 3 });
    assert!(!feed.take_whole_wanted());
}

#[tokio::test]
async fn a_taken_port_is_named_with_its_key() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("tcp://{}", taken.local_addr().unwrap());
    let free = Some("tcp://127.0.0.1:0".to_owned());
    let config = KvEventsConfig { endpoint: Some(endpoint.clone()), ..KvEventsConfig::default() };
    let error = Publisher::bind(&config).await.unwrap_err().to_string();
    assert!(error.contains(&format!("kv-events.endpoint = \"{endpoint}\"")), "{error}");
    let config = KvEventsConfig { endpoint: free, replay_endpoint: Some(endpoint), ..config };
    let error = Publisher::bind(&config).await.unwrap_err().to_string();
    assert!(error.contains("kv-events.replay-endpoint"), "{error}");
    assert!(Publisher::bind(&KvEventsConfig::default()).await.unwrap().is_none(), "off unless asked for");
}
