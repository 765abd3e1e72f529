//! Who may come in.

use super::*;

fn judge(node: &mut Node, now: u64, newcomer: &Member) -> Verdict {
    let verdict = node.0.judge(ms(now), newcomer);
    enforce(node.0.check());
    verdict
}

fn at(m: &Member, address: &str) -> Member {
    Member { address: address.to_owned(), ..m.clone() }
}

#[test]
fn strangers_and_lost_members_are_let_in() {
    let (mut node, _) = Node::new(&[]);
    assert_eq!(judge(&mut node, 0, &member("a", 2)), Verdict::Accept);
    node.linked(0, 1, &member("a", 2));
    node.unlinked(1, 1);
    for life in 1..4 {
        assert_eq!(judge(&mut node, 2, &at(&member("a", life), "a:9")), Verdict::Accept);
    }
}

#[test]
fn the_own_name_is_taken() {
    let (mut node, _) = Node::new(&[]);
    assert_eq!(judge(&mut node, 0, &member("m", 50)), Verdict::Itself);
    let taken = Verdict::NameInUse { address: "m:1".to_owned() };
    assert_eq!(judge(&mut node, 0, &at(&member("m", 51), "m:2")), taken);
}

/// B86: the second process of a name is refused while the first one shows life.
#[test]
fn a_live_holder_keeps_its_name() {
    let (mut node, _) = Node::new(&[]);
    let (holder, newcomer) = (member("a", 1), at(&member("a", 2), "a:2"));
    node.linked(0, 1, &holder);
    node.beat(500, 1, &holder, &[]);
    let until = ms(600 + 1_250);
    assert_eq!(judge(&mut node, 600, &newcomer), Verdict::Wait { until });
    assert_eq!(judge(&mut node, 700, &newcomer), Verdict::Wait { until }, "asking again changes nothing");
    for now in [1_000, 1_500] {
        node.beat(now, 1, &holder, &[]);
    }
    let taken = Verdict::NameInUse { address: "a:1".to_owned() };
    assert_eq!(judge(&mut node, 1_850, &newcomer), taken);
    assert_eq!(node.0.links().len(), 1, "the holder is undisturbed");
    let lower = at(&member("a", 0), "a:2");
    assert_eq!(judge(&mut node, 1_851, &lower), taken, "an older life than a linked one");
    let again = judge(&mut node, 1_852, &newcomer);
    assert!(matches!(again, Verdict::Wait { until } if until == ms(1_852 + 1_250)), "{again:?}");
}

/// B86: … and let in when the first one is frozen or gone, even if a last beat was on its way.
#[test]
fn a_dead_holder_loses_its_name() {
    let (mut node, _) = Node::new(&[]);
    let (holder, newcomer) = (member("a", 1), at(&member("a", 2), "a:2"));
    node.linked(0, 1, &holder);
    assert_eq!(judge(&mut node, 600, &newcomer), Verdict::Wait { until: ms(1_850) });
    node.beat(620, 1, &holder, &[]);
    assert_eq!(judge(&mut node, 1_850, &newcomer), Verdict::Accept);
    let fx = node.linked(1_851, 2, &newcomer);
    assert_eq!(fx[1..], [down("a", 1, Loss::Replaced), MembershipEffect::Up(newcomer.clone())]);

    let next = at(&member("a", 3), "a:3");
    assert!(matches!(judge(&mut node, 2_000, &next), Verdict::Wait { .. }));
    node.unlinked(2_100, 2);
    assert_eq!(judge(&mut node, 2_101, &next), Verdict::Accept, "its connection ended in between");
}

/// A question of long ago says nothing about the holder now.
#[test]
fn an_old_challenge_is_asked_anew() {
    let (mut node, _) = Node::new(&[]);
    let (holder, newcomer) = (member("a", 1), at(&member("a", 2), "a:2"));
    node.linked(0, 1, &holder);
    assert!(matches!(judge(&mut node, 10, &newcomer), Verdict::Wait { .. }));
    for now in (500..10_000).step_by(500) {
        node.beat(now, 1, &holder, &[]);
    }
    let until = ms(9_600 + 1_250);
    assert_eq!(judge(&mut node, 9_600, &newcomer), Verdict::Wait { until });
}

/// While this process stood still the holder could not be heard.
#[test]
fn the_own_freeze_does_not_cost_a_holder_its_name() {
    let (mut node, _) = Node::new(&[]);
    let (holder, newcomer) = (member("a", 1), at(&member("a", 2), "a:2"));
    node.linked(0, 1, &holder);
    assert_eq!(judge(&mut node, 1_000, &newcomer), Verdict::Wait { until: ms(2_250) });
    let until = ms(3_000 + 1_250);
    assert_eq!(judge(&mut node, 3_000, &newcomer), Verdict::Wait { until });
    node.beat(3_001, 1, &holder, &[]);
    node.beat(3_600, 1, &holder, &[]);
    assert!(matches!(judge(&mut node, 4_250, &newcomer), Verdict::NameInUse { .. }));
}

/// B85: a node restarted at the same address is let in at once, however alive its former life looked.
#[test]
fn a_restart_at_the_same_address_replaces_at_once() {
    let (mut node, _) = Node::new(&[]);
    node.linked(0, 1, &member("a", 1));
    assert_eq!(judge(&mut node, 1, &member("a", 2)), Verdict::Accept);
}

/// A cut that only the other end noticed leaves a half-open connection here.
#[test]
fn a_half_open_link_gives_way() {
    let (mut node, _) = Node::new(&[]);
    let a = member("a", 1);
    node.linked(0, 1, &a);
    assert_eq!(judge(&mut node, 900, &a), Verdict::AlreadyLinked);
    assert_eq!(judge(&mut node, 1_100, &a), Verdict::Accept);
    let fx = node.linked(1_101, 2, &a);
    assert_eq!(
        fx,
        [close(1, "silent"), down("a", 1, Loss::Silent), MembershipEffect::Up(a)],
        "the other end has given up what was under way"
    );
}
