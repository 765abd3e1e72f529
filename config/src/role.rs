//! What a node does. A node has a set of roles; every role is a module of the same binary.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use clap::ValueEnum;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// One job of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Accepts clients, tokenizes, owns each client's session, detokenizes.
    Gateway,
    /// Knows the workers and their load; decides where each request runs.
    Controller,
    /// Loads the model, holds KV pages, runs prefill and decode steps.
    Worker,
    /// Stores KV pages for workers to share; loads no model.
    Pool,
}

impl Role {
    /// Every role, in the order in which a node starts them last to first.
    pub const ALL: [Self; 4] = [Self::Gateway, Self::Controller, Self::Worker, Self::Pool];

    /// The role's name in configuration, logs and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Gateway => "gateway",
            Self::Controller => "controller",
            Self::Worker => "worker",
            Self::Pool => "pool",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What a worker does for requests: the whole of each, or one of its two phases.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ValueEnum,
)]
#[serde(rename_all = "kebab-case")]
pub enum WorkerRole {
    /// Takes whole requests, and computes prompts for others where nobody else does.
    #[default]
    Unified,
    /// Computes prompts for decode and unified workers. Takes whole requests only where no other worker serves the model.
    Prefill,
    /// Takes requests whose prompts may be computed elsewhere; computes those that are not worth sending.
    Decode,
}

impl WorkerRole {
    /// Every role.
    pub const ALL: [Self; 3] = [Self::Unified, Self::Prefill, Self::Decode];

    /// The role's name in configuration, logs and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unified => "unified",
            Self::Prefill => "prefill",
            Self::Decode => "decode",
        }
    }
}

impl fmt::Display for WorkerRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A non-empty set of roles, written `all` or as a list (`gateway,controller`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoleSet(BTreeSet<Role>);

impl RoleSet {
    /// Every role in one process.
    #[must_use]
    pub fn all() -> Self {
        Self(Role::ALL.into())
    }

    /// Whether the node has `role`.
    #[must_use]
    pub fn contains(&self, role: Role) -> bool {
        self.0.contains(&role)
    }

    /// The roles in their order.
    pub fn iter(&self) -> impl Iterator<Item = Role> + '_ {
        self.0.iter().copied()
    }
}

impl Default for RoleSet {
    fn default() -> Self {
        Self::all()
    }
}

impl fmt::Display for RoleSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.len() == Role::ALL.len() {
            return f.write_str("all");
        }
        for (i, role) in self.iter().enumerate() {
            write!(f, "{}{role}", if i == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

/// The text names no set of roles.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no role; use `all` or a comma-separated list of gateway, controller, worker, pool")]
pub struct BadRole(String);

impl FromStr for RoleSet {
    type Err = BadRole;

    fn from_str(text: &str) -> Result<Self, BadRole> {
        if text.trim() == "all" {
            return Ok(Self::all());
        }
        let role = |name: &str| {
            let name = name.trim();
            Role::ALL.into_iter().find(|role| role.as_str() == name).ok_or_else(|| BadRole(name.to_owned()))
        };
        text.split(',').map(role).collect::<Result<_, _>>().map(Self)
    }
}

impl Serialize for RoleSet {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for RoleSet {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Roles)
    }
}

/// Reads `"gateway,worker"` and `["gateway", "worker"]`.
struct Roles;

impl<'de> de::Visitor<'de> for Roles {
    type Value = RoleSet;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("`all` or a list of gateway, controller, worker, pool")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<RoleSet, E> {
        text.parse().map_err(|_| E::invalid_value(de::Unexpected::Str(text), &self))
    }

    fn visit_seq<A: de::SeqAccess<'de>>(self, mut list: A) -> Result<RoleSet, A::Error> {
        let mut names = Vec::new();
        while let Some(name) = list.next_element::<String>()? {
            names.push(name);
        }
        self.visit_str(&names.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_parse_and_print() {
        assert_eq!("all".parse(), Ok(RoleSet::all()));
        let two: RoleSet = "worker, gateway".parse().unwrap();
        assert!(two.contains(Role::Worker) && two.contains(Role::Gateway) && !two.contains(Role::Pool));
        assert_eq!(two.to_string(), "gateway,worker");
        assert_eq!("gateway,controller,worker,pool".parse::<RoleSet>().unwrap().to_string(), "all");
    }

    #[test]
    fn unknown_and_empty_names_are_refused_by_name() {
        for (text, bad) in [("foo", "`foo`"), ("", "``"), ("worker,", "``"), ("worker,gatway", "`gatway`")] {
            let error = text.parse::<RoleSet>().unwrap_err().to_string();
            assert!(error.starts_with(bad) && error.contains("gateway, controller"), "{error}");
        }
    }
}
