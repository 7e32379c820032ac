//! Columns for people.

use std::fmt;
use std::net::SocketAddr;

use ipnet::IpNet;

/// Rows below a header. A column is as wide as its widest cell; an empty cell is shown as `-`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    header: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Returns a table without rows.
    pub fn new(header: &[&'static str]) -> Self {
        Self { header: header.to_vec(), rows: Vec::new() }
    }
    /// Adds a row.
    pub fn push<const N: usize>(&mut self, row: [String; N]) {
        self.rows.push(row.into());
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let header: Vec<String> = self.header.iter().map(|title| (*title).to_owned()).collect();
        let mut widths: Vec<usize> = Vec::new();
        for row in std::iter::once(&header).chain(&self.rows) {
            widths.resize(widths.len().max(row.len()), 1);
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        for row in std::iter::once(&header).chain(&self.rows) {
            let cells = row.iter().zip(&widths).map(|(cell, width)| {
                let cell = if cell.is_empty() { "-" } else { cell };
                format!("{cell:width$}")
            });
            writeln!(f, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
        }
        Ok(())
    }
}

/// Returns a Service port in one word: `namespace/name:port`, without the colon for an unnamed port.
pub fn service_port(namespace: &str, name: &str, port: &str) -> String {
    let separator = if port.is_empty() { "" } else { ":" };
    format!("{namespace}/{name}{separator}{port}")
}

/// Returns the cell of a list: its first items, and the number of the others.
pub fn some_of<T: ToString>(items: &[T]) -> String {
    const SHOWN: usize = 3;
    let mut cell: Vec<String> = items.iter().take(SHOWN).map(ToString::to_string).collect();
    if items.len() > SHOWN {
        cell.push(format!("+{}", items.len() - SHOWN));
    }
    cell.join(",")
}

/// Returns `yes`, or an empty cell.
pub fn mark(is_set: bool) -> String {
    if is_set { "yes".to_owned() } else { String::new() }
}

/// Returns the cell of source ranges; `None` = all clients.
pub fn ranges(ranges: Option<&[IpNet]>) -> String {
    match ranges {
        None => "all".to_owned(),
        Some([]) => "none".to_owned(),
        Some(ranges) => some_of(ranges),
    }
}

/// Returns the cell of a list's backends; `elsewhere` = there are others outside the list.
pub fn owners(backends: &[SocketAddr], elsewhere: bool) -> String {
    match (backends, elsewhere) {
        ([], true) => "none here".to_owned(),
        ([], false) => "none".to_owned(),
        (backends, _) => some_of(backends),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_an_empty_cell_is_a_dash() {
        let mut table = Table::new(&["NAME", "N"]);
        table.push(["a".to_owned(), "1".to_owned()]);
        table.push(["longer".to_owned(), String::new()]);
        assert_eq!(table.to_string(), "NAME    N\na       1\nlonger  -\n");
    }

    #[test]
    fn a_long_list_is_cut_and_says_by_how_much() {
        assert_eq!(some_of(&[1, 2, 3]), "1,2,3");
        assert_eq!(some_of(&[1, 2, 3, 4, 5]), "1,2,3,+2");
        assert_eq!(some_of::<u8>(&[]), "");
    }
}
