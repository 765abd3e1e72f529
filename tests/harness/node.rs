//! A started `actor-node` process.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, mpsc};

use super::http::Client;
use super::{DEADLINE, wait_for};

/// Lines of a node's log that are kept for a failing test's message.
const KEPT: usize = 200;

/// A running node; killed when dropped.
pub struct Node {
    child: Child,
    /// `http://HOST:PORT`.
    pub base: String,
    log: Arc<Mutex<VecDeque<String>>>,
}

/// The binary under test.
pub fn binary() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_actor-node"));
    // A developer's own settings must not leak into a test.
    for (name, _) in std::env::vars() {
        if name.starts_with("ACTOR_NODE_") && name != "ACTOR_NODE_CACHE_DIR" {
            command.env_remove(name);
        }
    }
    command
}

impl Node {
    /// Starts a node on a free port with these arguments and reads its address. It may not be ready yet.
    pub fn spawn(args: &[&str]) -> Self {
        let mut child = binary()
            .args(["--http-listen", "127.0.0.1:0"])
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("actor-node starts");
        let log = Arc::new(Mutex::new(VecDeque::new()));
        let (kept, stderr) = (log.clone(), child.stderr.take().unwrap());
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                let mut kept = kept.lock().unwrap();
                if kept.len() == KEPT {
                    kept.pop_front();
                }
                kept.push_back(line);
            }
        });
        let (sender, lines) = mpsc::channel();
        let stdout = child.stdout.take().unwrap();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                // After the address has been read nobody listens.
                let _ = sender.send(line);
            }
        });
        let mut node = Self { child, base: String::new(), log };
        let line = lines.recv_timeout(DEADLINE);
        node.base = match line {
            Ok(line) if line.starts_with("http://") => line,
            other => panic!("no address on standard output but {other:?}\n{}", node.log()),
        };
        node
    }

    /// Starts a node and waits until it is ready.
    pub fn ready(args: &[&str]) -> Self {
        let mut node = Self::spawn(args);
        let client = node.client();
        wait_for("the node to be ready", || {
            if let Some(status) = node.child.try_wait().unwrap() {
                panic!("the node ended with {status} before it was ready\n{}", node.log());
            }
            client.get("/readiness").ok().filter(|r| r.status == 200).map(drop)
        });
        node
    }

    /// A node with the fake engine (no model to load), ready.
    pub fn fake(args: &[&str]) -> Self {
        Self::ready(&[&["--engine", "fake"], args].concat())
    }

    /// A client of its API.
    pub fn client(&self) -> Client {
        Client::new(&self.base)
    }

    /// The end of its log.
    pub fn log(&self) -> String {
        self.log.lock().unwrap().iter().cloned().collect::<Vec<_>>().join("\n")
    }

    /// Sends a signal by name (`TERM`, `HUP`, `STOP`, …).
    pub fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([&format!("-{name}"), &self.child.id().to_string()]).status();
        assert!(sent.unwrap().success(), "kill -{name}");
    }

    /// Waits for the process's end.
    pub fn wait(&mut self) -> ExitStatus {
        wait_for("the node to end", || self.child.try_wait().unwrap())
    }

    /// Resident memory in bytes.
    pub fn resident(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find(|l| l.starts_with("VmRSS:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
    }

    /// The value of a figure at `/metrics`, summed over its label sets; 0 when it was never recorded.
    pub fn figure(&self, name: &str) -> f64 {
        let text = self.client().get("/metrics").unwrap().text();
        text.lines()
            .filter(|line| !line.starts_with('#'))
            .filter_map(|line| {
                let (key, value) = line.rsplit_once(' ')?;
                let bare = key.split('{').next()?;
                (bare == name).then(|| value.parse::<f64>().ok())?
            })
            .sum()
    }

    /// Waits until nothing runs or waits and no page is held: the leak check.
    pub fn assert_idle(&self) {
        for figure in ["vllm:num_requests_running", "vllm:num_requests_waiting", "actor_node_kv_pages_used", "actor_node_gateway_sessions"] {
            wait_for(&format!("{figure} to be 0"), || (self.figure(figure) == 0.0).then_some(()));
        }
        assert_eq!(self.figure("actor_node_broken_invariants_total"), 0.0, "{}", self.log());
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("log of {}:\n{}", self.base, self.log());
        }
    }
}
