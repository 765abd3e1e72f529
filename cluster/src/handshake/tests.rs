use std::sync::Mutex;
use std::sync::atomic::AtomicU32;

use tokio::io::{AsyncReadExt, duplex};
use tokio::time::timeout;

use super::*;

/// A node of the tests: says who it is, and judges as it is told.
struct Node {
    member: Member,
    page_tokens: Option<u32>,
    verdict: Result<(), Refusal>,
    judged: AtomicU32,
    seen: Mutex<Vec<(Member, Option<u32>, bool)>>,
}

impl Node {
    fn new(name: &str) -> Self {
        let member = Member {
            id: name.into(),
            incarnation: 7,
            address: format!("{name}.example:7000"),
            roles: "gateway,worker".parse().expect("roles"),
            ready: true,
            draining: false,
            http: Some(format!("{name}.example:8000")),
        };
        Self {
            member,
            page_tokens: Some(16),
            verdict: Ok(()),
            judged: AtomicU32::new(0),
            seen: Mutex::default(),
        }
    }
}

impl Gate for Node {
    fn hello(&self) -> (Member, Option<u32>) {
        (self.member.clone(), self.page_tokens)
    }

    fn judge<'a>(&'a self, peer: &'a Member, page_tokens: Option<u32>, inbound: bool) -> Judgement<'a> {
        self.judged.fetch_add(1, Ordering::Relaxed);
        self.seen.lock().expect("whole").push((peer.clone(), page_tokens, inbound));
        let verdict = self.verdict.clone();
        Box::pin(async move { verdict })
    }
}

const LIMIT: Duration = Duration::from_secs(60);

fn terms(node: Node, cookie: &str) -> (Arc<Node>, Terms) {
    let node = Arc::new(node);
    let key = crate::cookie::Cookie::from_text(cookie).key(HANDSHAKE_KEY);
    (node.clone(), Terms { key, versions: 1..=1, gate: node, judge_limit: LIMIT })
}

/// Both ends' outcomes, and whether the acceptor took the dialler for proven.
async fn meet(dialler: &Terms, acceptor: &Terms) -> (Result<Agreed, Failed>, Result<Agreed, Failed>, bool) {
    let (mut near, mut far) = duplex(1 << 20);
    let proven = AtomicBool::new(false);
    let (mut near_budget, mut far_budget) = (Budget::new(LIMIT), Budget::new(LIMIT));
    let (dialled, accepted) = tokio::join!(
        dial(&mut near, dialler, LinkId(11), &mut near_budget),
        accept(&mut far, acceptor, LinkId(22), &mut far_budget, &proven)
    );
    (dialled, accepted, proven.load(Ordering::Relaxed))
}

/// The refusal that each end saw, and which end the dialler says it came from.
fn refusals(outcome: (Result<Agreed, Failed>, Result<Agreed, Failed>, bool)) -> (Refusal, Refusal, bool) {
    match outcome {
        (
            Err(Failed::Refused { refusal: near, by_peer: near_by_peer, .. }),
            Err(Failed::Refused { refusal: far, by_peer: far_by_peer, .. }),
            _,
        ) => {
            assert_ne!(near_by_peer, far_by_peer, "one end refused");
            (near, far, near_by_peer)
        }
        other => panic!("not refused: {other:?}"),
    }
}

#[tokio::test]
async fn two_nodes_with_one_cookie_learn_who_the_other_is() {
    let ((a, near), (b, far)) = (terms(Node::new("a"), "x"), terms(Node::new("b"), "x"));
    let (dialled, accepted, proven) = meet(&near, &far).await;
    let at_a = Agreed { member: b.member.clone(), page_tokens: Some(16), their_link: LinkId(22) };
    let at_b = Agreed { member: a.member.clone(), page_tokens: Some(16), their_link: LinkId(11) };
    assert_eq!((dialled, accepted, proven), (Ok(at_a), Ok(at_b), true));
    assert_eq!(*a.seen.lock().expect("whole"), vec![(b.member.clone(), Some(16), false)]);
    assert_eq!(*b.seen.lock().expect("whole"), vec![(a.member.clone(), Some(16), true)]);
}

/// B86: the cookie is checked, and before it is right nobody is judged or told anything.
#[tokio::test]
async fn a_wrong_cookie_is_refused_at_both_ends() {
    let ((a, near), (b, far)) = (terms(Node::new("a"), "x"), terms(Node::new("b"), "y"));
    let outcome = meet(&near, &far).await;
    assert!(!outcome.2, "not proven");
    let (at_a, at_b, by_acceptor) = refusals(outcome);
    assert_eq!((at_a, at_b, by_acceptor), (Refusal::WrongCookie, Refusal::WrongCookie, true));
    assert_eq!(a.judged.load(Ordering::Relaxed) + b.judged.load(Ordering::Relaxed), 0);
}

/// An acceptor that lets everybody in without knowing the cookie cannot prove itself.
#[tokio::test]
async fn an_acceptor_without_the_cookie_is_refused_by_the_dialler() {
    let ((a, near), (b, _)) = (terms(Node::new("a"), "x"), terms(Node::new("b"), "x"));
    let (mut stream, mut far) = duplex(1 << 20);
    let impostor = async {
        read(&mut far).await.expect("hello");
        write(&mut far, &Frame::Challenge { nonce: [0; 32] }.encode()).await.expect("sent");
        read(&mut far).await.expect("proof");
        let me = Introduction { member: b.member.clone(), page_tokens: None, link: LinkId(1) };
        let welcome = Frame::welcome(1, &me, |said| prove(&[0; 32], b"accept", &[0; 32], &[0; 32], &[said]));
        write(&mut far, &welcome).await.expect("sent");
        Frame::decode(&read(&mut far).await.expect("an answer"))
    };
    let mut budget = Budget::new(LIMIT);
    let (dialled, answer) = tokio::join!(dial(&mut stream, &near, LinkId(1), &mut budget), impostor);
    assert!(
        matches!(dialled, Err(Failed::Refused { refusal: Refusal::WrongCookie, by_peer: false, .. })),
        "{dialled:?}"
    );
    assert_eq!(answer, Ok(Frame::Refused(Refusal::WrongCookie)));
    assert_eq!(a.judged.load(Ordering::Relaxed), 0);
}

/// A proof is of this meeting: one that was overheard opens nothing later.
#[tokio::test]
async fn an_overheard_proof_opens_nothing() {
    let ((_, near), (_, far)) = (terms(Node::new("a"), "x"), terms(Node::new("b"), "x"));
    let (mut stream, mut tap) = duplex(1 << 20);
    let mut budget = Budget::new(LIMIT);
    let overhear = async {
        let hello = read(&mut tap).await.expect("hello");
        write(&mut tap, &Frame::Challenge { nonce: [3; 32] }.encode()).await.expect("sent");
        let proof = read(&mut tap).await.expect("proof");
        drop(tap);
        (hello, proof)
    };
    let (_, (hello, proof)) = tokio::join!(dial(&mut stream, &near, LinkId(1), &mut budget), overhear);

    let (mut thief, mut victim) = duplex(1 << 20);
    let replay = async {
        write(&mut thief, &hello).await.expect("sent");
        read(&mut thief).await.expect("challenge");
        write(&mut thief, &proof).await.expect("sent");
        Frame::decode(&read(&mut thief).await.expect("an answer"))
    };
    let (mut budget, proven) = (Budget::new(LIMIT), AtomicBool::new(false));
    let (accepted, answer) = tokio::join!(accept(&mut victim, &far, LinkId(2), &mut budget, &proven), replay);
    assert!(matches!(accepted, Err(Failed::Refused { refusal: Refusal::WrongCookie, .. })), "{accepted:?}");
    assert_eq!(answer, Ok(Frame::Refused(Refusal::WrongCookie)));
    assert!(!proven.load(Ordering::Relaxed));
}

#[tokio::test]
async fn versions_without_overlap_are_told_apart_at_both_ends() {
    let ((_, mut near), (_, mut far)) = (terms(Node::new("a"), "x"), terms(Node::new("b"), "x"));
    near.versions = 1..=2;
    far.versions = 3..=4;
    let (at_a, at_b, _) = refusals(meet(&near, &far).await);
    assert_eq!(at_a, Refusal::Version { ours: 1..=2, theirs: 3..=4 });
    assert_eq!(at_b, Refusal::Version { ours: 3..=4, theirs: 1..=2 });

    far.versions = 2..=4;
    assert!(matches!(meet(&near, &far).await, (Ok(_), Ok(_), true)), "both speak 2");
}

/// A node of a later version may say other things about itself; what it speaks is understood all the same.
#[tokio::test]
async fn a_version_is_refused_before_the_rest_of_its_hello_is_read() {
    let (_, far) = terms(Node::new("b"), "x");
    let mut hello = [&[1u8], b"ACTN".as_slice(), &9u16.to_be_bytes(), &9u16.to_be_bytes()].concat();
    hello.extend_from_slice(&[0xff; 100]);
    let (accepted, answer) = against_acceptor(&far, &frame::framed(&hello)).await;
    assert!(
        matches!(&accepted, Err(Failed::Refused { refusal: Refusal::Version { theirs, .. }, .. }) if *theirs == (9..=9)),
        "{accepted:?}"
    );
    assert_eq!(answer, Some(Refusal::Version { ours: 1..=1, theirs: 9..=9 }));
}

#[tokio::test]
async fn pages_of_another_size_are_refused_unless_an_end_has_none() {
    let mut other = Node::new("b");
    other.page_tokens = Some(32);
    let ((_, near), (b, far)) = (terms(Node::new("a"), "x"), terms(other, "x"));
    let (at_a, at_b, _) = refusals(meet(&near, &far).await);
    assert_eq!(at_a, Refusal::PageTokens { ours: 16, theirs: 32 });
    assert_eq!(at_b, Refusal::PageTokens { ours: 32, theirs: 16 });
    assert_eq!(b.judged.load(Ordering::Relaxed), 0);

    let mut gateway = Node::new("c");
    gateway.page_tokens = None;
    let (_, gateway) = terms(gateway, "x");
    assert!(matches!(meet(&gateway, &far).await, (Ok(_), Ok(_), true)));
}

/// B86: whoever refuses, both ends can say why.
#[tokio::test]
async fn the_verdict_of_either_gate_reaches_both_ends() {
    let in_use = Refusal::NameInUse { name: "w1".into(), address: "10.0.0.1:7000".to_owned() };
    for refuser in [0, 1] {
        for refusal in [in_use.clone(), Refusal::Itself, Refusal::Busy("stopping".to_owned())] {
            let mut nodes = [Node::new("a"), Node::new("b")];
            nodes[refuser].verdict = Err(refusal.clone());
            let [a, b] = nodes;
            let ((_, near), (_, far)) = (terms(a, "x"), terms(b, "x"));
            let (at_a, at_b, by_acceptor) = refusals(meet(&near, &far).await);
            assert_eq!((at_a, at_b), (refusal.clone(), refusal));
            assert_eq!(by_acceptor, refuser == 1);
        }
    }
}

#[tokio::test]
async fn already_linked_names_the_other_end_to_each() {
    for refuser in [0, 1] {
        let mut nodes = [Node::new("a"), Node::new("b")];
        nodes[refuser].verdict = Err(Refusal::AlreadyLinked("whoever".into()));
        let [a, b] = nodes;
        let ((_, near), (_, far)) = (terms(a, "x"), terms(b, "x"));
        let (at_a, at_b, _) = refusals(meet(&near, &far).await);
        assert_eq!(at_a, Refusal::AlreadyLinked("b".into()));
        assert_eq!(at_b, Refusal::AlreadyLinked("a".into()));
    }
}

/// What the acceptor makes of `bytes`, and the refusal that it answers.
async fn against_acceptor(terms: &Terms, bytes: &[u8]) -> (Result<Agreed, Failed>, Option<Refusal>) {
    let (mut client, mut server) = duplex(1 << 20);
    let (mut budget, proven) = (Budget::new(LIMIT), AtomicBool::new(false));
    let talk = async {
        client.write_all(bytes).await.expect("sent");
        client.shutdown().await.expect("closed");
        match read(&mut client).await.map(|frame| Frame::decode(&frame)) {
            Ok(Ok(Frame::Refused(refusal))) => Some(refusal),
            _ => None,
        }
    };
    let listen = async {
        let accepted = accept(&mut server, terms, LinkId(1), &mut budget, &proven).await;
        drop(server);
        accepted
    };
    let (accepted, answer) = tokio::join!(listen, talk);
    assert!(!proven.load(Ordering::Relaxed));
    (accepted, answer)
}

#[tokio::test]
async fn what_is_no_node_is_refused_and_told_so() {
    let (b, far) = terms(Node::new("b"), "x");
    let tls_hello = [0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3];
    for (bytes, word) in [
        (b"GET / HTTP/1.1\r\nhost: b\r\n\r\n".as_slice(), "HTTP"),
        (&tls_hello, "TLS"),
        (&[0xff; 64], "another protocol"),
        (&[0, 0, 0, 0, 0], "another protocol"),
        (&(65 * 1024u32).to_be_bytes(), "another protocol"),
        (&frame::framed(b"hello there, this is no magic"), "no hello"),
        (&frame::framed(&[1]), "no hello"),
        (&frame::framed(&Frame::Done.encode()), "no hello"),
        (&frame::framed(b"\x01ACTN\x00\x01\x00\x01short"), "malformed"),
    ] {
        let (accepted, answer) = against_acceptor(&far, bytes).await;
        let Err(Failed::Refused { refusal: Refusal::NotACluster(what), by_peer: false, name: None }) =
            accepted
        else {
            panic!("{accepted:?}");
        };
        assert!(what.contains(word), "{what}");
        assert_eq!(answer, Some(Refusal::NotACluster(what)));
    }
    assert_eq!(b.judged.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn a_connection_that_ends_early_is_broken_and_nothing_worse() {
    let (_, near) = terms(Node::new("a"), "x");
    let (_, far) = terms(Node::new("b"), "x");
    let hello = {
        let (mut stream, mut tap) = duplex(1 << 20);
        let mut budget = Budget::new(LIMIT);
        let tapped = async {
            let hello = read(&mut tap).await.expect("hello");
            drop(tap);
            hello
        };
        tokio::join!(dial(&mut stream, &near, LinkId(1), &mut budget), tapped).1
    };
    let framed = frame::framed(&hello);
    for length in 0..framed.len() {
        let (accepted, answer) = against_acceptor(&far, &framed[..length]).await;
        assert!(matches!(accepted, Err(Failed::Broken(_))), "{length}: {accepted:?}");
        assert_eq!(answer, None);
    }
    let (accepted, _) = against_acceptor(&far, &framed).await;
    assert!(matches!(accepted, Err(Failed::Broken(_))), "no proof: {accepted:?}");
}

/// A flipped bit anywhere in a hello is refused or breaks the meeting: nobody gets in, nothing panics.
#[tokio::test]
async fn a_changed_hello_lets_nobody_in() {
    let ((_, near), (b, far)) = (terms(Node::new("a"), "x"), terms(Node::new("b"), "x"));
    let length = {
        let (mut stream, mut tap) = duplex(1 << 20);
        let mut budget = Budget::new(LIMIT);
        let tapped = async {
            let length = read(&mut tap).await.expect("hello").len();
            drop(tap);
            length
        };
        tokio::join!(dial(&mut stream, &near, LinkId(1), &mut budget), tapped).1
    };
    for bit in 0..length * 8 {
        let (mut stream, mut middle_near) = duplex(1 << 20);
        let (mut middle_far, mut server) = duplex(1 << 20);
        let meddle = async {
            let mut hello = read(&mut middle_near).await.expect("hello");
            hello[bit / 8] ^= 1 << (bit % 8);
            write(&mut middle_far, &hello).await.expect("sent");
            let _ = tokio::io::copy_bidirectional(&mut middle_near, &mut middle_far).await;
        };
        let (mut near_budget, mut far_budget) = (Budget::new(LIMIT), Budget::new(LIMIT));
        let proven = AtomicBool::new(false);
        let ends = async {
            let dialled = async {
                let dialled = dial(&mut stream, &near, LinkId(1), &mut near_budget).await;
                drop(stream);
                dialled
            };
            let accepted = async {
                let accepted = accept(&mut server, &far, LinkId(2), &mut far_budget, &proven).await;
                drop(server);
                accepted
            };
            tokio::join!(dialled, accepted)
        };
        let ((dialled, accepted), ()) = tokio::join!(ends, meddle);
        assert!(dialled.is_err() && accepted.is_err(), "bit {bit}: {dialled:?} {accepted:?}");
    }
    assert_eq!(b.judged.load(Ordering::Relaxed), 0, "no changed hello was proven");
}

/// A limit that is meant to run out.
const SHORT: Duration = Duration::from_millis(100);

#[tokio::test]
async fn silence_ends_at_the_limit_at_either_end() {
    let ((_, near), (_, far)) = (terms(Node::new("a"), "x"), terms(Node::new("b"), "x"));
    let (mut stream, _silent) = duplex(1 << 20);
    let mut budget = Budget::new(SHORT);
    let dialled = dial(&mut stream, &near, LinkId(1), &mut budget);
    assert_eq!(timeout(LIMIT, dialled).await, Ok(Err(Failed::Silent)));

    let (mut stream, _silent) = duplex(1 << 20);
    let (mut budget, proven) = (Budget::new(SHORT), AtomicBool::new(false));
    let accepted = accept(&mut stream, &far, LinkId(1), &mut budget, &proven);
    assert_eq!(timeout(LIMIT, accepted).await, Ok(Err(Failed::Silent)));
}

/// A client that sends a byte now and then gets no more time than a silent one.
#[tokio::test]
async fn a_slow_client_has_one_limit_for_all_its_bytes() {
    let (_, far) = terms(Node::new("b"), "x");
    let (mut client, mut server) = duplex(1 << 20);
    let mut pace = tokio::time::interval(SHORT / 10);
    let drip = async {
        for byte in frame::framed(&[1; 10_000]) {
            pace.tick().await;
            client.write_all(&[byte]).await.expect("sent");
        }
    };
    let (mut budget, proven) = (Budget::new(SHORT), AtomicBool::new(false));
    tokio::select! {
        accepted = accept(&mut server, &far, LinkId(1), &mut budget, &proven) => {
            assert_eq!(accepted, Err(Failed::Silent));
        }
        () = drip => panic!("the client was waited for"),
    }
}

/// A gate that never decides.
struct Undecided(Node);

impl Gate for Undecided {
    fn hello(&self) -> (Member, Option<u32>) {
        self.0.hello()
    }

    fn judge<'a>(&'a self, _: &'a Member, _: Option<u32>, _: bool) -> Judgement<'a> {
        Box::pin(std::future::pending())
    }
}

/// Judging may take longer than the frames, and not for ever.
#[tokio::test]
async fn a_gate_that_does_not_decide_is_busy_for_both_ends() {
    let ((_, near), (_, mut far)) = (terms(Node::new("a"), "x"), terms(Node::new("b"), "x"));
    far.gate = Arc::new(Undecided(Node::new("b")));
    far.judge_limit = SHORT;
    let (dialled, accepted, proven) = meet(&near, &far).await;
    assert!(proven);
    for end in [dialled, accepted] {
        assert!(matches!(end, Err(Failed::Refused { refusal: Refusal::Busy(_), .. })), "{end:?}");
    }
}

#[test]
fn refusals_become_the_dial_errors_that_membership_acts_on() {
    let refused = |refusal| Failed::Refused { refusal, by_peer: true, name: None }.into_dial_error();
    let name_in_use = Refusal::NameInUse { name: "w1".into(), address: "h:1".to_owned() };
    for refusal in [
        Refusal::WrongCookie,
        Refusal::Version { ours: 1..=1, theirs: 2..=2 },
        Refusal::PageTokens { ours: 16, theirs: 32 },
        name_in_use,
    ] {
        let text = refusal.to_string();
        assert!(refusal.is_final());
        assert_eq!(refused(refusal), DialError::Final(text));
    }
    for refusal in [Refusal::NotACluster("x".to_owned()), Refusal::Busy("x".to_owned())] {
        let text = refusal.to_string();
        assert!(!refusal.is_final());
        assert_eq!(refused(refusal), DialError::Refused(text));
    }
    assert_eq!(refused(Refusal::AlreadyLinked("b".into())), DialError::AlreadyLinked("b".into()));
    assert_eq!(refused(Refusal::Itself), DialError::Itself);
    assert!(matches!(Failed::Silent.into_dial_error(), DialError::Unreachable(_)));
}

/// What a peer writes ends up in log lines: no line breaks, no terminal codes, no megabytes.
#[tokio::test]
async fn texts_of_a_peer_are_cleaned() {
    let why = format!("a\nb\x1b[31m{}", "x".repeat(5000));
    let frame = Frame::Refused(Refusal::Busy(why)).encode();
    let Ok(Frame::Refused(Refusal::Busy(cleaned))) = Frame::decode(&frame) else { panic!("decodes") };
    assert!(cleaned.starts_with("a\u{fffd}b\u{fffd}[31mxxx"), "{cleaned}");
    assert!(cleaned.len() <= 512);

    for name in ["", "a\nb", &"x".repeat(600)] {
        let ((_, near), (_, far)) = (terms(Node::new(name), "x"), terms(Node::new("b"), "x"));
        let outcome = meet(&near, &far).await;
        assert!(
            matches!(&outcome.1, Err(Failed::Refused { refusal: Refusal::NotACluster(_), .. })),
            "{outcome:?}"
        );
    }
}

#[tokio::test]
async fn the_bytes_of_a_refusal_are_a_frame() {
    let bytes = refusal_bytes(Refusal::Busy("full".to_owned()));
    let mut stream = bytes.as_slice();
    let frame = read(&mut stream).await.expect("a frame");
    assert_eq!(Frame::decode(&frame), Ok(Frame::Refused(Refusal::Busy("full".to_owned()))));
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).await.expect("read");
    assert!(rest.is_empty());
}
