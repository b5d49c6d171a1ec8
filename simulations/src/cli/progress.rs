//! A progress bar on standard error, if somebody looks at it.

use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

const WIDTH: usize = 30;
const GAP: Duration = Duration::from_millis(100);

/// How far a number of runs has come.
#[derive(Debug)]
pub(super) struct Progress {
    what: String,
    all: usize,
    done: usize,
    bad: usize,
    events: u64,
    began: Instant,
    drawn: Option<Instant>,
    shown: bool,
}

impl Progress {
    /// Nothing is done yet.
    #[must_use]
    pub(super) fn new(what: &str, all: usize) -> Self {
        let shown = std::io::stderr().is_terminal();
        Self { what: what.to_owned(), all, done: 0, bad: 0, events: 0, began: Instant::now(), drawn: None, shown }
    }

    /// One run has ended.
    pub(super) fn step(&mut self, events: u64, bad: bool) {
        self.done += 1;
        self.events += events;
        self.bad += usize::from(bad);
        let now = Instant::now();
        if self.shown && (self.drawn.is_none_or(|at| now >= at + GAP) || self.done == self.all) {
            self.drawn = Some(now);
            // A terminal that cannot be written to is no reason to stop.
            let _ = write!(std::io::stderr(), "\r{}", self.line());
        }
    }

    /// Clears the bar.
    pub(super) fn end(&self) {
        if self.shown {
            let _ = write!(std::io::stderr(), "\r{:1$}\r", "", self.line().len());
        }
    }

    /// Real seconds since the beginning.
    #[must_use]
    pub(super) fn seconds(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }

    fn line(&self) -> String {
        let full = (WIDTH * self.done).checked_div(self.all).unwrap_or(WIDTH);
        let bar: String = (0..WIDTH).map(|at| if at < full { '#' } else { '.' }).collect();
        let left = match self.done {
            0 => String::new(),
            #[expect(clippy::cast_precision_loss, reason = "an estimate")]
            done => format!(", {:.0} s left", self.seconds() / done as f64 * self.all.saturating_sub(done) as f64),
        };
        format!("{} [{bar}] {}/{}, {} bad, {} M events{left} ", self.what, self.done, self.all, self.bad, self.events / 1_000_000)
    }
}
