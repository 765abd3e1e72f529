//! A started `actor-node` process.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::http::Client;
use super::{DEADLINE, wait_for};

/// Figures that tests look at.
pub(crate) const RUNNING: &str = "vllm:num_requests_running";
pub(crate) const WAITING: &str = "vllm:num_requests_waiting";
pub(crate) const PREEMPTIONS: &str = "vllm:num_preemptions_total";
pub(crate) const PREFIX_HITS: &str = "vllm:prefix_cache_hits_total";
pub(crate) const PROMPT_TOKENS: &str = "vllm:prompt_tokens_total";
pub(crate) const GENERATION_TOKENS: &str = "vllm:generation_tokens_total";
pub(crate) const PREFILLED_TOKENS: &str = "actor_node_prefilled_tokens_total";
pub(crate) const PAGES_USED: &str = "actor_node_kv_pages_used";
pub(crate) const STEPS: &str = "actor_node_engine_step_seconds_count";
pub(crate) const SESSIONS: &str = "actor_node_gateway_sessions";
pub(crate) const REQUESTS: &str = "actor_node_requests_total";
pub(crate) const HTTP_REQUESTS: &str = "actor_node_http_requests_total";
pub(crate) const BROKEN_INVARIANTS: &str = "actor_node_broken_invariants_total";
pub(crate) const TASK_PANICS: &str = "actor_node_task_panics_total";
const RESTARTS: &str = "actor_node_actor_restarts_total";

/// Lines of a node's log that are kept for a failing test's message.
const KEPT: usize = 200;

/// A running node; killed when dropped, and also when the test process ends without dropping it (shared nodes live in
/// statics, which are never dropped).
pub(crate) struct Node {
    child: Child,
    /// `http://HOST:PORT`.
    pub(crate) base: String,
    /// `HOST:PORT` that it announced to other nodes; read of nodes that are started with `--listen`.
    pub(crate) cluster: Option<String>,
    /// Stopped by [`Node::pause`]: it answers nothing.
    pub(crate) paused: bool,
    log: Log,
    warden: Child,
    args: Vec<String>,
    variables: Vec<(String, String)>,
}

/// The end of a process's standard error, and the thread that reads it.
struct Log {
    lines: Arc<Mutex<VecDeque<String>>>,
    reader: Option<JoinHandle<()>>,
}

impl Log {
    fn of(stderr: ChildStderr) -> Self {
        let lines = Arc::new(Mutex::new(VecDeque::new()));
        let kept = lines.clone();
        let reader = std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                let mut kept = kept.lock().unwrap();
                if kept.len() == KEPT {
                    kept.pop_front();
                }
                kept.push_back(line);
            }
        });
        Self { lines, reader: Some(reader) }
    }

    fn text(&self) -> String {
        self.lines.lock().unwrap().iter().cloned().collect::<Vec<_>>().join("\n")
    }

    /// Waits until everything that an ended process wrote is read.
    fn end(&mut self) {
        if let Some(reader) = self.reader.take() {
            reader.join().unwrap();
        }
    }
}

/// The binary under test.
pub(crate) fn binary() -> Command {
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
    /// Starts a node on a free port with these arguments and settings, and reads its address. It may not be ready yet.
    /// `("RUNTIME__MAX_RUNNING", "1")` sets `runtime.max-running`.
    pub(crate) fn spawn(args: &[&str], keys: &[(&str, &str)]) -> Self {
        let named: Vec<(String, &str)> =
            keys.iter().map(|(key, value)| (format!("ACTOR_NODE_{key}"), *value)).collect();
        Self::spawn_in(args, &named.iter().map(|(name, value)| (name.as_str(), *value)).collect::<Vec<_>>())
    }

    /// As [`Node::spawn`], with environment variables by their whole names.
    pub(crate) fn spawn_in(args: &[&str], variables: &[(&str, &str)]) -> Self {
        let mut child = command(args, variables).spawn().expect("actor-node starts");
        let log = Log::of(child.stderr.take().unwrap());
        let (sender, lines) = mpsc::channel();
        let stdout = child.stdout.take().unwrap();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                // After the addresses have been read nobody listens.
                let _ = sender.send(line);
            }
        });
        let warden = warden(child.id());
        let owned = |text: &&str| (*text).to_owned();
        let mut node = Self {
            child,
            base: String::new(),
            cluster: None,
            paused: false,
            log,
            warden,
            args: args.iter().map(owned).collect(),
            variables: variables.iter().map(|(name, value)| (owned(name), owned(value))).collect(),
        };
        node.base = node.announced(&lines, "http://", true);
        if args.contains(&"--listen") {
            node.cluster = Some(node.announced(&lines, "cluster tcp://", false));
        }
        node
    }

    /// The next line of standard output, which begins with `start`; kept where `whole`.
    fn announced(&mut self, lines: &mpsc::Receiver<String>, start: &str, whole: bool) -> String {
        match lines.recv_timeout(DEADLINE) {
            Ok(line) if whole && line.starts_with(start) => line,
            Ok(line) if line.starts_with(start) => line[start.len()..].to_owned(),
            other => {
                if self.child.try_wait().unwrap().is_some() {
                    self.log.end();
                }
                panic!("no `{start}…` on standard output but {other:?}\n{}", self.log());
            }
        }
    }

    /// Runs a node that is expected to end by itself: its exit status, and the end of its log.
    ///
    /// # Panics
    /// When it still runs after the deadline.
    pub(crate) fn refused(args: &[&str], variables: &[(&str, &str)]) -> (ExitStatus, String) {
        let mut child = command(args, variables).stdout(Stdio::null()).spawn().expect("actor-node starts");
        let mut log = Log::of(child.stderr.take().unwrap());
        let mut warden = warden(child.id());
        let end = Instant::now() + DEADLINE;
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break Some(status);
            }
            if Instant::now() > end {
                break None;
            }
            std::thread::park_timeout(Duration::from_millis(5));
        };
        // Both may have ended already.
        let _ = warden.kill();
        let _ = warden.wait();
        let _ = child.kill();
        let _ = child.wait();
        log.end();
        (status.unwrap_or_else(|| panic!("it does not end\n{}", log.text())), log.text())
    }

    /// Kills the process, as a lost machine would end it: no goodbye.
    pub(crate) fn kill(&mut self) {
        self.end();
        self.log.end();
    }

    /// Whether the process runs.
    pub(crate) fn is_alive(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Stops the process (SIGSTOP): it is silent, and its connections stay open.
    pub(crate) fn pause(&mut self) {
        self.signal("STOP");
        self.paused = true;
    }

    /// Lets a paused process go on.
    pub(crate) fn resume(&mut self) {
        self.signal("CONT");
        self.paused = false;
    }

    /// Kills the process if it runs, and starts it again with the same settings on the same ports.
    pub(crate) fn restart(&mut self) {
        self.kill();
        let mut args = self.args.clone();
        let http = self.base.strip_prefix("http://").unwrap().to_owned();
        for (option, address) in [("--http-listen", Some(http)), ("--listen", self.cluster.clone())] {
            let at = args.iter().position(|a| a == option);
            match (at, address) {
                // Behind a proxy the address announced is the proxy's, and the port was chosen before.
                (Some(at), Some(address)) if args[at + 1].ends_with(":0") => args[at + 1] = address,
                (None, Some(address)) => args.extend([option.to_owned(), address]),
                _ => {}
            }
        }
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let variables: Vec<(&str, &str)> =
            self.variables.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let next = Self::spawn_in(&args, &variables);
        *self = next;
    }

    /// Starts a node and waits until it is ready.
    pub(crate) fn ready(args: &[&str]) -> Self {
        Self::ready_with(args, &[])
    }

    /// As [`Node::ready`], with settings as in [`Node::spawn`].
    pub(crate) fn ready_with(args: &[&str], keys: &[(&str, &str)]) -> Self {
        Self::spawn(args, keys).until_ready()
    }

    /// Waits until it is ready.
    pub(crate) fn until_ready(mut self) -> Self {
        let client = self.client();
        wait_for("the node to be ready", || {
            if let Some(status) = self.child.try_wait().unwrap() {
                panic!("the node ended with {status} before it was ready\n{}", self.log());
            }
            client.get("/readiness").ok().filter(|r| r.status == 200).map(drop)
        });
        self
    }

    /// A node with the fake engine (no model to load), ready.
    pub(crate) fn fake(args: &[&str]) -> Self {
        Self::fake_with(args, &[])
    }

    /// As [`Node::fake`], with settings as in [`Node::spawn`].
    pub(crate) fn fake_with(args: &[&str], keys: &[(&str, &str)]) -> Self {
        Self::ready_with(&[&["--engine", "fake"], args].concat(), keys)
    }

    /// A client of its API.
    pub(crate) fn client(&self) -> Client {
        Client::new(&self.base)
    }

    /// The end of its log.
    pub(crate) fn log(&self) -> String {
        self.log.text()
    }

    /// Sends a signal by name (`TERM`, `HUP`, `STOP`, …).
    pub(crate) fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([&format!("-{name}"), &self.child.id().to_string()]).status();
        assert!(sent.unwrap().success(), "kill -{name}");
    }

    /// Waits for the process's end.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        let status = wait_for("the node to end", || self.child.try_wait().unwrap());
        self.log.end();
        status
    }

    /// Resident memory in bytes.
    pub(crate) fn resident(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find(|l| l.starts_with("VmRSS:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
    }

    /// The value of a figure at `/metrics`, summed over its label sets; 0 when it was never recorded.
    pub(crate) fn figure(&self, name: &str) -> f64 {
        self.figure_where(name, "")
    }

    /// As [`Node::figure`], over the label sets that contain `label` (`status="413"`).
    pub(crate) fn figure_where(&self, name: &str, label: &str) -> f64 {
        let text = self.client().get("/metrics").unwrap().text();
        text.lines()
            .filter(|line| !line.starts_with('#'))
            .filter_map(|line| {
                let (key, value) = line.rsplit_once(' ')?;
                let bare = key.split('{').next()?;
                (bare == name && key.contains(label)).then(|| value.parse::<f64>().ok())?
            })
            .sum()
    }

    /// Waits until a figure has this value.
    pub(crate) fn wait_for_figure(&self, name: &str, value: f64) {
        wait_for(&format!("{name} to be {value}"), || (self.figure(name) == value).then_some(()));
    }

    /// Waits until nothing runs or waits and no page is held (the leak check), and asserts that nothing broke meanwhile.
    pub(crate) fn assert_idle(&self) {
        for figure in [RUNNING, WAITING, PAGES_USED, SESSIONS] {
            self.wait_for_figure(figure, 0.0);
        }
        for figure in [BROKEN_INVARIANTS, TASK_PANICS, RESTARTS] {
            assert_eq!(self.figure(figure), 0.0, "{figure}\n{}", self.log());
        }
    }
}

/// Kills the process `id` when this process ends: the pipe to the warden closes then, however the end came.
fn warden(id: u32) -> Child {
    Command::new("sh")
        .args(["-c", "read _; kill -9 \"$0\" 2>/dev/null", &id.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("sh runs")
}

/// The binary with these arguments and environment variables; its HTTP side on a free port if they do not say where.
fn command(args: &[&str], variables: &[(&str, &str)]) -> Command {
    let mut command = binary();
    if !args.contains(&"--http-listen") {
        command.args(["--http-listen", "127.0.0.1:0"]);
    }
    command.args(args).envs(variables.iter().copied());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

impl Node {
    fn end(&mut self) {
        // The warden first: after the node's end its id may be another process's. Both may have ended already.
        let _ = self.warden.kill();
        let _ = self.warden.wait();
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Node {
    #[expect(clippy::print_stderr, reason = "the log belongs to a failing test's output")]
    fn drop(&mut self) {
        self.end();
        if std::thread::panicking() {
            eprintln!("log of {}:\n{}", self.base, self.log());
        }
    }
}
