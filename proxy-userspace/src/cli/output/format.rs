//! The formats of an output.

use super::path::Path;
use super::table::Table;
use crate::config::Refused;

const TAKES: &str = "table, wide, json, jsonl, yaml, name, jsonpath=PATH or custom-columns=TITLE:PATH,...";

/// A format.
#[derive(Clone, Debug, PartialEq)]
pub enum Format {
    /// A table for people, as wide as the terminal.
    Table,
    /// A table with all columns; nothing is shortened.
    Wide,
    /// One JSON document.
    Json,
    /// A JSON object for each item, each in one line.
    JsonLines,
    /// One YAML document.
    Yaml,
    /// The name of each item.
    Name,
    /// The values at a path of the JSON document.
    JsonPath(Path),
    /// A table of values of each item.
    Columns(Vec<(String, Path)>),
}

/// Parses the value of `--output`.
pub fn parse(text: &str) -> Result<Format, Refused> {
    Ok(match text {
        "table" => Format::Table,
        "wide" => Format::Wide,
        "json" => Format::Json,
        "jsonl" => Format::JsonLines,
        "yaml" => Format::Yaml,
        "name" => Format::Name,
        _ => match text.split_once('=') {
            Some(("jsonpath", path)) => Format::JsonPath(Path::parse(path)?),
            Some(("custom-columns", columns)) => Format::Columns(custom_columns(columns)?),
            _ => return Err(Refused::new(text, TAKES)),
        },
    })
}

fn custom_columns(text: &str) -> Result<Vec<(String, Path)>, Refused> {
    let column = |part: &str| match part.split_once(':') {
        Some((title, path)) if !title.is_empty() => Ok((title.to_owned(), Path::parse(path)?)),
        _ => Err(Refused::new(text, "custom-columns=TITLE:PATH,... such as NAME:.name,PACKETS:.packets")),
    };
    text.split(',').map(column).collect()
}

/// Returns the table of `custom-columns` for these items.
pub fn columns_table<'a>(
    columns: &[(String, Path)],
    items: impl IntoIterator<Item = &'a serde_json::Value>,
) -> Table {
    let mut table = Table::titled(columns.iter().map(|(title, _)| title.clone()).collect());
    for item in items {
        table.push_all(columns.iter().map(|(_, path)| path.values(item).join(",")).collect());
    }
    table
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_format_is_a_word_or_has_a_path_behind_its_word() {
        assert_eq!(parse("wide"), Ok(Format::Wide));
        assert!(matches!(parse("jsonpath=$.items[*].name"), Ok(Format::JsonPath(_))));
        assert!(
            matches!(parse("custom-columns=A:.a,B:.b.c"), Ok(Format::Columns(columns)) if columns.len() == 2)
        );
        for text in [
            "",
            "xml",
            "json=",
            "jsonpath",
            "jsonpath=",
            "jsonpath=[",
            "custom-columns=A",
            "custom-columns=:.a",
        ] {
            let refused = parse(text).unwrap_err().to_string();
            assert!(refused.contains("is not accepted; takes "), "{text}: {refused}");
        }
    }

    #[test]
    fn a_column_of_ones_own_has_the_values_at_its_path() {
        let Ok(Format::Columns(columns)) = parse("custom-columns=NAME:.name,PORTS:.ports[*],NONE:.none")
        else {
            panic!("columns")
        };
        let items = [json!({"name": "web", "ports": [80, 443]}), json!({"name": "db", "ports": []})];
        let table = columns_table(&columns, &items).to_string();
        assert_eq!(table, "NAME  PORTS   NONE\nweb   80,443  -\ndb    -       -\n");
    }
}
