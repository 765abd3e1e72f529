//! The files of a pool. Synchronous: it lives on a thread of its own ([`super::thread`]).
//!
//! ```text
//! FOLDER/pool.lock                                held while a pool uses the folder; says whose
//! FOLDER/FINGERPRINT/HASH.page                    a header of 128 bytes, then the page
//! FOLDER/FINGERPRINT/HASH.page.tmp                being written
//! ```
//!
//! A file a page, since pages leave one by one, from the end of a prompt, and prompts share their beginnings. (A file a run
//! would be rewritten for that, or keep what is gone; a page has hundreds of kilobytes, beside which a file costs nothing.)
//! A page is written under another name and renamed, so that a process which is killed leaves whole files. One that
//! was not on the medium when the machine lost power has a wrong checksum, and is no page: nothing is synced.
//!
//! The folder is the index: names and headers are all that is needed to start ([`DiskStore::open`]).

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use policies::kv::{Fingerprint, PageHash};
use policies::pool::{DiskError, Found, PageKey};
use tracing::{debug, warn};

use header::Header;

mod header;

/// Bytes that a file takes beside its page: the header, and what is left empty in its last block (of 4 KiB on the file
/// systems that there are).
pub const OVERHEAD: u64 = header::LEN as u64 + 4095;

const LOCK: &str = "pool.lock";
const PAGE: &str = ".page";
const TEMPORARY: &str = ".page.tmp";

/// Makes a file to be written, or says why not; tests make the disk full here.
#[derive(Clone)]
pub struct Create(pub Arc<CreateFn>);

/// See [`Create`].
pub type CreateFn = dyn Fn(&Path) -> io::Result<File> + Send + Sync;

impl Default for Create {
    fn default() -> Self {
        Self(Arc::new(|path| OpenOptions::new().write(true).create(true).truncate(true).open(path)))
    }
}

impl std::fmt::Debug for Create {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Create")
    }
}

/// Why a folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another pool uses it.
    #[error("pool.disk = {}: this folder is in use by {holder}; give each pool a folder of its own", folder.display())]
    InUse {
        /// The folder.
        folder: PathBuf,
        /// Who uses it, as he has written it down.
        holder: String,
    },
    /// It cannot be made, read or written.
    #[error(
        "pool.disk = {}: this folder cannot be used: {error}; name one that this process may read and write",
        folder.display()
    )]
    Unusable {
        /// The folder.
        folder: PathBuf,
        /// What the system said.
        error: io::Error,
    },
}

/// The files of one pool.
#[derive(Debug)]
pub struct DiskStore {
    folder: PathBuf,
    create: Create,
    /// Locked until it is closed, also where the process is killed.
    _lock: File,
}

impl DiskStore {
    /// Takes the folder for this pool, making it where it is not there, removes what is left of pages that were not written
    /// to their end, and finds the others. Their contents are checked when they are read. `holder` is what others are told
    /// who want the folder too.
    ///
    /// # Errors
    /// The folder is another pool's, or cannot be used.
    pub fn open(folder: &Path, holder: &str, create: Create) -> Result<(Self, Vec<Found>), OpenError> {
        let unusable = |error| OpenError::Unusable { folder: folder.to_owned(), error };
        fs::create_dir_all(folder).map_err(unusable)?;
        let lock = lock(folder, holder)?;
        let found = scan(folder).map_err(unusable)?;
        Ok((Self { folder: folder.to_owned(), create, _lock: lock }, found))
    }

    /// Writes a page, or nothing.
    ///
    /// # Errors
    /// The kind of what the system said.
    pub fn write(
        &mut self,
        key: &PageKey,
        parent: Option<PageHash>,
        content: &[u8],
    ) -> Result<(), DiskError> {
        let header = Header::of(*key, parent, content).encode();
        let temporary = self.path(key, TEMPORARY);
        let result = self.fill(&temporary, [&header, content]).and_then(|()| {
            let page = self.path(key, PAGE);
            fs::rename(&temporary, page)
        });
        result.map_err(|error| {
            debug!(file = %temporary.display(), %error, "a page cannot be written");
            // Where there is nothing to remove, or it cannot be: the next start finds it.
            let _ = fs::remove_file(&temporary);
            kind(&error)
        })
    }

    /// Reads a page of as many bytes as `content` has. One that is not what it should be is deleted, and missing.
    ///
    /// # Errors
    /// The kind of what the system said.
    pub fn read(&mut self, key: &PageKey, content: &mut [u8]) -> Result<(), DiskError> {
        let path = self.path(key, PAGE);
        match read(&path, key, content) {
            Ok(true) => Ok(()),
            Ok(false) => {
                warn!(file = %path.display(), "a page on disk is damaged and is deleted");
                match fs::remove_file(&path) {
                    Err(error) if error.kind() != ErrorKind::NotFound => Err(kind(&error)),
                    _ => Err(DiskError::Missing),
                }
            }
            Err(error) => {
                debug!(file = %path.display(), %error, "a page cannot be read");
                Err(kind(&error))
            }
        }
    }

    /// Deletes a page.
    ///
    /// # Errors
    /// The kind of what the system said; [`DiskError::Missing`] where there is none.
    pub fn delete(&mut self, key: &PageKey) -> Result<(), DiskError> {
        fs::remove_file(self.path(key, PAGE)).map_err(|error| kind(&error))
    }

    fn path(&self, key: &PageKey, ending: &str) -> PathBuf {
        let mut name = hex(&key.hash.0);
        name.push_str(ending);
        self.folder.join(hex(&key.fingerprint.0)).join(name)
    }

    fn fill(&self, path: &Path, parts: [&[u8]; 2]) -> io::Result<()> {
        let mut file = match (self.create.0)(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                // The first page of its fingerprint.
                path.parent().map_or(Ok(()), fs::create_dir_all)?;
                (self.create.0)(path)?
            }
            other => other?,
        };
        parts.into_iter().try_for_each(|part| file.write_all(part))
    }
}

/// False where the file is not the page.
fn read(path: &Path, key: &PageKey, content: &mut [u8]) -> io::Result<bool> {
    let mut file = File::open(path)?;
    let whole = header::LEN as u64 + content.len() as u64;
    let Some(header) = read_header(&mut file)? else { return Ok(false) };
    if header.key != *key || header.bytes != content.len() as u64 || file.metadata()?.len() != whole {
        return Ok(false);
    }
    file.read_exact(content)?;
    let right = *blake3::hash(content).as_bytes() == header.sum;
    if right {
        // After a restart the pages that were used last are the last to go. A file system may be without such times.
        let _ = file.set_modified(SystemTime::now());
    }
    Ok(right)
}

fn read_header(file: &mut File) -> io::Result<Option<Header>> {
    let mut raw = [0; header::LEN];
    match file.read_exact(&mut raw) {
        Ok(()) => Ok(Header::decode(&raw)),
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(None),
        Err(error) => Err(error),
    }
}

fn lock(folder: &Path, holder: &str) -> Result<File, OpenError> {
    let unusable = |error| OpenError::Unusable { folder: folder.to_owned(), error };
    let path = folder.join(LOCK);
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .map_err(unusable)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut text = String::new();
            // He may not have written it yet.
            let known = file.read_to_string(&mut text).is_ok() && !text.trim().is_empty();
            let holder = if known { text.trim().to_owned() } else { "another process".to_owned() };
            return Err(OpenError::InUse { folder: folder.to_owned(), holder });
        }
        Err(TryLockError::Error(error)) => return Err(unusable(error)),
    }
    let text = format!("{holder} (process {})\n", std::process::id());
    file.set_len(0).and_then(|()| file.write_all(text.as_bytes())).map_err(unusable)?;
    Ok(file)
}

/// What is in a file that has the name of a page.
enum Content {
    Page(Found),
    /// Ours, and no page (any more).
    Broken,
    /// Somebody else's.
    Foreign,
}

/// All pages. What is broken is removed; what is not ours, by name or by content, is left alone.
fn scan(folder: &Path) -> io::Result<Vec<Found>> {
    let mut found = Vec::new();
    let (mut broken, mut foreign, mut unreadable) = (0_u64, 0_u64, 0_u64);
    for group in fs::read_dir(folder)? {
        let group = group?;
        let Some(fingerprint) = group.file_name().to_str().and_then(unhex).map(Fingerprint) else { continue };
        if !group.file_type()?.is_dir() {
            continue;
        }
        let files = match fs::read_dir(group.path()) {
            Ok(files) => files,
            Err(error) => {
                warn!(folder = %group.path().display(), %error, "pages of an earlier run cannot be read");
                continue;
            }
        };
        for file in files {
            let file = file?;
            let name = file.file_name();
            let Some(name) = name.to_str() else { continue };
            let (name, whole) = match (name.strip_suffix(PAGE), name.strip_suffix(TEMPORARY)) {
                (Some(name), _) => (name, true),
                (None, Some(name)) => (name, false),
                (None, None) => continue,
            };
            let Some(hash) =
                unhex(name).map(PageHash).filter(|_| file.file_type().is_ok_and(|t| t.is_file()))
            else {
                continue;
            };
            let path = file.path();
            match look_into(&path, PageKey { fingerprint, hash }) {
                Ok(Content::Page(page)) if whole => found.push(page),
                Ok(Content::Page(_) | Content::Broken) => {
                    broken += 1;
                    if let Err(error) = fs::remove_file(&path) {
                        warn!(file = %path.display(), %error, "what is left of a page cannot be removed");
                    }
                }
                Ok(Content::Foreign) => foreign += 1,
                Err(error) => {
                    debug!(file = %path.display(), %error, "a page of an earlier run cannot be read");
                    unreadable += 1;
                }
            }
        }
        // Only where it is empty: models come and go.
        let _ = fs::remove_dir(group.path());
    }
    if broken + foreign + unreadable > 0 {
        warn!(folder = %folder.display(), broken, foreign, unreadable, "files in the pool's folder are no pages");
    }
    Ok(found)
}

fn look_into(path: &Path, key: PageKey) -> io::Result<Content> {
    let mut file = File::open(path)?;
    let data = file.metadata()?;
    let mut start = Vec::new();
    (&mut file).take(header::LEN as u64).read_to_end(&mut start)?;
    let header = <&[u8; header::LEN]>::try_from(start.as_slice()).ok().and_then(Header::decode);
    let page = header.filter(|h| h.key == key && data.len().checked_sub(header::LEN as u64) == Some(h.bytes));
    let Some(page) = page else {
        return Ok(if header::is_ours(&start) { Content::Broken } else { Content::Foreign });
    };
    // One from before 1970, or without a time, was used long ago.
    let used = data.modified().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok());
    let used = used.map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX));
    Ok(Content::Page(Found { key, parent: page.parent, bytes: page.bytes, used }))
}

/// What an error means to the pool.
fn kind(error: &io::Error) -> DiskError {
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => DiskError::NoSpace,
        ErrorKind::NotFound => DiskError::Missing,
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => DiskError::Permission,
        _ => DiskError::Other,
    }
}

fn hex(bytes: &[u8]) -> String {
    const DIGITS: [char; 16] =
        ['0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'a', 'b', 'c', 'd', 'e', 'f'];
    bytes.iter().flat_map(|b| [DIGITS[usize::from(b >> 4)], DIGITS[usize::from(b & 15)]]).collect()
}

/// The bytes that [`hex`] has written.
fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut out = [0; N];
    let digits = text.as_bytes();
    if digits.len() != 2 * N || !digits.iter().all(|d| matches!(d, b'0'..=b'9' | b'a'..=b'f')) {
        return None;
    }
    for (byte, pair) in out.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(out)
}

#[cfg(test)]
mod tests;
