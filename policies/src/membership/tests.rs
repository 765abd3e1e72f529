use config::ids::NodeId;
use config::{Role, RoleSet};

use super::*;
use crate::invariant::enforce;

mod dialling;
mod judging;
mod network;

const fn ms(n: u64) -> Time {
    Time(n * 1_000_000)
}

fn config() -> MembershipConfig {
    MembershipConfig {
        heartbeat: Span::from_millis(500),
        suspect_after: Span::from_secs(3),
        forget_after: Span::from_secs(60),
        dial_first: Span::from_millis(100),
        dial_longest: Span::from_secs(5),
        seed: 7,
    }
}

fn member(id: &str, incarnation: u64) -> Member {
    Member {
        id: id.into(),
        incarnation,
        address: format!("{id}:1"),
        roles: RoleSet::all(),
        ready: true,
        draining: false,
        http: None,
    }
}

/// A core whose every step is checked.
struct Node(Membership);

impl Node {
    /// Node `m`, started at 0.
    fn new(seeds: &[&str]) -> (Self, Vec<MembershipEffect>) {
        crate::invariant::panic_on_broken();
        let seeds = seeds.iter().map(|s| (*s).to_owned()).collect();
        let mut node = Self(Membership::new(config(), member("m", 50), seeds));
        let fx = node.step(Membership::start, ms(0));
        (node, fx)
    }

    fn step(
        &mut self,
        event: impl FnOnce(&mut Membership, Time, &mut Vec<MembershipEffect>),
        now: Time,
    ) -> Vec<MembershipEffect> {
        let mut fx = Vec::new();
        event(&mut self.0, now, &mut fx);
        enforce(self.0.check());
        if let Some(due) = self.0.next_deadline() {
            let mut more = Vec::new();
            // Nothing that is due may be left behind: a driver that sleeps until the deadline would spin.
            assert!(due > now || self.0.rows.values().any(|r| r.loss.is_none()), "{due:?} at {now:?}");
            if due <= now {
                self.0.tick(now, &mut more);
                assert!(self.0.next_deadline().is_none_or(|due| due > now), "a tick leaves work behind");
                fx.append(&mut more);
            }
        }
        fx
    }

    fn linked(&mut self, now: u64, link: u64, m: &Member) -> Vec<MembershipEffect> {
        self.step(|c, now, fx| c.linked(now, LinkId(link), m.clone(), None, fx), ms(now))
    }

    fn dialled(&mut self, now: u64, link: u64, m: &Member, address: &str) -> Vec<MembershipEffect> {
        self.step(|c, now, fx| c.linked(now, LinkId(link), m.clone(), Some(address), fx), ms(now))
    }

    fn unlinked(&mut self, now: u64, link: u64) -> Vec<MembershipEffect> {
        self.step(|c, now, fx| c.unlinked(now, LinkId(link), fx), ms(now))
    }

    fn beat(&mut self, now: u64, link: u64, m: &Member, peers: &[Peer]) -> Vec<MembershipEffect> {
        self.step(|c, now, fx| c.beat(now, LinkId(link), m.clone(), peers, fx), ms(now))
    }

    fn goodbye(&mut self, now: u64, link: u64) -> Vec<MembershipEffect> {
        self.step(|c, now, fx| c.goodbye(now, LinkId(link), fx), ms(now))
    }

    fn failed(&mut self, now: u64, address: &str, error: DialError) -> Vec<MembershipEffect> {
        self.step(|c, now, fx| _ = c.dial_failed(now, address, error, fx), ms(now))
    }

    fn tick(&mut self, now: u64) -> Vec<MembershipEffect> {
        self.step(Membership::tick, ms(now))
    }

    /// Ticks whenever asked to until `end`; what happened, with the milliseconds.
    fn run(&mut self, end: u64) -> Vec<(u64, MembershipEffect)> {
        let mut all = Vec::new();
        while let Some(due) = self.0.next_deadline().filter(|due| *due <= ms(end)) {
            let at = due.0.div_ceil(1_000_000);
            all.extend(self.tick(at).into_iter().map(|e| (at, e)));
        }
        all
    }

    /// Milliseconds of the tries of `address` until `end`, each of which fails at once.
    fn tries(&mut self, address: &str, end: u64, error: &DialError) -> Vec<u64> {
        let mut at = Vec::new();
        loop {
            let fx = self.run_to_dial(end);
            let Some((now, dialled)) = fx else { return at };
            if dialled == address {
                at.push(now);
            }
            assert!(dial_to(&self.failed(now, &dialled, error.clone())).is_empty(), "no try without a wait");
        }
    }

    fn run_to_dial(&mut self, end: u64) -> Option<(u64, String)> {
        while let Some(due) = self.0.next_deadline().filter(|due| *due <= ms(end)) {
            let at = due.0.div_ceil(1_000_000);
            if let Some(address) = dial_to(&self.tick(at)).pop() {
                return Some((at, address));
            }
        }
        None
    }

    fn state(&self, id: &str) -> Option<MemberState> {
        self.0.members().into_iter().find(|v| v.member.id.as_str() == id).map(|v| v.state)
    }
}

fn dial(address: &str) -> MembershipEffect {
    MembershipEffect::Dial { address: address.to_owned() }
}

fn dial_to(fx: &[MembershipEffect]) -> Vec<String> {
    let to = |e: &MembershipEffect| match e {
        MembershipEffect::Dial { address } => Some(address.clone()),
        _ => None,
    };
    fx.iter().filter_map(to).collect()
}

fn down(id: &str, incarnation: u64, why: Loss) -> MembershipEffect {
    MembershipEffect::Down { id: id.into(), incarnation, why }
}

fn close(link: u64, why: &'static str) -> MembershipEffect {
    MembershipEffect::Close { link: LinkId(link), why }
}

fn unreachable() -> DialError {
    DialError::Unreachable("connection refused".to_owned())
}

/// B81: a frozen or cut-off node is lost within the limit, and dialled until it is back.
#[test]
fn silence_is_a_loss() {
    let (mut node, _) = Node::new(&[]);
    let (a, z) = (member("a", 1), member("z", 1));
    node.linked(0, 1, &a);
    node.linked(0, 2, &z);
    let mut lost = Vec::new();
    for now in (500..=5_000).step_by(500) {
        lost.extend(node.run(now));
        node.beat(now, 2, &z, &[]);
    }
    assert_eq!(lost[..2], [(2_700, close(1, "silent")), (2_700, down("a", 1, Loss::Silent))]);
    assert_eq!(lost[2].1, dial("a:1"));
    assert!(lost[2].0 <= 2_700 + 121, "{lost:?}");
    assert_eq!(node.state("a"), Some(MemberState::Suspect));
    assert_eq!(node.state("z"), Some(MemberState::Ready));
    assert!(node.unlinked(5_001, 1).is_empty(), "a link that the core closed");
    let again = node.dialled(5_002, 3, &a, "a:1");
    assert_eq!(again, [MembershipEffect::Up(a)]);
}

/// B81: a killed process is lost when its connection ends.
#[test]
fn a_closed_connection_is_a_loss_at_once() {
    let (mut node, _) = Node::new(&[]);
    node.linked(0, 1, &member("a", 1));
    node.linked(0, 2, &member("z", 1));
    assert_eq!(node.unlinked(100, 1), [down("a", 1, Loss::Closed)]);
    assert_eq!(node.unlinked(100, 2), [down("z", 1, Loss::Closed), MembershipEffect::Isolated]);
    let dials = node.run(1_000);
    assert_eq!(dials.len(), 2);
    let at = |address| dials.iter().find(|(_, e)| *e == dial(address)).unwrap().0;
    assert!((180..=221).contains(&at("a:1")), "the greater name dials first: {dials:?}");
    assert!((340..=461).contains(&at("z:1")), "the other one a little later: {dials:?}");
}

#[test]
fn a_lost_member_is_forgotten_after_a_while_but_not_a_seed() {
    let (mut node, _) = Node::new(&["s:1"]);
    let (a, s) = (member("a", 1), member("s", 1));
    node.dialled(0, 1, &s, "s:1");
    node.linked(0, 2, &a);
    node.unlinked(100, 1);
    node.unlinked(100, 2);
    assert!(node.tries("a:1", 60_090, &unreachable()).len() > 8);
    let fx = node.tick(60_100);
    for gone in [a, s] {
        assert!(fx.contains(&MembershipEffect::Changed { member: gone, state: MemberState::Left }), "{fx:?}");
    }
    assert_eq!(node.0.members().len(), 1);
    for address in dial_to(&fx) {
        node.failed(60_101, &address, unreachable());
    }
    let mut dialled = Vec::new();
    while let Some((now, address)) = node.run_to_dial(200_000) {
        node.failed(now, &address, unreachable());
        dialled.push(address);
    }
    assert!(dialled.len() > 20 && dialled.iter().all(|a| a == "s:1"), "{dialled:?}");
}

#[test]
fn two_links_to_one_life_are_one_member() {
    let (mut node, _) = Node::new(&[]);
    let a = member("a", 1);
    assert_eq!(node.linked(0, 1, &a), [MembershipEffect::Up(a.clone())]);
    assert!(node.linked(1, 2, &a).is_empty());
    assert_eq!(node.0.links().len(), 2, "beats go over both");
    assert_eq!(node.0.link_of(&a.id), Some(LinkId(1)));
    for now in (500..=2_500).step_by(500) {
        node.beat(now, 2, &a, &[]);
    }
    assert_eq!(node.0.link_of(&a.id), Some(LinkId(2)), "the first one has gone silent");
    assert_eq!(node.run(2_700), [(2_700, close(1, "silent"))]);
    assert_eq!(node.unlinked(2_800, 2), [down("a", 1, Loss::Closed), MembershipEffect::Isolated]);
}

/// B54, B85: a node that restarted is another life; what the former one did is lost, in this order.
#[test]
fn a_newer_life_replaces_the_former_one() {
    let (mut node, _) = Node::new(&[]);
    let (old, new) = (member("a", 1), member("a", 2));
    node.linked(0, 1, &old);
    let fx = node.linked(10, 2, &new);
    assert_eq!(
        fx,
        [close(1, "replaced"), down("a", 1, Loss::Replaced), MembershipEffect::Up(new.clone())],
        "never alone in between"
    );
    assert!(node.unlinked(11, 1).is_empty());
    assert_eq!(node.linked(12, 3, &old), [close(3, "a newer life of it is linked")]);
    assert_eq!(node.0.peers(), [new.peer()]);
}

/// B36: nothing stays of the lives of a node that restarts again and again, at the same address or another one.
#[test]
fn churn_leaves_nothing_behind() {
    let (mut node, _) = Node::new(&["s:1"]);
    let s = member("s", 1);
    node.dialled(0, 1, &s, "s:1");
    for life in 1..=200 {
        let mut a = member("a", life);
        a.address = format!("a:{}", life % 50);
        let now = life * 100;
        node.beat(now, 1, &s, &[a.peer()]);
        node.linked(now, life + 1, &a);
        if life % 2 == 0 {
            node.unlinked(now + 50, life + 1);
        }
    }
    assert!(node.0.targets.len() > 20, "it had many addresses: {}", node.0.targets.len());
    for now in (20_500..90_000).step_by(500) {
        node.beat(now, 1, &s, &[]);
        node.tick(now);
        for address in node.0.targets.keys().cloned().collect::<Vec<_>>() {
            node.failed(now, &address, unreachable());
        }
    }
    assert_eq!(node.0.rows.len(), 1, "{:?}", node.0.rows);
    assert_eq!(node.0.targets.len(), 1, "{:?}", node.0.targets);
}

#[test]
fn goodbye_is_not_dialled_again() {
    let (mut node, _) = Node::new(&["s:1"]);
    let (a, s) = (member("a", 1), member("s", 1));
    node.dialled(0, 1, &s, "s:1");
    node.linked(0, 2, &a);
    assert_eq!(node.goodbye(100, 2), [close(2, "goodbye"), down("a", 1, Loss::Goodbye)]);
    assert_eq!(node.state("a"), Some(MemberState::Left));
    for now in (500..50_000).step_by(500) {
        let fx = node.beat(now, 1, &s, &[a.peer()]);
        assert!(fx.is_empty(), "gossip may be late: {fx:?}");
    }
    assert_eq!(node.state("a"), Some(MemberState::Left), "still shown");
    let fx = node.beat(50_000, 1, &s, &[Peer { incarnation: 2, ..a.peer() }]);
    assert_eq!(fx, [dial("a:1")], "its next life is another matter");
    node.failed(50_001, "a:1", unreachable());

    let fx = node.goodbye(50_002, 1);
    assert_eq!(fx, [close(1, "goodbye"), down("s", 1, Loss::Goodbye), MembershipEffect::Isolated]);
    let tries = node.tries("s:1", 70_000, &unreachable());
    assert!((3..=5).contains(&tries.len()), "a seed slowly: {tries:?}");
}

#[test]
fn a_link_that_outlives_a_goodbye_makes_no_suspect() {
    let (mut node, _) = Node::new(&[]);
    let a = member("a", 1);
    node.linked(0, 1, &a);
    node.goodbye(10, 1);
    assert_eq!(node.linked(11, 2, &a), [MembershipEffect::Up(a)]);
    assert_eq!(node.unlinked(12, 2), [down("a", 1, Loss::Goodbye), MembershipEffect::Isolated]);
    assert_eq!(node.state("a"), Some(MemberState::Left));
    assert!(dial_to(&node.run(50_000).into_iter().map(|(_, e)| e).collect::<Vec<_>>()).is_empty());
}

/// B83: a node that was stopped itself finds beats waiting, and gives nobody up for them.
#[test]
fn the_own_freeze_is_nobody_elses_silence() {
    for frozen in [2_850, 3_500, 10_000, 300_000] {
        let (mut node, _) = Node::new(&[]);
        let (a, z) = (member("a", 1), member("z", 1));
        node.linked(0, 1, &a);
        node.linked(0, 2, &z);
        assert!(node.tick(frozen).is_empty(), "{frozen}");
        assert!(node.beat(frozen + 1, 1, &a, &[]).is_empty());
        let fx = node.run(frozen + 1_001);
        assert_eq!(
            fx[..2],
            [(frozen + 1_000, close(2, "silent")), (frozen + 1_000, down("z", 1, Loss::Silent))]
        );
        assert_eq!(node.state("a"), Some(MemberState::Ready));
    }
}

#[test]
fn gossip_leads_to_those_that_are_not_linked() {
    let (mut node, _) = Node::new(&["s:1"]);
    let s = member("s", 1);
    node.dialled(0, 1, &s, "s:1");
    let gossip = [member("b", 1).peer(), member("m", 9).peer(), s.peer(), member("x", 1).peer()];
    assert_eq!(node.beat(100, 1, &s, &gossip), [dial("b:1")], "m is greater than b and less than x");
    let b = member("b", 1);
    assert_eq!(node.dialled(110, 2, &b, "b:1"), [MembershipEffect::Up(b.clone())]);
    for now in (600..2_100).step_by(500) {
        assert!(node.beat(now, 1, &s, &gossip).is_empty());
        node.beat(now, 2, &b, &[]);
    }
    assert_eq!(node.run(2_200), [(2_100, dial("x:1"))], "x had its time");
    let x = member("x", 1);
    assert_eq!(node.linked(2_150, 3, &x), [MembershipEffect::Up(x)]);
    assert!(node.failed(2_160, "x:1", DialError::AlreadyLinked("x".into())).is_empty());
}

/// What broken peers gossip costs no unbounded memory.
#[test]
fn gossip_is_bounded() {
    let (mut node, _) = Node::new(&[]);
    let a = member("a", 1);
    node.linked(0, 1, &a);
    let peers: Vec<Peer> = (0..10_000).map(|n| member(&format!("p{n}"), 1).peer()).collect();
    let dials = dial_to(&node.beat(1, 1, &a, &peers)).len() + dial_to(&node.tick(2_002)).len();
    assert_eq!(dials, 4_096);
}

#[test]
fn the_last_loss_isolates_once() {
    let (mut node, _) = Node::new(&[]);
    let a = member("a", 1);
    assert!(node.0.is_joined(), "no seeds: the first node of its cluster");
    assert!(!node.0.was_joined());
    node.linked(0, 1, &a);
    assert_eq!(node.unlinked(1, 1), [down("a", 1, Loss::Closed), MembershipEffect::Isolated]);
    assert!(node.unlinked(2, 1).is_empty());
    let fx = node.step(|c, now, fx| c.set_me(now, Member { incarnation: 51, ..c.me().clone() }, fx), ms(3));
    assert!(fx.is_empty(), "nobody to tell");
    assert!(node.0.was_joined());
    node.linked(4, 2, &a);
    assert_eq!(node.unlinked(5, 2), [down("a", 1, Loss::Closed), MembershipEffect::Isolated]);
}

#[test]
fn changes_are_told() {
    let (mut node, _) = Node::new(&[]);
    let a = Member { ready: false, ..member("a", 1) };
    node.linked(0, 1, &a);
    assert_eq!(node.state("a"), Some(MemberState::Joined));
    assert!(node.beat(1, 1, &a, &[]).is_empty());
    let ready = member("a", 1);
    let changed = MembershipEffect::Changed { member: ready.clone(), state: MemberState::Ready };
    assert_eq!(node.beat(2, 1, &ready, &[]), [changed]);
    let same = node.step(|c, now, fx| c.set_me(now, c.me().clone(), fx), ms(3));
    assert!(same.is_empty());
    let drain = node.step(|c, now, fx| c.set_me(now, Member { draining: true, ..c.me().clone() }, fx), ms(4));
    assert_eq!(drain, [MembershipEffect::BeatNow]);
}

#[test]
fn a_beat_may_bring_a_new_life_but_no_new_name() {
    let (mut node, _) = Node::new(&[]);
    let (a, next) = (member("a", 1), member("a", 2));
    node.linked(0, 1, &a);
    let fx = node.beat(1, 1, &next, &[]);
    assert_eq!(fx, [down("a", 1, Loss::Replaced), MembershipEffect::Up(next.clone())]);
    assert!(node.beat(2, 1, &a, &[]).is_empty(), "the former one is the past");
    assert_eq!(node.0.peers(), [next.peer()]);
    let fx = node.beat(3, 1, &member("b", 1), &[]);
    let why = "its beats name another node";
    assert_eq!(fx, [close(1, why), down("a", 2, Loss::Closed), MembershipEffect::Isolated]);
    assert!(node.beat(4, 9, &a, &[]).is_empty(), "an unknown link");
}

#[test]
fn the_oldest_controller_leads() {
    let (mut node, _) = Node::new(&[]);
    assert_eq!(node.0.leader(), Some("m".into()));
    let worker = Member { roles: "worker".parse().unwrap(), ..member("a", 1) };
    let (b, c) = (member("b", 49), member("c", 49));
    node.linked(0, 1, &worker);
    assert_eq!(node.0.leader(), Some("m".into()), "a worker does not lead");
    node.linked(0, 2, &c);
    node.linked(0, 3, &b);
    assert_eq!(node.0.leader(), Some("b".into()));
    node.beat(1, 3, &Member { draining: true, ..b }, &[]);
    assert_eq!(node.0.leader(), Some("c".into()));
    node.unlinked(2, 2);
    assert_eq!(node.0.leader(), Some("m".into()));
    node.step(|c, now, fx| c.set_me(now, Member { draining: true, ..c.me().clone() }, fx), ms(3));
    assert_eq!(node.0.leader(), None);
    assert!(worker.roles.contains(Role::Worker));
}

#[test]
fn a_link_to_the_own_name_is_closed() {
    let (mut node, _) = Node::new(&["alias:1"]);
    let fx = node.dialled(1, 1, &member("m", 50), "alias:1");
    assert_eq!(fx, [close(1, "it has this node's name")]);
    assert!(!node.0.was_joined());
}

/// The times of dials depend on nothing but the configuration's seed.
#[test]
fn the_same_seed_gives_the_same_trace() {
    let trace = || {
        let (mut node, _) = Node::new(&["a:1"]);
        node.failed(1, "a:1", unreachable());
        node.tries("a:1", 60_000, &unreachable())
    };
    assert_eq!(trace(), trace());
}
