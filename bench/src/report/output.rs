//! The output of a benchmark: a table or JSON, and a file for `bench report`.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::{Figure, Group, Report, Section, Spread};

/// The form of the output. Benchmarks flatten it into their arguments.
#[derive(clap::Args)]
pub struct Output {
    /// JSON instead of a table
    #[arg(long)]
    json: bool,
    /// File for the JSON, beside the output; `bench report` reads it
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
}

impl Output {
    /// Prints the sections, and saves them if asked to.
    pub fn write(&self, sections: Vec<Section>) -> Result<()> {
        let report = Report::new(sections);
        let json = serde_json::to_string_pretty(&report)?;
        // The figures took minutes: they are shown even if the file can't be written.
        if self.json {
            println!("{json}");
        } else {
            report.sections.iter().for_each(print_section);
        }
        self.save.as_deref().map_or(Ok(()), |file| save(file, &json))
    }
}

/// Writes a file, and the folders that it is to be in.
fn save(file: &Path, json: &str) -> Result<()> {
    let folder = file.parent().unwrap_or(Path::new(""));
    fs::create_dir_all(folder)
        .and_then(|()| fs::write(file, format!("{json}\n")))
        .with_context(|| format!("can't write {}", file.display()))
}

fn print_section(section: &Section) {
    println!("{}", section.title);
    for group in &section.groups {
        println!("\n{}", heading(group));
        print_rows(&rows(group));
    }
    for left_out in &section.left_out {
        println!("\nleft out: {}: {}", left_out.what, left_out.why);
    }
}

fn heading(group: &Group) -> String {
    let unit = serde_json::to_value(group.unit).ok();
    format!("{} [{}]", group.title, unit.as_ref().and_then(|unit| unit.as_str()).unwrap_or_default())
}

/// Returns the head and a row for each figure.
fn rows(group: &Group) -> Vec<Vec<String>> {
    let mut keys: Vec<&String> = group.figures.iter().flat_map(|figure| figure.details.keys()).collect();
    keys.sort_unstable();
    keys.dedup();
    let has_subjects = group.figures.iter().any(|figure| figure.subject != super::MILLRACE);
    let has_targets = group.figures.iter().any(|figure| figure.target.is_some());
    let mut head = vec!["case".to_owned()];
    head.extend(has_subjects.then(|| "of".to_owned()));
    head.extend(group.axis.clone());
    head.extend(["median", "quartiles"].map(String::from));
    head.extend(has_targets.then(|| "target".to_owned()));
    head.extend(keys.iter().map(|key| (*key).clone()));
    let row = |figure: &Figure| {
        let mut cells = vec![figure.name.clone()];
        cells.extend(has_subjects.then(|| figure.subject.clone()));
        cells.extend(group.axis.is_some().then(|| figure.x.map(|x| x.to_string()).unwrap_or_default()));
        cells.push(number(figure.spread.median));
        cells.push(quartiles(figure));
        cells.extend(has_targets.then(|| figure.target.map(number).unwrap_or_default()));
        cells
            .extend(keys.iter().map(|key| figure.details.get(*key).copied().map(number).unwrap_or_default()));
        cells
    };
    std::iter::once(head).chain(group.figures.iter().map(row)).collect()
}

/// Returns the quartiles; nothing for a single sample.
fn quartiles(figure: &Figure) -> String {
    let Spread { samples, q1, q3, .. } = figure.spread;
    if samples > 1 { format!("{} .. {}", number(q1), number(q3)) } else { String::new() }
}

fn number(value: f64) -> String {
    let decimals = if value.fract() == 0.0 || value.abs() >= 1000.0 { 0 } else { 2 };
    format!("{value:.decimals$}")
}

/// Prints columns of equal width: the first to the left, all others to the right.
fn print_rows(rows: &[Vec<String>]) {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns)
        .map(|column| {
            rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
        })
        .collect();
    for row in rows {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, width))| {
            if column == 0 { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        });
        println!("  {}", cells.collect::<Vec<_>>().join("  ").trim_end());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_saved_in_folders_that_are_not_there_yet() {
        let top = std::env::temp_dir().join(format!("millrace-bench-{}", std::process::id()));
        let file = top.join("a/b.json");
        save(&file, "{}").unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "{}\n");
        fs::remove_dir_all(&top).unwrap();
        assert!(
            save(Path::new("/proc/none/b.json"), "").unwrap_err().to_string().contains("/proc/none/b.json")
        );
    }
}
