//! Paths into a JSON document.

use jsonpath_rust::parser::model::JpQuery;
use jsonpath_rust::parser::parse_json_path;
use jsonpath_rust::query::js_path_process;
use serde_json::Value;

use crate::config::Refused;

/// A path of RFC 9535, such as `$.items[*].name`.
#[derive(Clone, Debug, PartialEq)]
pub struct Path(JpQuery);

impl Path {
    /// Parses a path. kubectl's braces around it are taken, and `$` at its beginning may be left out.
    pub fn parse(text: &str) -> Result<Self, Refused> {
        let bare = text.strip_prefix('{').and_then(|text| text.strip_suffix('}')).unwrap_or(text);
        let path = match bare.chars().next() {
            Some('$') => bare.to_owned(),
            Some('.' | '[') => format!("${bare}"),
            Some(_) => format!("$.{bare}"),
            None => String::new(),
        };
        let refused = |_| Refused::new(text, "a path of RFC 9535 such as $.items[*].name");
        parse_json_path(&path).map(Self).map_err(refused)
    }

    /// Returns the text of each value at the path. A string has no quotes.
    pub fn values(&self, document: &Value) -> Vec<String> {
        let text = |value: &Value| match value {
            Value::String(text) => text.clone(),
            Value::Null => String::new(),
            value => value.to_string(),
        };
        let found = js_path_process(&self.0, document).unwrap_or_default();
        found.into_iter().map(|value| text(value.val())).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_ways_to_write_a_path_find_the_same_values() {
        let document = json!({"items": [{"name": "web", "ready": 2}, {"name": "db", "ready": null}]});
        for path in ["$.items[*].name", "{.items[*].name}", ".items[*].name", "items[*].name", "$..name"] {
            assert_eq!(Path::parse(path).unwrap().values(&document), ["web", "db"], "{path}");
        }
        let ready = Path::parse("$.items[?@.name=='web'].ready").unwrap();
        assert_eq!(ready.values(&document), ["2"]);
        assert_eq!(Path::parse(".items[1].ready").unwrap().values(&document), [""]);
        assert_eq!(Path::parse(".nothing").unwrap().values(&document), Vec::<String>::new());
    }
}
