//! The node that [`super`] starts: this test binary as a process of its own.

use std::collections::BTreeMap;
use std::io::BufRead;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use policies::membership::{DialError, LinkId, Member};
use ractor::{Actor, ActorCell, ActorId, ActorProcessingErr, ActorRef, SupervisionEvent, pg};
use ractor_cluster::RactorMessage;
use tokio::sync::mpsc;

use super::super::member;
use crate::cookie::Cookie;
use crate::handshake::{Gate, Judgement, Refusal};
use crate::link::{LinkEvent, Links, LinksConfig, Listener};
use crate::port::{Door, PeerDoors, Port, SCOPE, announced_actors};

/// The variable that says who the node is: name, incarnation, cookie.
pub(super) const SETUP: &str = "ACTOR_NODE_TEST_LINK";

/// Stands before what the node says.
pub(super) const MARK: &str = "@@ ";

fn say(line: &str) {
    println!("{MARK}{line}");
}

#[test]
#[ignore = "a process of the tests beside it; they start it"]
fn run() {
    let setup = std::env::var_os(SETUP).expect("started by a test beside this one");
    let setup = setup.into_string().expect("text");
    let words: Vec<&str> = setup.split(' ').collect();
    let me = member(words[0], words[1].parse().expect("a number"));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(live(me, Cookie::from_text(words[2]), words[3]));
}

/// What the node has been told.
#[derive(Default)]
struct View {
    /// The links that are up: who is there, and their numbers there.
    links: BTreeMap<LinkId, (Member, LinkId)>,
    /// The doors of all links that ever were up.
    doors: BTreeMap<LinkId, PeerDoors>,
    /// How often the last link that was up ended.
    alone: usize,
    /// It talks over each link as soon as that is up: how much it has sent over each, by its own numbers.
    talk: Option<BTreeMap<LinkId, usize>>,
    /// Numbers of the messages that came over each link, by the other end's number of it.
    heard: BTreeMap<u64, Vec<usize>>,
}

/// Messages that a node that talks sends over a new link at once.
const TALK: usize = 20;

impl View {
    /// Sends a few messages over a link; gives how many of them were taken.
    fn talk(&mut self, link: LinkId) -> usize {
        let (Some(said), Some(doors)) = (&mut self.talk, self.doors.get(&link)) else { return 0 };
        let said = said.entry(link).or_default();
        let first = *said;
        while *said < first + TALK
            && doors.send(Door::Node, format!("{}/{said}", link.0).into_bytes()).is_ok()
        {
            *said += 1;
        }
        *said - first
    }

    fn hear(&mut self, text: &str) {
        let (link, number) = text.split_once('/').expect("link and number");
        let heard = self.heard.entry(link.parse().expect("a number")).or_default();
        heard.push(number.parse().expect("a number"));
    }

    /// How many messages came over a link, which the other end numbers so: a count, where each came once and in order.
    fn heard(&self, link: u64) -> String {
        let numbers = self.heard.get(&link).map(Vec::as_slice).unwrap_or_default();
        if numbers.iter().copied().eq(0..numbers.len()) {
            numbers.len().to_string()
        } else {
            format!("{numbers:?}")
        }
    }

    /// What was sent over each link, since this was asked last.
    fn said(&mut self) -> String {
        let said = self.talk.as_mut().map(std::mem::take).unwrap_or_default();
        let said: Vec<String> = said.iter().map(|(link, count)| format!("{}:{count}", link.0)).collect();
        said.join(" ")
    }
}

/// Lets in whoever is not itself, nor an older life of a node that is linked; where it is strict, as the membership is,
/// nobody either who is linked already.
struct House {
    me: Member,
    strict: bool,
    view: Arc<Mutex<View>>,
}

impl Gate for House {
    fn hello(&self) -> (Member, Option<u32>) {
        (self.me.clone(), Some(16))
    }

    fn judge<'a>(&'a self, peer: &'a Member, _: Option<u32>, _: bool) -> Judgement<'a> {
        let newer =
            |(other, _): &(Member, LinkId)| other.id == peer.id && other.incarnation > peer.incarnation;
        let links = &self.view.lock().expect("whole").links;
        let older = links.values().any(newer);
        let linked = links
            .values()
            .any(|(other, _)| (&other.id, other.incarnation) == (&peer.id, peer.incarnation) && self.strict);
        let verdict = if (&peer.id, peer.incarnation) == (&self.me.id, self.me.incarnation) {
            Err(Refusal::Itself)
        } else if older {
            Err(Refusal::NameInUse { name: peer.id.clone(), address: "elsewhere:1".to_owned() })
        } else if linked {
            Err(Refusal::AlreadyLinked(peer.id.clone()))
        } else {
            Ok(())
        };
        Box::pin(async move { verdict })
    }
}

/// The top of the tree: it outlives what fails below, and says so.
struct Top;

#[derive(RactorMessage)]
struct Nothing;

impl Actor for Top {
    type Msg = Nothing;
    type State = ();
    type Arguments = ();

    async fn pre_start(&self, _: ActorRef<Nothing>, (): ()) -> Result<(), ActorProcessingErr> {
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        _: ActorRef<Nothing>,
        event: SupervisionEvent,
        (): &mut (),
    ) -> Result<(), ActorProcessingErr> {
        if let SupervisionEvent::ActorFailed(_, why) = event {
            say(&format!("failed {why}"));
        }
        Ok(())
    }
}

async fn open(door: Door, top: ActorCell, view: &Arc<Mutex<View>>) -> Port {
    let view = view.clone();
    let handler = Arc::new(move |bytes: Vec<u8>| {
        let text = String::from_utf8_lossy(&bytes);
        let mut view = view.lock().expect("whole");
        if view.talk.is_some() {
            view.hear(&text);
        } else {
            say(&format!("got {} {text}", door.as_str()));
        }
    });
    Port::open(door, handler, top).await.expect("opened")
}

/// `mode` is `open`, `strict` or `talk`, which is strict too.
async fn live(me: Member, cookie: Cookie, mode: &str) {
    let strict = mode != "open";
    let listener = Listener::bind("127.0.0.1:0").await.expect("bound");
    let address = listener.local_addr();
    let (top, _) = Actor::spawn(None, Top, ()).await.expect("spawned");
    let top = top.get_cell();
    let talk = (mode == "talk").then(BTreeMap::new);
    let view = Arc::new(Mutex::new(View { talk, ..View::default() }));
    let ports =
        vec![open(Door::Node, top.clone(), &view).await, open(Door::Worker, top.clone(), &view).await];
    let mut worker = ports[1].clone();
    let config = LinksConfig {
        listener,
        cookie,
        tls: None,
        handshake_timeout: Duration::from_secs(30),
        gate: Arc::new(House { me, strict, view: view.clone() }),
        ports,
        events: Arc::new({
            let view = view.clone();
            move |event| tell(&view, event)
        }),
    };
    let links = Links::start(config, top.clone()).await.expect("started");
    say(&format!("address {address}"));

    let (give, mut orders) = mpsc::channel(64);
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if give.blocking_send(line).is_err() {
                break;
            }
        }
    });
    // The input ends with the test that started this process.
    while let Some(order) = orders.recv().await {
        let words: Vec<&str> = order.split(' ').collect();
        let doors_of = |link: &str| {
            let link = LinkId(link.parse().expect("a number"));
            view.lock().expect("whole").doors.get(&link).cloned()
        };
        match words.as_slice() {
            ["dial", address] => links.dial(*address),
            ["close", link] => links.close(LinkId(link.parse().expect("a number")), "as the test wants"),
            ["send", link, door, text] => {
                let door = if *door == "node" { Door::Node } else { Door::Worker };
                let sent =
                    doors_of(link).is_some_and(|doors| doors.send(door, text.as_bytes().to_vec()).is_ok());
                say(if sent { "re sent" } else { "re failed" });
            }
            ["flood", link, megabytes] => {
                let doors = doors_of(link).expect("linked");
                for _ in 0..megabytes.parse().expect("a number") {
                    doors.send(Door::Node, vec![b'x'; 1 << 20]).expect("sent");
                }
                say("re sent");
            }
            ["links"] => {
                let pair = |(near, (_, far)): (&LinkId, &(Member, LinkId))| format!("{}:{}", near.0, far.0);
                let links: Vec<String> = view.lock().expect("whole").links.iter().map(pair).collect();
                say(&format!("re {}", links.join(" ")));
            }
            ["alone"] => say(&format!("re {}", view.lock().expect("whole").alone)),
            ["strangers"] => say(&format!("re {}", strangers())),
            ["announced"] => say(&format!("re {}", announced_actors())),
            ["sockets"] => say(&format!("re {}", sockets())),
            ["spawn", count] => {
                for _ in 0..count.parse().expect("a number") {
                    Actor::spawn_linked(None, Top, (), top.clone()).await.expect("spawned");
                }
                say(&format!("re {count}"));
            }
            ["shut", "worker"] => worker.close(),
            ["open", "worker"] => worker = open(Door::Worker, top.clone(), &view).await,
            ["talk", link] => {
                let link = LinkId(link.parse().expect("a number"));
                say(&format!("re {}", view.lock().expect("whole").talk(link)));
            }
            ["heard", link] => {
                say(&format!("re {}", view.lock().expect("whole").heard(link.parse().expect("a number"))));
            }
            ["said"] => say(&format!("re {}", view.lock().expect("whole").said())),
            ["stop"] => {
                links.stop(Duration::from_secs(30)).await;
                say("re stopped");
            }
            other => panic!("no such order: {other:?}"),
        }
    }
}

/// Stand-ins of doors of other nodes.
fn strangers() -> usize {
    let members = |door: Door| pg::get_scoped_members(&SCOPE.to_owned(), &door.as_str().to_owned());
    let remote = |cell: &ActorCell| matches!(cell.get_id(), ActorId::Remote { .. });
    Door::ALL.into_iter().flat_map(members).filter(remote).count()
}

/// Open network sockets of this process.
fn sockets() -> usize {
    let open = std::fs::read_dir("/proc/self/fd").expect("a system with /proc");
    open.filter_map(|file| std::fs::read_link(file.ok()?.path()).ok())
        .filter(|target| target.to_string_lossy().starts_with("socket:"))
        .count()
}

fn tell(view: &Mutex<View>, event: LinkEvent) {
    let mut view = view.lock().expect("whole");
    match event {
        LinkEvent::Up { link, their_link, member, page_tokens, outbound, doors } => {
            assert_eq!(page_tokens, Some(16));
            let way = if outbound.is_some() { "out" } else { "in" };
            say(&format!(
                "up {way} {} {}#{} theirs {} {doors:?}",
                link.0, member.id, member.incarnation, their_link.0
            ));
            view.doors.insert(link, doors);
            assert!(view.links.insert(link, (member, their_link)).is_none(), "up once");
            view.talk(link);
        }
        LinkEvent::Doors { link, doors } => {
            say(&format!("doors {} {doors:?}", link.0));
            assert!(view.links.contains_key(&link), "doors change while a link is up");
            view.doors.insert(link, doors);
        }
        LinkEvent::Down { link, why } => {
            say(&format!("down {} {why}", link.0));
            assert!(view.links.remove(&link).is_some(), "down once, after up");
            view.alone += usize::from(view.links.is_empty());
        }
        LinkEvent::DialFailed { address, error } => {
            let error = match error {
                DialError::Unreachable(why) => format!("unreachable {why}"),
                DialError::Refused(why) => format!("refused {why}"),
                DialError::Final(why) => format!("final {why}"),
                DialError::AlreadyLinked(name) => format!("already-linked {name}"),
                DialError::Itself => "itself".to_owned(),
            };
            say(&format!("dial-failed {address} {error}"));
        }
        LinkEvent::Refused { peer: _, name, refusal, by_peer } => {
            let name = name.map_or_else(|| "?".to_owned(), |name| name.to_string());
            say(&format!("refused {name} {} {refusal}", if by_peer { "by-peer" } else { "by-us" }));
        }
    }
}
