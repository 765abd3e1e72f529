//! The directory is looked after.

use super::*;

fn asked(p: &mut Placement) -> Vec<WorkerId> {
    let mut work = Vec::new();
    p.take_policy_work(&mut work);
    let resync = |work| match work {
        PolicyWork::Resync(worker) => Some(worker),
        _ => None,
    };
    work.into_iter().filter_map(resync).collect()
}

#[test]
fn a_worker_that_does_not_tell_what_it_holds_is_asked_again() {
    let mut p = Placement::new(PlacementConfig { directory: true, ..config() });
    p.worker_joined(T, info(0, 1, 9), &mut Vec::new());
    p.worker_joined(T, WorkerInfo { page_tokens: 0, ..info(1, 1, 9) }, &mut Vec::new());
    assert_eq!(asked(&mut p), [id(0, 1)], "one without pages is not");
    p.worker_joined(T, info(0, 1, 8), &mut Vec::new());
    assert_eq!(asked(&mut p), [], "it is known and has been asked");
    let mut now = T;
    let mut seconds = |p: &mut Placement, n: u64| {
        for _ in 0..n * 10 {
            now = now + Span::from_millis(100);
            p.tick(now, &mut Vec::new());
        }
    };
    seconds(&mut p, 4);
    let times = asked(&mut p).len();
    assert!((2..=4).contains(&times), "asked {times} times in 4 s");
    assert_eq!(p.kv_snapshot(&id(0, 1), 0, 0, 1, &[PageHash([1; 16])]), Feed::Applied);
    seconds(&mut p, 4);
    assert_eq!(asked(&mut p), []);
}

#[test]
fn b36_what_a_worker_that_left_held_is_swept_up_though_nobody_tells_anything() {
    let mut p = Placement::new(PlacementConfig { directory: true, ..config() });
    let pages: Vec<PageHash> = (0..200_u8).map(|n| PageHash([n; 16])).collect();
    for n in 0..2 {
        p.worker_joined(T, info(n, 1, 9), &mut Vec::new());
        assert_eq!(p.kv_snapshot(&id(n, 1), 0, 0, 1, &pages[..1 + 199 * n as usize]), Feed::Applied);
    }
    assert_eq!(p.directory().pages(), 200);
    p.worker_left(T, &id(1, 1), &mut Vec::new());
    assert_eq!(p.directory().holders(&pages[0]), [id(0, 1)]);
    for second in 1..20 {
        p.tick(T + Span::from_secs(second), &mut Vec::new());
    }
    assert_eq!(p.directory().pages(), 1);
}
