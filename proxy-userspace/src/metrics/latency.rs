//! The time from a pod's change to its effect on this node: kube-proxy's
//! `network_programming_duration_seconds`.

use std::collections::{BTreeMap, HashMap};

use jiff::Timestamp;
use k8s_openapi::api::discovery::v1::EndpointSlice;

use crate::model::{Family, Kind, ObjectKey, PortKey, SERVICE_NAME_LABEL, ServiceKey};

/// Set by the EndpointSlice controller.
const ANNOTATION: &str = "endpoints.kubernetes.io/last-change-trigger-time";
/// Triggers kept of a Service that can't be applied; the oldest ones.
const MOST_WAITING: usize = 16;

/// The triggers of the changes that are not applied yet.
#[derive(Debug)]
pub(super) struct Triggers {
    /// The start of the agent; earlier triggers do not count.
    since: Timestamp,
    waiting: BTreeMap<(ServiceKey, Family), Vec<Timestamp>>,
    /// The last trigger of each slice that has changed since the start. The same trigger again is no change.
    seen: HashMap<ObjectKey, Timestamp>,
}

impl Triggers {
    pub fn since(since: Timestamp) -> Self {
        Self { since, waiting: BTreeMap::new(), seen: HashMap::new() }
    }

    /// Records a new or changed slice.
    pub fn slice(&mut self, slice: &EndpointSlice) {
        let text = slice.metadata.annotations.as_ref().and_then(|annotations| annotations.get(ANNOTATION));
        let trigger = text.and_then(|text| text.parse::<Timestamp>().ok());
        let Some(trigger) = trigger.filter(|trigger| *trigger >= self.since) else { return };
        let key = ObjectKey::new(Kind::EndpointSlice, &slice.metadata);
        if self.seen.insert(key.clone(), trigger) == Some(trigger) {
            return;
        }
        let labels = slice.metadata.labels.as_ref();
        let Some(name) = labels.and_then(|labels| labels.get(SERVICE_NAME_LABEL)) else { return };
        let service = ServiceKey { namespace: key.namespace, name: name.clone() };
        let family = if slice.address_type == "IPv6" { Family::V6 } else { Family::V4 };
        let waiting = self.waiting.entry((service, family)).or_default();
        if waiting.len() < MOST_WAITING {
            waiting.push(trigger);
        }
    }

    /// Records that a slice is gone.
    pub fn gone(&mut self, key: &ObjectKey) {
        self.seen.remove(key);
    }

    /// Takes the seconds since the triggers, by family, of all Services but those that are still to be
    /// applied.
    pub fn take(&mut self, now: Timestamp, pending: &[(PortKey, String)]) -> Vec<(Family, f64)> {
        let is_applied = |service: &ServiceKey| !pending.iter().any(|(port, _)| port.service == *service);
        let applied = self.waiting.extract_if(.., |(service, _), _| is_applied(service));
        let since = |trigger| seconds(now) - seconds(trigger);
        applied
            .flat_map(|((_, family), triggers)| {
                triggers.into_iter().map(move |trigger| (family, since(trigger)))
            })
            .collect()
    }
}

/// Returns seconds since 1970, exact to microseconds.
pub(super) fn seconds(time: Timestamp) -> f64 {
    time.as_duration().as_secs_f64()
}
