//! A document that is no list.

use serde::Serialize;
use serde_json::Value;

use super::format::{Format, columns_table};
use super::table::Table;
use super::{API_VERSION, CliError};
use crate::config::this_node;

/// A JSON document, and its text for people.
#[derive(Clone, Debug)]
pub struct Document {
    kind: &'static str,
    node: String,
    fields: Value,
    text: Text,
}

/// The text for people.
#[derive(Clone, Debug)]
enum Text {
    Lines(String),
    Table(Table),
}

/// The header of each document.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Header<'a, T> {
    api_version: &'static str,
    kind: &'a str,
    node: &'a str,
    #[serde(flatten)]
    fields: T,
}

impl<'a, T: Serialize> Header<'a, T> {
    /// Returns a document of this kind about this node.
    pub const fn new(kind: &'a str, node: &'a str, fields: T) -> Self {
        Self { api_version: API_VERSION, kind, node, fields }
    }
}

impl Document {
    /// Returns a document with lines of text for people.
    pub fn lines(kind: &'static str, fields: impl Serialize, text: String) -> Result<Self, CliError> {
        Self::new(kind, fields, Text::Lines(text))
    }

    /// Returns a document with a table for people.
    pub fn table(kind: &'static str, fields: impl Serialize, table: Table) -> Result<Self, CliError> {
        Self::new(kind, fields, Text::Table(table))
    }

    fn new(kind: &'static str, fields: impl Serialize, text: Text) -> Result<Self, CliError> {
        Ok(Self { kind, node: this_node(), fields: serde_json::to_value(fields)?, text })
    }

    /// Returns the text in a format.
    pub fn render(
        &self,
        format: &Format,
        no_headers: bool,
        width: Option<usize>,
    ) -> Result<String, CliError> {
        let document = Header::new(self.kind, &self.node, &self.fields);
        Ok(match (format, &self.text) {
            (Format::Table | Format::Wide, Text::Lines(text)) => text.clone(),
            (Format::Table, Text::Table(table)) => table.text(no_headers, width),
            (Format::Wide, Text::Table(table)) => table.text(no_headers, None),
            (Format::Json, _) => serde_json::to_string_pretty(&document)? + "\n",
            (Format::JsonLines, _) => serde_json::to_string(&document)? + "\n",
            (Format::Yaml, _) => serde_norway::to_string(&document)?,
            (Format::Name, _) => format!("{}\n", self.node),
            (Format::JsonPath(path), _) => lines(path.values(&serde_json::to_value(&document)?)),
            (Format::Columns(columns), _) => {
                columns_table(columns, [&serde_json::to_value(&document)?]).text(no_headers, None)
            }
        })
    }
}

/// Returns a line for each text.
pub fn lines(texts: impl IntoIterator<Item = String>) -> String {
    texts.into_iter().map(|text| text + "\n").collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::format::parse;
    use super::*;

    #[test]
    fn a_document_has_a_header_in_every_format_of_programs() {
        let document = Document {
            kind: "Version",
            node: "node-a".to_owned(),
            fields: json!({"version": "1"}),
            text: Text::Lines("millrace 1\n".to_owned()),
        };
        let render = |format: &str| document.render(&parse(format).unwrap(), false, None).unwrap();
        let line = r#"{"apiVersion":"millrace.dev/v1alpha1","kind":"Version","node":"node-a","version":"1"}"#;
        assert_eq!(render("jsonl"), format!("{line}\n"));
        assert_eq!(
            serde_json::from_str::<Value>(&render("json")).unwrap(),
            serde_json::from_str::<Value>(line).unwrap()
        );
        assert_eq!(
            render("yaml"),
            "apiVersion: millrace.dev/v1alpha1\nkind: Version\nnode: node-a\nversion: '1'\n"
        );
        assert_eq!(render("table"), "millrace 1\n");
        assert_eq!(render("name"), "node-a\n");
        assert_eq!(render("jsonpath={.version}"), "1\n");
        assert_eq!(render("custom-columns=V:.version,KIND:.kind"), "V  KIND\n1  Version\n");
    }
}
