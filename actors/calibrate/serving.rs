//! A node of its own process with the same configuration, which answers streams whenever it is asked to, and tells of each
//! step what was in it and how long it took.
//!
//! HTTP, actors, tokens and the clients themselves share the machine with the engine's threads, as they do where clients
//! are not elsewhere. Between two turns it is idle: its engine sleeps.
//!
//! It has few KV pages, and all of them are used before the first turn: a node that has served for a while waits for no
//! memory that is touched for the first time, which may take longer than computing what goes there.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use config::Config;
use policies::batch::BatchConfig;
use policies::cost::Work;
use serde_json::{Value, json};

use super::turns::Served;
use crate::worker::steps::STEPS;

/// Clients at a time, each of which asks again when it has its answer.
const CLIENTS: usize = 4;
/// Tokens of their prompts and of their answers, in turn.
const ASKED: [(u32, u32); 5] = [(60, 40), (220, 24), (24, 60), (340, 16), (120, 48)];
/// Its longest sequence; those that are asked for are shorter.
const WINDOW: u32 = 1024;
/// Longest wait for a node to be ready, or for an answer.
const PATIENCE: Duration = Duration::from_secs(600);
/// Lines that wait to be looked at.
const LINES: usize = 4096;
/// A node in a process of its own.
#[derive(Debug)]
pub(super) struct Node {
    process: Child,
    address: String,
    lines: Receiver<String>,
    /// The longest sequence.
    window: u32,
    /// Turns so far.
    turns: u32,
    steps: Vec<Served>,
    /// When the step under way began, and what is in it.
    under_way: Option<(u64, Vec<Work>)>,
    /// The last that it said of something else.
    said: String,
}

impl Node {
    /// Starts it, waits until it answers and has it use all its pages; `limits` are those of the engine alone.
    ///
    /// # Errors
    /// A node that does not start or answer, with what it said.
    pub(super) fn start(config: &Config, limits: &BatchConfig) -> Result<Self> {
        let window = limits.window().min(WINDOW);
        // Enough for all clients.
        let pages = (window * CLIENTS as u32).div_ceil(limits.page_tokens).min(limits.pages);
        let (mut model, mut engine) = (config.model.clone(), config.engine.clone());
        model.max_context = Some(window as usize);
        (engine.kv_pages, engine.kv_memory) = (Some(pages), None);
        // A node alone, as far as what it computes goes: who may ask it and who hears of it is of no interest here.
        let config = Config {
            model,
            engine,
            runtime: config.runtime.clone(),
            worker_policy: config.worker_policy.clone(),
            gateway: config.gateway.clone(),
            ..Config::default()
        };
        let text = config.to_toml().context("cannot hand the configuration on")?;
        let program = std::env::current_exe().context("cannot find this program again")?;
        let mut process = Command::new(program)
            .args(["--config", "/dev/stdin", "--http-listen", "127.0.0.1:0"])
            .args(["--log-level", &format!("warn,{STEPS}=trace"), "--log-format", "json"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot start a node to serve")?;
        if let Some(mut stdin) = process.stdin.take() {
            stdin.write_all(text.as_bytes()).context("cannot hand the configuration on")?;
        }
        let (line, lines) = sync_channel(LINES);
        let stderr = process.stderr.take().context("the node has no standard error")?;
        std::thread::Builder::new()
            .name("node-log".into())
            .spawn(move || {
                // Whoever listened may be gone.
                let mut told = BufReader::new(stderr).lines().map_while(Result::ok);
                let _ = told.try_for_each(|said| line.send(said));
            })
            .context("cannot start a thread")?;
        let mut node = Self {
            process,
            address: String::new(),
            lines,
            window,
            turns: 0,
            steps: Vec::new(),
            under_way: None,
            said: String::new(),
        };
        let mut first = String::new();
        let stdout = node.process.stdout.take().context("the node has no standard output")?;
        BufReader::new(stdout).read_line(&mut first).context("cannot read what the node says")?;
        match first.trim().strip_prefix("http://") {
            Some(address) => node.address = address.to_owned(),
            None => bail!("a node that was to serve did not start; it said: {}", node.last_words()),
        }
        let ready = node.until_ready().and_then(|()| node.touch(pages * limits.page_tokens));
        ready.with_context(|| node.failed())?;
        Ok(node)
    }

    /// Serves streams for a while, and gives back its steps.
    ///
    /// # Errors
    /// A node that does not answer, with what it said.
    pub(super) fn serve(&mut self, lasting: Duration) -> Result<Vec<Served>> {
        // What was needed before says nothing.
        self.steps.clear();
        let asked = self.ask(lasting);
        asked.with_context(|| self.failed())?;
        Ok(std::mem::take(&mut self.steps))
    }

    fn failed(&mut self) -> String {
        format!("a node that was to serve did not; it said: {}", self.last_words())
    }

    /// Waits until it answers.
    fn until_ready(&mut self) -> Result<()> {
        let end = Instant::now() + PATIENCE;
        loop {
            match stream(&self.address, 0, 8.min(self.window / 2), 1) {
                Ok(()) => return Ok(()),
                Err(e) if Instant::now() > end => return Err(e),
                Err(_) => self.listen(Instant::now() + Duration::from_millis(100))?,
            }
        }
    }

    /// Has it compute so many tokens: pages are used one after the other before one is used again.
    fn touch(&mut self, tokens: u32) -> Result<()> {
        let prompt = self.window / 2;
        for number in 0..tokens.div_ceil(prompt.max(1)) {
            stream(&self.address, u32::MAX - number, prompt, 1)?;
            self.listen(Instant::now())?;
        }
        Ok(())
    }

    /// Clients ask for a while.
    fn ask(&mut self, lasting: Duration) -> Result<()> {
        let until = Instant::now() + lasting;
        let mut clients = Vec::new();
        let (window, before) = (self.window, self.turns as usize * CLIENTS);
        self.turns += 1;
        for client in 0..CLIENTS {
            let address = self.address.clone();
            let ask = move || -> Result<()> {
                let mut asked = client;
                while Instant::now() < until {
                    let (prompt, answer) = ASKED[asked % ASKED.len()];
                    // Prompts that begin with different tokens share no page.
                    let own = (1 + (before + client) * 100_000 + asked) as u32;
                    stream(&address, own, prompt.min(window / 2), answer.min(window / 4))?;
                    asked += 1;
                }
                Ok(())
            };
            let thread = std::thread::Builder::new().name(format!("client-{client}"));
            clients.push(thread.spawn(ask).context("cannot start a client's thread")?);
        }
        while clients.iter().any(|client| !client.is_finished()) {
            self.listen(Instant::now() + Duration::from_millis(100))?;
        }
        for client in clients {
            client.join().unwrap_or_else(|_| bail!("a client's thread panicked"))?;
        }
        // The last that it said may be on its way.
        self.listen(Instant::now() + Duration::from_millis(100))
    }

    /// Takes in what it says for a while.
    fn listen(&mut self, until: Instant) -> Result<()> {
        loop {
            match self.lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(line) => self.hear(&line),
                Err(RecvTimeoutError::Timeout) => return Ok(()),
                Err(RecvTimeoutError::Disconnected) => bail!("it has ended"),
            }
        }
    }

    fn hear(&mut self, line: &str) {
        let told: Value = serde_json::from_str(line).unwrap_or_default();
        if told["target"] != STEPS {
            line.clone_into(&mut self.said);
            return;
        }
        let number = |key: &str| told[key].as_u64();
        match (told["slices"].as_str(), number("took")) {
            (Some(slices), _) => self.under_way = number("at").map(|at| (at, works(slices))),
            (None, Some(took)) => {
                if let (Some((began, work)), Some(ended)) = (self.under_way.take(), number("at")) {
                    self.steps.push(Served { work, began, ended, took });
                }
            }
            (None, None) => {}
        }
    }

    /// Ends it, and gives back the last that it said of something else than steps.
    fn last_words(&mut self) -> String {
        // It has nothing left to do, or is of no use.
        let _ = self.process.kill();
        let _ = self.process.wait();
        while let Ok(line) = self.lines.recv_timeout(PATIENCE) {
            self.hear(&line);
        }
        std::mem::take(&mut self.said)
    }
}

/// However it is let go of, its process does not stay.
impl Drop for Node {
    fn drop(&mut self) {
        // It may have ended before.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The slices of a step as the scheduler's log has them: `START+TOKENS`, with spaces between.
fn works(slices: &str) -> Vec<Work> {
    let parts = slices.split_ascii_whitespace().filter_map(|slice| slice.split_once('+'));
    let numbers = parts.filter_map(|(start, tokens)| Some((start.parse().ok()?, tokens.parse().ok()?)));
    numbers.map(|(start, tokens)| Work { start, tokens }).collect()
}

/// Asks for a completion as a stream and reads it to its end. `own` makes the prompt differ from others from its first
/// page on.
fn stream(address: &str, own: u32, prompt: u32, answer: u32) -> Result<()> {
    let token = |i: u32| 1 + policies::rng::bits(own.into(), 1, i.into()) % 200;
    let tokens: Vec<u64> = (0..prompt.max(1)).map(token).collect();
    let body = json!({
        "model": "default", "prompt": tokens, "max_tokens": answer.max(1), "temperature": 0, "ignore_eos": true,
        "stream": true,
    });
    let body = body.to_string();
    let mut connection = TcpStream::connect(address).context("cannot connect to the node")?;
    connection.set_read_timeout(Some(PATIENCE)).context("cannot set a limit")?;
    write!(
        connection,
        "POST /v1/completions HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    )
    .context("cannot ask the node")?;
    let (mut head, mut buffer) = (Vec::new(), [0; 16 * 1024]);
    loop {
        match connection.read(&mut buffer).context("the node's answer broke off")? {
            0 => break,
            read if head.len() < 512 => head.extend_from_slice(&buffer[..read]),
            _ => {}
        }
    }
    let head = String::from_utf8_lossy(&head);
    match head.split_ascii_whitespace().nth(1) {
        Some("200") => Ok(()),
        _ => bail!("the node answered: {}", head.lines().next().unwrap_or("nothing")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_are_read_as_they_are_logged() {
        let work = |start, tokens| Work { start, tokens };
        assert_eq!(works("0+128 340+1"), [work(0, 128), work(340, 1)]);
        assert_eq!(works(""), []);
    }
}
