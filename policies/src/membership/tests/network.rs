//! Several cores against each other, over a network that cuts, resets and heals, of nodes that die, freeze, leave and
//! come back.

use proptest::prelude::*;

use super::*;

mod world;

use world::*;

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// B36, B54, B81, B83, B84, B85.
    #[test]
    fn a_cluster_becomes_whole_again(
        nodes in 3..=5_usize,
        elect in any::<bool>(),
        forget in prop_oneof![Just(4_u64), Just(60)],
        faults in prop::collection::vec((0..6_000_u64, fault()), 0..25),
    ) {
        let mut world = World::new(nodes, elect, MembershipConfig { forget_after: Span::from_secs(forget), ..config() });
        for (wait, fault) in &faults {
            world.run(world.now + Span::from_millis(*wait));
            world.inflict(fault);
        }
        world.heal();
        world.run(world.now + Span::from_secs(40));
        world.assert_whole();
    }
}

/// From cold, every node links to every other one soon, whoever starts first.
#[test]
fn a_new_cluster_is_whole_within_seconds() {
    for nodes in 2..=5 {
        let mut world = World::new(nodes, true, config());
        world.run(ms(4_000));
        world.assert_whole();
    }
}

/// B85: all seeds restart at once while the others live.
#[test]
fn a_cluster_survives_all_its_seeds() {
    let mut world = World::new(5, true, config());
    world.run(ms(5_000));
    for node in [0, 1] {
        world.kill(node, false);
    }
    world.run(ms(15_000));
    for node in 2..5 {
        assert_eq!(world.hosts[node].up.len(), 2, "the others keep their links");
    }
    for node in [0, 1] {
        world.boot(node);
    }
    world.run(ms(18_000));
    world.assert_whole();
}

/// B81, B83: stopped for three, thirty and three hundred seconds.
#[test]
fn a_frozen_node_comes_back_as_another_life() {
    for seconds in [3, 30, 300] {
        let mut world = World::new(3, true, config());
        world.run(ms(5_000));
        let before = world.me((2, 1)).unwrap().incarnation;
        world.inflict(&Fault::Freeze { node: 2, ms: seconds * 1_000 });
        world.run(ms(7_900));
        assert_eq!(world.hosts[0].up.len(), 1, "lost within suspect-after");
        world.run(world.now + Span::from_secs(seconds + 6));
        world.assert_whole();
        assert!(world.me((2, 1)).unwrap().incarnation > before);
    }
}

/// B84: what happened behind a cut is known within two seconds after it heals.
#[test]
fn nothing_is_missed_behind_a_cut() {
    for seed in 0..20 {
        let config = MembershipConfig { dial_longest: Span::from_millis(1_500), ..config() };
        let mut world = World::new(4, true, config);
        world.incarnation += seed;
        world.run(ms(5_000));
        for (a, b) in [(0, 1), (0, 2), (0, 3)] {
            world.inflict(&Fault::Cut { a, b, reset: false });
        }
        world.run(ms(10_000 + seed * 131));
        assert!(world.hosts[0].up.is_empty());
        world.inflict(&Fault::Kill { node: 3 });
        world.inflict(&Fault::Restart { node: 2, moved: true });
        world.run(ms(20_000 + seed * 173));
        world.inflict(&Fault::Heal);
        world.run(world.now + Span::from_secs(2));
        let names: Vec<&str> = world.hosts[0].up.keys().map(NodeId::as_str).collect();
        assert_eq!(names, ["n1", "n2"], "{seed}");
        world.boot(3);
        world.run(world.now + Span::from_secs(3));
        world.assert_whole();
    }
}
