//! Which files make up a model: one file, the parts of a split one, a glob, or a directory.

use std::path::{Path, PathBuf};

use super::GgufError;

/// The position of a file in a split model, from its name `PREFIX-00001-of-00003.gguf`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PartName {
    prefix: String,
    /// From 1.
    number: usize,
    count: usize,
}

impl PartName {
    pub(super) fn parse(path: &Path) -> Option<Self> {
        let stem = path.file_name()?.to_str()?.strip_suffix(".gguf")?;
        let (rest, count) = stem.rsplit_once("-of-")?;
        let (prefix, number) = rest.rsplit_once('-')?;
        let digits = |text: &str| text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
        if !digits(count) || !digits(number) {
            return None;
        }
        let (number, count) = (number.parse().ok()?, count.parse().ok()?);
        (1..=count).contains(&number).then(|| Self { prefix: prefix.to_owned(), number, count })
    }

    /// The name of another part of the same model.
    fn sibling(&self, number: usize) -> String {
        format!("{}-{number:05}-of-{:05}.gguf", self.prefix, self.count)
    }
}

/// All files of the model that `path` names, in order: a file, any part of a split model (its siblings are looked for
/// beside it), a glob over the file name (`*` and `?`), or a directory that holds one model.
///
/// # Errors
/// A missing file or part, or files of several models.
pub fn expand_parts(path: &Path) -> Result<Vec<PathBuf>, GgufError> {
    let path = without_trailing_slash(path);
    if path.is_dir() {
        return one_model(&gguf_files(&path, "*.gguf")?, &path);
    }
    if !path.exists()
        && let Some(pattern) = path.file_name().and_then(|name| name.to_str())
        && pattern.contains(['*', '?'])
    {
        let parent = match path.parent() {
            Some(parent) if parent != Path::new("") => parent,
            _ => Path::new("."),
        };
        return one_model(&gguf_files(parent, pattern)?, &path);
    }
    // A link may have any name; the parts lie beside what it points to.
    let named = match PartName::parse(&path) {
        Some(name) => Some((name, path.clone())),
        None => {
            path.canonicalize().ok().and_then(|target| PartName::parse(&target).map(|name| (name, target)))
        }
    };
    match named {
        None => exists(path).map(|path| vec![path]),
        Some((name, path)) => (1..=name.count)
            .map(|number| {
                let part = path.with_file_name(name.sibling(number));
                if part.exists() {
                    Ok(part)
                } else {
                    Err(GgufError::MissingPart { part: number, of: name.count, path: part })
                }
            })
            .collect(),
    }
}

/// Names of all parts of the model that a file name belongs to; just the name when it is not of a split model. The name
/// may have folders in front.
pub fn part_names(name: &str) -> Vec<String> {
    let (folder, file) = name.rsplit_once('/').map_or(("", name), |(folder, file)| (folder, file));
    match PartName::parse(Path::new(file)) {
        None => vec![name.to_owned()],
        Some(part) => (1..=part.count)
            .map(|number| match folder {
                "" => part.sibling(number),
                folder => format!("{folder}/{}", part.sibling(number)),
            })
            .collect(),
    }
}

/// `model.gguf/` is `model.gguf`.
fn without_trailing_slash(path: &Path) -> PathBuf {
    path.components().collect()
}

fn exists(path: PathBuf) -> Result<PathBuf, GgufError> {
    match std::fs::metadata(&path) {
        Ok(_) => Ok(path),
        Err(source) => Err(GgufError::Io { path, source }),
    }
}

fn gguf_files(dir: &Path, pattern: &str) -> Result<Vec<PathBuf>, GgufError> {
    let failed = |source| GgufError::Io { path: dir.to_owned(), source };
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        if name.is_some_and(|name| matches_glob(pattern.as_bytes(), name.as_bytes())) && path.is_file() {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// Checks that the files found are exactly one model, and adds the parts that a glob left out.
fn one_model(files: &[PathBuf], asked: &Path) -> Result<Vec<PathBuf>, GgufError> {
    let Some(first) = files.first() else {
        let source = std::io::Error::new(std::io::ErrorKind::NotFound, "no GGUF file is there or matches");
        return Err(GgufError::Io { path: asked.to_owned(), source });
    };
    let name = PartName::parse(first);
    for other in &files[1..] {
        let same = match (&name, PartName::parse(other)) {
            (Some(name), Some(other)) => name.prefix == other.prefix && name.count == other.count,
            _ => false,
        };
        if !same {
            let what = "their names are not those of one split model; name one file".to_owned();
            return Err(GgufError::MixedParts { first: first.clone(), other: other.clone(), what });
        }
    }
    expand_parts(first)
}

/// `*` is any run of characters, `?` any one byte. Backtracks to the last star only, so it is linear times the stars.
fn matches_glob(pattern: &[u8], name: &[u8]) -> bool {
    let (mut p, mut n, mut retry) = (0, 0, None);
    while n < name.len() {
        if p < pattern.len() && pattern[p] == b'*' {
            retry = Some((p, n));
            p += 1;
        } else if p < pattern.len() && (pattern[p] == b'?' || pattern[p] == name[n]) {
            p += 1;
            n += 1;
        } else if let Some((star, from)) = retry {
            retry = Some((star, from + 1));
            p = star + 1;
            n = from + 1;
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}
