//! Dialling and accepting over real sockets, without ractor's server: its registries are the process's, so whole links are
//! tested between processes ([`whole`]).

use std::sync::Arc;
use std::time::Duration;

use policies::membership::{DialError, LinkId, Member};
use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::keeper::{LinksMsg, Shaken, Shared, new_link};
use super::*;
use crate::handshake::Judgement;
use crate::tls::tests::Authority;

mod whole;

const LIMIT: Duration = Duration::from_secs(60);

/// Lets everybody in.
struct Open(Member);

impl Gate for Open {
    fn hello(&self) -> (Member, Option<u32>) {
        (self.0.clone(), None)
    }

    fn judge<'a>(&'a self, peer: &'a Member, _: Option<u32>, _: bool) -> Judgement<'a> {
        let itself = peer.incarnation == self.0.incarnation && peer.id == self.0.id;
        Box::pin(async move { if itself { Err(Refusal::Itself) } else { Ok(()) } })
    }
}

fn member(name: &str, incarnation: u64) -> Member {
    Member {
        id: name.into(),
        incarnation,
        address: "127.0.0.1:1".to_owned(),
        roles: config::RoleSet::all(),
        ready: false,
        draining: false,
        http: None,
    }
}

fn shared(name: &str, tls: Option<Tls>, handshake_timeout: Duration) -> Arc<Shared> {
    let key = Cookie::from_text("x").key(HANDSHAKE_KEY);
    let gate = Arc::new(Open(member(name, 1)));
    let terms = Terms { key, versions: SUPPORTED, gate, judge_limit: LIMIT };
    Arc::new(Shared { tls, handshake_timeout, terms })
}

/// Stands in for the keeper: hands on what the tasks tell it.
struct Probe;

impl Actor for Probe {
    type Msg = LinksMsg;
    type State = mpsc::Sender<LinksMsg>;
    type Arguments = mpsc::Sender<LinksMsg>;

    async fn pre_start(
        &self,
        _: ActorRef<LinksMsg>,
        tell: mpsc::Sender<LinksMsg>,
    ) -> Result<mpsc::Sender<LinksMsg>, ActorProcessingErr> {
        Ok(tell)
    }

    async fn handle(
        &self,
        _: ActorRef<LinksMsg>,
        message: LinksMsg,
        tell: &mut mpsc::Sender<LinksMsg>,
    ) -> Result<(), ActorProcessingErr> {
        // The test is over where nobody listens.
        let _ = tell.send(message).await;
        Ok(())
    }
}

/// One end: its tasks and what they report.
struct End {
    shared: Arc<Shared>,
    keeper: ActorRef<LinksMsg>,
    reports: mpsc::Receiver<LinksMsg>,
    tasks: JoinSet<()>,
}

impl End {
    async fn new(shared: Arc<Shared>) -> Self {
        let (tell, reports) = mpsc::channel(256);
        let (keeper, _) = Actor::spawn(None, Probe, tell).await.expect("spawned");
        Self { shared, keeper, reports, tasks: JoinSet::new() }
    }

    async fn listen(&mut self) -> String {
        let listener = Listener::bind("tcp://127.0.0.1:0").await.expect("bound");
        let address = listener.local_addr().to_string();
        self.tasks.spawn(accept::run(listener.inner, self.shared.clone(), self.keeper.clone()));
        address
    }

    async fn report(&mut self) -> LinksMsg {
        timeout(LIMIT, self.reports.recv()).await.expect("in time").expect("the keeper lives")
    }

    async fn shaken(&mut self) -> Box<Shaken> {
        match self.report().await {
            LinksMsg::Shaken(shaken) => shaken,
            LinksMsg::DialFailed { error, .. } => panic!("dial failed: {error:?}"),
            LinksMsg::Refused { refusal, .. } => panic!("refused: {refusal:?}"),
            _ => panic!("another report"),
        }
    }

    async fn dial(&mut self, address: &str) -> LinkId {
        let link = new_link();
        dial::dial(address.to_owned(), link, self.shared.clone(), self.keeper.clone()).await;
        link
    }

    async fn dial_error(&mut self, address: &str) -> DialError {
        self.dial(address).await;
        match self.report().await {
            LinksMsg::DialFailed { address: named, error } => {
                assert_eq!(named, address);
                error
            }
            LinksMsg::Shaken(_) => panic!("the dial went through"),
            _ => panic!("another report"),
        }
    }
}

async fn ends(dialler: Option<Tls>, acceptor: Option<Tls>) -> (End, End, String) {
    let a = End::new(shared("a", dialler, LIMIT)).await;
    let mut b = End::new(shared("b", acceptor, LIMIT)).await;
    let address = b.listen().await;
    (a, b, address)
}

async fn meet(a: &mut End, b: &mut End, address: &str) {
    let link = a.dial(address).await;
    let (near, far) = (a.shaken().await, b.shaken().await);
    assert_eq!((near.agreed.member.id.as_str(), far.agreed.member.id.as_str()), ("b", "a"));
    assert_eq!((near.link, near.agreed.their_link, far.agreed.their_link), (link, far.link, link));
    assert_eq!((near.dialled.as_deref(), far.dialled), (Some(address), None));
    let (mut near, mut far) = (near.stream, far.stream);
    near.write_all(b"ping").await.expect("sent");
    near.flush().await.expect("flushed");
    let mut got = [0; 4];
    far.read_exact(&mut got).await.expect("read");
    assert_eq!(&got, b"ping", "what follows the handshake is not eaten by it");
}

#[tokio::test]
async fn two_ends_meet_over_a_socket() {
    let (mut a, mut b, address) = ends(None, None).await;
    meet(&mut a, &mut b, &address).await;
    meet(&mut a, &mut b, &format!("tcp://{address}")).await;
    let port = address.rsplit_once(':').expect("a port").1;
    meet(&mut a, &mut b, &format!("localhost:{port}")).await;
}

#[tokio::test]
async fn a_node_that_dials_itself_hears_so() {
    let mut a = End::new(shared("a", None, LIMIT)).await;
    let address = a.listen().await;
    a.dial(&address).await;
    let (mut dialled, mut accepted) = (None, None);
    for _ in 0..2 {
        match a.report().await {
            LinksMsg::DialFailed { error, .. } => dialled = Some(error),
            LinksMsg::Refused { refusal, name, .. } => accepted = Some((refusal, name)),
            _ => panic!("another report"),
        }
    }
    assert_eq!(dialled, Some(DialError::Itself));
    assert_eq!(accepted, Some((Refusal::Itself, Some("a".into()))));
}

#[tokio::test]
async fn both_ends_of_a_tls_link_show_certificates() {
    let authority = Authority::new();
    let tls = authority.tls(&["127.0.0.1", "localhost"]);
    let (mut a, mut b, address) = ends(Some(tls.clone()), Some(tls)).await;
    meet(&mut a, &mut b, &address).await;
}

#[tokio::test]
async fn a_certificate_for_another_host_needs_the_option() {
    let authority = Authority::new();
    let (cert, key) = authority.leaf("node", &["cluster.internal"]);
    let plain = Tls::load(&authority.ca(), &cert, &key, None).expect("loaded");
    let named = Tls::load(&authority.ca(), &cert, &key, Some("cluster.internal")).expect("loaded");
    let (mut a, _b, address) = ends(Some(plain.clone()), Some(plain.clone())).await;
    let error = a.dial_error(&address).await;
    assert!(matches!(&error, DialError::Unreachable(why) if why.contains("tls")), "{error:?}");
    let (mut a, mut b, address) = ends(Some(named), Some(plain)).await;
    meet(&mut a, &mut b, &address).await;
}

#[tokio::test]
async fn strangers_to_the_authority_do_not_meet() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    let hosts = ["127.0.0.1"];
    for (dialler, acceptor) in [
        (Some(ours.tls(&hosts)), Some(theirs.tls(&hosts))),
        (Some(ours.anonymous()), Some(ours.tls(&hosts))),
        (Some(ours.tls(&hosts)), None),
        (None, Some(ours.tls(&hosts))),
    ] {
        let (mut a, mut b, address) = ends(dialler, acceptor).await;
        let error = a.dial_error(&address).await;
        assert!(!matches!(error, DialError::Final(_)), "{error:?}");
        let text = format!("{error:?}");
        assert!(["tls", "TLS", "alert", "closed"].iter().any(|word| text.contains(word)), "{text}");
        // Nothing that comes later at the accepting end makes it a link.
        drop(a);
        while let Ok(report) = b.reports.try_recv() {
            assert!(matches!(report, LinksMsg::Refused { refusal: Refusal::NotACluster(_), .. }));
        }
    }
}

#[tokio::test]
async fn plain_and_tls_ends_say_what_is_wrong() {
    let tls = Authority::new().tls(&["127.0.0.1"]);
    let (mut a, _b, address) = ends(None, Some(tls.clone())).await;
    let error = a.dial_error(&address).await;
    assert!(matches!(&error, DialError::Refused(why) if why.contains("one end speaks TLS")), "{error:?}");

    let (mut a, mut b, address) = ends(Some(tls), None).await;
    let error = a.dial_error(&address).await;
    assert!(matches!(&error, DialError::Unreachable(why) if why.contains("tls")), "{error:?}");
    match b.report().await {
        LinksMsg::Refused { refusal: Refusal::NotACluster(why), by_peer: false, name: None, .. } => {
            assert!(why.contains("one end speaks TLS"), "{why}");
        }
        _ => panic!("another report"),
    }
}

/// B85: seeds that are dead, of another program, or no names.
#[tokio::test]
async fn addresses_without_a_node_are_unreachable_or_may_become_one() {
    let mut a = End::new(shared("a", None, LIMIT)).await;
    let closed = {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
        listener.local_addr().expect("bound").to_string()
    };
    for address in [closed.as_str(), "no-such-host.invalid:7000", "127.0.0.1", "", "127.0.0.1:notaport"] {
        let error = a.dial_error(address).await;
        assert!(matches!(error, DialError::Unreachable(_)), "{address}: {error:?}");
    }

    let web = TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let address = web.local_addr().expect("bound").to_string();
    a.tasks.spawn(async move {
        let (mut stream, _) = web.accept().await.expect("accepted");
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.expect("sent");
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest).await;
    });
    let error = a.dial_error(&address).await;
    assert!(matches!(&error, DialError::Refused(why) if why.contains("HTTP")), "{error:?}");
}

#[tokio::test]
async fn a_listener_that_never_answers_is_given_up() {
    let silent = TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let address = silent.local_addr().expect("bound").to_string();
    let mut a = End::new(shared("a", None, Duration::from_millis(100))).await;
    assert!(matches!(a.dial_error(&address).await, DialError::Unreachable(_)));
}

#[tokio::test]
async fn a_dial_that_is_dropped_has_failed() {
    let silent = TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let address = silent.local_addr().expect("bound").to_string();
    let mut a = End::new(shared("a", None, LIMIT)).await;
    let dial = dial::dial(address.clone(), new_link(), a.shared.clone(), a.keeper.clone());
    let task = a.tasks.spawn(dial);
    let (_held, _) = silent.accept().await.expect("it dials");
    task.abort();
    match a.report().await {
        LinksMsg::DialFailed { address: named, error: DialError::Unreachable(_) } => {
            assert_eq!(named, address);
        }
        _ => panic!("another report"),
    }
}

/// More silent clients than there are places: the node that comes after them gets in at once all the same.
#[tokio::test]
async fn silent_clients_keep_no_node_out() {
    let (mut a, mut b, address) = ends(None, None).await;
    let mut silent = Vec::new();
    for _ in 0..2 * MAX_HANDSHAKES {
        silent.push(TcpStream::connect(&address).await.expect("connected"));
    }
    meet(&mut a, &mut b, &address).await;
    // The ones that made room were closed.
    let mut byte = [0];
    let closed = timeout(LIMIT, silent[0].read(&mut byte)).await.expect("in time");
    assert!(matches!(closed, Ok(0) | Err(_)), "{closed:?}");
}

/// Judges nobody, so that proven peers stay in their handshakes.
struct Slow(Member);

impl Gate for Slow {
    fn hello(&self) -> (Member, Option<u32>) {
        (self.0.clone(), None)
    }

    fn judge<'a>(&'a self, _: &'a Member, _: Option<u32>, _: bool) -> Judgement<'a> {
        Box::pin(std::future::pending())
    }
}

#[tokio::test]
async fn with_all_places_taken_by_proven_nodes_one_more_is_told_to_wait() {
    let mut slow = shared("b", None, LIMIT);
    Arc::get_mut(&mut slow).expect("not shared yet").terms.gate = Arc::new(Slow(member("b", 1)));
    let mut b = End::new(slow).await;
    let address = b.listen().await;
    let mut a = End::new(shared("a", None, LIMIT)).await;
    for _ in 0..4 * MAX_HANDSHAKES {
        a.tasks.spawn(dial::dial(address.clone(), new_link(), a.shared.clone(), a.keeper.clone()));
    }
    // Whoever is turned away while others are being judged hears why; both ends see it.
    match b.report().await {
        LinksMsg::Refused { refusal: Refusal::Busy(_), by_peer: false, .. } => {}
        _ => panic!("another report"),
    }
    loop {
        match a.report().await {
            LinksMsg::DialFailed { error: DialError::Refused(why), .. } => {
                assert!(why.contains("busy"), "{why}");
                break;
            }
            // Without a proof yet, it made room for another.
            LinksMsg::DialFailed { error: DialError::Unreachable(_), .. } => {}
            _ => panic!("another report"),
        }
    }
}

/// B94: a port that is taken is found before anything else happens.
#[tokio::test]
async fn a_taken_port_is_an_error_that_names_it() {
    let first = Listener::bind("127.0.0.1:0").await.expect("bound");
    let address = first.local_addr().to_string();
    let error = Listener::bind(&address).await.expect_err("taken").to_string();
    assert!(error.contains(&address) && error.contains("--listen"), "{error}");
    for bad in ["", "127.0.0.1", "no-such-host.invalid:1", "127.0.0.1:99999"] {
        assert!(Listener::bind(bad).await.is_err(), "{bad}");
    }
}

#[test]
fn link_numbers_never_repeat_and_survive_ractor() {
    let (a, b) = (new_link(), new_link());
    assert_ne!(a, b);
    assert_eq!(stream::link_of_label(&format!("link-{}", a.0)), Some(a));
    assert_eq!(stream::link_of_label("external"), None);
}
