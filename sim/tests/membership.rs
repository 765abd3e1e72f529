//! What the simulator says to nodes of their links, live nodes learn from [`policies::membership`] over heartbeats and
//! dials. Here a cluster of those cores goes through the same faults as the simulated network: they lose and find the same
//! nodes, and as late as the network says.

use policies::cost::Hardware;
use policies::time::{Span, Time};
use sim::Scenario;
use sim::event::Event;
use sim::network::{Addr, Network};
use sim::queue::Queue;

#[path = "membership/cores.rs"]
mod cores;

use cores::cores;

const NODES: [Addr; 4] = [Addr::Gateway, Addr::Controller, Addr::Worker(0), Addr::Worker(1)];

const LATENCY: Span = Span::from_millis(1);
const HEARTBEAT: Span = Span::from_millis(500);
const SUSPECT: Span = Span::from_secs(3);
/// The cores' own limit is a little less, so that all is over when that has passed.
const LIMIT: Span = Span(SUSPECT.0 / 10 * 9);
const LONGEST_DIAL: Span = Span::from_secs(2);
/// As live.
const TICK: Span = Span::from_millis(50);

/// When the cluster is whole, and something happens; long after all is over.
const BEGINS: Time = Time(20_000_000_000);
const END: Time = Time(60_000_000_000);

/// What a node learns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Learns {
    Lost(Addr),
    Found(Addr),
    /// It is linked to nobody.
    Alone,
}

/// Who learns what, and when.
type Heard = Vec<(Time, Addr, Learns)>;

/// What happens to a node.
#[derive(Clone, Copy, Debug)]
enum Fault {
    /// Nothing gets through, from and to it.
    Cut,
    Heal,
    /// It stands still.
    Freeze,
    Thaw,
    /// Its links break.
    Reset,
    /// It dies, and its machine says nothing of that.
    Crash,
    /// As another life.
    Start,
    /// It says goodbye, and is gone.
    Leave,
}

/// What the simulated network tells nodes of the same faults.
fn network(seed: u64, faults: &[(u64, Addr, Fault)]) -> Heard {
    let (detect, spread) = (LIMIT.0 - HEARTBEAT.0, HEARTBEAT.0 + TICK.0);
    let text = format!(
        "seed = {seed}\n[cluster]\nworkers = 2\nnetwork = \"{}ns\"\ndetect = \"{detect}ns\"\n[network]\n\
         detect-spread = \"{spread}ns\"\n",
        LATENCY.0
    );
    let scenario = Scenario::from_toml(&text, "test").expect("a scenario");
    let machine = Hardware::named("zero").expect("a machine");
    let mut network = Network::new(&scenario, &[machine; 2], &[], true);
    let (mut queue, mut heard): (_, Heard) = (Queue::default(), Vec::new());
    // In the place of each fault an event with its number, for there are no others of that kind.
    for (number, (ms, ..)) in (0..).zip(faults) {
        queue.push(BEGINS + Span::from_millis(*ms), Event::Fault(number));
    }
    while let Some((now, event)) = queue.pop() {
        let Some(event) = network.arrive(event) else { continue };
        let mut linked = Vec::new();
        match event {
            Event::Fault(number) => {
                let (_, node, fault) = faults[number as usize];
                match fault {
                    Fault::Cut => network.cut(now, &[node], &mut queue),
                    Fault::Heal => network.heal(now, &[node], &mut queue),
                    Fault::Freeze => network.freeze(now, node, 0, &mut queue),
                    Fault::Thaw => network.thaw(now, node, 0, &mut queue),
                    Fault::Reset => network.reset(now, &[node], &mut queue),
                    Fault::Crash => network.crash(now, node, &mut queue),
                    Fault::Leave => network.leave(now, node, &mut queue),
                    Fault::Start => linked = network.start(node),
                }
            }
            Event::Notice { who, whom, why } if network.notices(now, who, whom, why, &mut queue) => {
                lost(&network, (now, who, whom), &mut heard);
            }
            Event::Relink(a, b) => linked.extend(network.relink(now, a, b, &mut queue)),
            _ => {}
        }
        for link in linked {
            let [a, b] = link.nodes;
            for ((who, whom), unaware) in [(a, b), (b, a)].into_iter().zip(link.unaware) {
                // A life that has just begun has nobody to lose.
                let new = faults.iter().any(|(ms, node, fault)| {
                    matches!(fault, Fault::Start) && *node == who && BEGINS + Span::from_millis(*ms) == now
                });
                if unaware && !new {
                    heard.push((now, who, Learns::Lost(whom)));
                }
                heard.push((now, who, Learns::Found(whom)));
            }
        }
    }
    heard
}

fn lost(network: &Network, (now, who, whom): (Time, Addr, Addr), heard: &mut Heard) {
    heard.push((now, who, Learns::Lost(whom)));
    if network.links().is_some_and(|links| links.is_alone(who)) {
        heard.push((now, who, Learns::Alone));
    }
}

/// Both learn the same, each as often, and about as late.
fn agree(faults: &[(u64, Addr, Fault)]) -> Heard {
    let mut last = Vec::new();
    for seed in 0..8 {
        let (core, net) = (cores(seed, faults), network(seed, faults));
        let sorted = |heard: &Heard| {
            let mut all: Vec<(Addr, Learns, Time)> =
                heard.iter().map(|(at, who, what)| (*who, *what, *at)).collect();
            all.sort();
            all
        };
        let (core, net) = (sorted(&core), sorted(&net));
        let what =
            |all: &[(Addr, Learns, Time)]| all.iter().map(|(who, what, _)| (*who, *what)).collect::<Vec<_>>();
        assert_eq!(what(&core), what(&net), "{faults:?}, seed {seed}\ncores: {core:#?}\nnetwork: {net:#?}");
        for ((who, learns, at), (.., then)) in core.iter().zip(&net) {
            let apart = at.since(*then).max(then.since(*at));
            let most = match learns {
                // Somewhere between a beat before the limit and a tick after it; or both at once.
                Learns::Lost(_) | Learns::Alone => HEARTBEAT + TICK + TICK,
                // Who was not there is dialled now and then.
                Learns::Found(_) => Span(LONGEST_DIAL.0 / 5 * 6) + HEARTBEAT + HEARTBEAT,
            };
            assert!(apart <= most, "{faults:?}, seed {seed}: {who:?} {learns:?}: at {at:?} and {then:?}");
        }
        last = net.into_iter().map(|(who, what, at)| (at, who, what)).collect();
    }
    last
}

const WORKER: Addr = Addr::Worker(0);

#[test]
fn a_node_that_is_cut_off_is_lost_by_all_and_loses_all() {
    for node in [WORKER, Addr::Controller, Addr::Gateway] {
        let heard = agree(&[(0, node, Fault::Cut), (6000, node, Fault::Heal)]);
        assert_eq!(heard.len(), 3 + 3 + 1 + 6, "{heard:?}");
    }
}

#[test]
fn a_cut_or_a_standstill_shorter_than_the_limit_is_nothing() {
    assert!(agree(&[(0, WORKER, Fault::Cut), (1500, WORKER, Fault::Heal)]).is_empty());
    assert!(agree(&[(0, WORKER, Fault::Freeze), (1500, WORKER, Fault::Thaw)]).is_empty());
}

#[test]
fn a_node_that_stands_still_hears_afterwards_that_it_was_given_up() {
    let heard = agree(&[(0, WORKER, Fault::Freeze), (6000, WORKER, Fault::Thaw)]);
    assert_eq!(heard.len(), 3 + 3 + 1 + 6, "{heard:?}");
}

#[test]
fn links_that_break_are_noticed_at_once_and_made_again() {
    let heard = agree(&[(0, WORKER, Fault::Reset)]);
    assert_eq!(heard.len(), 3 + 3 + 1 + 6, "{heard:?}");
}

#[test]
fn a_node_that_dies_is_lost_when_it_is_silent_and_found_when_it_starts() {
    let heard = agree(&[(0, WORKER, Fault::Crash), (6000, WORKER, Fault::Start)]);
    assert_eq!(heard.len(), 3 + 6, "{heard:?}");
    assert_eq!(agree(&[(0, WORKER, Fault::Crash)]).len(), 3);
}

#[test]
fn a_node_that_starts_before_it_is_missed_is_lost_and_found_at_once() {
    let heard = agree(&[(0, WORKER, Fault::Crash), (900, WORKER, Fault::Start)]);
    assert_eq!(heard.len(), 3 + 6, "{heard:?}");
}

#[test]
fn who_says_goodbye_is_lost_at_once() {
    let heard = agree(&[(0, WORKER, Fault::Leave)]);
    assert_eq!(heard.len(), 3, "{heard:?}");
    assert!(heard.iter().all(|(at, ..)| *at == BEGINS + LATENCY), "{heard:?}");
}

#[test]
fn several_faults_one_after_the_other() {
    agree(&[
        (0, Addr::Controller, Fault::Cut),
        (5000, Addr::Controller, Fault::Heal),
        (12_000, WORKER, Fault::Crash),
        (17_000, WORKER, Fault::Start),
        (20_000, Addr::Worker(1), Fault::Freeze),
        (25_500, Addr::Worker(1), Fault::Thaw),
        (30_000, Addr::Gateway, Fault::Reset),
    ]);
}
