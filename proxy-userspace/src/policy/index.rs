//! The objects in parsed form, by the keys of their look-ups.

use std::borrow::{Borrow, Cow};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use super::changes::Changes;
use super::labels::{Labels, Selector};
use super::object::{Change, Kind, NamespacedName, Object, ObjectKey};
use super::pod::{Network, PodSpec, Traits, read_pod};
use super::ports::NamedPort;
use super::problem::{Notes, Problem};
use super::spec::{Namespaces, PolicySpec, read_policy};

/// The names of some pods.
pub(super) type PodNames = BTreeSet<Arc<NamespacedName>>;

/// All Namespaces, pods and NetworkPolicies of the cluster.
///
/// The order in which objects come makes no difference.
#[derive(Debug, Default)]
pub struct Index {
    namespaces: BTreeMap<String, Labels>,
    pods: BTreeMap<Arc<NamespacedName>, PodSpec>,
    policies: BTreeMap<NamespacedName, PolicySpec>,
    /// The pods of each node.
    by_node: BTreeMap<String, PodNames>,
    /// Pods that are alike, without those of the host's network.
    alike: BTreeMap<Arc<Traits>, PodNames>,
    /// The pods with each address, without those of the host's network.
    holders: BTreeMap<IpAddr, PodNames>,
    /// The named ports, each with the number of kinds of pods that have it.
    named: BTreeMap<NamedPort, usize>,
    problems: BTreeMap<ObjectKey, Vec<Problem>>,
    changes: Changes,
}

impl Index {
    /// Returns what has changed since the last call.
    pub fn take_changes(&mut self) -> Changes {
        std::mem::take(&mut self.changes)
    }

    /// Stores a change.
    pub fn apply(&mut self, change: Change) {
        match change {
            Change::Upsert { object, file } => {
                let key = object.key();
                self.note(key.kind);
                let mut notes = Notes::on(key.clone(), file);
                self.store(&key.name, &object, &mut notes);
                if notes.problems.is_empty() {
                    self.problems.remove(&key);
                } else {
                    self.problems.insert(key, notes.problems);
                }
            }
            Change::Delete(key) => {
                self.note(key.kind);
                match key.kind {
                    Kind::Namespace => {
                        self.namespaces.remove(&key.name.name);
                    }
                    Kind::Pod => self.set_pod(&key.name, None),
                    Kind::NetworkPolicy => {
                        self.policies.remove(&key.name);
                    }
                }
                self.problems.remove(&key);
            }
        }
    }

    /// Notes the change of an object. Pods are noted one by one.
    fn note(&mut self, kind: Kind) {
        if kind != Kind::Pod {
            self.changes.set_whole();
        }
    }

    /// Returns the problems in the fields of all objects, by object.
    pub fn problems(&self) -> impl Iterator<Item = &Problem> {
        self.problems.values().flatten()
    }

    /// Returns whether there is any policy.
    #[must_use]
    pub fn has_policies(&self) -> bool {
        !self.policies.is_empty()
    }

    fn store(&mut self, name: &NamespacedName, object: &Object, notes: &mut Notes) {
        match object {
            Object::Namespace(namespace) => {
                let labels = Labels::of_namespace(&name.name, namespace.metadata.labels.as_ref());
                self.namespaces.insert(name.name.clone(), labels);
            }
            Object::Pod(pod) => self.set_pod(name, read_pod(pod, &name.namespace, notes)),
            Object::NetworkPolicy(policy) => {
                self.policies.insert(name.clone(), read_policy(policy, &name.namespace, notes));
            }
        }
    }

    fn set_pod(&mut self, name: &NamespacedName, pod: Option<PodSpec>) {
        let name = Arc::new(name.clone());
        let old = self.pods.remove(&name);
        if let Some(old) = &old {
            remove(&mut self.by_node, old.node.as_str(), &name);
            for address in &old.addresses {
                remove(&mut self.holders, address, &name);
            }
            self.changes.add_pod(&name, old);
        }
        let mut kind = None;
        if let Some(mut pod) = pod {
            self.changes.add_pod(&name, &pod);
            self.by_node.entry(pod.node.clone()).or_default().insert(name.clone());
            if pod.network == Network::Pod {
                // Replicas share one copy of their traits.
                if let Some((shared, _)) = self.alike.get_key_value(&*pod.traits) {
                    pod.traits = shared.clone();
                }
                for address in &pod.addresses {
                    self.holders.entry(*address).or_default().insert(name.clone());
                }
                self.join(&pod.traits, &name);
                kind = Some(pod.traits.clone());
            }
            self.pods.insert(name.clone(), pod);
        }
        // Behind the new ones: a pod that stays the last one of its kind does not take its named ports away for a moment.
        if let Some(old) = old.filter(|old| old.network == Network::Pod && Some(&old.traits) != kind.as_ref())
        {
            self.leave(&old.traits, &name);
        }
    }

    /// Adds a pod to those that are alike.
    fn join(&mut self, traits: &Arc<Traits>, name: &Arc<NamespacedName>) {
        if !self.alike.contains_key(traits) {
            for port in &traits.ports {
                let kinds = self.named.entry(port.clone()).or_default();
                *kinds += 1;
                // Rules may name it.
                if *kinds == 1 {
                    self.changes.set_whole();
                }
            }
        }
        self.alike.entry(traits.clone()).or_default().insert(name.clone());
    }

    fn leave(&mut self, traits: &Traits, name: &NamespacedName) {
        remove(&mut self.alike, traits, name);
        if self.alike.contains_key(traits) {
            return;
        }
        for port in &traits.ports {
            let kinds = self.named.get(port).map_or(0, |kinds| kinds - 1);
            if kinds == 0 {
                self.named.remove(port);
                self.changes.set_whole();
            } else {
                self.named.insert(port.clone(), kinds);
            }
        }
    }
}

/// The pods of addresses, for people.
impl Index {
    /// Returns the pod with a network of its own that has an address. `None` if several have it: a packet does not tell which.
    #[must_use]
    pub fn owner(&self, address: IpAddr) -> Option<&NamespacedName> {
        only(self.holders.get(&address)?)
    }

    /// Returns the pod of each address that only one has.
    pub fn owners(&self) -> impl Iterator<Item = (IpAddr, &NamespacedName)> {
        self.holders.iter().filter_map(|(address, names)| Some((*address, only(names)?)))
    }
}

/// The look-ups of the other files.
impl Index {
    pub(super) fn pod(&self, name: &NamespacedName) -> Option<(&NamespacedName, &PodSpec)> {
        self.pods.get_key_value(name).map(|(name, pod)| (&**name, pod))
    }

    pub(super) fn has_namespace(&self, name: &str) -> bool {
        self.namespaces.contains_key(name)
    }

    pub(super) fn all_pods(&self) -> impl Iterator<Item = (&NamespacedName, &PodSpec)> {
        self.pods.iter().map(|(name, pod)| (&**name, pod))
    }

    pub(super) fn pods_on(&self, node: &str) -> impl Iterator<Item = (&NamespacedName, &PodSpec)> {
        self.by_node.get(node).into_iter().flatten().filter_map(|name| self.pod(name))
    }

    /// Returns the pods of a network of their own with this address.
    pub(super) fn holders(&self, address: IpAddr) -> impl Iterator<Item = (&NamespacedName, &PodSpec)> {
        self.holders.get(&address).into_iter().flatten().filter_map(|name| self.pod(name))
    }

    /// Returns every address of a pod with a network of its own, and the pods that have it.
    pub(super) fn pod_addresses(&self) -> impl Iterator<Item = (IpAddr, &PodNames)> {
        self.holders.iter().map(|(address, names)| (*address, names))
    }

    /// Returns the named ports of all pods with a network of their own.
    pub(super) fn named_ports(&self) -> BTreeSet<NamedPort> {
        self.named.keys().cloned().collect()
    }

    /// Returns each kind of pods that are alike, by namespace.
    pub(super) fn traits(&self) -> impl Iterator<Item = &Arc<Traits>> {
        self.alike.keys()
    }

    pub(super) fn policies(&self) -> impl Iterator<Item = (&NamespacedName, &PolicySpec)> {
        self.policies.iter()
    }

    /// Returns the policies that select pods with these traits.
    pub(super) fn selecting(&self, traits: &Traits) -> impl Iterator<Item = (&NamespacedName, &PolicySpec)> {
        let first = NamespacedName::new(traits.namespace.as_str(), "");
        let of_namespace = self.policies.range(first..);
        of_namespace
            .take_while(|(name, _)| name.namespace == traits.namespace)
            .filter(|(_, policy)| policy.selector.matches(&traits.labels))
    }

    /// Returns whether a peer selects pods with these traits.
    pub(super) fn is_peer(&self, namespaces: &Namespaces, pods: &Selector, traits: &Traits) -> bool {
        let is_of_namespace = match namespaces {
            Namespaces::Own(name) => *name == traits.namespace,
            Namespaces::Matching(selector) => selector.matches(&self.namespace(&traits.namespace)),
        };
        is_of_namespace && pods.matches(&traits.labels)
    }

    /// Returns the labels of a namespace, as far as they are known.
    pub(super) fn namespace(&self, name: &str) -> Cow<'_, Labels> {
        let known = self.namespaces.get(name).map(Cow::Borrowed);
        known.unwrap_or_else(|| Cow::Owned(Labels::of_unknown_namespace(name)))
    }
}

/// Returns the name of the only pod.
fn only(names: &PodNames) -> Option<&NamespacedName> {
    names.first().filter(|_| names.len() == 1).map(|name| &**name)
}

/// Removes a name from the set of `key`, and the set if it was the last one.
fn remove<K, Q>(sets: &mut BTreeMap<K, PodNames>, key: &Q, name: &NamespacedName)
where
    K: Ord + Borrow<Q>,
    Q: Ord + ?Sized,
{
    if let Some(names) = sets.get_mut(key) {
        names.remove(name);
        if names.is_empty() {
            sets.remove(key);
        }
    }
}
