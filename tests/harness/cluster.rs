//! Clusters of real processes, each with a cookie of its own.
//!
//! ```ignore
//! let mut cluster = Cluster::of(&["c1", "g1", "w1", "w2"]); // roles by first letter; whole when this returns
//! cluster["w1"].kill();
//! cluster.until_lost(&["c1", "g1"], "w1", life, killed);
//! cluster["w1"].restart();
//! cluster.until_whole();
//! ```
//!
//! # Partitions
//! Links are TCP connections that either end may have dialled: a node dials its seeds, and the addresses that nodes
//! advertise, once it hears of them. In a cluster [`Cluster::behind_proxies`] each node listens on `127.0.0.2:P`, its
//! *direct* address, and advertises `127.0.0.1:P`, a [`Proxy`] before it. A node's own dials do not pass its own proxy,
//! but those to *advertised* addresses pass the other end's. So: two nodes whose link must fail are seeded with nothing
//! but proxied addresses of each other ([`Cluster::proxied`]), and whoever of the two dials passes a proxy. Two nodes
//! whose link must hold are seeded with [`Cluster::direct`] addresses. A cut or freeze of **all** proxies
//! ([`Cluster::cut`], [`Cluster::freeze`]) then parts exactly the pairs that have no direct link. Who is seeded with
//! whom is up to the test; without `--seed` among its arguments a node gets the direct addresses of all that run.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::ops::{Index, IndexMut};
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use super::node::Node;
use super::proxy::Proxy;
use super::{DEADLINE, wait_for};

/// A node that does not answer within this is taken for silent; its view is asked for again.
const ANSWER: Duration = Duration::from_secs(5);

/// Nodes, a folder for their cookie, and settings that all of them get.
pub(crate) struct Cluster {
    dir: TempDir,
    keys: Vec<(String, String)>,
    nodes: BTreeMap<String, Node>,
    proxies: Option<BTreeMap<String, Proxy>>,
    held: Vec<TcpListener>,
}

impl Cluster {
    /// No nodes yet. `keys` as in [`Node::spawn`], for all of them.
    pub(crate) fn new(keys: &[(&str, &str)]) -> Self {
        let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        Self {
            dir: tempfile::tempdir().unwrap(),
            keys: keys.iter().map(owned).collect(),
            nodes: BTreeMap::new(),
            proxies: None,
            held: Vec::new(),
        }
    }

    /// As [`Cluster::new`], each node behind a proxy of its own.
    pub(crate) fn behind_proxies(keys: &[(&str, &str)]) -> Self {
        Self { proxies: Some(BTreeMap::new()), ..Self::new(keys) }
    }

    /// A whole cluster of these nodes, roles by the first letter of each name: `c`, `g`, `w`.
    pub(crate) fn of(names: &[&str]) -> Self {
        Self::of_with(names, &[])
    }

    /// As [`Cluster::of`], with settings for all nodes.
    pub(crate) fn of_with(names: &[&str], keys: &[(&str, &str)]) -> Self {
        let mut cluster = Self::new(keys);
        for name in names {
            match name.as_bytes()[0] {
                b'c' => cluster.controller(name),
                b'g' => cluster.gateway(name),
                b'w' => cluster.worker(name),
                _ => panic!("no role begins like {name}"),
            };
        }
        cluster.until_whole();
        cluster
    }

    /// Starts a gateway.
    pub(crate) fn gateway(&mut self, name: &str) -> &mut Node {
        self.node(name, "gateway", &[], &[])
    }

    /// Starts a controller.
    pub(crate) fn controller(&mut self, name: &str) -> &mut Node {
        self.node(name, "controller", &[], &[])
    }

    /// Starts a worker of the fake engine.
    pub(crate) fn worker(&mut self, name: &str) -> &mut Node {
        self.node(name, "worker", &["--engine", "fake"], &[])
    }

    /// Starts a node, seeded with all that run unless `args` name seeds; gives it once it has announced itself.
    pub(crate) fn node(
        &mut self,
        name: &str,
        roles: &str,
        args: &[&str],
        keys: &[(&str, &str)],
    ) -> &mut Node {
        let (args, variables) = self.command(name, roles, args, keys);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let node = Node::spawn_in(&args, &borrowed(&variables));
        self.nodes.insert(name.to_owned(), node);
        self.nodes.get_mut(name).unwrap()
    }

    /// Runs a node as [`Cluster::node`] would, which is expected to end by itself: its exit status and its log.
    pub(crate) fn refused(
        &mut self,
        name: &str,
        roles: &str,
        args: &[&str],
        keys: &[(&str, &str)],
    ) -> (ExitStatus, String) {
        let (args, variables) = self.command(name, roles, args, keys);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        Node::refused(&args, &borrowed(&variables))
    }

    fn command(
        &mut self,
        name: &str,
        roles: &str,
        args: &[&str],
        keys: &[(&str, &str)],
    ) -> (Vec<String>, Vec<(String, String)>) {
        let mut all: Vec<String> = ["--role", roles].map(str::to_owned).into();
        if !args.contains(&"--name") {
            all.extend(["--name", name].map(str::to_owned));
        }
        all.extend(args.iter().map(|arg| (*arg).to_owned()));
        if !args.contains(&"--seed") {
            let names: Vec<String> = self.nodes.keys().filter(|other| *other != name).cloned().collect();
            let live: Vec<String> = names.into_iter().filter(|n| self.answers(n)).collect();
            all.extend(live.iter().flat_map(|other| ["--seed".to_owned(), self.direct(other)]));
        }
        if !args.contains(&"--listen") {
            match &mut self.proxies {
                None => all.extend(["--listen", "127.0.0.1:0"].map(str::to_owned)),
                Some(proxies) => {
                    let proxy = proxies.entry(name.to_owned()).or_insert_with(Proxy::new);
                    all.extend(["--listen".to_owned(), proxy.target()]);
                    all.extend(["--advertise".to_owned(), proxy.address()]);
                }
            }
        }
        let mut variables = vec![("XDG_CONFIG_HOME".to_owned(), self.dir.path().display().to_string())];
        let own = keys.iter().map(|(key, value)| (*key, *value));
        let of_all = self.keys.iter().map(|(key, value)| (key.as_str(), value.as_str()));
        variables
            .extend(of_all.chain(own).map(|(key, value)| (format!("ACTOR_NODE_{key}"), value.to_owned())));
        (all, variables)
    }

    /// Where the nodes keep what they make: `actor-node/cookie` is in here.
    pub(crate) fn dir(&self) -> &std::path::Path {
        self.dir.path()
    }

    /// An address for a node to be started later with `--listen`; nobody listens there before.
    pub(crate) fn reserve(&mut self) -> String {
        // While this listener has the port on one loopback address, nobody is given it on another.
        let held = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("127.0.0.2:{}", held.local_addr().unwrap().port());
        self.held.push(held);
        address
    }

    /// `HOST:PORT` that a node listens on.
    pub(crate) fn direct(&self, name: &str) -> String {
        match self.proxies.as_ref().and_then(|proxies| proxies.get(name)) {
            Some(proxy) => proxy.target(),
            None => self[name].cluster.clone().expect("it listens"),
        }
    }

    /// `HOST:PORT` of the proxy before a node, which need not run yet.
    pub(crate) fn proxied(&mut self, name: &str) -> String {
        let proxies = self.proxies.as_mut().expect("a cluster behind proxies");
        proxies.entry(name.to_owned()).or_insert_with(Proxy::new).address()
    }

    /// The proxy before a node.
    pub(crate) fn proxy(&self, name: &str) -> &Proxy {
        &self.proxies.as_ref().expect("a cluster behind proxies")[name]
    }

    /// Ends all connections through proxies, and all tries to make new ones.
    pub(crate) fn cut(&self) {
        self.proxies.iter().flatten().for_each(|(_, proxy)| proxy.cut());
    }

    /// Makes black holes of all proxies.
    pub(crate) fn freeze(&self) {
        self.proxies.iter().flatten().for_each(|(_, proxy)| proxy.freeze());
    }

    /// All proxies forward again.
    pub(crate) fn heal(&self) {
        self.proxies.iter().flatten().for_each(|(_, proxy)| proxy.heal());
    }

    /// Takes a node out, running or not.
    pub(crate) fn take(&mut self, name: &str) -> Node {
        self.nodes.remove(name).unwrap_or_else(|| panic!("no node {name}"))
    }

    /// The cluster as this node sees it (`GET /v1/cluster`).
    pub(crate) fn view(&self, name: &str) -> Value {
        wait_for(&format!("the view of {name}"), || view(&self[name].base))
    }

    /// This node's row about `of`, if it has one.
    pub(crate) fn row(&self, name: &str, of: &str) -> Option<Value> {
        row(&self.view(name), of).cloned()
    }

    /// The incarnation that a node is in.
    pub(crate) fn incarnation(&self, name: &str) -> u64 {
        self.row(name, name).unwrap()["incarnation"].as_u64().unwrap()
    }

    /// Status and reason of a node's `/readiness`.
    pub(crate) fn readiness(&self, name: &str) -> (u16, String) {
        let (status, body) =
            wait_for("readiness", || get(&self[name].base, "/readiness", Instant::now() + ANSWER));
        let body: Value = serde_json::from_str(&body).unwrap_or_default();
        (status, body["reason"].as_str().unwrap_or_default().to_owned())
    }

    /// Waits until every node that runs sees every other one ready, in its present incarnation, and nobody else as
    /// there; all name one leader; and, where a worker runs, all of them are ready to serve.
    pub(crate) fn until_whole(&mut self) {
        let names: Vec<String> = self.nodes.keys().cloned().collect();
        let live: Vec<String> = names.into_iter().filter(|name| self.answers(name)).collect();
        let end = Instant::now() + DEADLINE;
        loop {
            let missing = self.missing(&live);
            let Some(missing) = missing else { return };
            for name in &live {
                assert!(self[name].is_alive(), "{name} ended\n{}", self[name].log());
            }
            assert!(Instant::now() < end, "the cluster is not whole: {missing}");
            std::thread::park_timeout(Duration::from_millis(10));
        }
    }

    /// What keeps the cluster from being whole.
    fn missing(&self, live: &[String]) -> Option<String> {
        let mut views = BTreeMap::new();
        for name in live {
            match view(&self[name].base) {
                Some(view) => drop(views.insert(name.as_str(), view)),
                None => return Some(format!("{name} does not answer")),
            }
        }
        let life = |of: &str, view: &Value| row(view, of).map(|row| row["incarnation"].clone());
        let lives: BTreeMap<&str, Value> =
            views.iter().filter_map(|(name, view)| Some((*name, life(name, view)?))).collect();
        let leader = views.values().next().map(|view| view["leader"].clone());
        let mut workers = false;
        for (name, view) in &views {
            let there: BTreeMap<&str, Value> = rows(view)
                .iter()
                .filter(|row| row["state"] == "ready" || row["state"] == "joined")
                .map(|row| (row["name"].as_str().unwrap(), row["incarnation"].clone()))
                .collect();
            let ready = rows(view).iter().filter(|row| row["state"] == "ready").count();
            workers |= rows(view).iter().any(|row| !row["worker"].is_null());
            // A node says that it is ready in the handshake, and what its worker offers in the beat that follows.
            let works = |row: &&Value| {
                let roles = row["roles"].as_str().unwrap_or_default();
                row["state"] == "ready" && (roles == "all" || roles.contains("worker"))
            };
            if rows(view).iter().filter(works).any(|row| row["worker"].is_null()) {
                return Some(format!("{name} has not heard what a worker offers: {view:#}"));
            }
            if there != lives || ready != lives.len() || Some(&view["leader"]) != leader.as_ref() {
                return Some(format!("{name} sees {view:#}"));
            }
        }
        let serves = |name: &&String| {
            get(&self[name].base, "/readiness", Instant::now() + ANSWER).map(|(status, _)| status)
                == Some(200)
        };
        let idle = live.iter().find(|name| workers && !serves(name))?;
        Some(format!("{idle} is not ready"))
    }

    /// Waits until none of `watchers` sees that life of `lost` any more; gives how long that took from `since`.
    pub(crate) fn until_lost(&self, watchers: &[&str], lost: &str, life: u64, since: Instant) -> Duration {
        for watcher in watchers {
            wait_for(&format!("{watcher} to lose {lost}"), || {
                let view = view(&self[*watcher].base)?;
                (!sees(&view, lost, life)).then_some(())
            });
        }
        since.elapsed()
    }

    /// Whether a node sees that life of another as there.
    pub(crate) fn sees(&self, name: &str, of: &str, life: u64) -> bool {
        sees(&self.view(name), of, life)
    }

    /// Whether the node runs and is not paused.
    fn answers(&mut self, name: &str) -> bool {
        let node = &mut self[name];
        !node.paused && node.is_alive()
    }
}

impl Index<&str> for Cluster {
    type Output = Node;

    fn index(&self, name: &str) -> &Node {
        self.nodes.get(name).unwrap_or_else(|| panic!("no node {name}"))
    }
}

impl IndexMut<&str> for Cluster {
    fn index_mut(&mut self, name: &str) -> &mut Node {
        self.nodes.get_mut(name).unwrap_or_else(|| panic!("no node {name}"))
    }
}

/// One GET with a limit of its own, so that a silent node holds nobody up; none without a whole answer.
pub(crate) fn get(base: &str, path: &str, end: Instant) -> Option<(u16, String)> {
    let address = base.strip_prefix("http://")?;
    let left = || end.checked_duration_since(Instant::now()).filter(|left| !left.is_zero());
    let mut stream = TcpStream::connect_timeout(&address.parse().ok()?, left()?).ok()?;
    stream.set_read_timeout(left()).ok()?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\nConnection: close\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    Some((head.split_whitespace().nth(1)?.parse().ok()?, body.to_owned()))
}

fn view(base: &str) -> Option<Value> {
    let (status, body) = get(base, "/v1/cluster", Instant::now() + ANSWER)?;
    (status == 200).then(|| serde_json::from_str(&body).unwrap_or_else(|e| panic!("{e} in {body}")))
}

fn rows(view: &Value) -> &[Value] {
    view["nodes"].as_array().map_or(&[], Vec::as_slice)
}

fn row<'a>(view: &'a Value, of: &str) -> Option<&'a Value> {
    rows(view).iter().find(|row| row["name"] == of)
}

fn sees(view: &Value, of: &str, life: u64) -> bool {
    row(view, of).is_some_and(|row| {
        row["incarnation"] == life && (row["state"] == "ready" || row["state"] == "joined")
    })
}

fn borrowed(pairs: &[(String, String)]) -> Vec<(&str, &str)> {
    pairs.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect()
}
