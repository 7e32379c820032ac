//! From text to changes, as the source does it.

use anyhow::Result;
use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::core::ObjectList;
use millrace::model::{Change, Model, ModelSettings, Object};
use millrace::node::Topology;
use serde::de::DeserializeOwned;

use super::objects::{self, Kind, Scale};

/// All kinds, in the order they are listed here.
pub const KINDS: [Kind; 3] = [Kind::Node, Kind::Service, Kind::EndpointSlice];

/// The changes that a page of a list comes to.
pub fn decode(kind: Kind, page: &str) -> Result<Vec<Change>> {
    match kind {
        Kind::Node => items(page, |node: Node| Object::Node(Box::new(node))),
        Kind::Service => items(page, |service: Service| Object::Service(Box::new(service))),
        Kind::EndpointSlice => items(page, |slice: EndpointSlice| Object::EndpointSlice(Box::new(slice))),
    }
}

/// The change that one EndpointSlice's text comes to.
pub fn decode_slice(text: &str) -> Result<Change> {
    let slice: EndpointSlice = serde_json::from_str(text)?;
    Ok(Change::Upsert { object: Object::EndpointSlice(Box::new(slice)), file: None })
}

/// This node.
pub fn settings() -> ModelSettings {
    ModelSettings { node_name: objects::NODE.to_owned(), ..ModelSettings::default() }
}

/// This node's network, without devices.
pub fn topology(scale: Scale) -> Topology {
    Topology { addresses: objects::own_addresses(scale.dual_stack).collect(), ..Topology::default() }
}

/// A model that was told everything.
pub fn model(scale: Scale) -> Result<Model> {
    let mut model = Model::new(settings());
    for kind in KINDS {
        for page in scale.pages(kind) {
            for change in decode(kind, &page)? {
                model.apply(change);
            }
        }
    }
    model.set_node_addresses(topology(scale).addresses);
    model.refresh();
    Ok(model)
}

fn items<K: DeserializeOwned + Clone>(page: &str, object: impl Fn(K) -> Object) -> Result<Vec<Change>> {
    let list: ObjectList<K> = serde_json::from_str(page)?;
    Ok(list.items.into_iter().map(|item| Change::Upsert { object: object(item), file: None }).collect())
}
