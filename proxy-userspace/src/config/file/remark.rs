//! The warnings about values of a file without effect. Each is logged once.

use serde_json::{Value, json};

use super::{FIELDS, KubeProxyConfiguration, Origin};
use crate::model::plain_line;

/// A remark on the configuration. The agent logs it after it has opened the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Remark {
    /// The effect of a value with another meaning here.
    Info(String),
    /// A value without effect.
    Warning(String),
}

impl Remark {
    /// Writes the remark to the log.
    pub fn log(&self) {
        match self {
            Self::Info(text) => tracing::info!("{}", plain_line(text)),
            Self::Warning(text) => tracing::warn!("{}", plain_line(text)),
        }
    }
}

/// Returns a warning for each set value of `configuration` without effect. `section` is its mode's section.
pub(super) fn remarks(
    configuration: &KubeProxyConfiguration,
    section: Option<&str>,
    origin: Origin<'_>,
) -> Vec<Remark> {
    let value = serde_json::to_value(configuration).unwrap_or_default();
    let mut remarks = Vec::new();
    for field in FIELDS {
        let Some(unheeded) = field.unheeded else { continue };
        let is_read = field.section().is_none_or(|of_mode| Some(of_mode) == section);
        let found = lookup(&value, field.path);
        let text = show(found);
        if is_read && !is_zero(found) && !unheeded.upstream.contains(&text.as_str()) {
            let place = origin.at(field.path);
            remarks.push(Remark::Warning(format!("{place}: {text} has no effect: {}", unheeded.why)));
        }
    }
    let gates = configuration.feature_gates.iter().map(|(gate, is_on)| {
        let place = origin.at(&format!("featureGates.{gate}"));
        Remark::Warning(format!("{place}: {is_on} has no effect: there are no feature gates"))
    });
    remarks.extend(gates);
    remarks
}

fn lookup<'a>(value: &'a Value, path: &str) -> &'a Value {
    path.split('.').try_fold(value, |value, name| value.get(name)).unwrap_or(&Value::Null)
}

/// Returns the value as text of a file.
fn show(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn is_zero(value: &Value) -> bool {
    value.is_null()
        || value.as_f64() == Some(0.0)
        || [json!(false), json!(""), json!("0s"), json!([])].contains(value)
}
