//! `--watch`.

use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::{CliError, write_out};

/// Moves to the upper left corner and clears the terminal: ECMA-48's CUP and ED.
pub const CLEAR: &str = "\x1b[H\x1b[2J";

/// Writes the text at each change, until the process is interrupted or the reader closes the pipe.
///
/// A terminal shows the last text alone. Elsewhere the texts follow each other.
pub fn run(interval: Duration, text: impl Fn() -> Result<String, CliError>) -> Result<(), CliError> {
    let is_terminal = io::stdout().is_terminal();
    let mut last = None;
    loop {
        let now = text()?;
        if let Some(change) = change(last.as_deref(), &now, is_terminal) {
            write_out(&change)?;
        }
        last = Some(now);
        if is_closed_within(io::stdout().as_fd(), interval) {
            return Ok(());
        }
    }
}

/// Waits for the time. Returns early, and `true`, if the reader of the pipe has closed it: poll(2) tells so by
/// POLLERR, without a write.
pub fn is_closed_within(out: BorrowedFd<'_>, time: Duration) -> bool {
    let time = PollTimeout::try_from(time).unwrap_or(PollTimeout::MAX);
    let mut out = [PollFd::new(out, PollFlags::empty())];
    // A signal that is handled ends the wait early, which only repeats the reading.
    let _ = poll(&mut out, time);
    out.iter().filter_map(PollFd::revents).any(|events| events.contains(PollFlags::POLLERR))
}

/// Returns the text to write; `None` without a change.
fn change(last: Option<&str>, now: &str, is_terminal: bool) -> Option<String> {
    match last {
        Some(last) if last == now => None,
        _ if is_terminal => Some(format!("{CLEAR}{now}")),
        _ => Some(now.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_written_once_and_a_terminal_is_cleared_before() {
        assert_eq!(change(None, "a\n", false).as_deref(), Some("a\n"));
        assert_eq!(change(Some("a\n"), "a\n", true), None);
        assert_eq!(change(Some("a\n"), "b\n", true).as_deref(), Some("\x1b[H\x1b[2Jb\n"));
    }

    #[test]
    fn a_reader_that_closes_the_pipe_is_seen_without_a_write() {
        let (reader, writer) = io::pipe().unwrap();
        assert!(!is_closed_within(writer.as_fd(), Duration::from_millis(1)));
        drop(reader);
        assert!(is_closed_within(writer.as_fd(), Duration::from_hours(1)));
    }

    #[test]
    fn a_failure_of_the_reading_ends_it() {
        let failing = || Err(CliError::Left("maps".to_owned()));
        assert!(matches!(run(Duration::from_millis(1), failing), Err(CliError::Left(_))));
    }
}
