//! A model of the cluster's objects, made without the agent's source. Results are compared with it.

use anyhow::Result;
use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use millrace::model::{Change, Kind, Model, ModelSettings, Object};
use millrace::node::Topology;

use super::objects::{self, Scale};

/// Returns the change that adds an object, from its text.
pub fn decode(kind: Kind, text: &str) -> Result<Change> {
    let object = match kind {
        Kind::Node => Object::Node(Box::new(serde_json::from_str::<Node>(text)?)),
        Kind::Service => Object::Service(Box::new(serde_json::from_str::<Service>(text)?)),
        Kind::EndpointSlice => Object::EndpointSlice(Box::new(serde_json::from_str::<EndpointSlice>(text)?)),
    };
    Ok(Change::Upsert { object, file: None })
}

/// Returns the settings of this node's model.
pub fn settings() -> ModelSettings {
    ModelSettings { node_name: objects::NODE.to_owned(), ..ModelSettings::default() }
}

/// Returns this node's network, without devices.
pub fn topology(scale: Scale) -> Topology {
    // The uplink is only a name, so no program is attached. A node without an uplink would never be
    // in order.
    let uplinks = std::iter::once("eth0".to_owned()).collect();
    let addresses = objects::own_addresses(scale.dual_stack).collect();
    Topology { addresses, uplinks, ..Topology::default() }
}

/// Returns a model of all objects. `slices` are the texts of all EndpointSlices.
pub fn model(scale: Scale, slices: impl Iterator<Item = String>) -> Result<Model> {
    let mut model = Model::new(settings());
    for kind in [Kind::Node, Kind::Service] {
        for text in scale.objects(kind) {
            model.apply(decode(kind, &text)?);
        }
    }
    for text in slices {
        model.apply(decode(Kind::EndpointSlice, &text)?);
    }
    model.set_node_addresses(topology(scale).addresses);
    model.refresh();
    Ok(model)
}
