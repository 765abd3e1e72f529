//! `[http]`: the gateway's listener and what it accepts.

use serde::{Deserialize, Serialize};

use crate::error::{ConfigError, check};
use crate::optional;
use crate::role::{Role, RoleSet};
use crate::units::{Dur, Size};

/// What a prompt token may take in a request body: seven digits and a comma in a token array. Text takes less.
const BODY_BYTES_PER_TOKEN: u64 = 8;

/// The HTTP listener and its limits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct HttpConfig {
    /// `HOST:PORT` to listen on, an IPv6 address in brackets; port 0 takes a free one. Default `auto`: a gateway takes
    /// `127.0.0.1:8080`, a node without clients (health, metrics and status only) a free port of `127.0.0.1`.
    #[serde(with = "optional::auto")]
    pub listen: Option<String>,
    /// The largest request body; a larger one is answered 413. It has to hold a prompt as long as the model's window
    /// (as text or as a token array) and bounds memory as `body-limit` × `max-connections`. Default `16MiB`.
    pub body_limit: Size,
    /// The largest request head (request line and headers). Default `64KiB`.
    pub header_limit: Size,
    /// The deadline of a request, from its arrival to its last byte. Default `10m`.
    pub request_timeout: Dur,
    /// Connections open at once; more wait in the operating system's queue. Default 4096.
    pub max_connections: usize,
    /// Generation requests in work at once, streams included; more are answered 429. Default 1024.
    pub max_concurrent_requests: usize,
}

impl Default for HttpConfig {
    fn default() -> Self {
        Self {
            listen: None,
            body_limit: Size::mib(16),
            header_limit: Size::kib(64),
            request_timeout: Dur::from_secs(600),
            max_connections: 4096,
            max_concurrent_requests: 1024,
        }
    }
}

impl HttpConfig {
    /// Where a node with these roles listens.
    #[must_use]
    pub fn listen_address(&self, roles: &RoleSet) -> &str {
        let own = if roles.contains(Role::Gateway) { "127.0.0.1:8080" } else { "127.0.0.1:0" };
        self.listen.as_deref().unwrap_or(own)
    }

    /// The smallest `body-limit` that a prompt of `tokens` tokens fits into, however it is written.
    #[must_use]
    pub const fn body_limit_for(tokens: usize) -> Size {
        Size((tokens as u64).saturating_mul(BODY_BYTES_PER_TOKEN))
    }

    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        if let Some(listen) = &self.listen {
            check_address("http.listen", listen)?;
        }
        let size = |ok, key, value| check(ok, key, value, "use at least 1KiB and at most 1GiB");
        let sane = Size::kib(1)..=Size::mib(1024);
        size(sane.contains(&self.body_limit), "http.body-limit", self.body_limit)?;
        check(
            (Size::kib(8)..=Size::mib(1)).contains(&self.header_limit),
            "http.header-limit",
            self.header_limit,
            "use at least 8KiB and at most 1MiB",
        )?;
        check(
            !self.request_timeout.is_zero(),
            "http.request-timeout",
            self.request_timeout,
            "use more than 0s",
        )?;
        check(self.max_connections > 0, "http.max-connections", self.max_connections, "use at least 1")?;
        check(
            self.max_concurrent_requests > 0,
            "http.max-concurrent-requests",
            self.max_concurrent_requests,
            "use at least 1",
        )
    }
}

/// Refuses what is not `HOST:PORT`. Whether the host resolves is found out when it is bound.
pub(crate) fn check_address(key: &'static str, address: &str) -> Result<(), ConfigError> {
    let rule = "use HOST:PORT with a port from 0 to 65535, such as 127.0.0.1:8080 or [::1]:8080";
    let Some((host, port)) = address.rsplit_once(':') else {
        return Err(ConfigError::invalid(key, address, rule));
    };
    let bracketed = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let host_ok = match bracketed {
        Some(v6) => v6.parse::<std::net::Ipv6Addr>().is_ok(),
        None => !host.is_empty() && !host.contains(|c: char| c == ':' || c.is_whitespace() || c == '/'),
    };
    let port_ok = !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit()) && port.parse::<u16>().is_ok();
    check(host_ok && port_ok, key, address, rule)
}
