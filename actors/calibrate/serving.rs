//! What serving does to the engine's steps: a node of its own process with the same configuration answers streams for a
//! while, and tells of each step what was in it and how long it took.
//!
//! HTTP, actors, tokens and the clients themselves share the machine with the engine's threads, as they do where clients
//! are not elsewhere. What that costs is the time of all steps over what the engine needs for them alone, stalls included,
//! and the time from a step's end to the begin of the next.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use config::Config;
use policies::cost::{CostModel, StepCosts, Work};
use policies::time::Span;
use serde_json::{Value, json};

use crate::worker::scheduler::STEPS;

/// Clients at a time, each of which asks again when it has its answer.
const CLIENTS: usize = 4;
/// How long they ask.
const SERVED_FOR: Duration = Duration::from_secs(20);
/// Tokens of their prompts and of their answers, in turn.
const ASKED: [(u32, u32); 5] = [(60, 40), (220, 24), (24, 60), (340, 16), (120, 48)];
/// Longest wait for a node to be ready, or for an answer.
const PATIENCE: Duration = Duration::from_secs(600);
/// Lines that wait to be looked at.
const LINES: usize = 4096;
/// Steps that say something.
const ENOUGH: usize = 20;

/// What was found.
#[derive(Clone, Copy, Debug)]
pub(super) struct Serving {
    /// Time of steps, in thousandths of what they take alone.
    pub(super) factor: u32,
    /// From the end of a step to the begin of the next.
    pub(super) between: Span,
    /// Steps that were looked at.
    pub(super) steps: usize,
}

/// A step of the node: times in nanoseconds since its start.
#[derive(Debug)]
struct Step {
    work: Vec<Work>,
    began: u64,
    ended: u64,
    took: u64,
}

/// Has a node serve, and holds its steps against what the engine needs alone; `window` is the longest sequence.
///
/// # Errors
/// A node that does not start or serve, with what it said.
pub(super) fn measure(config: &Config, window: u32, alone: StepCosts) -> Result<Serving> {
    let mut node = Node::start(config)?;
    let asked = node.until_ready(window).and_then(|()| {
        // What was needed to become ready says nothing.
        node.steps.clear();
        node.serve(window)
    });
    let (steps, said) = node.stop();
    asked.with_context(|| format!("a node that was to serve did not; it said: {said}"))?;
    summed(&steps, alone)
}

fn summed(steps: &[Step], alone: StepCosts) -> Result<Serving> {
    let cost = CostModel::Steps(alone);
    let predicted: u64 = steps.iter().map(|step| cost.step(step.work.iter().copied()).0).sum();
    let took: u64 = steps.iter().map(|step| step.took).sum();
    // Those that another one follows at once.
    let gaps: Vec<u64> = steps
        .windows(2)
        .filter(|pair| pair[1].began == pair[0].ended)
        .map(|pair| (pair[1].began - pair[0].began).saturating_sub(pair[0].took))
        .collect();
    if steps.len() < ENOUGH || predicted == 0 || gaps.is_empty() {
        bail!("only {} steps were seen while a node served: too few to tell what that costs", steps.len());
    }
    let factor = (took as f64 / predicted as f64 * 1000.0).round().clamp(100.0, 10_000.0) as u32;
    Ok(Serving { factor, between: Span(gaps.iter().sum::<u64>() / gaps.len() as u64), steps: steps.len() })
}

/// A node in a process of its own.
struct Node {
    process: Child,
    address: String,
    lines: Receiver<String>,
    steps: Vec<Step>,
    /// When the step under way began, and what is in it.
    under_way: Option<(u64, Vec<Work>)>,
    /// The last that it said of something else.
    said: String,
}

impl Node {
    fn start(config: &Config) -> Result<Self> {
        // A node alone, as far as what it computes goes: who may ask it and who hears of it is of no interest here.
        let config = Config {
            model: config.model.clone(),
            engine: config.engine.clone(),
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
            steps: Vec::new(),
            under_way: None,
            said: String::new(),
        };
        let mut first = String::new();
        let stdout = node.process.stdout.take().context("the node has no standard output")?;
        BufReader::new(stdout).read_line(&mut first).context("cannot read what the node says")?;
        match first.trim().strip_prefix("http://") {
            Some(address) => node.address = address.to_owned(),
            None => bail!("a node that was to serve did not start; it said: {}", node.stop().1),
        }
        Ok(node)
    }

    /// Waits until it answers.
    fn until_ready(&mut self, window: u32) -> Result<()> {
        let end = Instant::now() + PATIENCE;
        loop {
            match stream(&self.address, 0, 8.min(window / 2), 1) {
                Ok(()) => return Ok(()),
                Err(e) if Instant::now() > end => return Err(e),
                Err(_) => self.listen(Instant::now() + Duration::from_millis(100))?,
            }
        }
    }

    /// Clients ask for a while; gives back what they met with.
    fn serve(&mut self, window: u32) -> Result<()> {
        let until = Instant::now() + SERVED_FOR;
        let mut clients = Vec::new();
        for client in 0..CLIENTS {
            let address = self.address.clone();
            let ask = move || -> Result<()> {
                let mut asked = client;
                while Instant::now() < until {
                    let (prompt, answer) = ASKED[asked % ASKED.len()];
                    // Prompts that begin with different tokens share no page.
                    let own = (1 + client * 10_000 + asked) as u32;
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
        Ok(())
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
                    self.steps.push(Step { work, began, ended, took });
                }
            }
            (None, None) => {}
        }
    }

    /// Ends it, and gives back its steps and the last that it said of something else.
    fn stop(mut self) -> (Vec<Step>, String) {
        // It has nothing left to do, or is of no use.
        let _ = self.process.kill();
        let _ = self.process.wait();
        while let Ok(line) = self.lines.recv_timeout(PATIENCE) {
            self.hear(&line);
        }
        (std::mem::take(&mut self.steps), std::mem::take(&mut self.said))
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
    use policies::cost::SlicePrices;

    use super::*;

    #[test]
    fn slices_are_read_as_they_are_logged() {
        let work = |start, tokens| Work { start, tokens };
        assert_eq!(works("0+128 340+1"), [work(0, 128), work(340, 1)]);
        assert_eq!(works(""), []);
    }

    #[test]
    fn the_factor_is_that_of_all_steps_and_gaps_are_those_between_steps_under_load() {
        let alone = StepCosts::new(&[(1, Span(1000))], SlicePrices::default()).unwrap();
        let step = |began, ended, took| {
            let work = vec![Work { start: 0, tokens: 1 }];
            Step { work, began, ended, took }
        };
        // One in four takes twice as long; a step begins 50 after the end of the one before, or much later.
        let mut steps = Vec::new();
        for n in 0..20_u64 {
            let took = if n % 4 == 0 { 2000 } else { 1000 };
            let (began, ended) = (n * 100_000, n * 100_000 + took + 50);
            steps.extend([step(began, ended, took), step(ended, ended + 1050, 1000)]);
        }
        let serving = summed(&steps, alone).unwrap();
        assert_eq!((serving.factor, serving.between, serving.steps), (1125, Span(50), 40));
        assert!(summed(&steps[..10], alone).is_err());
    }
}
