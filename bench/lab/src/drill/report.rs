//! The table, for the terminal and for docs/drill.md.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};

use super::fault::Loss;
use super::play::Row;

/// The page.
const PAGE: &str = "../../docs/drill.md";
/// The marks around the part that `--write` replaces.
const BEGIN: &str = "<!-- Made by `cargo xtask drill --write`; changes here are lost. -->";
const END: &str = "<!-- The end of the part that is made. -->";

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
    format!("{name:<24}{}", others.join(" "))
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
    for played in rows {
        let _ = writeln!(text, "- **{}**: {}", played.name, played.what);
        for reason in &played.reasons {
            let _ = writeln!(text, "  - {reason}");
        }
        for excess in &played.excess {
            let _ = writeln!(text, "  - **not allowed**: {excess}");
        }
    }
    text
}

/// Replaces the part of the page between the marks.
pub(super) fn write_page(rows: &[Row]) -> Result<PathBuf> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(PAGE);
    let text = fs::read_to_string(&path).with_context(|| format!("can't read {}", path.display()))?;
    let replaced = replace(&text, &page_part(rows)).context("the marks are missing in docs/drill.md")?;
    fs::write(&path, replaced).with_context(|| format!("can't write {}", path.display()))?;
    Ok(path)
}

fn replace(text: &str, part: &str) -> Option<String> {
    let (before, rest) = text.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}\n\n{part}\n{END}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_the_marks_once_and_keeps_everything_else() {
        let page = include_str!("../../../../docs/drill.md");
        assert_eq!((page.matches(BEGIN).count(), page.matches(END).count()), (1, 1));
        let replaced = replace(page, "new\n").unwrap();
        assert!(replaced.contains("\n\nnew\n\n"));
        assert_eq!(replace(&replaced, "new\n").unwrap(), replaced);
        assert_eq!(replaced.split(BEGIN).next(), page.split(BEGIN).next());
    }

    #[test]
    fn a_row_names_what_is_not_allowed() {
        let row = Row {
            name: "shown".to_owned(),
            what: "a fault of the test".to_owned(),
            lasted: Duration::from_secs(3),
            losses: [(Loss::Cut, 2)].into(),
            right: None,
            follows: Some(Duration::ZERO),
            reasons: Vec::new(),
            excess: vec!["2 cut through snat".to_owned()],
        };
        let part = page_part(&[row]);
        assert!(part.contains("| shown | 3.0 s | 2 | 0 | 0 | 0 | never | 0 |"), "{part}");
        assert!(part.contains("  - **not allowed**: 2 cut through snat"), "{part}");
    }
}
