//! Turns the objects into the tables of one node.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;

use super::basis::{Basis, Site};
use super::classes::Classes;
use super::compiled::{Compiled, RuleKey, Rules, SelectedPod};
use super::index::Index;
use super::numbers::{Numbers, keep};
use super::object::NamespacedName;
use super::pod::{Network, PodSpec, Traits};
use super::ports::{NamedPort, Ports};
use super::rule_set::{Joined, Peers, RuleSet};
use super::sets::{Members, PeerSet};
use super::spec::Direction;

/// A pod on the node with a network of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalPod<'a> {
    /// Its name.
    pub name: &'a NamespacedName,
    /// `metadata.uid`, which tells pods of the same name apart.
    pub uid: &'a str,
    /// Its addresses; none before it has any.
    pub addresses: &'a BTreeSet<IpAddr>,
}

/// The numbers of profiles. 0 stands for no isolation, and the highest for a pod that is not known.
const PROFILES: Range<u32> = 1..u32::MAX;
const SETS: Range<u32> = 0..u32::MAX;

/// The rules of pods that are alike: ingress, egress.
type Both = [Option<Joined>; 2];

impl Index {
    /// Returns the tables of a node.
    ///
    /// Only sets of peers count that a rule of a pod on this node names.
    #[must_use]
    pub fn compile(&self, site: &Site) -> Compiled {
        self.compile_after(site, &Compiled::default())
    }

    /// Returns the tables of a node. Classes and profiles that the former tables have keep their numbers.
    ///
    /// A number that the former tables do not use may be one of still older tables, with another meaning.
    #[must_use]
    pub fn compile_after(&self, site: &Site, former: &Compiled) -> Compiled {
        let former = &former.numbers;
        let alike = self.rule_sets(site);
        let joined = alike.values().flatten().flatten();
        let profiles =
            joined.flat_map(|one| [&one.all].into_iter().chain(one.apart.values())).cloned().collect();
        let profiles = keep(profiles, &former.profiles, PROFILES);
        let sets = keep(profiles.keys().flat_map(sets_of).collect(), &former.sets, SETS);
        let selected = |pod: &PodSpec| {
            let profile =
                |joined: &Option<Joined>| joined.as_ref().and_then(|joined| joined.profiles(&profiles));
            let [ingress, egress] = alike.get(&*pod.traits)?.each_ref().map(profile);
            SelectedPod::of(pod, ingress, egress)
        };
        let pods =
            self.isolable(site).filter_map(|(name, pod)| Some((name.clone(), selected(pod)?))).collect();
        let numbers = Numbers { sets, classes: former.classes.clone(), profiles };
        self.tables(site, pods, numbers)
    }

    /// Returns tables that judge alike for pods with profiles of the former tables and for those with profiles of the
    /// next ones. They are the step between the two: peers and pods can't change in one instant.
    ///
    /// `None` if the next tables do that themselves. The objects must be those of `next`.
    #[must_use]
    pub fn compile_between(&self, site: &Site, former: &Compiled, next: &Compiled) -> Option<Compiled> {
        let (old, new) = (&former.numbers, &next.numbers);
        let is_kept = old.sets.keys().all(|set| new.sets.contains_key(set))
            && old.profiles.keys().all(|profile| new.profiles.contains_key(profile));
        if is_kept {
            return None;
        }
        let numbers = Numbers {
            sets: both(&old.sets, &new.sets),
            classes: both(&old.classes, &new.classes),
            profiles: both(&old.profiles, &new.profiles),
        };
        Some(self.tables(site, next.pods.clone(), numbers))
    }

    /// Returns the tables of these pods. Of the classes in `numbers`, the needed ones stay.
    fn tables(&self, site: &Site, pods: BTreeMap<NamespacedName, SelectedPod>, numbers: Numbers) -> Compiled {
        let Numbers { sets, classes, profiles } = numbers;
        let members = Members::of(self, &sets);
        let Classes { peers, numbers: classes, of_set, blocks } =
            Classes::of(self, &members, &site.addresses, &classes);
        let mut rules = Rules::default();
        for (set, profile) in &profiles {
            let classes_of = |peers: &Peers| match peers {
                // The class stands before protocol and port, so a prefix can't leave it open.
                Peers::Everyone => classes.values().copied().collect(),
                Peers::Set(set) => {
                    let number = sets.get(set);
                    number.and_then(|number| of_set.get(number)).cloned().unwrap_or_default()
                }
            };
            write_rules(set, *profile, classes_of, &mut rules);
        }
        let basis = Basis { site: site.clone(), members, blocks };
        Compiled { pods, peers, rules, numbers: Numbers { sets, classes, profiles }, basis }
    }

    /// Returns the pods on the node that have a network of their own.
    pub fn local_pods(&self, node: &str) -> impl Iterator<Item = LocalPod<'_>> {
        let own_network = self.pods_on(node).filter(|(_, pod)| pod.network == Network::Pod);
        own_network.map(|(name, pod)| LocalPod { name, uid: &pod.uid, addresses: &pod.addresses })
    }

    /// Returns the pods on the node that policies can select.
    fn isolable(&self, site: &Site) -> impl Iterator<Item = (&NamespacedName, &PodSpec)> {
        self.pods_on(&site.node).filter(|(_, pod)| pod.network == Network::Pod)
    }

    /// Returns the rules of the pods on the node, once for pods that are alike.
    fn rule_sets(&self, site: &Site) -> BTreeMap<&Traits, Both> {
        let named = self.named_ports();
        let mut alike: BTreeMap<&Traits, Both> = BTreeMap::new();
        for (_, pod) in self.isolable(site) {
            alike.entry(&pod.traits).or_insert_with(|| self.rules_of(&pod.traits, &named));
        }
        alike
    }

    /// Returns the rules of pods with these traits.
    pub(super) fn rules_of(&self, traits: &Traits, named: &BTreeSet<NamedPort>) -> Both {
        [Direction::Ingress, Direction::Egress].map(|direction| Joined::of(self, traits, direction, named))
    }
}

/// Returns the numbers of two results. No number stands for different keys: the second result came after the first.
fn both<K: Ord + Clone>(first: &BTreeMap<K, u32>, second: &BTreeMap<K, u32>) -> BTreeMap<K, u32> {
    first.iter().chain(second).map(|(key, number)| (key.clone(), *number)).collect()
}

fn sets_of(rules: &RuleSet) -> impl Iterator<Item = Arc<PeerSet>> {
    rules.iter().filter_map(|(peers, _)| match peers {
        Peers::Everyone => None,
        Peers::Set(set) => Some(set.clone()),
    })
}

/// Writes what a profile allows to each class.
pub(super) fn write_rules(
    set: &RuleSet,
    profile: u32,
    classes_of: impl Fn(&Peers) -> BTreeSet<u32>,
    rules: &mut Rules,
) {
    let mut allowed: BTreeMap<u32, Ports> = BTreeMap::new();
    for (peers, ports) in set.iter() {
        for class in classes_of(peers) {
            allowed.entry(class).or_insert_with(Ports::none).add(ports);
        }
    }
    for (class, ports) in allowed {
        for prefix in ports.prefixes() {
            rules.insert(RuleKey::of(profile, class, prefix));
        }
    }
}
