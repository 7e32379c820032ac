//! `--config`: a KubeProxyConfiguration, as kube-proxy reads it.
//!
//! A field with a meaning here becomes a setting, any other field a remark. An unknown field is an error, so
//! that a typo is found. Flags win over the file, unlike in kube-proxy.

mod duration;
mod fields;
mod honour;
mod remark;
mod schema;

use std::fs;
use std::path::Path;

use serde::de::IgnoredAny;
use serde::{Deserialize, de};
use serde_json::Value;

pub use duration::{DurationError, GoDuration};
pub use fields::{FIELDS, Field, Unheeded};
pub(super) use honour::FileSettings;
pub use remark::Remark;
pub use schema::{
    ClientConnection, Conntrack, DetectLocal, Iptables, Ipvs, KubeProxyConfiguration, LogOptions, LogOutput,
    Logging, Nftables, VModule, Winkernel,
};

use super::ConfigError;
use super::error::Refused;

/// The accepted `apiVersion` of a file.
pub const API_VERSION: &str = "kubeproxy.config.k8s.io/v1alpha1";
/// The accepted `kind` of a file.
pub const KIND: &str = "KubeProxyConfiguration";

/// The file that messages name.
#[derive(Clone, Copy, Debug)]
pub(super) struct Origin<'a>(&'a Path);

impl Origin<'_> {
    /// Returns the place of a value for messages. An empty path stands for the file itself.
    fn at(self, path: &str) -> String {
        let file = self.0.display();
        if path.is_empty() { file.to_string() } else { format!("{file}: {path}") }
    }
    pub(super) fn error(self, path: &str, message: impl Into<String>) -> ConfigError {
        ConfigError { origin: self.at(path), message: message.into() }
    }

    /// Reads a field with the parser of its flag. Empty text sets nothing.
    pub(super) fn read<T>(
        self,
        path: &str,
        text: &str,
        parser: impl Fn(&str) -> Result<T, Refused>,
    ) -> Result<Option<T>, ConfigError> {
        nonempty(text).map(parser).transpose().map_err(|refused| refused.at(self.at(path)))
    }

    /// Reads each item of a list with the parser of its flag.
    pub(super) fn read_all<T>(
        self,
        path: &str,
        texts: &[String],
        parser: impl Fn(&str) -> Result<T, Refused>,
    ) -> Result<Vec<T>, ConfigError> {
        let items = texts.iter().map(|text| parser(text)).collect::<Result<_, _>>();
        items.map_err(|refused| refused.at(self.at(path)))
    }
}

fn nonempty(text: &str) -> Option<&str> {
    Some(text).filter(|text| !text.is_empty())
}

/// Reads the file of `--config`.
pub(super) fn read(path: &Path) -> Result<Vec<u8>, ConfigError> {
    fs::read(path).map_err(|error| ConfigError {
        origin: "--config".to_owned(),
        message: format!("{}: {error}; takes a file with a {KIND}", path.display()),
    })
}

/// Returns the settings and remarks from a file.
pub(super) fn interpret(path: &Path, text: &[u8]) -> Result<FileSettings, ConfigError> {
    let origin = Origin(path);
    FileSettings::from_configuration(&parse(origin, text)?, origin)
}

fn parse(origin: Origin<'_>, text: &[u8]) -> Result<KubeProxyConfiguration, ConfigError> {
    let mut value = document(text).map_err(|error| origin.error("", error))?;
    remove_nulls(&mut value);
    let field = |name: &str| value.get(name).and_then(Value::as_str).unwrap_or_default();
    for (name, takes) in [("apiVersion", API_VERSION), ("kind", KIND)] {
        if field(name) != takes {
            return Err(origin.error(name, format!("{:?} is not accepted; takes {takes}", field(name))));
        }
    }
    serde_path_to_error::deserialize(value)
        .map_err(|error| origin.error(&error.path().to_string(), error.inner().to_string()))
}

/// Returns the only document of a YAML or JSON text.
fn document(text: &[u8]) -> Result<Value, String> {
    let value: Value = if text.trim_ascii_start().starts_with(b"{") {
        // JSON may be indented with tabs, which YAML does not allow.
        serde_json::from_slice(text).map_err(|error| format!("is not JSON: {error}"))?
    } else {
        let mut documents = serde_norway::Deserializer::from_slice(text);
        let first = documents.next().map_or(Ok(Value::Null), from_yaml);
        let value = first.map_err(|error| format!("is not YAML: {error}"))?;
        if documents.any(|document| !matches!(Option::<IgnoredAny>::deserialize(document), Ok(None))) {
            return Err(format!("has several documents; takes one {KIND}"));
        }
        value
    };
    if value.is_object() { Ok(value) } else { Err(format!("takes one {KIND}, as YAML or JSON")) }
}

/// Reads a document through the YAML crate's own type, which refuses a repeated key.
fn from_yaml<'de, D: de::Deserializer<'de>>(document: D) -> Result<Value, String>
where
    D::Error: std::fmt::Display,
{
    let value = serde_norway::Value::deserialize(document).map_err(|error| error.to_string())?;
    serde_json::to_value(value).map_err(|error| error.to_string())
}

/// Removes all nulls. Null is Go's zero value for any type.
fn remove_nulls(value: &mut Value) {
    match value {
        Value::Object(members) => {
            members.retain(|_, member| !member.is_null());
            members.values_mut().for_each(remove_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(remove_nulls),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[cfg(test)]
mod tests;
