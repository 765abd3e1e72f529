//! Files that lines of JSON are added to while a node serves: the logs of requests and of steps.
//!
//! Nobody waits for the disk: where it is too slow, lines are left out and counted.

use std::path::Path;

use serde::Serialize;
use tokio::fs::{File, OpenOptions};
use tokio::io::{AsyncWriteExt, BufWriter};
use tokio::sync::mpsc;
use tracing::error;

use crate::metrics::RECORD_LOST;
use crate::supervise::{TaskKind, spawn};

/// Lines that wait for the disk at most.
const WAITING: usize = 4096;

/// Where lines go.
#[derive(Debug)]
pub(crate) struct Lines<T> {
    lines: mpsc::Sender<T>,
    /// The key of the configuration that names the file.
    key: &'static str,
}

impl<T: Serialize + Send + 'static> Lines<T> {
    /// Opens the file, or makes it; what it has stays.
    ///
    /// # Errors
    /// A file that cannot be opened for writing.
    pub(crate) async fn open(key: &'static str, path: &Path) -> std::io::Result<Self> {
        let file = OpenOptions::new().append(true).create(true).open(path).await?;
        let (lines, waiting) = Self::channel(key, WAITING);
        spawn(TaskKind::Node, "lines", write(file, waiting, key, path.display().to_string()));
        Ok(lines)
    }

    /// Lines that go to whoever has the other end.
    pub(crate) fn channel(key: &'static str, waiting: usize) -> (Self, mpsc::Receiver<T>) {
        let (lines, receiver) = mpsc::channel(waiting);
        (Self { lines, key }, receiver)
    }

    /// Adds a line.
    pub(crate) fn add(&self, line: T) {
        if self.lines.try_send(line).is_err() {
            lost(self.key);
        }
    }
}

fn lost(key: &'static str) {
    metrics::counter!(RECORD_LOST, "log" => key).increment(1);
}

/// Writes lines until nobody sends more; what is there reaches the file whenever nothing waits.
async fn write<T: Serialize>(file: File, mut lines: mpsc::Receiver<T>, key: &'static str, path: String) {
    let mut file = BufWriter::new(file);
    while let Some(line) = lines.recv().await {
        let written = match serde_json::to_vec(&line) {
            Ok(mut text) => {
                text.push(b'\n');
                file.write_all(&text).await
            }
            Err(e) => Err(e.into()),
        };
        let written = match written {
            Ok(()) if lines.is_empty() => file.flush().await,
            other => other,
        };
        if let Err(e) = written {
            // Half a line may be there: what came after it could not be read. A restart of the node begins anew.
            error!(path, error = %e, "{key}: the file cannot be written; nothing more is recorded in it");
            lost(key);
            return;
        }
    }
}
