//! Columns for people.

use std::fmt;
use std::net::SocketAddr;

use ipnet::IpNet;

/// The narrowest column that is still shortened.
const NARROWEST: usize = 8;
/// The width to which columns are shortened before one is left out.
const READABLE: usize = 14;

/// Rows below a header. A column is as wide as its widest cell; an empty cell is shown as `-`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    header: Vec<String>,
    rows: Vec<Vec<String>>,
    /// The order in which columns are left out on a narrow terminal, the highest number first; 0 = never.
    spare: Vec<u8>,
    /// The column whose cells go on in further lines, where the others are shortened.
    wrapped: Option<usize>,
}

impl Table {
    /// Returns a table without rows.
    pub fn new(header: &[&'static str]) -> Self {
        Self::titled(header.iter().map(|title| (*title).to_owned()).collect())
    }

    /// Returns a table without rows, with titles of the user's.
    pub const fn titled(header: Vec<String>) -> Self {
        Self { header, rows: Vec::new(), spare: Vec::new(), wrapped: None }
    }

    /// Adds a row.
    pub fn push<const N: usize>(&mut self, row: [String; N]) {
        self.rows.push(row.into());
    }

    /// Adds a row with a cell for each title.
    pub fn push_all(&mut self, row: Vec<String>) {
        self.rows.push(row);
    }

    /// Puts a column before the others. It is never left out.
    pub fn put_first(&mut self, title: &str, cells: impl IntoIterator<Item = String>) {
        self.header.insert(0, title.to_owned());
        for (row, cell) in self.rows.iter_mut().zip(cells) {
            row.insert(0, cell);
        }
        self.spare.insert(0, 0);
        self.wrapped = self.wrapped.map(|column| column + 1);
    }

    /// Says which columns are left out on a narrow terminal, the highest number first; 0 = never.
    pub fn leave_out(&mut self, spare: Vec<u8>) {
        self.spare = spare;
    }

    /// Says which column goes on in further lines instead of being shortened. A line end in its cells begins one
    /// at any width.
    pub fn wrap(&mut self, column: Option<usize>) {
        self.wrapped = column;
    }

    /// Returns the text. With a width, spare columns are left out and the widest ones shortened until the rows
    /// fit.
    pub fn text(&self, no_headers: bool, width: Option<usize>) -> String {
        let header = (!no_headers).then_some(&self.header);
        let rows: Vec<&Vec<String>> = header.into_iter().chain(&self.rows).collect();
        let mut widths: Vec<usize> = Vec::new();
        for row in &rows {
            widths.resize(widths.len().max(row.len()), 1);
            for (width, cell) in widths.iter_mut().zip(*row) {
                let longest = cell.lines().map(|line| line.chars().count()).max().unwrap_or(0);
                *width = (*width).max(longest);
            }
        }
        if let Some(width) = width {
            leave_out(&mut widths, &self.spare, width);
            fit(&mut widths, width);
        }
        rows.iter().flat_map(|row| self.lines(row, &widths)).collect()
    }

    /// Returns the lines of a row: one, or several for a wrapped cell.
    fn lines(&self, row: &[String], widths: &[usize]) -> Vec<String> {
        let Some((column, cell)) = self.wrapped.and_then(|column| Some((column, row.get(column)?))) else {
            return vec![line(row, widths) + "\n"];
        };
        let width = widths.get(column).copied().unwrap_or(NARROWEST);
        let mut row = row.to_vec();
        let mut lines = Vec::new();
        for part in cell.lines().flat_map(|text| broken(text, width)) {
            if let Some(cell) = row.get_mut(column) {
                *cell = part;
            }
            lines.push(line(&row, widths) + "\n");
            for cell in &mut row {
                " ".clone_into(cell);
            }
        }
        lines
    }
}

/// Breaks a text into lines at its blanks. A longer word is broken where the line ends.
fn broken(text: &str, width: usize) -> Vec<String> {
    let width = width.max(1);
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let mut word: Vec<char> = word.chars().collect();
        loop {
            let Some(line) = lines.last_mut() else { return lines };
            let used = line.chars().count();
            let blank = usize::from(used > 0);
            if used + blank + word.len() <= width {
                line.extend([' '].iter().take(blank).chain(&word));
                break;
            }
            if used == 0 {
                line.extend(word.drain(..width));
            }
            lines.push(String::new());
        }
    }
    lines
}

/// Sets the width of spare columns to 0 until the others fit, each shortened to [`READABLE`] at most.
fn leave_out(widths: &mut [usize], spare: &[u8], width: usize) {
    let readable = |widths: &[usize]| -> usize {
        let shown = widths.iter().filter(|width| **width > 0);
        shown.map(|width| (*width).min(READABLE) + 2).sum::<usize>().saturating_sub(2)
    };
    while readable(widths) > width {
        let shown = widths.iter_mut().zip(spare).filter(|(width, spare)| **width > 0 && **spare > 0);
        let Some((first, _)) = shown.max_by_key(|(_, spare)| **spare) else { return };
        *first = 0;
    }
}

/// Shortens the widest column until all fit, or none is wider than [`NARROWEST`].
fn fit(widths: &mut [usize], width: usize) {
    let gaps = 2 * widths.iter().filter(|width| **width > 0).count().saturating_sub(1);
    while widths.iter().sum::<usize>() + gaps > width {
        let Some(widest) = widths.iter_mut().max_by_key(|width| **width).filter(|width| **width > NARROWEST)
        else {
            return;
        };
        *widest -= 1;
    }
}

fn line(row: &[String], widths: &[usize]) -> String {
    let shown = row.iter().zip(widths).filter(|(_, width)| **width > 0);
    let cells = shown.map(|(cell, width)| {
        let cell = if cell.is_empty() { "-" } else { cell };
        if cell.chars().count() > *width {
            let start: String = cell.chars().take(width.saturating_sub(1)).collect();
            return format!("{start}~");
        }
        format!("{cell:width$}")
    });
    cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text(false, None))
    }
}

/// Returns a time as its two largest units: `3d4h`, `2m10s`.
pub fn age(seconds: u64) -> String {
    let units =
        [("d", seconds / 86400), ("h", seconds / 3600 % 24), ("m", seconds / 60 % 60), ("s", seconds % 60)];
    let first = units.iter().position(|(_, count)| *count > 0).unwrap_or(units.len() - 1);
    let parts = units.iter().skip(first).take(2).enumerate();
    let parts = parts.filter(|(place, (_, count))| *place == 0 || *count > 0);
    parts.map(|(_, (unit, count))| format!("{count}{unit}")).collect::<Vec<_>>().concat()
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

/// Returns the end of a bucket of times, in the unit of `ping`.
pub fn bucket_end(microseconds: Option<u64>) -> String {
    let text = |time: u64| format!("<{}.{:02} ms", time / 1000, time % 1000 / 10);
    microseconds.map(text).unwrap_or_default()
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
    fn a_narrow_terminal_shortens_the_widest_columns() {
        let mut table = Table::new(&["NAME", "ADDRESSES", "N"]);
        let long = "192.0.2.1:80,192.0.2.2:80";
        table.push(["shop/web".to_owned(), long.to_owned(), "1".to_owned()]);
        assert_eq!(table.text(true, Some(30)), "shop/web  192.0.2.1:80,192~  1\n");
        assert!(table.text(false, Some(30)).lines().all(|line| line.chars().count() <= 30));
        assert_eq!(table.text(true, None), table.text(true, Some(38)));
        assert_eq!(table.text(true, Some(3)), "shop/web  192.0.2~  1\n");
    }

    #[test]
    fn a_terminal_that_is_too_narrow_for_all_columns_leaves_the_spare_ones_out() {
        let mut table = Table::new(&["NAME", "POLICY", "PACKETS", "PROBLEM"]);
        table.push(["shop/web", "Cluster", "1234567", "NoEndpoints"].map(str::to_owned));
        table.leave_out(vec![0, 1, 2, 0]);
        assert_eq!(table.text(true, Some(39)), "shop/web  Cluster  1234567  NoEndpoints\n");
        assert_eq!(table.text(true, Some(38)), "shop/web  Cluster  NoEndpoints\n");
        assert_eq!(table.text(false, Some(25)), "NAME      PROBLEM\nshop/web  NoEndpoints\n");
        assert_eq!(table.text(true, Some(20)), "shop/web  NoEndpoin~\n");
    }

    #[test]
    fn a_wrapped_column_goes_on_in_further_lines() {
        let mut table = Table::new(&["RESULT", "FOUND"]);
        table.push(["FAIL".to_owned(), "there is no such device\ntry eth0".to_owned()]);
        table.wrap(Some(1));
        assert_eq!(
            table.text(false, Some(20)),
            "RESULT  FOUND\nFAIL    there is no\n        such device\n        try eth0\n"
        );
        assert_eq!(table.text(true, None), "FAIL  there is no such device\n      try eth0\n");
        assert_eq!(broken("a longword b", 4), ["a", "long", "word", "b"]);
    }

    #[test]
    fn an_age_has_two_units() {
        for (seconds, text) in
            [(0, "0s"), (59, "59s"), (130, "2m10s"), (3600, "1h"), (273_600, "3d4h"), (86_405, "1d")]
        {
            assert_eq!(age(seconds), text);
        }
    }

    #[test]
    fn a_long_list_is_cut_and_says_by_how_much() {
        assert_eq!(some_of(&[1, 2, 3]), "1,2,3");
        assert_eq!(some_of(&[1, 2, 3, 4, 5]), "1,2,3,+2");
        assert_eq!(some_of::<u8>(&[]), "");
    }
}
