//! The output of every command: its form, its order, and its repetition.
//!
//! All text goes through one writer. A reader that closes the pipe is no failure.

mod document;
mod format;
mod list;
mod path;
mod style;
mod table;
mod watch;

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use clap::Args;
use terminal_size::{Width, terminal_size};

use super::error::CliError;
use super::place::Place;
use crate::config::{ConfigError, Refused};

pub use document::Document;
pub use format::{Format, columns_table, parse as parse_format};
pub use list::{Column, Group, List, Row};
pub use style::{Style, lines};
pub use table::{Table, age, bucket_end, mark, owners, ranges, some_of};
pub use watch::{CLEAR, is_closed_within};

/// The version of all JSON documents.
pub const API_VERSION: &str = "millrace.dev/v1alpha1";

/// The longest duration of a flag: a year. `Instant` panics if a sum is beyond its range.
const LONGEST: Duration = Duration::from_hours(365 * 24);

/// The form of the output.
#[derive(Args, Clone, Debug)]
pub struct OutputArgs {
    /// Format: table, wide, json, jsonl, yaml, name, jsonpath=PATH or custom-columns=TITLE:PATH,...
    #[arg(short, long, value_name = "FORMAT", default_value = "table", value_parser = format::parse)]
    output: Format,
    /// Leave the header of a table out
    #[arg(long)]
    no_headers: bool,
}

/// Order and repetition of a list.
#[derive(Args, Clone, Debug)]
pub struct ListArgs {
    #[command(flatten)]
    form: OutputArgs,
    /// Column to sort by, by its title or JSON key; -COLUMN sorts downwards
    #[arg(long, value_name = "COLUMN", allow_hyphen_values = true)]
    sort_by: Option<String>,
    #[command(flatten)]
    watch: WatchArgs,
}

/// Repetition of an output.
#[derive(Args, Clone, Debug)]
pub struct WatchArgs {
    /// Show each change, until interrupted
    #[arg(short, long)]
    watch: bool,
    /// Time between two readings of --watch
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = duration)]
    watch_interval: Duration,
}

impl ListArgs {
    /// Whether no cell is to be shortened.
    pub fn is_wide(&self) -> bool {
        self.form.is_wide()
    }

    /// Shows a document that is no list, once or until interrupted. Its rows have no columns to sort by.
    pub fn show_document(
        &self,
        place: &Place,
        read: impl Fn() -> Result<Document, CliError>,
    ) -> Result<(), CliError> {
        self.watch.show(|| self.form.document(place, &read()?))
    }

    /// Shows a list, once or until interrupted.
    pub fn show(&self, place: &Place, read: impl Fn() -> Result<List, CliError>) -> Result<(), CliError> {
        self.watch.show(|| {
            let mut list = read()?;
            if let Some(column) = &self.sort_by {
                list.sort(column).map_err(|takes| wrong_column("--sort-by", column, &takes))?;
            }
            list.render(&self.form.style(&|| place.node()))
        })
    }
}

impl WatchArgs {
    /// Writes a text, once or at each change until interrupted.
    pub fn show(&self, text: impl Fn() -> Result<String, CliError>) -> Result<(), CliError> {
        if self.watch { watch::run(self.watch_interval, text) } else { Ok(write_out(&text()?)?) }
    }
}

impl OutputArgs {
    /// Writes a document that is no list.
    pub fn show(&self, place: &Place, document: &Document) -> Result<(), CliError> {
        Ok(write_out(&self.document(place, document)?)?)
    }

    /// Returns the text of a document.
    pub fn document(&self, place: &Place, document: &Document) -> Result<String, CliError> {
        document.render(&self.style(&|| place.node()))
    }

    /// Writes a list in its own order.
    pub fn list(&self, place: &Place, list: &List) -> Result<(), CliError> {
        Ok(write_out(&self.text(place, list)?)?)
    }

    /// Returns the text of a list in its own order.
    pub fn text(&self, place: &Place, list: &List) -> Result<String, CliError> {
        list.render(&self.style(&|| place.node()))
    }

    fn style<'a>(&'a self, node: &'a dyn Fn() -> String) -> Style<'a> {
        Style { format: &self.output, no_headers: self.no_headers, width: terminal_width(), node }
    }

    /// Whether no cell is to be shortened.
    pub fn is_wide(&self) -> bool {
        self.output == Format::Wide
    }

    /// Whether people read it as a table.
    pub fn is_table(&self) -> bool {
        matches!(self.output, Format::Table | Format::Wide)
    }
}

/// Writes to standard output.
pub fn write_out(text: &str) -> io::Result<()> {
    write_bytes(text.as_bytes())
}

/// Writes bytes that need not be text to standard output.
pub fn write_bytes(bytes: &[u8]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(bytes)?;
    out.flush()
}

/// Writes a line to standard error. If that is closed, the exit status tells.
pub fn note(text: &str) {
    let _ = writeln!(io::stderr(), "millrace: {text}");
}

/// Returns the columns of the terminal; `None` if standard output is none.
pub fn terminal_width() -> Option<usize> {
    let (Width(width), _) = io::stdout().is_terminal().then(terminal_size)??;
    Some(usize::from(width))
}

/// Returns the error of a flag that names no column.
pub fn wrong_column(flag: &str, given: &str, takes: &str) -> CliError {
    let message = Refused::new(given, takes).to_string();
    ConfigError { origin: flag.to_owned(), message }.into()
}

/// Parses a duration such as `2s`, `500ms`, `10m` or `3h`, up to a year. A number alone is seconds.
pub fn duration(text: &str) -> Result<Duration, Refused> {
    let refused = || Refused::new(text, "a duration such as 500ms, 2s, 10m or 3h, up to 8760h (a year)");
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at_checked(end).ok_or_else(refused)?;
    let number: u64 = number.parse().ok().filter(|number| *number > 0).ok_or_else(refused)?;
    let milliseconds = match unit {
        "ms" => 1,
        "" | "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return Err(refused()),
    };
    let duration = number.checked_mul(milliseconds).map(Duration::from_millis);
    duration.filter(|duration| *duration <= LONGEST).ok_or_else(refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_has_a_unit_or_is_seconds() {
        for (text, milliseconds) in [
            ("2s", 2000),
            ("2", 2000),
            ("500ms", 500),
            ("10m", 600_000),
            ("1h", 3_600_000),
            ("8760h", 31_536_000_000),
        ] {
            assert_eq!(duration(text).unwrap().as_millis(), milliseconds, "{text}");
        }
        for text in ["", "0s", "s", "-1s", "1.5s", "2 s", "9999999999999999999h", "5d", "1é"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_duration_above_a_year_is_refused() {
        for text in ["8761h", "31536001s", "31536000001ms", "18446744073709551615", "18446744073709551615ms"]
        {
            let refused = duration(text).unwrap_err().to_string();
            assert!(refused.ends_with(", up to 8760h (a year)"), "{refused}");
        }
    }
}
