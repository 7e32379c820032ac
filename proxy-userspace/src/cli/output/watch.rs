//! `--watch`.

use std::io::{self, IsTerminal};
use std::thread;
use std::time::Duration;

use super::{CliError, write_out};

/// Moves to the upper left corner and clears the terminal: ECMA-48's CUP and ED.
const CLEAR: &str = "\x1b[H\x1b[2J";

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
        thread::sleep(interval);
    }
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
    fn a_reader_that_closes_the_pipe_or_a_failure_ends_it() {
        let failing = || Err(CliError::Left("maps".to_owned()));
        assert!(matches!(run(Duration::from_millis(1), failing), Err(CliError::Left(_))));
    }
}
