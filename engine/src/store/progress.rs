//! Progress of a download: a bar on a terminal, a log line at each tenth elsewhere.

use std::io::{IsTerminal as _, Read};

use indicatif::{ProgressBar, ProgressStyle};

/// Progress of one file.
pub(super) struct Progress {
    name: String,
    bar: Option<ProgressBar>,
    total: u64,
    done: u64,
    /// Tenths that were logged.
    logged: u64,
}

impl Progress {
    pub(super) fn new(name: &str, total: u64) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| ProgressBar::new(total));
        if let Some(bar) = &bar
            && let Ok(style) =
                ProgressStyle::with_template("{msg} [{wide_bar}] {bytes}/{total_bytes} ({eta})")
        {
            bar.set_style(style);
            bar.set_message(name.to_owned());
        }
        Self { name: name.to_owned(), bar, total, done: 0, logged: 0 }
    }

    pub(super) fn advance(&mut self, bytes: u64) {
        self.done += bytes;
        match &self.bar {
            Some(bar) => bar.set_position(self.done),
            None => {
                let tenth = (10 * self.done).checked_div(self.total).unwrap_or(0);
                if tenth > self.logged {
                    self.logged = tenth;
                    tracing::info!(file = self.name, bytes = self.done, total = self.total, "fetching");
                }
            }
        }
    }

    pub(super) fn finish(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// Counts what is read.
pub(super) struct Counted<'a, R> {
    pub(super) inner: R,
    pub(super) progress: &'a mut Progress,
}

impl<R: Read> Read for Counted<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.progress.advance(read as u64);
        Ok(read)
    }
}

/// The hub's downloads say themselves how far they are.
pub(super) struct HubProgress(Option<Progress>);

impl HubProgress {
    pub(super) fn new() -> Self {
        Self(None)
    }
}

impl hf_hub::api::Progress for HubProgress {
    fn init(&mut self, size: usize, filename: &str) {
        // Called once to announce and again at each (resumed) transfer.
        self.0 = Some(Progress::new(filename, size as u64));
    }

    fn update(&mut self, size: usize) {
        if let Some(progress) = &mut self.0 {
            progress.advance(size as u64);
        }
    }

    fn finish(&mut self) {
        if let Some(progress) = &mut self.0 {
            progress.finish();
        }
    }
}
