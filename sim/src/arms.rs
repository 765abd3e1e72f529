//! Scenarios to be compared: several files, or one file with `[[arm]]` tables.

use std::path::Path;

use toml::{Table, Value};

use crate::{Scenario, SimError};

/// A scenario beside others.
#[derive(Clone, Debug, PartialEq)]
pub struct Arm {
    /// Its name.
    pub name: String,
    /// What is simulated.
    pub scenario: Scenario,
    /// The file that it is from, or what else its text came from.
    pub origin: String,
}

impl Arm {
    /// The arms of a scenario file, each with `over` laid over it.
    ///
    /// # Errors
    /// As [`Arm::from_toml`], and a file that cannot be read.
    pub fn load(path: &Path, over: &Table) -> Result<Vec<Self>, SimError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| SimError::Read { path: path.to_path_buf(), source })?;
        Self::from_toml(&text, &path.display().to_string(), over)
    }

    /// The arms of a scenario: those of its `[[arm]]` tables, each the scenario with the keys of the table laid over it
    /// (tables key by key, everything else as a whole) and then those of `over`; without any, the scenario itself, with
    /// `origin`'s last part as its name.
    ///
    /// # Errors
    /// Text that is no scenario, a key or value that an arm cannot have, arms without a name or with the same one.
    pub fn from_toml(text: &str, origin: &str, over: &Table) -> Result<Vec<Self>, SimError> {
        let parse =
            |source: toml::de::Error| SimError::Parse { origin: origin.into(), source: Box::new(source) };
        let mut base: Table = toml::from_str(text).map_err(parse)?;
        let folder = Path::new(origin).parent().unwrap_or(Path::new(""));
        let configured = from_folder(&mut base, folder);
        let Some(arms) = base.remove("arm") else {
            // Says the line of what is wrong, which a table does not know any more.
            let scenario =
                if configured { of_table(&base, origin) } else { Scenario::from_toml(text, origin) }?;
            let scenario =
                if over.is_empty() { scenario } else { of_table(&overridden(base, over), origin)? };
            return Ok(vec![Self { name: stem(origin), scenario, origin: origin.to_owned() }]);
        };
        let wrong = |arm: &str, reason: String| SimError::Arm {
            origin: origin.to_owned(),
            arm: arm.to_owned(),
            reason,
        };
        let arms = match arms {
            Value::Array(arms) if !arms.is_empty() => arms,
            _ => return Err(wrong("arm", "write each arm as a table of its own, [[arm]]".into())),
        };
        let mut all: Vec<Self> = Vec::new();
        for (at, arm) in arms.into_iter().enumerate() {
            let number = format!("arm {}", at + 1);
            let Value::Table(mut arm) = arm else {
                return Err(wrong(&number, "write each arm as a table of its own, [[arm]]".into()));
            };
            let name = match arm.remove("name") {
                Some(Value::String(name)) if !name.trim().is_empty() => name,
                _ => return Err(wrong(&number, "has no `name`; give it one".into())),
            };
            if all.iter().any(|other| other.name == name) {
                return Err(wrong(&number, format!("is the second one with the name `{name}`; use another")));
            }
            from_folder(&mut arm, folder);
            let table = overridden(laid_over(base.clone(), &arm), over);
            let scenario = of_table(&table, origin).map_err(|error| match error {
                SimError::Parse { source, .. } => wrong(&name, source.to_string().trim().replace('\n', ", ")),
                other => other,
            })?;
            all.push(Self { name, scenario, origin: origin.to_owned() });
        }
        Ok(all)
    }
}

/// A scenario by the same way as from its own text; errors name keys, since lines mean nothing to a reader any more.
fn of_table(table: &Table, origin: &str) -> Result<Scenario, SimError> {
    let parse = |source: toml::de::Error| SimError::Parse { origin: origin.into(), source: Box::new(source) };
    let text = toml::to_string(table).map_err(|e| parse(serde::de::Error::custom(e)))?;
    Scenario::from_toml(&text, origin).map_err(|error| {
        let mut own = table.clone();
        // What comes from a node's configuration has been taken over on the way there.
        for key in ["config", "controller", "runtime"] {
            own.remove(key);
        }
        match (error, own.try_into::<Scenario>()) {
            (SimError::Parse { .. }, Err(named)) => parse(named),
            (error, _) => error,
        }
    })
}

/// A configuration file that a scenario names is looked for from its folder. Says whether it names one.
fn from_folder(table: &mut Table, folder: &Path) -> bool {
    match table.get_mut("config") {
        Some(Value::String(path)) => *path = folder.join(&*path).display().to_string(),
        Some(_) => {}
        None => return false,
    }
    true
}

/// `base` with what the command line says.
fn overridden(base: Table, over: &Table) -> Table {
    let mut table = laid_over(base, over);
    let requests = over.get("workload").and_then(|workload| workload.get("requests"));
    // Of a trace, so many of its lines.
    if let (Some(requests), Some(Value::Table(workload))) = (requests, table.get_mut("workload"))
        && workload.contains_key("trace")
    {
        workload.insert("limit".to_owned(), requests.clone());
    }
    table
}

/// `base` with the keys of `over`: tables are merged key by key, everything else is replaced.
#[must_use]
pub fn laid_over(mut base: Table, over: &Table) -> Table {
    for (key, value) in over {
        let value = match (base.remove(key), value) {
            (Some(Value::Table(below)), Value::Table(above)) => Value::Table(laid_over(below, above)),
            (_, value) => value.clone(),
        };
        base.insert(key.clone(), value);
    }
    base
}

/// The file's name without folders and ending.
fn stem(origin: &str) -> String {
    Path::new(origin)
        .file_stem()
        .map_or_else(|| origin.to_owned(), |stem| stem.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests;
