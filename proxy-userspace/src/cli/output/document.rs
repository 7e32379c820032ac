//! A document that is no list.

use serde::Serialize;
use serde_json::Value;

use super::CliError;
use super::format::Format;
use super::style::Style;
use super::table::Table;

/// A JSON document, and its text for people.
#[derive(Clone, Debug)]
pub struct Document {
    kind: &'static str,
    fields: Value,
    text: Text,
}

/// The text for people.
#[derive(Clone, Debug)]
enum Text {
    Lines(String),
    Table(Table),
}

impl Document {
    /// Returns a document with lines of text for people.
    pub fn lines(kind: &'static str, fields: impl Serialize, text: String) -> Result<Self, CliError> {
        Ok(Self { kind, fields: serde_json::to_value(fields)?, text: Text::Lines(text) })
    }

    /// Returns a document with a table for people.
    pub fn table(kind: &'static str, fields: impl Serialize, table: Table) -> Result<Self, CliError> {
        Ok(Self { kind, fields: serde_json::to_value(fields)?, text: Text::Table(table) })
    }

    /// Returns the text in a format.
    pub fn render(&self, style: &Style<'_>) -> Result<String, CliError> {
        Ok(match (style.format, &self.text) {
            (Format::Table | Format::Wide, Text::Lines(text)) => text.clone(),
            (Format::Table, Text::Table(table)) => table.text(style.no_headers, style.width),
            (Format::Wide, Text::Table(table)) => table.text(style.no_headers, None),
            _ => style.document(self.kind, &self.fields)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::format::parse;
    use super::*;

    #[test]
    fn a_document_has_a_header_in_every_format_of_programs() {
        let text = "millrace 1\n".to_owned();
        let document = Document::lines("Version", json!({"version": "1"}), text).unwrap();
        let render = |format: &str| {
            let node = || "node-a".to_owned();
            let format = parse(format).unwrap();
            document.render(&Style { format: &format, no_headers: false, width: None, node: &node }).unwrap()
        };
        let line = r#"{"apiVersion":"millrace.dev/v1alpha1","kind":"Version","node":"node-a","version":"1"}"#;
        assert_eq!(render("jsonl"), format!("{line}\n"));
        let value = |text: &str| serde_json::from_str::<Value>(text).unwrap();
        assert_eq!(value(&render("json")), value(line));
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
