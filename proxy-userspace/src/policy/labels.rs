//! Labels and the selectors that match them.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};

use super::problem::Notes;

/// The label with the name of a namespace.
///
/// The API server sets it on every Namespace. Manifests that nobody applied yet lack it.
const NAMESPACE_NAME: &str = "kubernetes.io/metadata.name";

/// The labels of a pod or of a namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Labels {
    values: BTreeMap<String, String>,
    extent: Extent,
}

/// Whether an object may have further labels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Extent {
    #[default]
    Complete,
    /// The object is not known yet.
    Unknown,
}

impl Labels {
    /// Returns the labels of a pod.
    pub fn of_pod(labels: Option<&BTreeMap<String, String>>) -> Self {
        Self { values: labels.cloned().unwrap_or_default(), extent: Extent::Complete }
    }

    /// Returns the labels of a namespace, which include its name.
    pub fn of_namespace(name: &str, labels: Option<&BTreeMap<String, String>>) -> Self {
        let mut labels = Self::of_pod(labels);
        labels.values.insert(NAMESPACE_NAME.to_owned(), name.to_owned());
        labels
    }

    /// Returns the labels of a namespace of which only the name is known.
    pub fn of_unknown_namespace(name: &str) -> Self {
        Self { extent: Extent::Unknown, ..Self::of_namespace(name, None) }
    }

    fn value(&self, key: &str) -> Option<&String> {
        self.values.get(key)
    }

    /// Whether the object certainly lacks a label that is not in the list.
    fn lacks(&self, key: &str) -> bool {
        self.value(key).is_none() && self.extent == Extent::Complete
    }
}

/// Requirements that labels must all meet. Without one, every object is selected.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Selector(BTreeSet<Requirement>);

/// A requirement on the label with a key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Requirement {
    In(String, BTreeSet<String>),
    NotIn(String, BTreeSet<String>),
    Exists(String),
    DoesNotExist(String),
}

impl Selector {
    /// Returns whether the object with these labels is selected.
    pub fn matches(&self, labels: &Labels) -> bool {
        self.0.iter().all(|requirement| requirement.holds(labels))
    }
}

impl Requirement {
    fn holds(&self, labels: &Labels) -> bool {
        match self {
            Self::In(key, values) => labels.value(key).is_some_and(|value| values.contains(value)),
            // An object without the label is selected, too.
            Self::NotIn(key, values) => {
                labels.value(key).map_or_else(|| labels.lacks(key), |value| !values.contains(value))
            }
            Self::Exists(key) => labels.value(key).is_some(),
            Self::DoesNotExist(key) => labels.lacks(key),
        }
    }
}

/// Parses a selector; a missing one selects everything.
///
/// The error is the selector of the valid requirements alone. It selects more than was meant.
pub(super) fn read_selector(
    selector: Option<&LabelSelector>,
    field: &str,
    notes: &mut Notes,
) -> Result<Selector, Selector> {
    let labels = selector.and_then(|selector| selector.match_labels.as_ref()).into_iter().flatten();
    let mut requirements: BTreeSet<Requirement> =
        labels.map(|(key, value)| Requirement::In(key.clone(), [value.clone()].into())).collect();
    let expressions = selector.and_then(|selector| selector.match_expressions.as_deref());
    let mut is_valid = true;
    for (index, expression) in expressions.unwrap_or_default().iter().enumerate() {
        match read_requirement(expression) {
            Ok(requirement) => {
                requirements.insert(requirement);
            }
            Err((part, wrong)) => {
                notes.warn(format!("{field}.matchExpressions[{index}].{part}"), wrong);
                is_valid = false;
            }
        }
    }
    let selector = Selector(requirements);
    if is_valid { Ok(selector) } else { Err(selector) }
}

/// Parses a requirement. The error names the field and what it takes.
fn read_requirement(expression: &LabelSelectorRequirement) -> Result<Requirement, (&'static str, String)> {
    let key = expression.key.clone();
    let values: BTreeSet<String> = expression.values.iter().flatten().cloned().collect();
    if key.is_empty() {
        return Err(("key", "not set; takes the key of a label".to_owned()));
    }
    let has_values = !values.is_empty();
    match expression.operator.as_str() {
        "In" if has_values => Ok(Requirement::In(key, values)),
        "NotIn" if has_values => Ok(Requirement::NotIn(key, values)),
        "Exists" if !has_values => Ok(Requirement::Exists(key)),
        "DoesNotExist" if !has_values => Ok(Requirement::DoesNotExist(key)),
        operator @ ("In" | "NotIn") => Err(("values", format!("none; {operator} takes at least one value"))),
        operator @ ("Exists" | "DoesNotExist") => {
            Err(("values", format!("{operator} takes no values; write In or NotIn for values")))
        }
        operator => Err((
            "operator",
            format!("{operator:?} is not an operator; takes In, NotIn, Exists or DoesNotExist"),
        )),
    }
}

#[cfg(test)]
#[path = "labels_tests.rs"]
mod tests;
