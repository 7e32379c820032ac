use std::collections::BTreeMap;

use serde_json::{Value, from_value, json};

use super::super::object::{Kind, NamespacedName, ObjectKey};
use super::*;

fn read(selector: Value) -> (Result<Selector, Selector>, Vec<String>) {
    let name = NamespacedName::new("shop", "p");
    let mut notes = Notes::on(ObjectKey { kind: Kind::NetworkPolicy, name }, None);
    let read = read_selector(Some(&from_value(selector).unwrap()), "s", &mut notes);
    (read, notes.problems.into_iter().map(|one| format!("{}: {}", one.field, one.message)).collect())
}

fn labels(pairs: &[(&str, &str)]) -> Labels {
    let pairs: BTreeMap<String, String> =
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    Labels::of_pod(Some(&pairs))
}

#[test]
fn selectors_that_mean_the_same_are_equal() {
    let (one, _) = read(json!({"matchLabels": {"a": "1", "b": "2"}}));
    let (other, _) = read(json!({"matchLabels": {"b": "2"}, "matchExpressions": [
        {"key": "a", "operator": "In", "values": ["1", "1"]},
    ]}));
    assert_eq!(one, other);
    assert_eq!(read(json!({})).0, Ok(Selector::default()));
}

#[test]
fn of_an_invalid_selector_the_valid_requirements_are_left() {
    let (selector, problems) = read(json!({"matchLabels": {"a": "1"}, "matchExpressions": [
        {"key": "a", "operator": "Has"},
        {"key": "a", "operator": "In"},
        {"key": "a", "operator": "NotIn", "values": []},
        {"key": "a", "operator": "Exists", "values": ["1"]},
        {"key": "a", "operator": "DoesNotExist", "values": ["1"]},
        {"key": "", "operator": "Exists"},
    ]}));
    assert_eq!(
        problems,
        [
            "s.matchExpressions[0].operator: \"Has\" is not an operator; takes In, NotIn, Exists or DoesNotExist",
            "s.matchExpressions[1].values: none; In takes at least one value",
            "s.matchExpressions[2].values: none; NotIn takes at least one value",
            "s.matchExpressions[3].values: Exists takes no values; write In or NotIn for values",
            "s.matchExpressions[4].values: DoesNotExist takes no values; write In or NotIn for values",
            "s.matchExpressions[5].key: not set; takes the key of a label",
        ]
    );
    let rest = selector.unwrap_err();
    assert!(rest.matches(&labels(&[("a", "1")])) && !rest.matches(&labels(&[("a", "2")])));
}
