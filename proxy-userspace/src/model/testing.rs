//! Helpers for the tests of this module.

use serde_json::{Value, from_value};

use super::{Change, Family, Model, ModelSettings, Object, PortKey, ServiceKey, ServicePort};

/// Returns a model of node-1 that accepts external IPs inside 198.51.100.0/24, 192.0.2.0/24 and
/// 2001:db8::/32.
pub(super) fn model() -> Model {
    Model::new(settings())
}

pub(super) fn settings() -> ModelSettings {
    let ranges = ["198.51.100.0/24", "192.0.2.0/24", "2001:db8::/32"];
    ModelSettings {
        node_name: "node-1".to_owned(),
        external_ip_ranges: ranges.iter().map(|range| range.parse().unwrap()).collect(),
        ..ModelSettings::default()
    }
}

/// Parses an object from a manifest.
pub(super) fn object(manifest: Value) -> Object {
    match manifest["kind"].as_str().unwrap() {
        "Service" => Object::Service(from_value(manifest).unwrap()),
        "EndpointSlice" => Object::EndpointSlice(from_value(manifest).unwrap()),
        "Node" => Object::Node(from_value(manifest).unwrap()),
        other => panic!("{other}"),
    }
}

impl Model {
    /// Applies an object twice: the repetition must make no difference.
    pub(super) fn tell(&mut self, manifest: Value) {
        let object = object(manifest);
        for object in [object.clone(), object] {
            self.apply(Change::Upsert { object, file: None });
        }
    }
    pub(super) fn forget(&mut self, manifest: Value) {
        self.apply(Change::Delete(object(manifest).key()));
    }
    pub(super) fn set_devices(&mut self, addresses: &[&str]) {
        self.set_node_addresses(addresses.iter().map(|address| address.parse().unwrap()).collect());
    }
    /// Returns the key of the unnamed port of a Service in the namespace `default`.
    pub(super) fn port(&self, name: &str, family: Family) -> Option<&ServicePort> {
        let service = ServiceKey { namespace: "default".to_owned(), name: name.to_owned() };
        self.desired().ports.get(&PortKey { service, port: String::new(), family })
    }
    /// Returns the problems, each as the text behind its object.
    pub(super) fn complaints(&self) -> Vec<String> {
        self.problems().map(|problem| format!("{}: {}", problem.field, problem.message)).collect()
    }
}
