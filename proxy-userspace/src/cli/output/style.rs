//! The form of one output.

use serde::Serialize;

use super::format::{Format, columns_table};
use super::{API_VERSION, CliError};

/// The form of one output.
pub struct Style<'a> {
    pub format: &'a Format,
    pub no_headers: bool,
    /// Columns of the terminal; `None` if standard output is none.
    pub width: Option<usize>,
    /// Returns the name of this node. Not every format asks for it.
    pub node: &'a dyn Fn() -> String,
}

/// A document with its header.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Headed<'a, T> {
    api_version: &'static str,
    kind: &'a str,
    node: &'a str,
    #[serde(flatten)]
    fields: T,
}

impl Style<'_> {
    /// Returns a whole document of this kind about this node.
    pub fn document(&self, kind: &str, fields: impl Serialize) -> Result<String, CliError> {
        let node = (self.node)();
        let document = Headed { api_version: API_VERSION, kind, node: &node, fields };
        Ok(match self.format {
            Format::Yaml => serde_norway::to_string(&document)?,
            Format::JsonLines => serde_json::to_string(&document)? + "\n",
            Format::JsonPath(path) => lines(path.values(&serde_json::to_value(&document)?)),
            Format::Columns(columns) => {
                columns_table(columns, [&serde_json::to_value(&document)?]).text(self.no_headers, None)
            }
            Format::Name => lines([node]),
            Format::Json | Format::Table | Format::Wide => serde_json::to_string_pretty(&document)? + "\n",
        })
    }
}

/// Returns a line for each text.
pub fn lines(texts: impl IntoIterator<Item = String>) -> String {
    texts.into_iter().map(|text| text + "\n").collect()
}
