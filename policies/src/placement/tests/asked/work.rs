//! What policies are shown of the work that there is, and what comes of it when many ask at once.

use super::*;

/// Pages that a worker told of are hits for the policies, and no work for the books, up to the prompt's last token.
#[test]
fn pages_of_the_directory_are_hits() {
    let mut p = Placement::new(PlacementConfig { directory: true, ..config() });
    p.set_policies(T, two(), &mut Vec::new());
    for n in 0..2 {
        p.worker_joined(T, info(n, 1, 9), &mut Vec::new());
    }
    let resync = work(&mut p).into_iter().filter(|w| matches!(w, PolicyWork::Resync(_))).count();
    assert_eq!(resync, 2, "each is asked what it holds");
    assert_eq!(p.kv_snapshot(&id(1, 1), 0, 0, 1, &[]), Feed::Applied);
    let pages: Vec<PageHash> = (0..8).map(|n| PageHash([n; 16])).collect();
    let stored = KvEvent::Stored { parent: None, pages: pages.clone(), tokens: Vec::new() };
    assert_eq!(p.kv_events(&id(1, 1), 1, std::slice::from_ref(&stored)), Feed::Applied);
    for (number, prompt_tokens, hit) in [(1, 100, 96), (2, 96, 95), (3, 500, 128)] {
        let hashes = pages[..(prompt_tokens / 16).min(8) as usize].into();
        place(&mut p, PlaceRequest { prompt_tokens, context_tokens: prompt_tokens, hashes, ..ask(number) });
        let asked = work(&mut p);
        let Some(PolicyWork::Consult { ticket, query, .. }) = asked.last() else { panic!("{asked:?}") };
        let hits: Vec<u32> = query.rows.iter().map(|r| r.hit_tokens).collect();
        assert_eq!(hits, [0, hit]);
        let before = p.workers()[1].booked_tokens;
        answer(&mut p, T, *ticket, "first", pins(1, false));
        answer(&mut p, T, *ticket, "second", Opinion::default());
        assert_eq!(p.workers()[1].booked_tokens - before, u64::from(prompt_tokens - hit) + 10);
    }
    // A gap asks for a snapshot; a worker that is gone holds nothing.
    assert!(matches!(p.kv_events(&id(1, 1), 7, &[stored]), Feed::Gap { .. }));
    assert_eq!(work(&mut p).last(), Some(&PolicyWork::Resync(id(1, 1))));
    p.worker_left(T, &id(1, 1), &mut Vec::new());
    assert!(p.directory().holders(&pages[0]).is_empty());
}

#[test]
fn prompt_tokens_wait_until_the_worker_has_said_otherwise() {
    let mut p = elsewhere(1, 9);
    let waiting = |p: &mut Placement, number| {
        place(p, ask(number));
        let asked = work(p);
        let Some(PolicyWork::Consult { ticket, query, .. }) = asked.last() else { panic!("{asked:?}") };
        let waiting = query.rows[0].prefill_tokens;
        answer(p, T, *ticket, "first", Opinion::default());
        answer(p, T, *ticket, "second", Opinion::default());
        waiting
    };
    assert_eq!(waiting(&mut p, 1), 0);
    assert_eq!(waiting(&mut p, 2), 100);
    p.accepted(T, RequestId::new(1, 1), Attempt(0));
    assert_eq!(waiting(&mut p, 3), 200, "one was taken and not reported yet, one is on its way");
    let load = BatchLoad { queued_prefill_tokens: 40, requests: 1, ..BatchLoad::default() };
    p.worker_load(T, &id(0, 1), load, &mut Vec::new());
    assert_eq!(waiting(&mut p, 4), 240);
    // News that it is taken may come after the report that had it, the last one: it counts no longer than the request.
    for number in 2..=4 {
        p.accepted(T, RequestId::new(1, number), Attempt(0));
    }
    assert_eq!(waiting(&mut p, 5), 340);
    for number in 2..=5 {
        p.release(T, RequestId::new(1, number), Attempt(0), &mut Vec::new());
    }
    p.worker_load(T, &id(0, 1), BatchLoad { requests: 1, ..BatchLoad::default() }, &mut Vec::new());
    p.check().unwrap();
    assert_eq!(waiting(&mut p, 6), 0);
    p.accepted(T, RequestId::new(1, 6), Attempt(0));
    p.release(T, RequestId::new(1, 6), Attempt(0), &mut Vec::new());
    assert_eq!(waiting(&mut p, 7), 0, "no report came after the request");
}

/// B31 with policies: requests that arrive together are asked about together, all shown the same idle workers; what was
/// booked since counts all the same, so they do not all take the one that looked cheapest.
#[test]
fn a_burst_that_is_asked_about_together_is_split() {
    let mut p = elsewhere(2, 64);
    let mut tickets = Vec::new();
    for n in 1..=30 {
        assert_eq!(place(&mut p, ask(n)), None);
        tickets.push(ticket(&mut p).0);
    }
    let mut count = [0_u32; 2];
    for t in tickets {
        // Worker 0 looks a little cheaper to whoever looks.
        let said = costs(&[(0, 100), (1, 103)]);
        assert!(answer(&mut p, T, t, "first", said).is_empty());
        let placed = plan(answer(&mut p, T, t, "second", Opinion::none("nothing", "")).pop());
        count[usize::from(placed.worker == id(1, 1))] += 1;
        work(&mut p);
    }
    assert!(count.iter().all(|n| (12..=18).contains(n)), "{count:?}");
}

/// Requests for one model that are being asked about do not keep those for another from being asked about.
#[test]
fn questions_about_one_model_do_not_hold_up_another() {
    let mut p = elsewhere(1, 2);
    let other = WorkerInfo { models: vec!["other".into()], ..info(7, 1, 2) };
    p.worker_joined(T, other, &mut Vec::new());
    work(&mut p);
    for n in 1..=2 {
        assert_eq!(place(&mut p, ask(n)), None);
        ticket(&mut p);
    }
    assert_eq!(place(&mut p, PlaceRequest { model: "other".into(), ..ask(3) }), None);
    assert_eq!((p.consulting(), p.queued()), (3, 0), "its worker is idle");
    assert_eq!(place(&mut p, ask(4)), None);
    assert_eq!((p.consulting(), p.queued()), (3, 1), "both places of the first are spoken for");
}
