//! A list of objects: rows for people, items for programs.

use std::cmp::{Ordering, Reverse};
use std::net::{IpAddr, SocketAddr};

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::CliError;
use super::format::{Format, columns_table};
use super::style::{Style, lines};
use super::table::Table;

/// A column of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    /// The title in the header.
    title: &'static str,
    /// The item's key in JSON, by which its rows are sorted. Dots lead into objects.
    key: &'static str,
    /// Shown by `-o wide` alone.
    is_wide: bool,
    /// Left out where the terminal is too narrow for all columns, the highest number first; 0 = never.
    spare: u8,
    /// Goes on in further lines instead of being shortened.
    is_wrapped: bool,
}

impl Column {
    /// Returns a column.
    pub const fn new(title: &'static str, key: &'static str) -> Self {
        Self { title, key, is_wide: false, spare: 0, is_wrapped: false }
    }

    /// Returns the item's key in JSON.
    pub const fn key(&self) -> &'static str {
        self.key
    }

    /// Whether a user means this column: by its key, the last part of it, or its title.
    fn is_meant(&self, name: &str) -> bool {
        let last = self.key.rsplit('.').next().unwrap_or_default();
        let title = self.title.to_lowercase().replace(' ', "_");
        self.key == name || last == name || title == name.to_lowercase()
    }

    /// Returns the value in an item.
    fn value<'a>(&self, item: &'a Value) -> Option<&'a Value> {
        self.key.split('.').try_fold(item, |value, key| value.get(key))
    }

    /// Returns the column, which a narrow terminal leaves out. That with the highest number goes first.
    pub const fn spare(self, spare: u8) -> Self {
        Self { spare, ..self }
    }

    /// Returns the column, whose cells go on in further lines where the terminal is too narrow.
    pub const fn wrapped(self) -> Self {
        Self { is_wrapped: true, ..self }
    }

    /// Returns a column of `-o wide`.
    pub const fn wide(title: &'static str, key: &'static str) -> Self {
        Self { is_wide: true, ..Self::new(title, key) }
    }
}

/// An object in a list.
pub trait Row: Serialize {
    /// The columns.
    const COLUMNS: &'static [Column];

    /// Returns a cell for each column. A wide cell is not shortened.
    fn cells(&self, is_wide: bool) -> Vec<String>;

    /// Returns the name for `-o name`.
    fn name(&self) -> String;
}

/// Objects with the same columns.
#[derive(Clone, Debug)]
pub struct Group {
    columns: &'static [Column],
    items: Vec<Item>,
}

#[derive(Clone, Debug)]
struct Item {
    value: Value,
    cells: Vec<String>,
    name: String,
}

impl Group {
    /// Returns the group of these objects. Each says in JSON which mode serves it: `ebpf` or `ipvs`.
    pub fn of<R: Row>(mode: &'static str, rows: &[R], is_wide: bool) -> Result<Self, CliError> {
        let mut group = Self::of_node(rows, is_wide)?;
        for item in &mut group.items {
            if let Value::Object(fields) = &mut item.value {
                fields.insert("mode".to_owned(), mode.into());
            }
        }
        Ok(group)
    }

    /// Returns the group of objects that belong to no mode.
    pub fn of_node<R: Row>(rows: &[R], is_wide: bool) -> Result<Self, CliError> {
        Ok(Self::of_rows(rows, is_wide)?)
    }

    /// Returns the group of a list's items in JSON, which another node wrote.
    pub fn read<R: Row + DeserializeOwned>(list: &Value, is_wide: bool) -> Result<Self, serde_json::Error> {
        let items = list.get("items").cloned().unwrap_or_default();
        Self::of_rows(&serde_json::from_value::<Vec<R>>(items)?, is_wide)
    }

    /// Returns the table of the groups of several nodes, which have the same columns, with the node before each row.
    pub fn joined(nodes: &[(String, Self)], is_wide: bool) -> Option<Table> {
        let columns = nodes.first()?.1.columns;
        let rows = || nodes.iter().flat_map(|(node, group)| group.items.iter().map(move |item| (node, item)));
        let all = Self { columns, items: rows().map(|(_, item)| item.clone()).collect() };
        let mut table = all.table(is_wide);
        table.put_first("NODE", rows().map(|(node, _)| node.clone()));
        Some(table)
    }

    fn of_rows<R: Row>(rows: &[R], is_wide: bool) -> Result<Self, serde_json::Error> {
        let item = |row: &R| {
            Ok(Item { value: serde_json::to_value(row)?, cells: row.cells(is_wide), name: row.name() })
        };
        Ok(Self { columns: R::COLUMNS, items: rows.iter().map(item).collect::<Result<_, _>>()? })
    }

    fn table(&self, is_wide: bool) -> Table {
        let is_shown = |column: &&Column| is_wide || !column.is_wide;
        let shown = || self.columns.iter().filter(is_shown);
        let mut table = Table::titled(shown().map(|column| column.title.to_owned()).collect());
        table.leave_out(shown().map(|column| column.spare).collect());
        table.wrap(shown().position(|column| column.is_wrapped));
        for item in &self.items {
            let cells = self.columns.iter().zip(&item.cells).filter(|(column, _)| is_shown(column));
            table.push_all(cells.map(|(_, cell)| cell.clone()).collect());
        }
        table
    }

    /// Returns whether the group has the column. Rows without a value come last in both directions.
    fn sort(&mut self, column: &str, is_downwards: bool) -> bool {
        let found = self.columns.iter().enumerate().find(|(_, one)| one.is_meant(column));
        let Some((index, column)) = found else { return false };
        let key = |item: &Item| {
            let cell = item.cells.get(index).map_or("", String::as_str);
            SortKey::of(column.value(&item.value), cell)
        };
        if is_downwards {
            self.items.sort_by_cached_key(|item| {
                let key = key(item);
                (key == SortKey::Empty, Reverse(key))
            });
        } else {
            self.items.sort_by_cached_key(key);
        }
        true
    }
}

/// A list.
#[derive(Clone, Debug)]
pub struct List {
    kind: &'static str,
    groups: Vec<Group>,
    /// A line for people below the tables.
    summary: Option<String>,
}

impl List {
    /// Returns the list of this kind with the groups of one or both modes.
    pub const fn new(kind: &'static str, groups: Vec<Group>) -> Self {
        Self { kind, groups, summary: None }
    }

    /// Returns the list with a line for people below its tables.
    pub fn with_summary(self, summary: String) -> Self {
        Self { summary: Some(summary), ..self }
    }

    /// Sorts each group that has the column; a column with `-` before it downwards. Fails with the known
    /// columns if none has it.
    pub fn sort(&mut self, column: &str) -> Result<(), String> {
        let (name, is_downwards) = column.strip_prefix('-').map_or((column, false), |name| (name, true));
        let mut is_known = false;
        for group in &mut self.groups {
            is_known |= group.sort(name, is_downwards);
        }
        if is_known {
            return Ok(());
        }
        let mut keys: Vec<&str> =
            self.groups.iter().flat_map(|group| group.columns).map(|one| one.key).collect();
        keys.sort_unstable();
        keys.dedup();
        Err(keys.join(", "))
    }

    /// Leaves out the rows of each group behind the first ones.
    pub fn keep_first(&mut self, rows: usize) {
        self.groups.iter_mut().for_each(|group| group.items.truncate(rows));
    }

    /// Returns the text in a format.
    pub fn render(&self, style: &Style<'_>) -> Result<String, CliError> {
        let items = || self.groups.iter().flat_map(|group| &group.items);
        let values = || items().map(|item| &item.value);
        Ok(match style.format {
            Format::Table => self.tables(false, style.no_headers, style.width),
            Format::Wide => self.tables(true, style.no_headers, None),
            Format::JsonLines => lines(values().map(Value::to_string)),
            Format::Name => lines(items().map(|item| item.name.clone())),
            Format::Columns(columns) => columns_table(columns, values()).text(style.no_headers, style.width),
            Format::Json | Format::Yaml | Format::JsonPath(_) => {
                style.document(self.kind, Items { items: values().collect() })?
            }
        })
    }

    fn tables(&self, is_wide: bool, no_headers: bool, width: Option<usize>) -> String {
        let tables = self.groups.iter().map(|group| group.table(is_wide).text(no_headers, width));
        let summary = self.summary.iter().map(|summary| format!("{summary}\n"));
        tables.collect::<Vec<_>>().join("\n") + &summary.collect::<String>()
    }
}

/// The items of a document.
#[derive(Serialize)]
struct Items<'a> {
    items: Vec<&'a Value>,
}

/// The order of a column: numbers, then addresses, then words, then rows without a value.
#[derive(Clone, Debug, PartialEq)]
enum SortKey {
    Number(f64),
    Address(IpAddr, u16),
    Text(String),
    Empty,
}

impl SortKey {
    /// Returns the key of the value in JSON, or else of the cell.
    fn of(value: Option<&Value>, cell: &str) -> Self {
        if let Some(number) = value.and_then(Value::as_f64) {
            return Self::Number(number);
        }
        let text = value.and_then(Value::as_str).unwrap_or(cell);
        if text.is_empty() {
            return Self::Empty;
        }
        // Of a list, the first item.
        let first = text.split(',').next().unwrap_or_default();
        if let Ok(address) = first.parse::<SocketAddr>() {
            return Self::Address(address.ip(), address.port());
        }
        if let Ok(address) = first.parse::<IpAddr>() {
            return Self::Address(address, 0);
        }
        text.parse().map_or_else(|_| Self::Text(text.to_owned()), Self::Number)
    }

    const fn rank(&self) -> u8 {
        match self {
            Self::Number(_) => 0,
            Self::Address(..) => 1,
            Self::Text(_) => 2,
            Self::Empty => 3,
        }
    }
}

impl Eq for SortKey {}

impl PartialOrd for SortKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for SortKey {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Number(a), Self::Number(b)) => a.total_cmp(b),
            (Self::Address(a, at), Self::Address(b, bt)) => (a, at).cmp(&(b, bt)),
            (Self::Text(a), Self::Text(b)) => a.cmp(b),
            _ => self.rank().cmp(&other.rank()),
        }
    }
}

#[cfg(test)]
#[path = "list_tests.rs"]
mod tests;
