//! From the layers to one validated [`Config`]. Start and reload both go through [`load`], and nothing else in the
//! program reads the environment.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use figment::Figment;
use figment::error::{Actual, Kind};
use figment::providers::Serialized;
use figment::value::{Dict, Value};

use crate::cli::Overrides;
use crate::error::{ConfigError, one_line};
use crate::keys::Keys;
use crate::tree::Config;

/// What all our variables start with.
const PREFIX: &str = "ACTOR_NODE_";
/// Names the configuration file where no `--config` does.
const CONFIG: &str = "ACTOR_NODE_CONFIG";
/// Where models are kept where `model.cache-dir` does not say.
const CACHE_DIR: &str = "ACTOR_NODE_CACHE_DIR";
/// The cluster's secret; never part of the tree, so that a dump cannot show it.
const COOKIE: &str = "ACTOR_NODE_COOKIE";
/// Variables with our prefix that are no keys: those above and the build's own.
const NOT_KEYS: [&str; 4] = [CONFIG, CACHE_DIR, COOKIE, "ACTOR_NODE_GIT_SHA"];
/// Variables of others that say where a user's files are.
const FOLDERS: [&str; 3] = ["XDG_CACHE_HOME", "XDG_CONFIG_HOME", "HOME"];

/// The environment variables that configuration depends on, as taken once.
#[derive(Debug, Clone, Default)]
pub struct Environment(BTreeMap<String, OsString>);

impl Environment {
    /// The process's environment.
    #[must_use]
    pub fn of_process() -> Self {
        std::env::vars_os().collect()
    }

    /// Where the cluster's secret may come from.
    #[must_use]
    pub fn cluster_secrets(&self) -> ClusterSecrets {
        let xdg = self.path("XDG_CONFIG_HOME");
        ClusterSecrets {
            cookie: self.0.get(COOKIE).map(|value| value.to_string_lossy().into_owned()),
            config_dir: xdg.or_else(|| self.path("HOME").map(|home| home.join(".config"))),
        }
    }

    fn path(&self, name: &str) -> Option<PathBuf> {
        self.0.get(name).filter(|value| !value.is_empty()).map(PathBuf::from)
    }
}

/// What the environment says about the cluster's secret.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ClusterSecrets {
    /// The value of `ACTOR_NODE_COOKIE`, also when it is empty.
    pub cookie: Option<String>,
    /// The user's configuration folder, where a secret is kept that nobody has set.
    pub config_dir: Option<PathBuf>,
}

impl std::fmt::Debug for ClusterSecrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let cookie = self.cookie.as_ref().map(|_| "(hidden)");
        f.debug_struct("ClusterSecrets")
            .field("cookie", &cookie)
            .field("config_dir", &self.config_dir)
            .finish()
    }
}

impl<K: Into<OsString>, V: Into<OsString>> FromIterator<(K, V)> for Environment {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(variables: I) -> Self {
        let named = |(name, value): (K, V)| Some((name.into().into_string().ok()?, value.into()));
        let ours = |name: &str| name.starts_with(PREFIX) || FOLDERS.contains(&name);
        Self(variables.into_iter().filter_map(named).filter(|(name, _)| ours(name)).collect())
    }
}

/// Defaults, then the file, then the environment, then flags; then derived values and the check of all.
///
/// # Errors
/// The first thing that is wrong; see [`ConfigError`].
pub fn load(flags: &Overrides, environment: &Environment) -> Result<Config, ConfigError> {
    let known = Keys::new();
    let mut figment = Figment::from(Serialized::defaults(Config::default()));
    if let Some(file) = flags.config.clone().or_else(|| environment.path(CONFIG)) {
        let mut table = read_file(&file)?;
        rename_aliases(&mut table);
        let source = file.display().to_string();
        known.check(&table, &source)?;
        figment = figment.merge(Serialized::defaults(table));
        extract(&figment, &source)?;
    }
    for (name, value) in &environment.0 {
        if name.starts_with(PREFIX) && !NOT_KEYS.contains(&name.as_str()) {
            figment = merge_variable(figment, &known, name, value)?;
        }
    }
    let mut config = extract(&figment, "configuration")?;
    flags.apply(&mut config);
    if config.model.cache_dir.is_none() {
        config.model.cache_dir = Some(default_cache_dir(environment)?);
    }
    config.validate()?;
    Ok(config)
}

/// Keys that are also known by another spelling.
const ALIASES: [(&str, &str, &str); 2] =
    [("cluster", "cluster_policies", "cluster-policies"), ("runtime", "worker_policy", "worker-policy")];

fn rename_aliases(table: &mut toml::Table) {
    for (section, alias, key) in ALIASES {
        if let Some(toml::Value::Table(section)) = table.get_mut(section)
            && !section.contains_key(key)
            && let Some(value) = section.remove(alias)
        {
            section.insert(key.to_owned(), value);
        }
    }
}

fn read_file(file: &Path) -> Result<toml::Table, ConfigError> {
    let text = std::fs::read_to_string(file).map_err(|error| ConfigError::Unreadable {
        file: file.to_owned(),
        reason: one_line(&error.to_string()),
    })?;
    toml::from_str(&text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start.min(text.len()));
        let before = &text.as_bytes()[..at];
        let line_start = before.iter().rposition(|b| *b == b'\n').map_or(0, |newline| newline + 1);
        ConfigError::Syntax {
            file: file.to_owned(),
            line: before.iter().filter(|b| **b == b'\n').count() + 1,
            column: at - line_start + 1,
            reason: match error.span().and_then(|span| text.get(span)) {
                Some(key) if error.message() == "duplicate key" => {
                    format!("duplicate key `{}`", one_line(key))
                }
                _ => one_line(error.message()),
            },
        }
    })
}

/// Adds one `ACTOR_NODE_SECTION__KEY`. A variable is text, and the key decides what it means: it is taken as text where
/// the key takes text, else as the number or truth value that it spells.
fn merge_variable(
    figment: Figment,
    known: &Keys,
    name: &str,
    value: &OsString,
) -> Result<Figment, ConfigError> {
    let path: Vec<String> =
        name[PREFIX.len()..].split("__").map(|part| part.to_ascii_lowercase().replace('_', "-")).collect();
    let key = path.join(".");
    if !known.contains(&key) {
        return Err(ConfigError::UnknownKey {
            key: name.to_owned(),
            source_name: "environment".to_owned(),
            nearest: known.nearest(&key).map(|key| variable(&key)),
        });
    }
    let Some(text) = value.to_str() else {
        let (expected, actual) = ("UTF-8 text".to_owned(), format!("{value:?}"));
        return Err(ConfigError::WrongType { key, source_name: name.to_owned(), actual, expected });
    };
    let scalar = text.parse::<i64>().map(Value::from).ok();
    let scalar = scalar.or_else(|| text.parse::<f64>().map(Value::from).ok());
    let scalar = scalar.or_else(|| text.parse::<bool>().map(Value::from).ok());
    let mut refused = None;
    for candidate in std::iter::once(Value::from(text)).chain(scalar) {
        let next = figment.clone().merge(Serialized::defaults(nest(&path, candidate)));
        match extract(&next, name) {
            Ok(_) => return Ok(next),
            Err(error) => refused = Some(error),
        }
    }
    refused.map_or(Ok(figment), Err)
}

/// `value` under the tables that `path` names.
fn nest(path: &[String], value: Value) -> Dict {
    let (last, tables) = path.split_last().expect("splitting text gives at least one part");
    let inner = Dict::from([(last.clone(), value)]);
    tables.iter().rev().fold(inner, |inner, table| Dict::from([(table.clone(), Value::from(inner))]))
}

/// The variable that sets `key`.
fn variable(key: &str) -> String {
    format!("{PREFIX}{}", key.replace('.', "__").replace('-', "_").to_ascii_uppercase())
}

fn extract(figment: &Figment, source: &str) -> Result<Config, ConfigError> {
    figment.extract().map_err(|error: figment::Error| {
        let key = error.path.join(".");
        let wrong = |actual: String, expected: String| ConfigError::WrongType {
            key: key.clone(),
            source_name: source.to_owned(),
            actual: one_line(&actual),
            expected: one_line(&expected),
        };
        match error.kind {
            Kind::InvalidType(actual, expected) | Kind::InvalidValue(actual, expected) => {
                wrong(describe(&actual), in_words(&expected))
            }
            Kind::InvalidLength(length, expected) => wrong(format!("of length {length}"), expected),
            // A `FromStr` type's own words, which name value and rule.
            Kind::Message(message) => wrong("refused".to_owned(), message),
            Kind::UnknownVariant(variant, known) => wrong(format!("`{variant}`"), one_of(known)),
            other => wrong("refused".to_owned(), other.to_string()),
        }
    })
}

/// What was given, in the words of a TOML file.
fn describe(actual: &Actual) -> String {
    match actual {
        Actual::Bool(value) => format!("the truth value {value}"),
        Actual::Unsigned(n) => format!("the number {n}"),
        Actual::Signed(n) => format!("the number {n}"),
        Actual::Float(n) => format!("the number {n}"),
        Actual::Str(text) => format!("the text {text:?}"),
        Actual::Seq => "a list".to_owned(),
        Actual::Map => "a table".to_owned(),
        other => other.to_string(),
    }
}

/// What serde expects, without the names of Rust's types.
fn in_words(expected: &str) -> String {
    match expected {
        "u32" => format!("a whole number from 0 to {}", u32::MAX),
        "u64" | "usize" => "a whole number, 0 or more".to_owned(),
        "f64" => "a number".to_owned(),
        "a string" | "path string" => "a text in quotes".to_owned(),
        "a boolean" => "true or false".to_owned(),
        other => other.to_owned(),
    }
}

fn one_of(words: &[&str]) -> String {
    format!("one of {}", words.join(", "))
}

fn default_cache_dir(environment: &Environment) -> Result<PathBuf, ConfigError> {
    let ours = environment.path(CACHE_DIR);
    let xdg = || environment.path("XDG_CACHE_HOME").map(|base| base.join("actor-node/models"));
    let home = || environment.path("HOME").map(|home| home.join(".cache/actor-node/models"));
    let dir = ours.or_else(xdg).or_else(home).ok_or_else(|| {
        let reason = format!("neither HOME nor XDG_CACHE_HOME is set; set the key or {CACHE_DIR}");
        ConfigError::invalid("model.cache-dir", "auto", reason)
    })?;
    if dir.to_str().is_none() {
        return Err(ConfigError::invalid("model.cache-dir", dir.display(), "use a path in UTF-8"));
    }
    Ok(dir)
}

#[cfg(test)]
mod tests;
