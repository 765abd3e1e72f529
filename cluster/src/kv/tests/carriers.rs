//! Both carriers: whole messages in order, back-pressure, ends.

use std::io::Cursor;

use tokio::task::{JoinSet, yield_now};
use tokio::time::timeout;

use super::*;

async fn all_arrive(reader: impl AsyncRead + Send + Unpin + 'static, sent: &[Outbound]) {
    let settings = settings();
    let (got, end) = receive_all(reader, settings.clone()).await;
    assert_eq!(end, Ok(()));
    assert_eq!(got.iter().map(said).collect::<Vec<_>>(), sent.iter().map(meant).collect::<Vec<_>>());
    for message in &got {
        let aligned =
            message.pages().iter().all(|page| (page.as_ptr() as usize).is_multiple_of(page::ALIGNMENT));
        assert!(aligned);
        assert_eq!(message.body_bytes(), message.pages().len() * LAYOUT.page_bytes());
    }
    drop(got);
    assert_eq!(out(&settings), 0, "every page is back");
}

/// In segments of any size: a byte, an odd number, a usual one (B58).
#[tokio::test]
async fn messages_arrive_whole_in_segments_of_any_size() {
    let sent = messages();
    let (bytes, _) = bytes_of(&sent).await;
    for step in [1, 7, 255, 256, 257, 1000, 64 * 1024] {
        all_arrive(Dribble::new(Cursor::new(bytes.clone()), step), &sent).await;
    }
    all_arrive(Cursor::new(bytes), &sent).await;
}

/// However little of a vectored write the connection takes, across the seams of the slices.
#[tokio::test]
async fn partial_writes_leave_nothing_out() {
    let sent = messages();
    let (whole, _) = bytes_of(&sent).await;
    for step in [1, 31, 32, 33, 255, 1000] {
        let tape = Tape { step, ..Tape::default() };
        let (mut send, _recv) = link_of(tokio::io::empty(), tape.clone(), settings());
        for message in &sent {
            send.send(message.clone()).await.expect("sent");
        }
        assert_eq!(tape.bytes(), whole, "{step} bytes at a time");
    }
}

#[tokio::test]
async fn the_largest_messages_arrive() {
    let mut ask = one_of_each().remove(0);
    let KvHeader::Ask { spec, .. } = &mut ask else { panic!("{ask:?}") };
    *spec = vec![0x5a; MAX_SPEC_BYTES];
    let sent = [ask.into(), pages_from(0, MAX_PAGES as u32)];
    let (bytes, _) = bytes_of(&sent).await;
    all_arrive(Cursor::new(bytes), &sent).await;
}

/// A message that the receiver would refuse is refused before a byte is written, and the link goes on.
#[tokio::test]
async fn a_bad_message_to_send_harms_nothing() {
    let (near, far) = local::pair(peer("a"), peer("b"), LAYOUT, 8);
    let (mut local, _recv) = (Box::new(near) as Box<dyn KvLink>).split();
    let (_far_send, mut far) = (Box::new(far) as Box<dyn KvLink>).split();
    let tape = Tape::default();
    let (mut tcp, _recv) = link_of(tokio::io::empty(), tape.clone(), settings());

    let small = PagePool::new(LAYOUT.page_bytes() - 1, 64, 0);
    let mut other_size = pages_from(0, 2);
    other_size.pages.push(small.try_take().expect("room").freeze());
    let mut too_many = pages_from(0, 64);
    too_many.pages.push(too_many.pages[0].clone());
    let none = pages_from(0, 0);
    let stray = Outbound { header: one_of_each().remove(6), pages: pages_from(0, 1).pages };
    for bad in [other_size, too_many, none, stray] {
        let errors = [local.send(bad.clone()).await.unwrap_err(), tcp.send(bad.clone()).await.unwrap_err()];
        assert!(errors.iter().all(KvError::is_of_message), "{errors:?}");
    }
    assert_eq!(tape.bytes(), b"");
    let good = pages_from(3, 2);
    tcp.send(good.clone()).await.expect("sent");
    assert_eq!(tape.bytes(), bytes_of(std::slice::from_ref(&good)).await.0);
    local.send(good.clone()).await.expect("sent");
    assert_eq!(said(&far.recv().await.expect("received").expect("a message")), meant(&good));
}

/// In one process a page changes hands: what is received is the very buffer that was sent.
#[tokio::test]
async fn in_one_process_nothing_is_copied() {
    let (near, far) = local::pair(peer("a"), peer("b"), LAYOUT, 16);
    assert_eq!((near.peer().worker.node.as_str(), far.peer().worker.node.as_str()), ("b", "a"));
    let (mut near_send, mut near_recv) = (Box::new(near) as Box<dyn KvLink>).split();
    let (mut far_send, mut far_recv) = (Box::new(far) as Box<dyn KvLink>).split();
    let sent = messages();
    for message in &sent {
        near_send.send(message.clone()).await.expect("sent");
    }
    for message in &sent {
        let got = far_recv.recv().await.expect("received").expect("a message");
        assert_eq!(said(&got), meant(message));
        let at = |pages: &[PageBuf]| pages.iter().map(|page| page.as_ptr()).collect::<Vec<_>>();
        assert_eq!(at(got.pages()), at(&message.pages));
    }
    far_send.send(one_of_each().remove(6).into()).await.expect("sent");
    assert!(near_recv.recv().await.expect("received").is_some());
    drop((far_send, far_recv));
    assert!(near_recv.recv().await.expect("an orderly end").is_none());
    let ended = near_send.send(one_of_each().remove(6).into()).await.unwrap_err();
    assert!(matches!(ended, KvError::Closed(_)), "{ended:?}");
}

/// A receiver that does not read holds the sender back; nothing is lost and nothing is stored beyond the bounds.
async fn holds_back(send: Box<dyn KvSend>, mut recv: Box<dyn KvRecv>, stored: usize) {
    let depth = 3;
    let (queue, work) = KvQueue::before(send, depth, |error| panic!("{error}"));
    let mut tasks = JoinSet::new();
    tasks.spawn(work);
    let (mut sent, mut full) = (0, 0);
    while full < 200 {
        match queue.try_send(pages_from(sent, 1)) {
            Ok(()) => (sent, full) = (sent + 1, 0),
            Err(QueueError::Full(message)) => {
                assert_eq!(meant(&message), meant(&pages_from(sent, 1)), "it comes back");
                full += 1;
                yield_now().await;
            }
            Err(other) => panic!("{other}"),
        }
        assert!(sent as usize <= depth + 1 + stored, "{sent} messages are stored somewhere");
    }
    for first in 0..sent {
        let got = timeout(LIMIT, recv.recv()).await.expect("in time").expect("received");
        assert_eq!(said(&got.expect("a message")), meant(&pages_from(first, 1)));
    }
    drop(queue);
    assert!(timeout(LIMIT, recv.recv()).await.expect("in time").expect("an orderly end").is_none());
    tasks.join_next().await.expect("it ran").expect("no panic").expect("an orderly end");
}

#[tokio::test]
async fn a_receiver_that_stops_reading_holds_the_sender_back() {
    // A connection that stores 1,000 bytes has room for two messages of more than 300.
    let (near, far) = duplex(1000);
    let (send, _keep) = link_of(tokio::io::empty(), near, settings());
    let (_keep_too, recv) = link_of(far, tokio::io::sink(), settings());
    holds_back(send, recv, 3).await;

    let (near, far) = local::pair(peer("a"), peer("b"), LAYOUT, 4);
    let (send, _keep) = (Box::new(near) as Box<dyn KvLink>).split();
    let (_keep_too, recv) = (Box::new(far) as Box<dyn KvLink>).split();
    holds_back(send, recv, 4).await;
}

/// Where the receiver holds all pages of its pool, the next message waits for them and not for ever.
#[tokio::test]
async fn a_message_waits_for_room_in_the_pool() {
    let settings = settings_with(MAX_PAGES, LIMIT);
    let sent = [pages_from(0, 64), pages_from(64, 1)];
    let (bytes, _) = bytes_of(&sent).await;
    let (_send, mut recv) = link_of(Cursor::new(bytes), tokio::io::sink(), settings.clone());
    let first = recv.recv().await.expect("received").expect("a message");
    assert_eq!(out(&settings), 64);
    assert!(at_once(recv.recv()).is_none());
    drop(first);
    let second = recv.recv().await.expect("received").expect("a message");
    assert_eq!(said(&second), meant(&sent[1]));
}

/// `recv` in a `select!` that drops it at every byte.
#[tokio::test]
async fn a_dropped_receive_loses_nothing() {
    let sent = messages();
    let (bytes, _) = bytes_of(&sent).await;
    let (_send, mut recv) = link_of(Dribble::new(Cursor::new(bytes), 1), tokio::io::sink(), settings());
    for message in &sent {
        let got = loop {
            if let Some(got) = at_once(recv.recv()) {
                break got;
            }
            yield_now().await;
        };
        assert_eq!(said(&got.expect("received").expect("a message")), meant(message));
    }
}

#[tokio::test]
async fn a_dropped_send_ends_the_link() {
    let tape = Tape { step: 10, ..Tape::default() };
    let (mut send, _recv) = link_of(tokio::io::empty(), tape.clone(), settings());
    {
        let mut sending = std::pin::pin!(send.send(pages_from(0, 1)));
        while tape.bytes().is_empty() {
            assert!(at_once(sending.as_mut()).is_none());
        }
    }
    let written = tape.bytes().len();
    assert_eq!(send.send(pages_from(1, 1)).await, Err(KvError::Interrupted));
    assert_eq!(send.send(pages_from(1, 1)).await, Err(KvError::Interrupted), "and stays so");
    assert_eq!(tape.bytes().len(), written);
}

#[tokio::test]
async fn a_peer_that_stands_still_in_a_message_is_given_up() {
    let stall = Duration::from_millis(30);
    let short = settings_with(256, stall);
    let (bytes, _) = bytes_of(&[pages_from(0, 2)]).await;
    for cut in [1, 31, 33, 200, bytes.len() - 1] {
        let (mut far, near) = duplex(1 << 16);
        tokio::io::AsyncWriteExt::write_all(&mut far, &bytes[..cut]).await.expect("room");
        let (_send, mut recv) = link_of(near, tokio::io::sink(), short.clone());
        let ended = timeout(LIMIT, recv.recv()).await.expect("in time");
        assert_eq!(ended.map(|_| ()), Err(KvError::Stalled { what: "sent", after: stall }), "after {cut}");
    }
    let (near, _far) = duplex(100);
    let (mut send, _recv) = link_of(tokio::io::empty(), near, short);
    let ended = timeout(LIMIT, send.send(pages_from(0, 2))).await.expect("in time");
    assert_eq!(ended, Err(KvError::Stalled { what: "took", after: stall }));
}

#[tokio::test]
async fn a_link_is_closed_from_anywhere() {
    let (far, near) = duplex(100);
    let (reader, writer) = tokio::io::split(near);
    let link = TcpLink::of(Box::new(reader), Box::new(writer), peer("b"), settings());
    let closer = link.closer();
    assert_eq!(closer.ended(), None);
    let (mut send, mut recv) = (Box::new(link) as Box<dyn KvLink>).split();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move { recv.recv().await.map(|_| ()) });
    tasks.spawn(async move { send.send(pages_from(0, 2)).await });
    yield_now().await;
    closer.close("the worker stops");
    closer.close("again");
    let why = KvError::Closed("the worker stops".to_owned());
    for _ in 0..2 {
        let ended = timeout(LIMIT, tasks.join_next()).await.expect("in time").expect("a task");
        assert_eq!(ended.expect("no panic"), Err(why.clone()));
    }
    assert_eq!((closer.ended(), closer.wait().await), (Some(why.clone()), why));
    drop(far);
}

/// The sending half goes with the receiving one: else the socket of a broken link stayed open with its queue.
#[tokio::test]
async fn the_halves_end_together() {
    let (far, near) = duplex(1 << 16);
    let (reader, writer) = tokio::io::split(near);
    let (send, recv) = link_of(reader, writer, settings());
    let (queue, work) = KvQueue::before(send, 2, |_| {});
    let mut tasks = JoinSet::new();
    tasks.spawn(work);
    drop(recv);
    let ended = timeout(LIMIT, tasks.join_next()).await.expect("in time").expect("a task");
    assert!(matches!(ended.expect("no panic"), Err(KvError::Closed(_))));
    assert!(matches!(queue.try_send(pages_from(0, 1)), Err(QueueError::Ended(_))));
    let (_send, mut recv) = link_of(far, tokio::io::sink(), settings());
    assert!(timeout(LIMIT, recv.recv()).await.expect("in time").expect("an orderly end").is_none());
}
