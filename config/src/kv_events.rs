//! `[kv-events]`: what a worker publishes about its cached pages, for routers that were made for vLLM or SGLang.

use serde::{Deserialize, Serialize};

use crate::error::{ConfigError, check};
use crate::http::check_address;
use crate::optional;

/// The one transport, as vLLM writes it.
const SCHEME: &str = "tcp://";

/// KV events over ZeroMQ. The keys are those of vLLM's `--kv-events-config`, with dashes. Only workers read them; a
/// worker without a prefix cache (`runtime.prefix-cache = false`) has nothing to publish.
///
/// Events contain the tokens of prompts and answers, and ZeroMQ asks nobody who he is: bind to loopback or to a network
/// that only routers are on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct KvEventsConfig {
    /// `tcp://HOST:PORT` of the PUB socket that subscribers connect to; `*` stands for all IPv4 addresses of the machine,
    /// and port 0 takes a free one, which is printed and logged. Default `none`: nothing is published.
    #[serde(with = "optional::none")]
    pub endpoint: Option<String>,
    /// `tcp://HOST:PORT` of the ROUTER socket that answers requests for batches a subscriber has missed, written
    /// likewise. Default `none`: a subscriber that misses some has to connect anew.
    #[serde(with = "optional::none")]
    pub replay_endpoint: Option<String>,
    /// The first frame of every message, which subscribers filter by; at most 255 bytes. Default empty.
    pub topic: String,
    /// Batches kept for replay, about one an engine step. Default 10000.
    pub buffer_steps: usize,
    /// Batches that may wait to be sent. When more come, they are dropped and counted, and everything that is cached is
    /// published anew once there is room. Default 100000.
    pub max_queue_size: usize,
    /// How an event is written: `array` (default; fields by position, as vLLM up to 0.23 and SGLang write them) or `map`
    /// (fields by name, as vLLM does since).
    pub encoding: KvEventsEncoding,
}

/// How an event is written in MessagePack.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum KvEventsEncoding {
    /// Fields by position, the event's name first.
    #[default]
    Array,
    /// Fields by name, the event's under `type`.
    Map,
}

impl Default for KvEventsConfig {
    fn default() -> Self {
        Self {
            endpoint: None,
            replay_endpoint: None,
            topic: String::new(),
            buffer_steps: 10_000,
            max_queue_size: 100_000,
            encoding: KvEventsEncoding::Array,
        }
    }
}

impl KvEventsConfig {
    /// What to bind for an endpoint that has passed validation: `HOST:PORT`.
    #[must_use]
    pub fn address(endpoint: &str) -> String {
        let address = endpoint.strip_prefix(SCHEME).unwrap_or(endpoint);
        address.strip_prefix("*:").map_or_else(|| address.to_owned(), |port| format!("0.0.0.0:{port}"))
    }

    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        let endpoints =
            [("kv-events.endpoint", &self.endpoint), ("kv-events.replay-endpoint", &self.replay_endpoint)];
        for (key, endpoint) in endpoints {
            let Some(endpoint) = endpoint else { continue };
            check(
                endpoint.starts_with(SCHEME),
                key,
                endpoint,
                "use tcp://HOST:PORT, such as tcp://127.0.0.1:5557",
            )?;
            check_address(key, &Self::address(endpoint))?;
        }
        if let (Some(replay), None) = (&self.replay_endpoint, &self.endpoint) {
            let reason = "set kv-events.endpoint too: what is not published cannot be replayed";
            return Err(ConfigError::invalid("kv-events.replay-endpoint", replay, reason));
        }
        check(self.topic.len() <= 255, "kv-events.topic", &self.topic, "use at most 255 bytes")?;
        let count = |n: usize, key| check((1..=1_000_000).contains(&n), key, n, "use 1 to 1000000");
        count(self.buffer_steps, "kv-events.buffer-steps")?;
        count(self.max_queue_size, "kv-events.max-queue-size")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_is_every_address() {
        assert_eq!(KvEventsConfig::address("tcp://*:5557"), "0.0.0.0:5557");
        assert_eq!(KvEventsConfig::address("tcp://[::1]:0"), "[::1]:0");
        let config = KvEventsConfig { endpoint: Some("tcp://*:0".into()), ..KvEventsConfig::default() };
        config.validate().unwrap();
    }

    #[test]
    fn wrong_values_name_their_key_and_the_rule() {
        type Change = fn(&mut KvEventsConfig);
        let cases: [(Change, &str, &str); 7] = [
            (|c| c.endpoint = Some("127.0.0.1:5557".into()), "kv-events.endpoint", "tcp://HOST:PORT"),
            (|c| c.endpoint = Some("ipc:///tmp/kv".into()), "kv-events.endpoint", "tcp://HOST:PORT"),
            (|c| c.endpoint = Some("tcp://host".into()), "kv-events.endpoint", "HOST:PORT"),
            (
                |c| {
                    c.endpoint = Some("tcp://*:5557".into());
                    c.replay_endpoint = Some("tcp://*:70000".into());
                },
                "kv-events.replay-endpoint",
                "65535",
            ),
            (
                |c| c.replay_endpoint = Some("tcp://*:5558".into()),
                "kv-events.replay-endpoint",
                "kv-events.endpoint",
            ),
            (|c| c.buffer_steps = 0, "kv-events.buffer-steps", "1 to 1000000"),
            (|c| c.max_queue_size = 2_000_000, "kv-events.max-queue-size", "1 to 1000000"),
        ];
        for (change, key, rule) in cases {
            let mut config = KvEventsConfig::default();
            change(&mut config);
            let error = config.validate().unwrap_err().to_string();
            assert!(error.contains(key) && error.contains(rule), "{error}");
        }
    }
}
