//! The model that tests use: the default one, fetched once through the store that users have.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::node::binary;

/// The model's file in the user's cache.
///
/// # Panics
/// When it is not cached and cannot be fetched: a test that needs the model fails then and is not skipped.
pub(crate) fn default_file() -> &'static Path {
    static FILE: OnceLock<PathBuf> = OnceLock::new();
    FILE.get_or_init(|| {
        let out = binary().args(["model", "pull"]).output().expect("actor-node runs");
        let text = String::from_utf8_lossy(&out.stdout);
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        text.trim_end().rsplit_once(" is at ").unwrap_or_else(|| panic!("no path in {text:?}")).1.into()
    })
}
