use super::*;

fn numbers(batches: &[ZmqMessage]) -> Vec<u64> {
    batches.iter().map(|m| u64::from_be_bytes(m.get(0).unwrap()[..].try_into().unwrap())).collect()
}

fn since(kept: &Kept, start: u64) -> Option<Vec<u64>> {
    kept.since(start).map(|batches| numbers(&batches))
}

#[test]
fn what_is_kept_begins_whole_or_reaches_back() {
    let kept = Kept::new(3);
    assert_eq!(since(&kept, 0), Some(vec![]), "nothing was missed");
    kept.add(vec![], true);
    kept.add(vec![], false);
    assert_eq!(since(&kept, 0), Some(vec![0, 1]));
    assert_eq!(since(&kept, 1), Some(vec![1]));
    assert_eq!(since(&kept, 2), Some(vec![]), "up to date");
    assert_eq!(since(&kept, 40), Some(vec![0, 1]), "numbers of an earlier life");
    kept.add(vec![], false);
    kept.add(vec![], false);
    assert_eq!(since(&kept, 1), Some(vec![1, 2, 3]));
    assert_eq!(since(&kept, 0), None, "a batch is missing, and what is left is not whole");
    assert_eq!(since(&kept, 40), None);
    kept.add(vec![], true);
    assert_eq!(since(&kept, 0), Some(vec![4]), "whatever was before");
    assert_eq!(since(&kept, 4), Some(vec![4]));
    assert_eq!(since(&kept, 5), Some(vec![]));
}

/// The wait for a whole batch ends with it, and does not miss one that comes at once.
#[tokio::test]
async fn a_replay_waits_for_the_whole_batch_that_it_needs() {
    let (kept, shared) = (Kept::new(1), Shared::default());
    kept.add(vec![], true);
    kept.add(vec![], false);
    let asked = kept.whole_since(0, &shared);
    let whole = async {
        while !shared.whole_wanted.load(Ordering::Acquire) {
            tokio::task::yield_now().await;
        }
        kept.add(vec![], true);
    };
    let both = async { tokio::join!(asked, whole) };
    let (batches, ()) = tokio::time::timeout(WHOLE, both).await.expect("it is asked for");
    assert_eq!(numbers(&batches), [2]);
}

#[test]
fn only_an_empty_frame_and_eight_bytes_are_a_request() {
    let message = |frames: &[&[u8]]| {
        let mut message = ZmqMessage::from(b"client".to_vec());
        frames.iter().for_each(|frame| message.push_back(frame.to_vec().into()));
        message
    };
    let (client, start) = parse(message(&[b"", &7_u64.to_be_bytes()])).unwrap();
    assert_eq!((client.len(), start), (2, 7));
    for wrong in [&[&b""[..]][..], &[b"", b"1234567"], &[b"12345678"], &[b"", b"12345678", b""]] {
        assert!(parse(message(wrong)).is_none(), "{wrong:?}");
    }
}
