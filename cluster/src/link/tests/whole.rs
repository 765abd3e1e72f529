//! Whole links, between processes: this test binary, run again as a node that obeys lines on its standard input and tells
//! what happens on its standard output ([`node`]).

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

mod node;

const LIMIT: Duration = Duration::from_secs(60);

/// A node in a process of its own.
struct Node {
    process: Child,
    orders: ChildStdin,
    lines: Receiver<String>,
    /// Lines that were passed over.
    early: VecDeque<String>,
    address: String,
}

impl Node {
    fn start(name: &str, incarnation: u64, cookie: &str) -> Self {
        Self::start_as(&format!("{name} {incarnation} {cookie} open"))
    }

    fn start_as(setup: &str) -> Self {
        let mut process = Command::new(std::env::current_exe().expect("this binary"))
            .args([
                "--exact",
                "link::tests::whole::node::run",
                "--ignored",
                "--nocapture",
                "--test-threads=1",
            ])
            .env(node::SETUP, setup)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("started");
        let orders = process.stdin.take().expect("piped");
        let output = BufReader::new(process.stdout.take().expect("piped"));
        let (tell, lines) = sync_channel(10_000);
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                // The harness of the tests may have begun the line.
                if let Some((_, said)) = line.split_once(node::MARK)
                    && tell.send(said.to_owned()).is_err()
                {
                    break;
                }
            }
        });
        let mut node = Self { process, orders, lines, early: VecDeque::new(), address: String::new() };
        node.address = node.expect("address");
        node
    }

    fn order(&mut self, order: &str) {
        writeln!(self.orders, "{order}").expect("it reads");
    }

    fn receive(&self) -> String {
        self.lines.recv_timeout(LIMIT).expect("it says something in time")
    }

    /// What it says after `start` in its next line, which has to begin with that.
    fn expect(&mut self, start: &str) -> String {
        let line = self.early.pop_front().unwrap_or_else(|| self.receive());
        line.strip_prefix(start)
            .unwrap_or_else(|| panic!("`{line}` where `{start}` was due"))
            .trim()
            .to_owned()
    }

    /// As [`Self::expect`], passing over other lines, which stay for later.
    fn find(&mut self, starts: &[&str]) -> String {
        let deadline = Instant::now() + LIMIT;
        let wanted = |line: &str| starts.iter().any(|start| line.starts_with(start));
        if let Some(at) = self.early.iter().position(|line| wanted(line)) {
            return self.early.remove(at).expect("it is there");
        }
        loop {
            let line = self.receive();
            if wanted(&line) {
                return line;
            }
            self.early.push_back(line);
            assert!(Instant::now() < deadline, "none of {starts:?} in {:?}", self.early);
        }
    }

    /// The answer to a question.
    fn ask(&mut self, question: &str) -> String {
        self.order(question);
        self.find(&["re "])[3..].to_owned()
    }

    /// Asks until the answer is right.
    fn ask_until(&mut self, question: &str, right: &str) {
        let deadline = Instant::now() + LIMIT;
        loop {
            let answer = self.ask(question);
            if answer == right {
                return;
            }
            assert!(Instant::now() < deadline, "`{question}` says `{answer}`");
        }
    }

    fn signal(&self, signal: &str) {
        let id = self.process.id().to_string();
        assert!(Command::new("kill").args([signal, &id]).status().expect("kill runs").success());
    }

    fn kill(&mut self) {
        self.process.kill().expect("killed");
        self.process.wait().expect("reaped");
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// `a` dials `b`, and both say that they are linked; gives the link's number at each.
fn link(a: &mut Node, b: &mut Node) -> (String, String) {
    a.order(&format!("dial {}", b.address));
    link_at(a, b)
}

fn link_at(a: &mut Node, b: &mut Node) -> (String, String) {
    let number = |line: String| line.split(' ').next().expect("a number").to_owned();
    (number(a.expect("up out")), number(b.expect("up in")))
}

#[test]
fn messages_go_both_ways_and_a_closed_link_is_down_at_both_ends() {
    let (mut a, mut b) = (Node::start("a", 1, "x"), Node::start("b", 1, "x"));
    for round in 0..4 {
        a.order(&format!("dial {}", b.address));
        let (near, far) = (a.expect("up out"), b.expect("up in"));
        let (near, about_b) = near.split_once(' ').expect("words");
        let (far, about_a) = far.split_once(' ').expect("words");
        assert_eq!(about_b, format!("b#1 theirs {far} {{\"node\", \"worker\"}}"));
        assert_eq!(about_a, format!("a#1 theirs {near} {{\"node\", \"worker\"}}"));

        assert_eq!(a.ask(&format!("send {near} node hello-{round}")), "sent");
        assert_eq!(b.expect("got"), format!("node hello-{round}"));
        assert_eq!(b.ask(&format!("send {far} worker back-{round}")), "sent");
        assert_eq!(a.expect("got"), format!("worker back-{round}"));

        // Either end may close.
        let (closer, link, other, other_link) =
            if round % 2 == 0 { (&mut a, near, &mut b, far) } else { (&mut b, far, &mut a, near) };
        closer.order(&format!("close {link}"));
        assert_eq!(closer.expect("down"), format!("{link} as the test wants"));
        assert_eq!(other.expect("down"), format!("{other_link} the other end closed the connection"));
        // Messages to the doors of a dead link come back.
        other.ask_until(&format!("send {other_link} node late"), "failed");
        closer.ask_until(&format!("send {link} node late"), "failed");
    }
    // B82: what stood for the doors is gone.
    a.ask_until("strangers", "0");
    b.ask_until("strangers", "0");
}

/// B81: the end of a process is noticed by its closed socket, not by missing beats; it comes back under its name.
#[test]
fn a_killed_node_is_down_and_comes_back_under_its_name() {
    let mut a = Node::start("a", 1, "x");
    for incarnation in 1..5 {
        let mut b = Node::start("b", incarnation, "x");
        let (_, at_a) = if incarnation % 2 == 0 { link(&mut b, &mut a) } else { swap(link(&mut a, &mut b)) };
        let killed = Instant::now();
        b.process.kill().expect("killed");
        let down = a.expect("down");
        println!("a killed node was down after {:?}: {down}", killed.elapsed());
        assert_eq!(down.split(' ').next(), Some(at_a.as_str()));
    }
    a.ask_until("links", "");
    a.ask_until("strangers", "0");
}

fn swap((a, b): (String, String)) -> (String, String) {
    (b, a)
}

/// Both dial at the same moment, over and over: one link is left, every dial has exactly one outcome, and from the first
/// link on until the last one is closed neither end is without one.
#[test]
fn of_two_simultaneous_dials_one_link_is_left() {
    let (mut a, mut b) = (Node::start_as("a 1 x strict"), Node::start_as("b 1 x strict"));
    const ROUNDS: usize = 40;
    for _ in 0..ROUNDS {
        let (to_a, to_b) = (format!("dial {}", a.address), format!("dial {}", b.address));
        a.order(&to_b);
        b.order(&to_a);
        let outcomes = ["up out", "dial-failed"];
        a.find(&outcomes);
        b.find(&outcomes);
        // Whichever was kept, both ends come to have it and no other.
        let deadline = Instant::now() + LIMIT;
        let (at_a, at_b) = loop {
            // Each link with its numbers at this end and at the other.
            let (links_a, links_b) = (a.ask("links"), b.ask("links"));
            if let Some((at_a, at_b)) = links_a.split_once(':')
                && links_b == format!("{at_b}:{at_a}")
            {
                break (at_a.to_owned(), at_b.to_owned());
            }
            assert!(Instant::now() < deadline, "links `{links_a}` and `{links_b}`");
        };
        assert_eq!(a.ask(&format!("send {at_a} node ping")), "sent");
        assert_eq!(b.find(&["got"]), "got node ping");
        a.order(&format!("close {at_a}"));
        b.find(&[&format!("down {at_b}")]);
        a.find(&[&format!("down {at_a}")]);
        a.ask_until("links", "");
        b.ask_until("links", "");
    }
    for node in [&mut a, &mut b] {
        let extra = node.early.iter().filter(|line| line.starts_with("dial-failed")).count();
        assert_eq!(extra, 0, "a second outcome of a dial in {:?}", node.early);
        assert_eq!(node.ask("alone"), ROUNDS.to_string(), "without a link in between: {:?}", node.early);
    }
}

/// A thousand dials, two at a time, with messages over each link from the moment that either end has it: the link that an
/// end has is never taken away, and all that is sent over it arrives once and in order.
#[test]
fn nothing_is_lost_when_both_dial_at_once() {
    let (mut a, mut b) = (Node::start_as("a 1 x talk"), Node::start_as("b 1 x talk"));
    for round in 0..500 {
        let (to_a, to_b) = (format!("dial {}", a.address), format!("dial {}", b.address));
        // Either may be first, by nothing or by some of the time that a handshake takes.
        let mut dials = [(&mut a, to_b), (&mut b, to_a)];
        dials.rotate_left(round % 2);
        for (i, (node, dial)) in dials.into_iter().enumerate() {
            if i == 1 {
                let begun = Instant::now();
                while begun.elapsed() < Duration::from_micros(100) * (round as u32 / 2 % 40) {
                    std::hint::spin_loop();
                }
            }
            node.order(&dial);
        }
        let mut numbers = Vec::new();
        for node in [&mut a, &mut b] {
            let up = node.find(&["up "]);
            if up.starts_with("up in") {
                node.find(&["dial-failed"]);
            }
            numbers.push(up.split(' ').nth(2).expect("a number").to_owned());
        }
        let [at_a, at_b] = numbers.try_into().expect("one each");
        assert_eq!(a.ask(&format!("talk {at_a}")), "20", "round {round}: {:?}", a.early);
        assert_eq!(b.ask(&format!("talk {at_b}")), "20", "round {round}: {:?}", b.early);
        b.ask_until(&format!("heard {at_a}"), "40");
        a.ask_until(&format!("heard {at_b}"), "40");
        assert_eq!([a.ask("said"), b.ask("said")], [format!("{at_a}:40"), format!("{at_b}:40")]);
        a.order(&format!("close {at_a}"));
        for (node, link) in [(&mut a, &at_a), (&mut b, &at_b)] {
            node.find(&[&format!("down {link}")]);
            node.ask_until("links", "");
            node.early.retain(|line| !line.starts_with("refused"));
            assert!(node.early.is_empty(), "round {round}: {:?}", node.early);
        }
    }
}

/// Writes to a node that reads nothing pile up in the socket; closing the link closes it all the same.
#[test]
fn a_link_to_a_frozen_node_can_be_closed() {
    let (mut a, mut b) = (Node::start("a", 1, "x"), Node::start("b", 1, "x"));
    let before = a.ask("sockets");
    let (near, far) = link(&mut a, &mut b);
    b.signal("-STOP");
    assert_eq!(a.ask(&format!("flood {near} 64")), "sent");
    a.order(&format!("close {near}"));
    a.expect("down");
    a.ask_until("sockets", &before);
    b.signal("-CONT");
    assert_eq!(b.find(&["down"]).split(' ').nth(1), Some(far.as_str()));
    let (near, _) = {
        b.early.clear();
        a.order(&format!("dial {}", b.address));
        (a.expect("up out"), b.find(&["up in"]))
    };
    assert!(near.contains("b#1"), "{near}");
}

/// B86: a stranger is refused with the reason at both ends, and disturbs nobody.
#[test]
fn a_wrong_cookie_is_said_at_both_ends_and_disturbs_no_link() {
    let (mut a, mut b, mut c) =
        (Node::start("a", 1, "x"), Node::start("b", 1, "x"), Node::start("c", 1, "y"));
    let (near, _) = link(&mut a, &mut b);
    c.order(&format!("dial {}", a.address));
    assert!(c.expect("dial-failed").contains("final wrong cookie"));
    assert!(a.expect("refused").starts_with("c by-us wrong cookie"));
    a.order(&format!("dial {}", c.address));
    assert!(a.expect("dial-failed").contains("final wrong cookie"));
    assert!(c.expect("refused").starts_with("a by-us wrong cookie"));
    assert_eq!(a.ask(&format!("send {near} node still")), "sent");
    assert_eq!(b.expect("got"), "node still");
    // The name in use, as the gate of a node says it.
    let mut twin = Node::start("b", 0, "x");
    twin.order(&format!("dial {}", a.address));
    assert!(twin.expect("dial-failed").contains("final name `b` in use"));
    assert!(a.expect("refused").starts_with("b by-us name `b` in use"));
    assert_eq!(a.ask(&format!("send {near} node still")), "sent");
    assert_eq!(b.expect("got"), "node still");
}

#[test]
fn doors_that_open_and_close_later_are_told() {
    let (mut a, mut b) = (Node::start("a", 1, "x"), Node::start("b", 1, "x"));
    let (near, _) = link(&mut a, &mut b);
    for round in 0..3 {
        b.order("shut worker");
        assert_eq!(a.expect("doors"), format!("{near} {{\"node\"}}"));
        a.ask_until(&format!("send {near} worker late"), "failed");
        b.order("open worker");
        assert_eq!(a.expect("doors"), format!("{near} {{\"node\", \"worker\"}}"));
        assert_eq!(a.ask(&format!("send {near} worker again-{round}")), "sent");
        assert_eq!(b.expect("got"), format!("worker again-{round}"));
    }
}

/// Only doors are announced: neither local actors nor links add to them.
#[test]
fn announced_actors_are_the_doors() {
    let (mut a, mut b) = (Node::start("a", 1, "x"), Node::start("b", 1, "x"));
    assert_eq!(a.ask("announced"), "2");
    let (near, _) = link(&mut a, &mut b);
    assert_eq!(a.ask("spawn 500"), "500");
    assert_eq!(a.ask("announced"), "2");
    assert_eq!(a.ask(&format!("send {near} node x")), "sent");
    b.expect("got");
    assert_eq!(b.ask("strangers"), "2", "the peer holds stand-ins of two doors");
}

#[test]
fn stopped_links_are_down_at_both_ends_and_the_port_is_free() {
    let (mut a, mut b) = (Node::start("a", 1, "x"), Node::start("b", 1, "x"));
    let (near, far) = link(&mut b, &mut a);
    assert_eq!(a.ask("stop"), "stopped");
    assert_eq!(a.expect("down").split(' ').next(), Some(far.as_str()));
    assert_eq!(b.expect("down").split(' ').next(), Some(near.as_str()));
    let deadline = Instant::now() + LIMIT;
    while TcpListener::bind(&a.address).is_err() {
        assert!(Instant::now() < deadline, "still bound");
    }
}

/// Carries connections to an address, until it swallows them: no bytes and no ends get through any more.
struct Tunnel {
    address: String,
    swallow: Arc<AtomicBool>,
}

impl Tunnel {
    fn to(address: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
        let tunnel = Self {
            address: listener.local_addr().expect("bound").to_string(),
            swallow: Arc::new(AtomicBool::new(false)),
        };
        let (target, swallow) = (address.to_owned(), tunnel.swallow.clone());
        std::thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                let far = TcpStream::connect(&target).expect("connected");
                let copies = (near.try_clone().expect("cloned"), far.try_clone().expect("cloned"));
                let (there, back) = (swallow.clone(), swallow.clone());
                std::thread::spawn(move || carry(near, far, &there));
                std::thread::spawn(move || carry(copies.1, copies.0, &back));
            }
        });
        tunnel
    }
}

fn carry(mut from: TcpStream, mut to: TcpStream, swallow: &AtomicBool) {
    let mut bytes = [0; 4096];
    loop {
        let read = from.read(&mut bytes).unwrap_or(0);
        if swallow.load(Ordering::Relaxed) {
            if read == 0 {
                // Both sockets stay open until the test ends.
                std::mem::forget((from, to));
                return;
            }
        } else if read == 0 || to.write_all(&bytes[..read]).is_err() {
            let _ = to.shutdown(std::net::Shutdown::Write);
            return;
        }
    }
}

/// A link that the peer has lost without this end noticing does not stand in the way of its new one, although ractor, left
/// to itself, keeps one of the two at random.
#[test]
fn a_half_open_link_gives_way_to_the_new_one() {
    let (mut a, mut b) = (Node::start("a", 1, "x"), Node::start("b", 1, "x"));
    for direction in [0, 1] {
        let (tunnel, old) = if direction == 0 {
            let tunnel = Tunnel::to(&b.address);
            a.order(&format!("dial {}", tunnel.address));
            (tunnel, link_at(&mut a, &mut b))
        } else {
            let tunnel = Tunnel::to(&a.address);
            b.order(&format!("dial {}", tunnel.address));
            (tunnel, swap(link_at(&mut b, &mut a)))
        };
        tunnel.swallow.store(true, Ordering::Relaxed);
        b.order(&format!("close {}", old.1));
        b.expect("down");
        let deadline = Instant::now() + LIMIT;
        let new = loop {
            b.order(&format!("dial {}", a.address));
            let outcome = b.find(&["up out", "dial-failed"]);
            if let Some(new) = outcome.strip_prefix("up out ") {
                break new.split(' ').next().expect("a number").to_owned();
            }
            assert!(Instant::now() < deadline, "{outcome}");
        };
        a.find(&[&format!("down {}", old.0)]);
        a.find(&["up in"]);
        assert_eq!(b.ask(&format!("send {new} node new")), "sent");
        a.find(&["got node new"]);
        b.order(&format!("close {new}"));
        b.find(&["down"]);
        a.find(&["down"]);
        a.early.clear();
        b.early.clear();
    }
}

/// B54, B85: a node that starts again while its old link still seems to live is let in at its first try.
#[test]
fn a_new_life_of_a_node_replaces_the_link_of_the_old_one() {
    let mut a = Node::start("a", 1, "x");
    let mut old = Node::start("b", 1, "x");
    let tunnel = Tunnel::to(&a.address);
    old.order(&format!("dial {}", tunnel.address));
    let (_, at_a) = link_at(&mut old, &mut a);
    tunnel.swallow.store(true, Ordering::Relaxed);
    old.kill();

    let mut new = Node::start("b", 2, "x");
    new.order(&format!("dial {}", a.address));
    let number = new.expect("up out").split(' ').next().expect("a number").to_owned();
    assert!(a.expect("down").starts_with(&format!("{at_a} a new connection")));
    assert!(a.expect("up in").contains("b#2"));
    assert_eq!(new.ask(&format!("send {number} node new")), "sent");
    assert_eq!(a.expect("got"), "node new");
}
