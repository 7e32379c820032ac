//! Which pod is behind which device.
//!
//! A pod's address in the API and the addresses at the other end of a device say so together. A pod with the right to
//! change its network may give itself any address, so an address that one device has already does not make another
//! device its pod's.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::Devices;
use crate::node::FarEnd;
use crate::policy::{LocalPod, NamespacedName};

/// Who is behind the devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holders {
    /// The pod behind each device.
    pub pods: BTreeMap<u32, NamespacedName>,
    /// Devices that are no pod's, or lead to a second network of one, to which policies do not apply.
    pub aside: BTreeSet<u32>,
    /// Devices whose other end has an address of a pod that another device has, too.
    pub contested: BTreeSet<u32>,
}

impl Holders {
    /// Finds the pod behind each device.
    ///
    /// `former` has the addresses of the pods that the devices belonged to before. A device keeps its pod as long as the
    /// pod has one of its addresses.
    #[must_use]
    pub fn find(
        devices: &BTreeMap<u32, FarEnd>,
        pods: &[LocalPod<'_>],
        former: &BTreeMap<u32, BTreeSet<IpAddr>>,
    ) -> Self {
        let mut found = Self::default();
        let mut open = Vec::new();
        let shared = shared(pods);
        // Of several pods with one address, nobody can say which one is behind the device.
        for pod in pods.iter().filter(|pod| pod.addresses.is_disjoint(&shared)) {
            let claims = |device: &&u32| {
                devices.get(device).is_some_and(|end| !end.addresses.is_disjoint(pod.addresses))
            };
            let namespace = |device: &u32| devices.get(device).map(|end| end.namespace);
            let formers: Vec<&u32> = former
                .iter()
                .filter(|(device, addresses)| {
                    devices.contains_key(device) && !addresses.is_disjoint(pod.addresses)
                })
                .map(|(device, _)| device)
                .collect();
            // The address may have gone to another device: the pod was made anew. But a pod can also move it between
            // two devices of its own.
            let kept = formers.iter().find(|device| claims(device)).or_else(|| {
                let is_own = |device: &&u32| formers.iter().any(|own| namespace(own) == namespace(device));
                formers.first().filter(|_| devices.keys().filter(claims).all(|device| is_own(&device)))
            });
            match kept {
                Some(device) => drop(found.pods.insert(**device, pod.name.clone())),
                None => open.push(pod),
            }
        }
        for pod in open {
            let is_free = |device: &u32| !found.pods.contains_key(device);
            let claimants = devices
                .iter()
                .filter(|(device, end)| is_free(device) && !end.addresses.is_disjoint(pod.addresses));
            let claimants: Vec<u32> = claimants.map(|(device, _)| *device).collect();
            match claimants.as_slice() {
                [] => {}
                [device] => drop(found.pods.insert(*device, pod.name.clone())),
                // The pod is new, and so is its device. An older one has an address that it was not given.
                [.., newest] if !former.is_empty() => drop(found.pods.insert(*newest, pod.name.clone())),
                several => found.contested.extend(several),
            }
        }
        let namespaces: BTreeSet<i32> =
            found.pods.keys().filter_map(|device| Some(devices.get(device)?.namespace)).collect();
        let is_second = |(device, end): &(&u32, &FarEnd)| {
            !found.pods.contains_key(device)
                && !former.contains_key(device)
                && namespaces.contains(&end.namespace)
        };
        found.aside = devices.iter().filter(is_second).map(|(device, _)| *device).collect();
        found
    }
}

impl Holders {
    /// Returns what is to be done with these devices of pods, and with others.
    #[must_use]
    pub fn devices(&self, ends: &BTreeMap<u32, FarEnd>, others: &BTreeSet<u32>) -> Devices {
        let guarded = ends.keys().filter(|device| !self.aside.contains(device)).copied().collect();
        Devices { guarded, aside: self.aside.clone(), others: others.clone() }
    }
}

/// Returns the addresses that several pods have.
fn shared(pods: &[LocalPod<'_>]) -> BTreeSet<IpAddr> {
    let (mut seen, mut shared) = (BTreeSet::new(), BTreeSet::new());
    for address in pods.iter().flat_map(|pod| pod.addresses) {
        if !seen.insert(*address) {
            shared.insert(*address);
        }
    }
    shared
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(texts: &[&str]) -> BTreeSet<IpAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn end(namespace: i32, texts: &[&str]) -> FarEnd {
        FarEnd { namespace, addresses: addresses(texts) }
    }

    fn name(text: &str) -> NamespacedName {
        NamespacedName::new("shop", text)
    }

    /// Returns the pods that are found, by device.
    fn find(
        devices: &[(u32, FarEnd)],
        pods: &[(&str, &[&str])],
        former: &[(u32, &[&str])],
    ) -> (Vec<(u32, String)>, Holders) {
        let pods: Vec<_> = pods.iter().map(|(pod, texts)| (name(pod), addresses(texts))).collect();
        let local: Vec<LocalPod<'_>> =
            pods.iter().map(|(name, addresses)| LocalPod { name, uid: "", addresses }).collect();
        let former = former.iter().map(|(device, texts)| (*device, addresses(texts))).collect();
        let found = Holders::find(&devices.iter().cloned().collect(), &local, &former);
        (found.pods.iter().map(|(device, pod)| (*device, pod.name.clone())).collect(), found)
    }

    #[test]
    fn a_pod_is_behind_the_device_whose_other_end_has_its_address() {
        let devices = [(7, end(1, &["10.1.0.2", "fd00::2"])), (8, end(2, &["10.1.0.3"])), (9, end(3, &[]))];
        let (pods, found) =
            find(&devices, &[("web", &["10.1.0.2", "fd00::2"]), ("db", &["10.1.0.3"]), ("new", &[])], &[]);
        assert_eq!(pods, [(7, "web".to_owned()), (8, "db".to_owned())]);
        assert!(found.aside.is_empty() && found.contested.is_empty());
    }

    #[test]
    fn a_pod_that_gives_itself_the_address_of_another_one_gets_nothing_by_it() {
        // The other one was there first.
        let devices = [(7, end(1, &["10.1.0.2"])), (8, end(2, &["10.1.0.3", "10.1.0.2"]))];
        let pods: [(&str, &[&str]); 2] = [("web", &["10.1.0.2"]), ("evil", &["10.1.0.3"])];
        let known: [(u32, &[&str]); 1] = [(7, &["10.1.0.2"])];
        assert_eq!(find(&devices, &pods, &known).0, [(7, "web".to_owned()), (8, "evil".to_owned())]);
        // The other one is not known yet, and the evil one is.
        let known: [(u32, &[&str]); 1] = [(8, &["10.1.0.3"])];
        assert_eq!(find(&devices, &pods, &known).0, [(7, "web".to_owned()), (8, "evil".to_owned())]);
        // Nothing is known of either.
        let devices = [(7, end(1, &["10.1.0.2"])), (8, end(2, &["10.1.0.2"]))];
        let (pods, found) = find(&devices, &[("web", &["10.1.0.2"])], &[]);
        assert!(pods.is_empty());
        assert_eq!(found.contested, [7, 8].into());
    }

    #[test]
    fn a_pod_that_removes_its_address_stays_behind_its_device() {
        let devices = [(7, end(1, &[]))];
        assert_eq!(
            find(&devices, &[("web", &["10.1.0.2"])], &[(7, &["10.1.0.2"])]).0,
            [(7, "web".to_owned())]
        );
    }

    #[test]
    fn an_address_that_goes_to_another_device_takes_its_pod_along() {
        let devices = [(7, end(1, &[])), (8, end(2, &["10.1.0.2"]))];
        let (pods, found) = find(&devices, &[("web", &["10.1.0.2"])], &[(7, &["10.1.0.2"])]);
        assert_eq!(pods, [(8, "web".to_owned())]);
        assert!(found.aside.is_empty());
    }

    #[test]
    fn a_second_device_of_a_pod_is_not_the_firewalls() {
        let devices = [(7, end(1, &["10.1.0.2"])), (8, end(1, &["192.168.9.2"])), (9, end(2, &["10.1.0.9"]))];
        let (pods, found) = find(&devices, &[("web", &["10.1.0.2"])], &[]);
        assert_eq!(pods, [(7, "web".to_owned())]);
        assert_eq!(found.aside, [8].into());
    }

    #[test]
    fn a_pod_that_moves_its_address_to_a_second_device_stays_behind_the_first_one() {
        let devices = [(7, end(1, &[])), (8, end(1, &["10.1.0.2"]))];
        let (pods, found) = find(&devices, &[("web", &["10.1.0.2"])], &[(7, &["10.1.0.2"])]);
        assert_eq!(pods, [(7, "web".to_owned())]);
        // Not even a device that was the pod's once is let go.
        let former: [(u32, &[&str]); 2] = [(7, &["10.1.0.2"]), (8, &["10.1.0.9"])];
        assert!(find(&devices, &[("web", &["10.1.0.2"])], &former).1.aside.is_empty());
        assert_eq!(found.aside, [8].into());
    }

    #[test]
    fn of_two_pods_with_one_address_neither_is_behind_a_device() {
        let devices = [(7, end(1, &["10.1.0.2"]))];
        let pods: [(&str, &[&str]); 2] = [("a", &["10.1.0.2"]), ("b", &["10.1.0.2"])];
        assert!(find(&devices, &pods, &[]).0.is_empty());
        assert!(find(&devices, &pods, &[(7, &["10.1.0.2"])]).0.is_empty());
        assert_eq!(find(&devices, &pods[1..], &[]).0, [(7, "b".to_owned())]);
    }

    #[test]
    fn of_two_devices_that_claim_a_new_pods_address_the_newer_one_is_its_own() {
        let devices = [(7, end(1, &["10.1.0.1"])), (8, end(2, &["10.1.0.2"])), (9, end(3, &["10.1.0.2"]))];
        let pods: [(&str, &[&str]); 2] = [("old", &["10.1.0.1"]), ("new", &["10.1.0.2"])];
        assert_eq!(
            find(&devices, &pods, &[(7, &["10.1.0.1"])]).0,
            [(7, "old".to_owned()), (9, "new".to_owned())]
        );
    }
}
