//! Finds endpoints that may be moving from one EndpointSlice to another.
//!
//! The controller writes one slice at a time, so a moving endpoint is in no slice for a moment.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::index::Index;
use super::slice::SliceSpec;
use super::{ObjectKey, ServiceKey};

/// Endpoints that were ready and left all slices of their Service since the last refresh.
#[derive(Debug, Default)]
pub(super) struct Movement {
    missing: BTreeMap<ServiceKey, BTreeSet<IpAddr>>,
}

/// A slice before its change.
pub(super) struct Before {
    service: ServiceKey,
    slice: SliceSpec,
}

impl Before {
    /// Returns the slice, or `None` if no endpoint can move away: it is new, or the only one of its
    /// Service.
    pub fn of(index: &Index, key: &ObjectKey) -> Option<Self> {
        let (service, slice) = index.slice(key)?;
        let others = index.slices_of(service).iter().filter(|(name, _)| **name != key.name);
        let mut families = others.map(|(_, other)| other.spec.family);
        families
            .any(|family| family == slice.family)
            .then(|| Self { service: service.clone(), slice: slice.clone() })
    }
}

impl Movement {
    /// Compares a slice, changed or deleted by now, with its former version.
    pub fn compare(&mut self, index: &Index, key: &ObjectKey, before: Option<Before>) {
        if let Some(Before { service, slice }) = before {
            let serves = |address: IpAddr| {
                let slices = index.slices_of(&service).values();
                slices.flat_map(|slice| &slice.spec.endpoints).any(|endpoint| endpoint.address == address)
            };
            let ready = slice.endpoints.iter().filter(|endpoint| endpoint.ready && !endpoint.terminating);
            let gone: BTreeSet<IpAddr> =
                ready.map(|endpoint| endpoint.address).filter(|address| !serves(*address)).collect();
            if !gone.is_empty() {
                self.missing.entry(service).or_default().extend(gone);
            }
        }
        let Some((service, slice)) = index.slice(key) else { return };
        if let Some(missing) = self.missing.get_mut(service) {
            for endpoint in &slice.endpoints {
                missing.remove(&endpoint.address);
            }
            if missing.is_empty() {
                self.missing.remove(service);
            }
        }
    }
    pub fn is_possible(&self) -> bool {
        !self.missing.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::model::Model;
    use crate::model::testing::model;

    fn slice(name: &str, endpoints: &[(&str, Value)]) -> Value {
        let endpoints: Vec<Value> = endpoints
            .iter()
            .map(|(address, conditions)| json!({"addresses": [address], "conditions": conditions}))
            .collect();
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {"name": name, "labels": {"kubernetes.io/service-name": "web"}},
            "addressType": "IPv4", "ports": [{"port": 8080}], "endpoints": endpoints,
        })
    }

    fn ready(address: &str) -> (&str, Value) {
        (address, json!({}))
    }

    /// Returns a model with two slices of one endpoint each.
    fn two() -> Model {
        let mut model = model();
        model.tell(slice("a", &[ready("10.244.1.1")]));
        model.tell(slice("b", &[ready("10.244.1.2")]));
        assert!(!model.may_miss_endpoints(), "what comes is not missed");
        model.refresh();
        model
    }

    #[test]
    fn an_endpoint_that_has_left_one_slice_is_missed_until_it_is_in_another_one() {
        let mut model = two();
        model.tell(slice("a", &[]));
        assert!(model.may_miss_endpoints());
        model.tell(slice("b", &[ready("10.244.1.2"), ready("10.244.1.1")]));
        assert!(!model.may_miss_endpoints(), "moved");
        model.tell(slice("a", &[ready("10.244.1.1")]));
        model.tell(slice("a", &[]));
        assert!(!model.may_miss_endpoints(), "it was in both");
    }

    #[test]
    fn a_slice_that_is_deleted_is_missed_like_its_endpoints_until_a_refresh() {
        let mut model = two();
        model.forget(slice("a", &[]));
        assert!(model.may_miss_endpoints());
        model.refresh();
        assert!(!model.may_miss_endpoints());
    }

    #[test]
    fn what_was_not_ready_or_had_no_other_slice_to_go_to_is_not_missed() {
        let mut model = two();
        model.tell(slice("a", &[("10.244.1.1", json!({"ready": false}))]));
        model.tell(slice("a", &[]));
        assert!(!model.may_miss_endpoints(), "the end of a pod");
        model.tell(slice("b", &[("10.244.1.2", json!({"terminating": true}))]));
        model.tell(slice("b", &[]));
        assert!(!model.may_miss_endpoints(), "the end of a pod");

        let mut model = crate::model::testing::model();
        model.tell(slice("a", &[ready("10.244.1.1")]));
        model.tell(slice("a", &[]));
        assert!(!model.may_miss_endpoints(), "one slice");
    }
}
