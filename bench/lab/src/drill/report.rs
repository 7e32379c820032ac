//! The table, for the terminal and for docs/drill.md.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;

use super::fault::Loss;
use super::page;
use super::play::Row;

/// The page.
const PAGE: &str = "../../docs/drill.md";

/// Returns the heads of the columns.
fn heads() -> Vec<String> {
    let losses = Loss::ALL.iter().map(ToString::to_string);
    ["fault", "lasted"]
        .map(str::to_owned)
        .into_iter()
        .chain(losses)
        .chain(["right after".to_owned(), "follows after".to_owned()])
        .collect()
}

fn cells(row: &Row) -> Vec<String> {
    let losses = Loss::ALL.iter().map(|loss| row.losses.get(loss).copied().unwrap_or(0).to_string());
    let times = [row.right, row.follows].map(|time| time.map_or_else(|| "never".to_owned(), seconds));
    [row.name.clone(), seconds(row.lasted)].into_iter().chain(losses).chain(times).collect()
}

/// Returns a time of a column.
fn seconds(time: Duration) -> String {
    if time.is_zero() { "0".to_owned() } else { format!("{:.1} s", time.as_secs_f32()) }
}

/// Returns the lines of one row for the terminal.
pub(super) fn lines(row: &Row) -> String {
    let mut text = line(&cells(row));
    for reason in &row.reasons {
        let _ = write!(text, "\n    allowed: {reason}");
    }
    for excess in &row.excess {
        let _ = write!(text, "\n    NOT ALLOWED: {excess}");
    }
    text
}

/// Returns the heads for the terminal.
pub(super) fn head() -> String {
    line(&heads())
}

fn line(cells: &[String]) -> String {
    let (name, others) = cells.split_first().map_or(("", cells), |(name, others)| (name.as_str(), others));
    let others: Vec<String> = others.iter().map(|cell| format!("{cell:>13}")).collect();
    format!("{}{}", first_cell(name), others.join(" "))
}

/// Returns a fault's name, as wide as the first column of the terminal.
pub(super) fn first_cell(name: &str) -> String {
    format!("{name:<38}")
}

/// Returns the part of the page: a table, the faults, and the reasons.
fn page_part(rows: &[Row]) -> String {
    let mut text = String::new();
    let row = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    text += &row(&heads());
    let _ = writeln!(text, "|---|{}", "---:|".repeat(heads().len() - 1));
    for played in rows {
        text += &row(&cells(played));
    }
    text += "\nThe faults, and the reason for each cell that is not zero:\n\n";
    // The faults of a pair have lines of their own.
    let needs_line = |row: &&Row| row.what.is_some() || !row.reasons.is_empty() || !row.excess.is_empty();
    for played in rows.iter().filter(needs_line) {
        let _ = writeln!(text, "- **{}**: {}", played.name, played.what.unwrap_or("both at once"));
        for reason in &played.reasons {
            let _ = writeln!(text, "  - {reason}");
        }
        for excess in &played.excess {
            let _ = writeln!(text, "  - **not allowed**: {excess}");
        }
    }
    text
}

/// Replaces the part of the page that a command makes.
pub(super) fn write_page(command: &str, rows: &[Row]) -> Result<PathBuf> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(PAGE);
    page::write(&path, command, &page_part(rows))?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str) -> Row {
        Row {
            name: name.to_owned(),
            what: Some("a fault of the test"),
            lasted: Duration::from_secs(3),
            losses: [(Loss::Cut, 2)].into(),
            right: None,
            follows: Some(Duration::ZERO),
            reasons: Vec::new(),
            excess: vec!["2 cut through snat".to_owned()],
        }
    }

    #[test]
    fn a_pair_without_losses_has_no_line_for_its_reasons() {
        let pair = Row { what: None, excess: Vec::new(), ..row("one + other") };
        let part = page_part(&[pair]);
        assert!(part.contains("| one + other |") && !part.contains("**one + other**"), "{part}");
    }

    #[test]
    fn a_row_names_what_is_not_allowed() {
        let part = page_part(&[row("shown")]);
        assert!(part.contains("| shown | 3.0 s | 2 | 0 | 0 | 0 | never | 0 |"), "{part}");
        assert!(part.contains("  - **not allowed**: 2 cut through snat"), "{part}");
    }
}
