//! The keys that exist, read off the default tree, so that there is no second list of them to keep.

use std::collections::BTreeSet;

use crate::error::ConfigError;
use crate::tree::Config;

/// How alike (1 is equal) two names have to be for one to be suggested for the other.
const ALIKE: f64 = 0.6;

/// Every key by its whole name (`engine.fake.eos-every`), and every table (`engine.fake`).
pub(crate) struct Keys {
    leaves: BTreeSet<String>,
    tables: BTreeSet<String>,
}

impl Keys {
    pub(crate) fn new() -> Self {
        let mut keys = Self { leaves: BTreeSet::new(), tables: BTreeSet::new() };
        let tree = toml::Table::try_from(Config::default()).expect("the default tree is plain TOML");
        keys.collect("", &tree);
        keys
    }

    fn collect(&mut self, prefix: &str, table: &toml::Table) {
        for (name, value) in table {
            let key = format!("{prefix}{name}");
            if let toml::Value::Table(inner) = value {
                self.collect(&format!("{key}."), inner);
                self.tables.insert(key);
            } else {
                self.leaves.insert(key);
            }
        }
    }

    /// Whether `key` takes a value.
    pub(crate) fn contains(&self, key: &str) -> bool {
        self.leaves.contains(key)
    }

    /// Refuses the first key in `table` that does not exist; `source` is where the table comes from.
    pub(crate) fn check(&self, table: &toml::Table, source: &str) -> Result<(), ConfigError> {
        self.check_under("", table, source)
    }

    fn check_under(&self, prefix: &str, table: &toml::Table, source: &str) -> Result<(), ConfigError> {
        for (name, value) in table {
            let key = format!("{prefix}{name}");
            match value {
                _ if self.leaves.contains(&key) => {}
                toml::Value::Table(inner) if self.tables.contains(&key) => {
                    self.check_under(&format!("{key}."), inner, source)?;
                }
                other if self.tables.contains(&key) => {
                    return Err(ConfigError::WrongType {
                        actual: format!("a {}", other.type_str()),
                        expected: format!("a table; its keys stand under [{key}]"),
                        source_name: source.to_owned(),
                        key,
                    });
                }
                _ => {
                    return Err(ConfigError::UnknownKey {
                        nearest: self.nearest(&key),
                        source_name: source.to_owned(),
                        key,
                    });
                }
            }
        }
        Ok(())
    }

    /// The existing key that `key` was most likely meant to be: the most similar in its table, else the same name in
    /// another table, else the most similar as a whole.
    pub(crate) fn nearest(&self, key: &str) -> Option<String> {
        let (table, name) = split(key);
        let all = || self.leaves.iter().chain(&self.tables);
        let siblings = all().filter(|known| split(known).0 == table);
        let by_name = |known: &&String| strsim::normalized_damerau_levenshtein(split(known).1, name);
        let by_whole = |known: &&String| strsim::normalized_damerau_levenshtein(known, key);
        best(siblings, by_name)
            .or_else(|| self.leaves.iter().find(|known| split(known).1 == name))
            .or_else(|| best(all(), by_whole))
            .cloned()
    }
}

/// A key's table (empty at the top) and its name in it.
fn split(key: &str) -> (&str, &str) {
    key.rsplit_once('.').unwrap_or(("", key))
}

fn best<'a>(
    keys: impl Iterator<Item = &'a String>,
    similarity: impl Fn(&&'a String) -> f64,
) -> Option<&'a String> {
    keys.map(|key| (similarity(&key), key))
        .filter(|(alike, _)| *alike >= ALIKE)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, key)| key)
}
