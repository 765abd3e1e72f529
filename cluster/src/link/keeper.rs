//! The keeper: the actor that owns the links, from the end of their handshakes to their last event.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use config::ids::NodeId;
use policies::membership::{DialError, LinkId};
use ractor::pg::{self, GroupChangeMessage};
use ractor::{Actor, ActorId, ActorProcessingErr, ActorRef, ActorStatus, SupervisionEvent};
use ractor_cluster::node::{NodeConnectionMode, NodeServerSessionInformation};
use ractor_cluster::{
    IncomingEncryptionMode, NodeEventSubscription, NodeServer, NodeServerMessage, NodeSessionMessage,
    RactorMessage,
};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::stream::{Io, Numbered, Switch, link_of_label};
use super::{Events, LinkEvent, LinksConfig, LinksError, accept, aside, dial};
use crate::handshake::{Agreed, Refusal, Terms};
use crate::port::{PeerDoors, Port, SCOPE};
use crate::tls::{self, Tls};

/// The purpose of the key that ractor uses as its cookie.
const RACTOR_KEY: &str = "actor-node ractor cookie v1";

/// Time for ractor's own authentication and exchange of doors, and for a closed session to vanish.
const SESSION_LIMIT: Duration = Duration::from_secs(5);

/// A link that is this old when a second handshake with the same peer begins is one that the peer has lost: two that
/// were dialled at once are closer together.
const STALE_AFTER: Duration = Duration::from_millis(250);

/// What the dialling and accepting tasks share.
pub(super) struct Shared {
    pub(super) tls: Option<Tls>,
    pub(super) handshake_timeout: Duration,
    pub(super) terms: Terms,
}

/// A connection whose ends have let each other in.
pub(super) struct Shaken {
    pub(super) link: LinkId,
    pub(super) stream: Box<dyn Io>,
    pub(super) agreed: Agreed,
    /// The socket's address.
    pub(super) peer: String,
    pub(super) dialled: Option<String>,
    /// When the handshake began.
    pub(super) begun: Instant,
}

#[derive(RactorMessage)]
pub(super) enum LinksMsg {
    Dial(String),
    Close(LinkId, String),
    Shaken(Box<Shaken>),
    /// The other end has closed a connection that waited.
    Forsaken {
        link: LinkId,
        peer: NodeId,
        dialled: Option<String>,
    },
    DialFailed {
        address: String,
        error: DialError,
    },
    Refused {
        peer: String,
        name: Option<NodeId>,
        refusal: Refusal,
        by_peer: bool,
    },
    /// ractor has a session for the link.
    Opened {
        link: LinkId,
        session: ActorRef<NodeSessionMessage>,
        node_id: u64,
    },
    /// Its ends have authenticated and know each other's doors.
    Ready(LinkId),
    /// The session has ended.
    Gone(LinkId),
    /// [`SESSION_LIMIT`] is over since it was handed to ractor.
    Overdue(LinkId),
    /// [`SESSION_LIMIT`] is over since it was closed.
    Forget(LinkId),
}

static LAST_LINK: AtomicU64 = AtomicU64::new(0);

/// A number that no link of this process has had.
pub(super) fn new_link() -> LinkId {
    LinkId(LAST_LINK.fetch_add(1, Ordering::Relaxed) + 1)
}

pub(super) struct KeeperArgs {
    listener: TcpListener,
    shared: Arc<Shared>,
    server: NodeServer,
    ports: Vec<Port>,
    events: Events,
}

impl KeeperArgs {
    pub(super) fn new(config: LinksConfig, terms: Terms) -> Result<Self, LinksError> {
        let mut random = [0u8; 8];
        getrandom::fill(&mut random).map_err(|e| LinksError::Random(e.to_string()))?;
        let unique = format!("{:016x}", u64::from_be_bytes(random));
        let (me, _) = config.gate.hello();
        let cookie = blake3::Hash::from_bytes(config.cookie.key(RACTOR_KEY)).to_hex().to_string();
        let refuse = IncomingEncryptionMode::Tls(tls::refuse_all()?);
        let loopback = match std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)) {
            Ok(_) => IpAddr::V4(Ipv4Addr::LOCALHOST),
            Err(_) => IpAddr::V6(Ipv6Addr::LOCALHOST),
        };
        // ractor takes a peer of the same name, or of the same host name and port, for this node: both are made unique.
        let name = format!("{}-{unique}", me.id);
        let server =
            NodeServer::new(0, cookie, name, unique, Some(refuse), Some(NodeConnectionMode::Isolated))
                .with_listen_addr(loopback);
        let LinksConfig { listener, tls, handshake_timeout, ports, events, .. } = config;
        let shared = Arc::new(Shared { tls, handshake_timeout, terms });
        Ok(Self { listener: listener.inner, shared, server, ports, events })
    }
}

/// A link, from the end of its handshake until ractor's session has ended.
struct Entry {
    agreed: Agreed,
    since: Instant,
    dialled: Option<String>,
    switch: Arc<Switch>,
    session: Option<(ActorRef<NodeSessionMessage>, u64)>,
    stage: Stage,
}

enum Stage {
    /// ractor authenticates.
    Opening,
    Up(PeerDoors),
    /// Its last event is out; ractor's session may still be there.
    Closing,
}

/// A connection that cannot be handed to ractor yet.
struct Waiting {
    peer: NodeId,
    /// Brings it back as another [`LinksMsg::Shaken`].
    back: oneshot::Sender<()>,
}

pub(super) struct Keeper;

pub(super) struct KeeperState {
    shared: Arc<Shared>,
    server: ActorRef<NodeServerMessage>,
    events: Events,
    links: BTreeMap<LinkId, Entry>,
    /// Connections that wait until an older one to the same peer has vanished from ractor, or the peer has closed one of
    /// the two.
    waiting: BTreeMap<LinkId, Waiting>,
    /// The accept loop, the dials and who waits: they end with the keeper.
    tasks: JoinSet<()>,
    _ports: Vec<Port>,
}

impl Actor for Keeper {
    type Msg = LinksMsg;
    type State = KeeperState;
    type Arguments = KeeperArgs;

    async fn pre_start(
        &self,
        myself: ActorRef<LinksMsg>,
        args: KeeperArgs,
    ) -> Result<KeeperState, ActorProcessingErr> {
        let (server, _) = Actor::spawn_linked(None, args.server, (), myself.get_cell()).await?;
        let subscription = Box::new(Watcher(myself.clone()));
        server
            .send_message(NodeServerMessage::SubscribeToEvents { id: "links".to_owned(), subscription })
            .map_err(|_| "ractor's server ended at its start")?;
        pg::monitor_scope(SCOPE.to_owned(), myself.get_cell());
        let mut tasks = JoinSet::new();
        tasks.spawn(accept::run(args.listener, args.shared.clone(), myself));
        Ok(KeeperState {
            shared: args.shared,
            server,
            events: args.events,
            links: BTreeMap::new(),
            waiting: BTreeMap::new(),
            tasks,
            _ports: args.ports,
        })
    }

    async fn handle(
        &self,
        myself: ActorRef<LinksMsg>,
        message: LinksMsg,
        state: &mut KeeperState,
    ) -> Result<(), ActorProcessingErr> {
        while state.tasks.try_join_next().is_some() {}
        match message {
            LinksMsg::Dial(address) => {
                state.tasks.spawn(dial::dial(address, new_link(), state.shared.clone(), myself));
            }
            LinksMsg::Close(link, why) => state.close(&myself, link, why),
            LinksMsg::Shaken(shaken) => state.shaken(&myself, *shaken),
            LinksMsg::Forsaken { link, peer, dialled } => {
                state.waiting.remove(&link);
                state.spare(peer, dialled);
            }
            LinksMsg::DialFailed { address, error } => state.tell(LinkEvent::DialFailed { address, error }),
            LinksMsg::Refused { peer, name, refusal, by_peer } => {
                state.tell(LinkEvent::Refused { peer, name, refusal, by_peer });
            }
            LinksMsg::Opened { link, session, node_id } => state.opened(link, session, node_id),
            LinksMsg::Ready(link) => state.ready(link),
            LinksMsg::Gone(link) => state.gone(link),
            LinksMsg::Overdue(link) => state.overdue(&myself, link),
            LinksMsg::Forget(link) => state.gone(link),
        }
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        _: ActorRef<LinksMsg>,
        event: SupervisionEvent,
        state: &mut KeeperState,
    ) -> Result<(), ActorProcessingErr> {
        match event {
            SupervisionEvent::ProcessGroupChanged(
                GroupChangeMessage::Join(_, _, actors) | GroupChangeMessage::Leave(_, _, actors),
            ) => {
                for actor in actors {
                    if let ActorId::Remote { node_id, .. } = actor.get_id() {
                        state.doors_changed(node_id);
                    }
                }
                Ok(())
            }
            // The links go with the server; the state's end tells everybody.
            SupervisionEvent::ActorFailed(_, why) => Err(format!("ractor's server failed: {why}").into()),
            SupervisionEvent::ActorTerminated(..) => Err("ractor's server ended".into()),
            SupervisionEvent::ActorStarted(_) | SupervisionEvent::PidLifecycleEvent(_) => Ok(()),
        }
    }
}

impl KeeperState {
    fn tell(&self, event: LinkEvent) {
        (self.events)(event);
    }

    /// Hands a connection to ractor, one a peer: between two, ractor would choose by rules of its own, might keep the
    /// dead one, and ends one that carries messages before the other one does.
    ///
    /// Of two that both ends have dialled at once the node with the lesser name keeps whichever comes first here, and
    /// closes the other; the node with the greater name waits to see which that is. So no link that is up at either end
    /// gives way, and what was sent over it arrives.
    fn shaken(&mut self, myself: &ActorRef<LinksMsg>, shaken: Shaken) {
        let peer = shaken.agreed.member.clone();
        let mut rival = false;
        let mut over = Vec::new();
        for (link, entry) in self.of_peer(&peer.id).filter(|(_, entry)| !entry.is_closing()) {
            let age = shaken.begun.saturating_duration_since(entry.since);
            let lost = matches!(entry.stage, Stage::Up(_)) && age > STALE_AFTER;
            if lost || entry.agreed.member.incarnation != peer.incarnation {
                over.push(link);
            } else {
                rival = true;
            }
        }
        if rival && self.shared.terms.gate.hello().0.id < peer.id {
            // The other end sees it closed.
            self.spare(peer.id, shaken.dialled);
            return;
        }
        for link in over {
            // The peer has given up what it did over that one.
            self.close(myself, link, "a new connection of the same node replaces it".to_owned());
        }
        if self.of_peer(&peer.id).next().is_some() {
            let (back, told) = oneshot::channel();
            self.waiting.insert(shaken.link, Waiting { peer: peer.id, back });
            self.tasks.spawn(aside::wait(shaken, told, myself.clone()));
        } else {
            self.hand_over(myself, shaken);
        }
    }

    fn of_peer<'a>(&'a self, peer: &'a NodeId) -> impl Iterator<Item = (LinkId, &'a Entry)> {
        let links = self.links.iter().map(|(link, entry)| (*link, entry));
        links.filter(move |(_, entry)| entry.agreed.member.id == *peer)
    }

    /// A connection was one too many.
    fn spare(&self, peer: NodeId, dialled: Option<String>) {
        if let Some(address) = dialled {
            self.tell(LinkEvent::DialFailed { address, error: DialError::AlreadyLinked(peer) });
        }
    }

    fn hand_over(&mut self, myself: &ActorRef<LinksMsg>, shaken: Shaken) {
        let Shaken { link, stream, agreed, peer, dialled, .. } = shaken;
        tracing::debug!(link = link.0, peer, node = %agreed.member.id, "handshake done");
        let switch = Arc::new(Switch::default());
        let stream = Box::new(Numbered { link, stream, switch: switch.clone() });
        let is_server = dialled.is_none();
        let since = Instant::now();
        let entry = Entry { agreed, since, dialled, switch, session: None, stage: Stage::Opening };
        self.links.insert(link, entry);
        let _ = self.server.send_message(NodeServerMessage::ConnectionOpenedExternal { stream, is_server });
        myself.send_after(SESSION_LIMIT, move || LinksMsg::Overdue(link));
    }

    fn opened(&mut self, link: LinkId, session: ActorRef<NodeSessionMessage>, node_id: u64) {
        match self.links.get_mut(&link) {
            Some(Entry { stage: Stage::Closing, .. }) | None => session.stop(None),
            Some(entry) => entry.session = Some((session, node_id)),
        }
    }

    fn ready(&mut self, link: LinkId) {
        let Some(entry) = self.links.get_mut(&link) else { return };
        let (Stage::Opening, Some((_, node_id))) = (&entry.stage, &entry.session) else { return };
        let doors = PeerDoors::of_session(*node_id);
        entry.since = Instant::now();
        entry.stage = Stage::Up(doors.clone());
        let Agreed { member, page_tokens, their_link } = entry.agreed.clone();
        let outbound = entry.dialled.clone();
        self.tell(LinkEvent::Up { link, their_link, member, page_tokens, outbound, doors });
    }

    fn doors_changed(&mut self, node_id: u64) {
        let mut changed = None;
        for (link, entry) in &mut self.links {
            if let (Stage::Up(doors), Some((session, id))) = (&mut entry.stage, &entry.session)
                && *id == node_id
                // With the session all stand-ins leave their groups: that is the end of the link, not of its doors.
                && session.get_status() < ActorStatus::Draining
            {
                let now = PeerDoors::of_session(node_id);
                if *doors != now {
                    *doors = now.clone();
                    changed = Some((*link, now));
                }
            }
        }
        if let Some((link, doors)) = changed {
            self.tell(LinkEvent::Doors { link, doors });
        }
    }

    /// Cuts a link and tells its last event.
    fn close(&mut self, myself: &ActorRef<LinksMsg>, link: LinkId, why: String) {
        let Some(entry) = self.links.get_mut(&link).filter(|entry| !entry.is_closing()) else { return };
        let event = entry.last_event(link, why);
        entry.switch.cut();
        if let Some((session, _)) = &entry.session {
            session.stop(Some("closed".to_owned()));
        }
        myself.send_after(SESSION_LIMIT, move || LinksMsg::Forget(link));
        if let Some(event) = event {
            self.tell(event);
        }
    }

    /// ractor has let go of a link.
    fn gone(&mut self, link: LinkId) {
        let Some(mut entry) = self.links.remove(&link) else { return };
        entry.switch.cut();
        let why = entry.switch.why().unwrap_or_else(|| "its session ended".to_owned());
        if let Some(event) = entry.last_event(link, why) {
            self.tell(event);
        }
        let peer = entry.agreed.member.id;
        let of_peer = self.waiting.iter().filter(|(_, waiting)| waiting.peer == peer);
        let links: Vec<LinkId> = of_peer.map(|(link, _)| *link).collect();
        for waiting in links.into_iter().filter_map(|link| self.waiting.remove(&link)) {
            // One whose other end has just closed it is gone as well.
            let _ = waiting.back.send(());
        }
    }

    /// A session that may not have come up in time.
    fn overdue(&mut self, myself: &ActorRef<LinksMsg>, link: LinkId) {
        if let Some(Entry { stage: Stage::Opening, .. }) = self.links.get(&link) {
            self.close(myself, link, "it did not come up in time".to_owned());
        }
    }
}

impl Entry {
    fn is_closing(&self) -> bool {
        matches!(self.stage, Stage::Closing)
    }

    /// What is said when the link ends, the first time that it does; from then on it is closing.
    fn last_event(&mut self, link: LinkId, why: String) -> Option<LinkEvent> {
        match std::mem::replace(&mut self.stage, Stage::Closing) {
            Stage::Up(_) => Some(LinkEvent::Down { link, why }),
            Stage::Opening => {
                let error = DialError::Unreachable(format!("the session ended before it was up: {why}"));
                self.dialled.clone().map(|address| LinkEvent::DialFailed { address, error })
            }
            Stage::Closing => None,
        }
    }
}

/// However the keeper ends, no link ends without its event and no socket stays open.
impl Drop for KeeperState {
    fn drop(&mut self) {
        for (link, mut entry) in std::mem::take(&mut self.links) {
            entry.switch.cut();
            if let Some(event) = entry.last_event(link, "the node's links were stopped".to_owned()) {
                self.tell(event);
            }
        }
    }
}

/// Brings ractor's events to the keeper.
struct Watcher(ActorRef<LinksMsg>);

impl Watcher {
    fn pass(&self, session: &NodeServerSessionInformation, message: impl FnOnce(LinkId) -> LinksMsg) {
        if let Some(link) = link_of_label(&session.peer_addr) {
            let _ = self.0.send_message(message(link));
        }
    }
}

impl NodeEventSubscription for Watcher {
    fn node_session_opened(&self, ses: NodeServerSessionInformation) {
        self.pass(&ses, |link| LinksMsg::Opened { link, session: ses.actor.clone(), node_id: ses.node_id });
    }

    fn node_session_disconnected(&self, ses: NodeServerSessionInformation) {
        self.pass(&ses, LinksMsg::Gone);
    }

    fn node_session_authenticated(&self, _: NodeServerSessionInformation) {}

    fn node_session_ready(&self, ses: NodeServerSessionInformation) {
        self.pass(&ses, LinksMsg::Ready);
    }
}
