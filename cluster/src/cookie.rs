//! The cluster's shared secret: where it comes from, and what is refused.
//!
//! Whoever knows it may join, so it is never logged, never sent, and never read from a file that others can read. The
//! keys that travel or hash anything are derived from it ([`Cookie::key`]), one for each purpose.

use std::fmt;
use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

#[cfg(test)]
mod tests;

/// The file under the user's configuration folder, as other tools name theirs (Erlang: `.erlang.cookie`).
const DEFAULT_FILE: &str = "actor-node/cookie";

/// Bytes of a cookie that is made here; as text, twice as many hexadecimal digits.
const NEW_BYTES: usize = 32;

/// The longest cookie in bytes: a larger file is not a cookie, and is not read into memory.
const LONGEST: u64 = 4096;

/// A cluster's secret. Shows nothing of itself.
#[derive(Clone, PartialEq, Eq)]
pub struct Cookie(String);

/// Where a cookie came from, for the start-up log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CookieSource {
    /// The file of `--cookie-file`.
    File(PathBuf),
    /// The variable `ACTOR_NODE_COOKIE`.
    Environment,
    /// The file in the user's configuration folder, which was there.
    Default(PathBuf),
    /// The file in the user's configuration folder, made just now.
    Made(PathBuf),
}

/// No cookie that may be used.
#[derive(Debug, thiserror::Error)]
pub enum CookieError {
    /// A file cannot be read or made.
    #[error("cookie file `{}`: {why}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system says.
        why: io::Error,
    },
    /// Others than the owner can read the file.
    #[error(
        "cookie file `{}` can be read by others (mode {mode:03o}); run `chmod 600` on it",
        path.display()
    )]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// The file holds no cookie.
    #[error("cookie file `{}` is {what}; write a secret into it, or remove it from a configuration folder to have one made", path.display())]
    Unusable {
        /// The file.
        path: PathBuf,
        /// What is wrong with its contents.
        what: &'static str,
    },
    /// `ACTOR_NODE_COOKIE` is set to nothing.
    #[error("ACTOR_NODE_COOKIE is empty; give it a secret, or unset it")]
    EmptyVariable,
    /// The listener can be reached from other machines and no cookie was given on purpose.
    #[error(
        "listening beyond loopback needs a cookie of your own: give `--cookie-file FILE` or set ACTOR_NODE_COOKIE, the same on every node"
    )]
    Required,
    /// There is no folder to keep a cookie in.
    #[error(
        "no configuration folder to keep a cookie in (neither XDG_CONFIG_HOME nor HOME is set); give `--cookie-file FILE` or set ACTOR_NODE_COOKIE"
    )]
    NoFolder,
    /// The system has no random numbers.
    #[error("no random numbers for a new cookie: {0}")]
    Random(String),
}

impl Cookie {
    /// The cookie to use: from `file`; else from `env`, the value of `ACTOR_NODE_COOKIE`; else, for a node that listens
    /// on loopback only, from `actor-node/cookie` under `config_dir`, which is made on first use, readable by its owner
    /// alone. Nodes that start at the same moment on a fresh machine end up with the same cookie.
    ///
    /// # Errors
    /// See [`CookieError`]; every message says what to do.
    pub fn load(
        file: Option<&Path>,
        env: Option<&str>,
        config_dir: Option<&Path>,
        loopback_only: bool,
    ) -> Result<(Self, CookieSource), CookieError> {
        if let Some(path) = file {
            return Ok((read(path)?, CookieSource::File(path.to_owned())));
        }
        if let Some(text) = env {
            let text = text.trim();
            return if text.is_empty() {
                Err(CookieError::EmptyVariable)
            } else {
                Ok((Self(text.to_owned()), CookieSource::Environment))
            };
        }
        if !loopback_only {
            return Err(CookieError::Required);
        }
        let path = config_dir.ok_or(CookieError::NoFolder)?.join(DEFAULT_FILE);
        let made = make(&path)?;
        let cookie = read(&path)?;
        Ok((cookie, if made { CookieSource::Made(path) } else { CookieSource::Default(path) }))
    }

    /// A cookie of this text, for tests of other modules.
    #[cfg(test)]
    pub(crate) fn from_text(text: &str) -> Self {
        Self(text.to_owned())
    }

    /// The key for one purpose (BLAKE3's key derivation; `purpose` names it and never changes): what one of them lets
    /// leak says nothing about the cookie or another key.
    #[must_use]
    pub fn key(&self, purpose: &str) -> [u8; 32] {
        blake3::derive_key(purpose, self.0.as_bytes())
    }
}

impl fmt::Debug for Cookie {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Cookie(..)")
    }
}

fn read(path: &Path) -> Result<Cookie, CookieError> {
    let failed = |why| CookieError::File { path: path.to_owned(), why };
    let unusable = |what| CookieError::Unusable { path: path.to_owned(), what };
    let about = fs::metadata(path).map_err(failed)?;
    if !about.is_file() {
        return Err(unusable("no regular file"));
    }
    let mode = about.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(CookieError::Exposed { path: path.to_owned(), mode });
    }
    if about.len() > LONGEST {
        return Err(unusable("longer than 4096 bytes"));
    }
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(why) if why.kind() == io::ErrorKind::InvalidData => return Err(unusable("not text")),
        Err(why) => return Err(failed(why)),
    };
    let text = text.trim();
    if text.is_empty() {
        return Err(unusable("empty"));
    }
    Ok(Cookie(text.to_owned()))
}

/// Makes the file at `path` with a random cookie, unless it is there. Says whether it did.
///
/// The contents are complete before the name exists: a second process never sees half a cookie, and of two that make
/// one at once the second takes the first one's, because a hard link replaces nothing.
fn make(path: &Path) -> Result<bool, CookieError> {
    let failed = |why| CookieError::File { path: path.to_owned(), why };
    match fs::symlink_metadata(path) {
        Ok(_) => return Ok(false),
        Err(why) if why.kind() == io::ErrorKind::NotFound => {}
        Err(why) => return Err(failed(why)),
    }
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(failed)?;
    }
    let mut random = [0u8; NEW_BYTES + 8];
    getrandom::fill(&mut random).map_err(|e| CookieError::Random(e.to_string()))?;
    let (secret, suffix) = random.split_at(NEW_BYTES);
    let draft = path.with_extension(format!("new-{}", hex(suffix)));
    let linked =
        write_private(&draft, &format!("{}\n", hex(secret))).and_then(|()| fs::hard_link(&draft, path));
    let removed = fs::remove_file(&draft);
    match linked {
        Ok(()) => removed.map(|()| true).map_err(failed),
        Err(why) if why.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(why) => Err(failed(why)),
    }
}

fn write_private(path: &Path, text: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    // A umask may take bits from the mode that `open` asks for; the owner has to be able to read it back.
    file.set_permissions(Permissions::from_mode(0o600))?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
