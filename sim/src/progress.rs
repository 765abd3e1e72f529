//! How far a run is, for the person who waits for it: a bar on a terminal, now and then a line elsewhere.

use std::io::{IsTerminal as _, Write as _};

use indicatif::{ProgressBar, ProgressStyle};
use policies::time::Time;

use crate::report::Glance;

/// Events from line to line where there is no terminal: some seconds.
const LINE: u64 = 2_000_000;

/// Shows the progress of one run. A short one shows nothing.
#[derive(Debug)]
pub(crate) struct Progress {
    name: String,
    /// Requests that will come, if that is known.
    expected: Option<u64>,
    bar: Option<ProgressBar>,
    lines: u64,
}

impl Progress {
    /// Of the run `name`, with so many requests.
    pub(crate) fn new(name: String, expected: Option<u64>) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| match expected {
            Some(requests) => ProgressBar::new(requests),
            None => ProgressBar::new_spinner(),
        });
        let template = match expected {
            Some(_) => "{prefix} [{wide_bar}] {human_pos} of {human_len} requests, {msg} ({eta})",
            None => "{prefix} {spinner} {human_pos} requests, {msg} ({elapsed})",
        };
        if let Some(bar) = &bar
            && let Ok(style) = ProgressStyle::with_template(template)
        {
            bar.set_style(style);
            bar.set_prefix(name.clone());
        }
        Self { name, expected, bar, lines: 0 }
    }

    /// To be called as the run goes on.
    pub(crate) fn into_watch(mut self) -> Box<dyn FnMut(Glance)> {
        Box::new(move |glance| self.show(glance))
    }

    fn show(&mut self, glance: Glance) {
        if let Some(bar) = &self.bar {
            bar.set_message(format!("{:.1} s simulated", seconds(glance)));
            bar.set_position(glance.ended);
        } else if glance.events / LINE > self.lines {
            self.lines = glance.events / LINE;
            // Nobody is there to read it: no reason to stop.
            let _ = writeln!(std::io::stderr(), "{}", self.line(glance));
        }
    }

    fn line(&self, glance: Glance) -> String {
        let of = self.expected.map(|all| format!(" of {all}")).unwrap_or_default();
        format!("{}: {}{of} requests ended, {:.1} s simulated", self.name, glance.ended, seconds(glance))
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn seconds(glance: Glance) -> f64 {
    glance.at.since(Time::ZERO).as_secs_f64()
}

#[cfg(test)]
mod tests {
    use policies::time::Span;

    use super::*;

    #[test]
    fn a_line_says_how_far_it_is() {
        let progress = |expected| Progress { name: "a".into(), expected, bar: None, lines: 0 };
        let at = Time::ZERO + Span::from_millis(2_500);
        let glance = Glance { at, events: 3 * LINE, arrived: 12, ended: 10 };
        assert_eq!(progress(Some(40)).line(glance), "a: 10 of 40 requests ended, 2.5 s simulated");
        assert_eq!(progress(None).line(glance), "a: 10 requests ended, 2.5 s simulated");
        let mut seen = progress(None);
        seen.show(glance);
        assert_eq!(seen.lines, 3);
    }
}
