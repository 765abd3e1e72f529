//! Links over sockets: who gets in, who does not, and what happens when the connection is cut.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::*;
use crate::cookie::Cookie;
use crate::handshake::Refusal;
use crate::tls::Tls;
use crate::tls::tests::Authority;

pub(super) fn terms(name: &str, cookie: &str, tls: Option<Tls>) -> KvTerms {
    KvTerms::new(peer(name), &Cookie::from_text(cookie), tls, LAYOUT, 256)
}

/// A listener at work, as long as it lives.
pub(super) struct Host {
    pub(super) address: SocketAddr,
    events: mpsc::Receiver<KvEvent>,
    _work: JoinSet<()>,
}

impl Host {
    pub(super) async fn start(terms: KvTerms) -> Self {
        let listener = KvListener::bind("127.0.0.1:0").await.expect("bound");
        let address = listener.local_addr();
        let (to, events) = mpsc::channel(8);
        let mut work = JoinSet::new();
        work.spawn(listener.run(terms, to));
        Self { address, events, _work: work }
    }

    pub(super) async fn dial(&self, terms: &KvTerms) -> Result<TcpLink, KvDialError> {
        timeout(LIMIT, dial(&self.address.to_string(), terms, None)).await.expect("in time")
    }

    async fn event(&mut self) -> KvEvent {
        timeout(LIMIT, self.events.recv()).await.expect("in time").expect("at work")
    }

    pub(super) async fn link(&mut self) -> Box<TcpLink> {
        match self.event().await {
            KvEvent::Link(link) => link,
            other @ KvEvent::Refused { .. } => panic!("{other:?}"),
        }
    }

    async fn refusal(&mut self) -> (Refusal, bool) {
        match self.event().await {
            KvEvent::Refused { refusal, by_peer, .. } => (refusal, by_peer),
            other @ KvEvent::Link(_) => panic!("{other:?}"),
        }
    }
}

/// Everything goes both ways, both at once.
async fn converse(near: TcpLink, far: Box<TcpLink>) {
    async fn talk(queue: &KvQueue, recv: &mut Box<dyn KvRecv>) {
        let sent = messages();
        let put = async {
            for message in &sent {
                queue.send(message.clone()).await.expect("queued");
            }
        };
        let take = async {
            for message in &sent {
                let got = recv.recv().await.expect("received").expect("a message");
                assert_eq!(said(&got), meant(message));
            }
        };
        tokio::join!(put, take);
    }
    let (near, far) = (Box::new(near) as Box<dyn KvLink>, far as Box<dyn KvLink>);
    let ((near_send, mut near_recv), (far_send, mut far_recv)) = (near.split(), far.split());
    let mut tasks = JoinSet::new();
    let (near_queue, work) = KvQueue::before(near_send, 2, |error| panic!("{error}"));
    tasks.spawn(work);
    let (far_queue, work) = KvQueue::before(far_send, 2, |error| panic!("{error}"));
    tasks.spawn(work);
    let both = async { tokio::join!(talk(&near_queue, &mut near_recv), talk(&far_queue, &mut far_recv)) };
    timeout(LIMIT, both).await.expect("in time");

    // One end goes: the other hears of it, and all work ends.
    drop((near_queue, near_recv));
    let end = timeout(LIMIT, far_recv.recv()).await.expect("in time");
    assert!(matches!(end, Ok(None) | Err(KvError::Broken(_))), "{end:?}");
    while let Some(ended) = timeout(LIMIT, tasks.join_next()).await.expect("in time") {
        ended.expect("no panic").ok();
    }
    assert!(matches!(far_queue.try_send(pages_from(0, 1)), Err(QueueError::Ended(_))));
}

#[tokio::test]
async fn two_workers_prove_themselves_and_talk() {
    let mut host = Host::start(terms("b", "x", None)).await;
    let near = host.dial(&terms("a", "x", None)).await.expect("linked");
    let far = host.link().await;
    assert_eq!((near.peer(), far.peer()), (&peer("b"), &peer("a")));
    converse(near, far).await;
}

#[tokio::test]
async fn they_talk_over_tls_too() {
    let authority = Authority::new();
    let tls = || Some(authority.tls(&["127.0.0.1"]));
    let mut host = Host::start(terms("b", "x", tls())).await;
    let near = host.dial(&terms("a", "x", tls())).await.expect("linked");
    let far = host.link().await;
    converse(near, far).await;
}

#[tokio::test]
async fn with_another_cookie_nobody_gets_in_and_both_say_why() {
    let mut host = Host::start(terms("b", "x", None)).await;
    let error = host.dial(&terms("a", "y", None)).await.unwrap_err();
    assert!(error.is_final && error.to_string().contains("wrong cookie"), "{error}");
    assert!(error.to_string().contains(&host.address.to_string()), "{error}");
    assert_eq!(host.refusal().await, (Refusal::WrongCookie, false));
}

/// The key of one kind of link opens none of the other.
#[tokio::test]
async fn a_proof_for_the_cluster_link_opens_no_kv_link() {
    let mut host = Host::start(terms("b", "x", None)).await;
    let mut stranger = terms("a", "x", None);
    stranger.replace_key(Cookie::from_text("x").key(crate::handshake::HANDSHAKE_KEY));
    assert!(host.dial(&stranger).await.is_err());
    assert_eq!(host.refusal().await, (Refusal::WrongCookie, false));
}

#[tokio::test]
async fn pages_of_another_size_are_refused_at_once() {
    let other = PageLayout { page_tokens: 8, ..LAYOUT };
    let mut host = Host::start(KvTerms::new(peer("b"), &Cookie::from_text("x"), None, other, 64)).await;
    let error = host.dial(&terms("a", "x", None)).await.unwrap_err();
    assert!(error.is_final && error.to_string().contains("page-tokens"), "{error}");
    assert_eq!(host.refusal().await.0, Refusal::PageTokens { ours: 8, theirs: 4 });
}

/// A worker that was restarted is another one (B54).
#[tokio::test]
async fn a_former_life_of_a_worker_is_not_found() {
    let mut host = Host::start(terms("b", "x", None)).await;
    let former = config::ids::WorkerId::new("b".into(), 6);
    let error = dial(&host.address.to_string(), &terms("a", "x", None), Some(&former)).await.unwrap_err();
    assert!(!error.is_final, "{error}");
    assert!(error.why.contains("incarnation 6") && error.why.contains("incarnation 7"), "{error}");
    assert!(host.refusal().await.1, "the dialler refused");
    let now = peer("b").worker;
    let link = dial(&host.address.to_string(), &terms("a", "x", None), Some(&now)).await;
    assert_eq!(link.expect("linked").peer().worker, now);
}

#[tokio::test]
async fn nobody_links_to_itself() {
    let host = Host::start(terms("b", "x", None)).await;
    let error = host.dial(&terms("b", "x", None)).await.unwrap_err();
    assert!(error.is_final && error.why.contains("itself"), "{error}");
}

#[tokio::test]
async fn strangers_do_no_harm() {
    let mut host = Host::start(terms("b", "x", None)).await;
    // More than may prove themselves at once, and none says a word.
    let mut silent = Vec::new();
    for _ in 0..crate::link::MAX_HANDSHAKES + 10 {
        silent.push(TcpStream::connect(host.address).await.expect("connected"));
    }
    let mut garbage = TcpStream::connect(host.address).await.expect("connected");
    garbage.write_all(b"GET / HTTP/1.1\r\n\r\n").await.expect("written");
    let mut answer = Vec::new();
    timeout(LIMIT, garbage.read_to_end(&mut answer)).await.expect("it is hung up on").ok();
    assert!(matches!(host.refusal().await, (Refusal::NotACluster(_), false)));

    let near = host.dial(&terms("a", "x", None)).await.expect("linked");
    let far = host.link().await;
    converse(near, far).await;
}

#[tokio::test]
async fn silence_is_given_up_after_the_time_limit() {
    let short = terms("b", "x", None).with_timeouts(Duration::from_millis(50), LIMIT);
    let host = Host::start(short.clone()).await;
    let mut silent = TcpStream::connect(host.address).await.expect("connected");
    let end = timeout(LIMIT, silent.read(&mut [0; 8])).await.expect("it is hung up on");
    assert!(matches!(end, Ok(0) | Err(_)), "{end:?}");

    let nobody = TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let address = nobody.local_addr().expect("bound").to_string();
    let error = timeout(LIMIT, dial(&address, &short, None)).await.expect("in time").unwrap_err();
    assert!(error.why.contains("in time") && !error.is_final, "{error}");
}

#[tokio::test]
async fn who_has_no_certificate_of_the_cluster_stays_out() {
    let (authority, other) = (Authority::new(), Authority::new());
    let mut host = Host::start(terms("b", "x", Some(authority.tls(&["127.0.0.1"])))).await;
    let strangers = [None, Some(authority.anonymous()), Some(other.tls(&["127.0.0.1"]))];
    for tls in strangers {
        assert!(host.dial(&terms("a", "x", tls)).await.is_err());
    }
    let wrong_host = Host::start(terms("b", "x", Some(authority.tls(&["elsewhere.example"])))).await;
    assert!(wrong_host.dial(&terms("a", "x", Some(authority.tls(&["127.0.0.1"])))).await.is_err());

    let friend = terms("a", "x", Some(authority.tls(&["127.0.0.1"])));
    let near = host.dial(&friend).await.expect("linked");
    while !matches!(host.event().await, KvEvent::Link(_)) {}
    drop(near);
    let plain = Host::start(terms("b", "x", None)).await;
    let error = plain.dial(&friend).await.unwrap_err();
    assert!(error.why.starts_with("tls: "), "{error}");
}

#[tokio::test]
async fn the_port_is_named_by_its_option() {
    let taken = KvListener::bind("tcp://127.0.0.1:0").await.expect("bound");
    let error = KvListener::bind(&taken.local_addr().to_string()).await.unwrap_err().to_string();
    assert!(error.contains("cluster.kv-listen") && error.contains("127.0.0.1"), "{error}");
}

/// A proxy that passes on `pass` bytes of what the dialler says, and then cuts both connections. Its work gives how many
/// bytes there were.
async fn proxy(to: SocketAddr, pass: u64) -> (SocketAddr, JoinSet<u64>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let address = listener.local_addr().expect("bound");
    let mut work = JoinSet::new();
    work.spawn(async move {
        let (near, _) = listener.accept().await.expect("accepted");
        let far = TcpStream::connect(to).await.expect("connected");
        let ((near_read, mut near_write), (mut far_read, mut far_write)) =
            (near.into_split(), far.into_split());
        let mut near_read = near_read.take(pass);
        tokio::select! {
            _ = tokio::io::copy(&mut near_read, &mut far_write) => {}
            _ = tokio::io::copy(&mut far_read, &mut near_write) => {}
        }
        pass - near_read.limit()
    });
    (address, work)
}

/// A connection that is cut after any number of bytes: both ends hear of it, and no page is lost.
#[tokio::test]
async fn a_cut_connection_is_noticed_at_both_ends_and_leaks_nothing() {
    let far_terms = terms("b", "x", None);
    let mut host = Host::start(far_terms.clone()).await;
    let near_terms = terms("a", "x", None);

    let (address, mut work) = proxy(host.address, u64::MAX).await;
    let near = dial(&address.to_string(), &near_terms, None).await.expect("linked");
    drop((near, host.link().await));
    let handshake =
        timeout(LIMIT, work.join_next()).await.expect("in time").expect("it ran").expect("no panic");

    let near_the_proof = (0..handshake + 40).step_by(5);
    for pass in near_the_proof.chain([handshake]).chain((handshake..handshake + 6000).step_by(173)) {
        let (address, _work) = proxy(host.address, pass).await;
        let dialled = timeout(LIMIT, dial(&address.to_string(), &near_terms, None)).await.expect("in time");
        if pass >= handshake {
            let near = dialled.expect("linked");
            let (mut send, mut recv) = (Box::new(near) as Box<dyn KvLink>).split();
            let (_far_send, mut far) = (host.link().await as Box<dyn KvLink>).split();
            let talk = async { while send.send(pages_from(0, 3)).await.is_ok() {} };
            let hear = async {
                while let Ok(Some(message)) = far.recv().await {
                    assert_eq!(said(&message), meant(&pages_from(0, 3)));
                }
            };
            let both = async { tokio::join!(talk, hear) };
            timeout(LIMIT, both).await.expect("both ends notice");
            assert!(timeout(LIMIT, recv.recv()).await.expect("in time").is_err());
        }
    }
    assert_eq!([near_terms, far_terms].map(|terms| terms.pool().map(PagePool::out)), [Some(0), Some(0)]);
}
