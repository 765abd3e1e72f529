//! `[auth]`: whose requests are taken. Keys stand in a file of their own, hashed, so that the configuration can be shown
//! and whoever reads the file can use none of them.
//!
//! ```toml
//! [[key]]
//! tenant = "team-a"
//! weight = 2.0
//! hash = "blake3:5b0e…"
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::{ConfigError, one_line};
use crate::ids::TenantId;
use crate::optional;

const KEY: &str = "auth.keys-file";
/// What a hash begins with; another algorithm would have another name.
const ALGORITHM: &str = "blake3:";
/// Bytes of a tenant's name.
const MAX_TENANT: usize = 128;
/// Keys in one file.
const MAX_KEYS: usize = 100_000;

/// Who may ask.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct AuthConfig {
    /// The file of API keys; a reload reads it again. Default `none`: everybody may ask, and nobody is told apart.
    #[serde(with = "optional::none")]
    pub keys_file: Option<PathBuf>,
}

/// An API key, as far as it is known here.
#[derive(Debug, Clone, PartialEq)]
pub struct ApiKey {
    /// Whose it is. A tenant may have several keys, all of the same weight.
    pub tenant: TenantId,
    /// The tenant's share, in thousandths.
    pub weight: u32,
    /// The key's hash.
    pub hash: [u8; 32],
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    key: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    tenant: String,
    #[serde(default = "one")]
    weight: f64,
    hash: String,
}

const fn one() -> f64 {
    1.0
}

impl AuthConfig {
    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        self.api_keys().map(drop)
    }

    /// The keys as the file has them now; none where everybody may ask.
    ///
    /// # Errors
    /// The file cannot be read, or says something that is not allowed.
    pub fn api_keys(&self) -> Result<Option<Vec<ApiKey>>, ConfigError> {
        self.keys_file.as_deref().map(read).transpose()
    }
}

/// The entry of a key in the file.
#[must_use]
pub fn entry(tenant: &str, weight: f64, hash: &[u8; 32]) -> String {
    let tenant = toml::Value::String(tenant.to_owned());
    format!("[[key]]\ntenant = {tenant}\nweight = {weight:?}\nhash = \"{}\"\n", hash_text(hash))
}

/// A hash as the file has it.
#[must_use]
pub fn hash_text(hash: &[u8; 32]) -> String {
    hash.iter().fold(ALGORITHM.to_owned(), |text, byte| format!("{text}{byte:02x}"))
}

fn read(file: &Path) -> Result<Vec<ApiKey>, ConfigError> {
    let wrong = |reason: String| ConfigError::invalid(KEY, file.display(), reason);
    let text = std::fs::read_to_string(file)
        .map_err(|error| wrong(format!("cannot be read: {}", one_line(&error.to_string()))))?;
    parse(&text).map_err(wrong)
}

fn parse(text: &str) -> Result<Vec<ApiKey>, String> {
    let file: File = toml::from_str(text).map_err(|error| {
        let line = error.span().map_or(1, |at| text[..at.start.min(text.len())].matches('\n').count() + 1);
        // The line itself might hold a key that somebody has pasted in place of its hash.
        format!("line {line}: {}", one_line(error.message()))
    })?;
    if file.key.len() > MAX_KEYS {
        return Err(format!("has {} keys; at most {MAX_KEYS} are allowed", file.key.len()));
    }
    let mut keys: Vec<ApiKey> = Vec::with_capacity(file.key.len());
    let mut hashes = BTreeSet::new();
    let mut weights = BTreeMap::new();
    for (number, entry) in file.key.into_iter().enumerate().map(|(i, entry)| (i + 1, entry)) {
        let wrong = |what: &str| format!("key {number}: {what}");
        let visible = |c: char| c.is_ascii_graphic();
        if entry.tenant.is_empty() || entry.tenant.len() > MAX_TENANT || !entry.tenant.chars().all(visible) {
            return Err(wrong("tenant has to be 1 to 128 visible ASCII characters"));
        }
        if !(0.001..=1000.0).contains(&entry.weight) {
            return Err(wrong("weight has to be a number from 0.001 to 1000"));
        }
        let hash = unhex(&entry.hash).ok_or_else(|| {
            wrong("hash has to be `blake3:` and 64 hexadecimal digits; `actor-node auth hash` makes one")
        })?;
        if !hashes.insert(hash) {
            return Err(wrong("the same hash stands there before"));
        }
        let weight = (entry.weight * 1000.0).round() as u32;
        let tenant = TenantId::from(entry.tenant);
        if *weights.entry(tenant.clone()).or_insert(weight) != weight {
            return Err(wrong("another key of this tenant has another weight"));
        }
        keys.push(ApiKey { tenant, weight, hash });
    }
    if keys.is_empty() {
        return Err("has no [[key]]; `actor-node auth new TENANT` makes one".to_owned());
    }
    Ok(keys)
}

fn unhex(text: &str) -> Option<[u8; 32]> {
    let digits = text.strip_prefix(ALGORITHM)?;
    if digits.len() != 64 || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    let mut hash = [0; 32];
    for (i, byte) in hash.iter_mut().enumerate() {
        *byte = u8::from_str_radix(digits.get(2 * i..2 * i + 2)?, 16).ok()?;
    }
    Some(hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HASH: &str = "blake3:000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

    #[test]
    fn an_entry_reads_back() {
        let hash = std::array::from_fn(|i| i as u8);
        let text = entry("a \"b\"", 2.5, &hash).replace("a \\\"b\\\"", "a-b").replace("a \"b\"", "a-b");
        let text = text.replace('\'', "\"");
        let keys = parse(&text).unwrap();
        assert_eq!(keys, [ApiKey { tenant: "a-b".into(), weight: 2500, hash }]);
        assert_eq!(hash_text(&hash), HASH);
        assert_eq!(parse(&format!("[[key]]\ntenant = \"t\"\nhash = \"{HASH}\"")).unwrap()[0].weight, 1000);
    }

    #[test]
    fn what_is_wrong_is_said_without_showing_it() {
        let hash = format!("hash = \"{HASH}\"");
        for (text, word) in [
            (String::new(), "has no [[key]]"),
            ("[[key]]\ntenant = \"a\"\nhash = \"sk-secret\"".to_owned(), "key 1: hash"),
            (format!("[[key]]\ntenant = \"\"\n{hash}"), "key 1: tenant"),
            (format!("[[key]]\ntenant = \"a b\"\n{hash}"), "key 1: tenant"),
            (format!("[[key]]\ntenant = \"a\"\nweight = 0\n{hash}"), "key 1: weight"),
            (format!("[[key]]\ntenant = \"a\"\nweight = nan\n{hash}"), "key 1: weight"),
            (
                format!("[[key]]\ntenant = \"a\"\n{hash}\n[[key]]\ntenant = \"b\"\n{hash}"),
                "key 2: the same hash",
            ),
            (format!("[[key]]\ntenant = \"a\"\nname = \"x\"\n{hash}"), "line 3"),
            ("[[key]]\ntenant = \"sk-secret".to_owned(), "line 2"),
        ] {
            let error = parse(&text).unwrap_err();
            assert!(error.contains(word), "{text}: {error}");
            assert!(!error.contains("secret"), "{error}");
        }
        let other = HASH.replace("blake3:00", "blake3:ff");
        let text = format!(
            "[[key]]\ntenant = \"a\"\n{hash}\n[[key]]\ntenant = \"a\"\nweight = 2\nhash = \"{other}\""
        );
        assert!(parse(&text).unwrap_err().contains("another weight"));
    }
}
