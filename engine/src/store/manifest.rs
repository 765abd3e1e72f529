//! The record beside fetched files.

use std::fmt;
use std::fs::File;
use std::io::{BufReader, Read as _};
use std::path::Path;

use serde::{Deserialize, Serialize};
use sha2::Digest as _;

use super::Sha256;

/// Name of the record in a model's directory.
pub(super) const NAME: &str = "manifest.json";

/// What was fetched, from where and when.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// The source string, without a hash.
    pub source: String,
    /// The files, the first (or only) GGUF part first.
    pub files: Vec<ManifestFile>,
    /// A directory of safetensors rather than GGUF.
    pub directory: bool,
    /// Seconds since 1970.
    pub fetched: u64,
}

/// One fetched file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManifestFile {
    /// Its name in the model's directory.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// Its SHA-256 in hex.
    pub sha256: String,
}

impl Manifest {
    /// The record of a directory, if it is there and all its files have their size. Contents were checked when they
    /// were fetched, and are not read again at every start.
    pub(super) fn load(dir: &Path) -> Option<Self> {
        let text = std::fs::read_to_string(dir.join(NAME)).ok()?;
        let manifest: Self = serde_json::from_str(&text).ok()?;
        let whole = |file: &ManifestFile| {
            std::fs::metadata(dir.join(&file.name)).is_ok_and(|metadata| metadata.len() == file.bytes)
        };
        (!manifest.files.is_empty() && manifest.files.iter().all(whole)).then_some(manifest)
    }

    /// Size of all files.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }
}

/// One line: size, number of files, source.
impl fmt::Display for Manifest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tenths = self.bytes() / 100_000;
        write!(f, "{:>6}.{} MB  {:>2} file(s)  {}", tenths / 10, tenths % 10, self.files.len(), self.source)
    }
}

/// Size and digest of a file.
pub(super) fn digest(path: &Path) -> std::io::Result<(u64, Sha256)> {
    let mut file = BufReader::with_capacity(1 << 20, File::open(path)?);
    let mut hasher = sha2::Sha256::new();
    let mut buffer = vec![0; 1 << 16];
    let mut bytes = 0;
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok((bytes, Sha256(hasher.finalize().into()))),
            read => {
                hasher.update(&buffer[..read]);
                bytes += read as u64;
            }
        }
    }
}
