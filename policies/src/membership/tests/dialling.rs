//! Who is dialled, when, and what a refusal means.

use super::*;

/// B85: a dead seed, a wrong port and a name that does not resolve are tried for ever, ever more rarely.
#[test]
fn seeds_are_tried_for_ever_with_backoff() {
    let (mut node, fx) = Node::new(&["dead:1", "wrong:2", "good:3"]);
    assert_eq!(fx, [dial("dead:1"), dial("good:3"), dial("wrong:2")]);
    assert!(!node.0.is_joined());
    assert!(node.failed(10, "dead:1", unreachable()).is_empty());
    assert!(node.failed(10, "wrong:2", DialError::Refused("not a cluster port".to_owned())).is_empty());
    let good = member("good", 1);
    assert_eq!(node.dialled(20, 1, &good, "good:3"), [MembershipEffect::Up(good.clone())]);
    assert!(node.0.is_joined());
    let mut dead = vec![10];
    for now in (100..120_000).step_by(100) {
        for address in dial_to(&node.beat(now, 1, &good, &[])) {
            assert_ne!(address, "good:3", "it is linked");
            if address == "dead:1" {
                dead.push(now);
            }
            node.failed(now, &address, unreachable());
        }
    }
    let gaps: Vec<u64> = dead.windows(2).map(|w| w[1] - w[0]).collect();
    assert!(gaps[0] <= 200, "{gaps:?}");
    assert!(gaps[8..].iter().all(|gap| (3_900..=6_200).contains(gap)), "{gaps:?}");
    assert!(gaps.iter().max() != gaps[8..].iter().min(), "jitter: {gaps:?}");
    assert!(*dead.last().unwrap() > 110_000);
}

#[test]
fn a_dial_is_under_way_only_once() {
    let (mut node, fx) = Node::new(&["a:1"]);
    assert_eq!(fx, [dial("a:1")]);
    assert!(node.run(60_000).is_empty(), "no answer yet");
    node.failed(60_000, "a:1", unreachable());
    assert_eq!(node.run_to_dial(61_000).unwrap().1, "a:1");
}

#[test]
fn only_another_failure_is_news() {
    let (mut node, _) = Node::new(&["a:1"]);
    let mut news = |now, error| node.0.dial_failed(ms(now), "a:1", error, &mut Vec::new());
    assert!(news(1, unreachable()));
    assert!(!news(2, unreachable()));
    assert!(!news(2, DialError::Unreachable("connection reset".to_owned())), "still nobody there");
    assert!(news(3, DialError::Refused("busy".to_owned())));
    assert!(news(4, unreachable()));
    node.dialled(5, 1, &member("a", 1), "a:1");
    assert!(node.0.dial_failed(ms(6), "a:1", unreachable(), &mut Vec::new()), "it was reached in between");
}

#[test]
fn seeds_that_are_one_node_are_dialled_once_known() {
    let (mut node, _) = Node::new(&["x:1", "y:1"]);
    let a = member("a", 1);
    node.dialled(10, 1, &a, "x:1");
    node.failed(11, "y:1", DialError::AlreadyLinked("a".into()));
    for now in (500..20_000).step_by(500) {
        assert!(node.beat(now, 1, &a, &[]).is_empty());
    }
    let mut fx = node.unlinked(20_000, 1);
    fx.extend(node.run(22_000).into_iter().map(|(_, e)| e));
    let dials = dial_to(&fx);
    assert_eq!(dials.len(), 1, "one way to it at a time: {dials:?}");
}

/// B86: wrong cookie, a name in use, another version: the process ends before it ever joined, and not later.
#[test]
fn a_final_refusal_is_fatal_only_before_joining() {
    let (mut node, _) = Node::new(&["a:1", "b:1"]);
    let wrong = || DialError::Final("wrong cookie".to_owned());
    assert_eq!(node.failed(1, "a:1", wrong()), [MembershipEffect::Fatal("wrong cookie".to_owned())]);
    assert!(node.failed(2, "b:1", wrong()).is_empty(), "said once");
    assert!(node.run(100_000).is_empty(), "and no dial after it");

    let (mut node, _) = Node::new(&["a:1", "b:1"]);
    let b = member("b", 1);
    node.dialled(1, 1, &b, "b:1");
    assert!(node.failed(2, "a:1", wrong()).is_empty());
    node.unlinked(3, 1);
    let tries = node.tries("a:1", 30_000, &wrong());
    assert!((4..=8).contains(&tries.len()), "slowly: {tries:?}");
}

/// A seed that has been dead for long may be what a node needs once it is alone.
#[test]
fn a_node_that_is_alone_dials_its_seeds_soon() {
    let (mut node, _) = Node::new(&["s:1"]);
    let a = member("a", 1);
    node.linked(0, 1, &a);
    node.failed(1, "s:1", unreachable());
    let mut last = 0;
    for now in (100..60_000).step_by(100) {
        if dial_to(&node.beat(now, 1, &a, &[])) == ["s:1"] {
            last = now;
            node.failed(now, "s:1", unreachable());
            if now > 40_000 {
                break;
            }
        }
    }
    assert!(last > 40_000);
    node.unlinked(last + 100, 1);
    let dials = node.run(last + 461);
    assert!(dials.iter().any(|(_, e)| *e == dial("s:1")), "{dials:?}");
}

/// A seed list that is the same on every node names the node itself too, by its address or by another name.
#[test]
fn the_own_address_as_a_seed() {
    let (mut node, fx) = Node::new(&["m:1"]);
    assert!(fx.is_empty());
    assert!(node.0.is_joined());
    assert!(node.run(100_000).is_empty());

    let (mut node, fx) = Node::new(&["alias:1"]);
    assert_eq!(fx, [dial("alias:1")]);
    assert!(!node.0.is_joined(), "it may be another one");
    node.failed(1, "alias:1", DialError::Itself);
    assert!(node.0.is_joined());
    let tries = node.tries("alias:1", 60_000, &DialError::Itself);
    assert!((8..=15).contains(&tries.len()), "the name may come to mean another one: {tries:?}");
    let a = member("a", 1);
    node.linked(60_000, 1, &a);
    for now in (60_500..80_000).step_by(500) {
        assert!(node.beat(now, 1, &a, &[]).is_empty());
    }

    let (mut node, _) = Node::new(&["m:1", "other:1"]);
    assert!(!node.0.is_joined());
    assert!(node.failed(1, "other:1", unreachable()).is_empty());
}
