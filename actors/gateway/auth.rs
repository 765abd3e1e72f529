//! Who asks: API keys by their hashes, each with the tenant whose requests they are.
//!
//! A key is random and long, so that one hash of it cannot be turned back by guessing, and looking a key up costs
//! microseconds; a slow hash is for passwords that people make up.

use std::collections::BTreeMap;
use std::io::Read;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use axum::extract::{Request, State};
use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use config::auth::{entry, hash_text};
use config::ids::TenantId;
use config::{ApiKey, AuthCommand};
use policies::request::WEIGHT_ONE;

use super::Shared;
use super::error::ApiError;

/// What the hash is made for: no other use of a key gives the same.
const CONTEXT: &str = "actor-node api key v1";
/// What our keys begin with; clients' secret scanners look for such.
const PREFIX: &str = "sk-";
/// Bytes of randomness in a key that we make.
const RANDOM: usize = 32;
/// Characters that a key has at least; fewer could be guessed.
const SHORTEST: usize = 20;
/// Characters of a key at most.
const LONGEST: usize = 512;

/// Who asks, for whoever serves the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    /// None where nobody is told apart.
    pub(crate) tenant: Option<TenantId>,
    /// In thousandths.
    pub(crate) weight: u32,
}

impl Identity {
    /// Everybody, where there are no keys.
    pub(crate) const ANYBODY: Self = Self { tenant: None, weight: WEIGHT_ONE };
}

/// The keys that are known.
#[derive(Debug, Default)]
pub struct Keys(Option<BTreeMap<[u8; 32], Identity>>);

impl Keys {
    /// The keys of the configured file; none: everybody may ask.
    #[must_use]
    pub fn new(keys: Option<Vec<ApiKey>>) -> Self {
        let identity = |key: ApiKey| (key.hash, Identity { tenant: Some(key.tenant), weight: key.weight });
        Self(keys.map(|keys| keys.into_iter().map(identity).collect()))
    }

    /// Who sends these headers.
    ///
    /// # Errors
    /// 401 where a key is needed and there is none, or one that is not known.
    fn identify(&self, headers: &HeaderMap) -> Result<Identity, ApiError> {
        let Some(keys) = &self.0 else { return Ok(Identity::ANYBODY) };
        let given = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        let key = given
            .and_then(|value| value.split_once(' '))
            .filter(|(kind, _)| kind.eq_ignore_ascii_case("bearer"));
        let Some((_, key)) = key else {
            return Err(unauthorized("the request needs an API key: `Authorization: Bearer KEY`"));
        };
        let known = keys.get(&blake3::derive_key(CONTEXT, key.trim().as_bytes()));
        known.cloned().ok_or_else(|| unauthorized("the API key is not known here"))
    }
}

fn unauthorized(message: &str) -> ApiError {
    let error = ApiError { status: StatusCode::UNAUTHORIZED, ..ApiError::invalid(message) };
    ApiError { code: Some("invalid_api_key"), ..error }
}

/// Lets a request pass whose key is known, with its [`Identity`] among its extensions.
pub(crate) async fn require(State(shared): State<Arc<Shared>>, mut request: Request, next: Next) -> Response {
    match shared.keys().identify(request.headers()) {
        Ok(identity) => {
            request.extensions_mut().insert(identity);
            next.run(request).await
        }
        Err(error) => error.into_response(),
    }
}

/// `actor-node auth`.
///
/// # Errors
/// No randomness, or a key that is too short to be one.
pub fn run(action: &AuthCommand, input: impl Read) -> Result<String> {
    match action {
        AuthCommand::New { tenant, weight } => {
            let mut random = [0; RANDOM];
            getrandom::fill(&mut random).context("the operating system gives no randomness")?;
            let key = random.iter().fold(PREFIX.to_owned(), |key, byte| format!("{key}{byte:02x}"));
            let hash = blake3::derive_key(CONTEXT, key.as_bytes());
            Ok(format!(
                "# The key, shown this once: {key}\n# Its entry for the file that auth.keys-file names:\n{}",
                entry(tenant, *weight, &hash)
            ))
        }
        AuthCommand::Hash => {
            let mut text = String::new();
            // One more than allowed, to see that there is more.
            input.take(LONGEST as u64 + 2).read_to_string(&mut text).context("cannot read the key")?;
            let key = text.trim();
            ensure!(
                (SHORTEST..=LONGEST).contains(&key.len()) && key.chars().all(|c| c.is_ascii_graphic()),
                "a key has {SHORTEST} to {LONGEST} visible ASCII characters; `actor-node auth new TENANT` makes one"
            );
            Ok(hash_text(&blake3::derive_key(CONTEXT, key.as_bytes())))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(value: &str) -> HeaderMap {
        HeaderMap::from_iter([(AUTHORIZATION, value.parse().unwrap())])
    }

    #[test]
    fn a_new_key_is_one_that_its_entry_knows() {
        let made = run(&AuthCommand::New { tenant: "team".into(), weight: 2.0 }, std::io::empty()).unwrap();
        let key = made.lines().next().unwrap().rsplit(' ').next().unwrap();
        let hash = run(&AuthCommand::Hash, format!(" {key}\n").as_bytes()).unwrap();
        assert!(made.contains(&hash) && made.contains("weight = 2.0"), "{made}");
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), &made).unwrap();
        let config = config::AuthConfig { keys_file: Some(file.path().to_owned()) };
        let keys = Keys::new(config.api_keys().unwrap());
        let identity = keys.identify(&headers(&format!("bearer {key}"))).unwrap();
        assert_eq!(identity, Identity { tenant: Some("team".into()), weight: 2000 });
        for wrong in ["", "Bearer", "Bearer x", &format!("Basic {key}"), &format!("Bearer {key}x"), key] {
            let error = keys.identify(&headers(wrong)).unwrap_err();
            assert_eq!((error.status.as_u16(), error.code), (401, Some("invalid_api_key")), "{wrong}");
            assert!(!error.message.contains(key));
        }
        assert_eq!(keys.identify(&HeaderMap::new()).unwrap_err().status.as_u16(), 401);
        assert_eq!(Keys::default().identify(&HeaderMap::new()).unwrap(), Identity::ANYBODY);
    }

    #[test]
    fn what_can_be_guessed_is_no_key() {
        for text in ["", "short", "with white space in the middle", &"x".repeat(513)] {
            assert!(run(&AuthCommand::Hash, text.as_bytes()).is_err(), "{text}");
        }
    }
}
