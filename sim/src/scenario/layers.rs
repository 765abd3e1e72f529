//! From a scenario's text, and the configuration of a node where it names one, to the scenario.
//!
//! What a node's configuration file has of policies counts here as it does there: `[policy.*]`, `[worker-policy.*]`,
//! `[controller]`, `[runtime]`, `cluster.cluster-policies`, `cluster.heartbeat`, and of `[gateway]` the limits `retry-limit` and
//! `stream-credit`. Also what it leaves out: its defaults are those of a node, not those of a scenario. What a node is
//! (its role, its machine, its model, the size of its pages) is for the scenario to say. The scenario's own keys count more
//! than the file's.

use std::path::Path;

use config::{Config, Environment, Overrides, load};
use serde::{Deserialize, Deserializer};
use toml::{Table, Value};

use super::{Scenario, invalid};
use crate::SimError;

/// Tables of a node's configuration whose keys a scenario has under `[cluster]`.
const TABLES: [&str; 2] = ["controller", "runtime"];

/// Other spellings of keys of `[cluster]`, as a node's configuration has them.
const ALIASES: [(&str, &str); 2] =
    [("cluster_policies", "cluster-policies"), ("worker_policy", "worker-policy")];

/// Reads a scenario. A configuration file that it names is looked for from `base`; one that is `given` counts more than
/// that.
pub(super) fn parse(
    text: &str,
    origin: &str,
    base: &Path,
    given: Option<&Path>,
) -> Result<Scenario, SimError> {
    let malformed = |e| SimError::Parse { origin: origin.into(), source: Box::new(e) };
    let mut table: Table = toml::from_str(text).map_err(malformed)?;
    let layered = given.is_some() || table.contains_key("config");
    if !layered && !TABLES.iter().any(|name| table.contains_key(*name)) {
        // Its errors say where in the text.
        return toml::from_str(text).map_err(malformed);
    }
    let named = match table.remove("config") {
        None => None,
        Some(Value::String(path)) => Some(base.join(path)),
        Some(other) => return Err(invalid("config", &other, "use the path of a configuration file".into())),
    };
    rename(&mut table)?;
    if let Some(file) = given.or(named.as_deref()) {
        let mut under = policies_of(&read(file)?)?;
        put_over(&mut under, table);
        table = under;
    }
    Scenario::deserialize(Value::Table(table)).map_err(malformed)
}

/// A node's configuration, by its own loader. What the environment says is of this machine and not of those simulated.
fn read(file: &Path) -> Result<Config, SimError> {
    let flags = Overrides { config: Some(file.to_owned()), ..Overrides::default() };
    // Where models would be kept, which is of no interest here, has to be known.
    let environment: Environment = [("HOME", ".")].into_iter().collect();
    load(&flags, &environment).map_err(|e| SimError::Config(Box::new(e)))
}

/// What a node's configuration has of policies, with the keys of a scenario.
fn policies_of(config: &Config) -> Result<Table, SimError> {
    let table = |value: Result<Value, toml::ser::Error>| value.map_err(|e| SimError::Write(Box::new(e)));
    let mut cluster = Table::new();
    for part in [Value::try_from(&config.controller), Value::try_from(&config.runtime)] {
        if let Value::Table(part) = table(part)? {
            cluster.extend(part);
        }
    }
    cluster.insert("cluster-policies".into(), config.cluster.cluster_policies.clone().into());
    cluster.insert("heartbeat".into(), table(Value::try_from(config.cluster.heartbeat))?);
    cluster.insert("retry-limit".into(), config.gateway.retry_limit.into());
    cluster.insert("credit".into(), config.gateway.stream_credit.into());
    let mut all = Table::new();
    all.insert("cluster".into(), Value::Table(cluster));
    all.insert("policy".into(), table(Value::try_from(&config.policy))?);
    all.insert("worker-policy".into(), table(Value::try_from(&config.worker_policy))?);
    Ok(all)
}

/// Gives the keys of a node's configuration the names that they have in a scenario.
fn rename(table: &mut Table) -> Result<(), SimError> {
    let mut own = Table::new();
    for name in TABLES.into_iter().chain(["cluster"]) {
        let part = match table.remove(name) {
            None => continue,
            Some(Value::Table(part)) => part,
            Some(other) => return Err(invalid("cluster", &other, format!("[{name}] is a table"))),
        };
        for (key, value) in part {
            let alias = ALIASES.iter().find(|(alias, _)| *alias == key);
            let key = alias.map_or(key, |(_, key)| (*key).to_owned());
            if own.insert(key.clone(), value).is_some() {
                let reason = "use one of [cluster], [controller] and [runtime] for it".to_owned();
                return Err(invalid("cluster", &format!("told `{key}` twice"), reason));
            }
        }
    }
    if !own.is_empty() {
        table.insert("cluster".into(), Value::Table(own));
    }
    Ok(())
}

/// Puts one tree over another, leaf by leaf.
fn put_over(under: &mut Table, over: Table) {
    for (key, value) in over {
        match (under.get_mut(&key), value) {
            (Some(Value::Table(under)), Value::Table(over)) => put_over(under, over),
            (_, value) => _ = under.insert(key, value),
        }
    }
}

/// A list of names: one, several, or one text with commas, as in a node's configuration.
pub(super) fn list<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "use a name, a list of names, or one text with commas")]
    enum Names {
        Text(String),
        List(Vec<String>),
    }
    Ok(match Names::deserialize(from)? {
        Names::List(names) => names,
        Names::Text(text) => {
            text.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect()
        }
    })
}

/// A number, or `auto` for none, as in a node's configuration.
pub(super) fn auto<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u32>, D::Error> {
    #[derive(Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum Word {
        Auto,
    }
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "use a number, or auto")]
    enum NumberOrAuto {
        Number(u32),
        Word(Word),
    }
    Ok(match NumberOrAuto::deserialize(from)? {
        NumberOrAuto::Number(number) => Some(number),
        NumberOrAuto::Word(Word::Auto) => None,
    })
}
