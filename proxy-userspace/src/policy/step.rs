//! From the tables of a node to the next ones where only some pods have changed.
//!
//! In a large cluster pods come and go all the time, and a computation of everything takes long. Policies and Namespaces change seldom.

use std::cell::LazyCell;
use std::collections::BTreeSet;
use std::net::IpAddr;

use super::basis::Site;
use super::changes::Changes;
use super::classes::{new_class, sets_of};
use super::compile::write_rules;
use super::compiled::{Compiled, PeerEntry, RuleKey, Rules, SelectedPod};
use super::index::Index;
use super::object::NamespacedName;
use super::pod::{Network, PodSpec};
use super::ports::NamedPort;
use super::rule_set::{Joined, Peers};

/// What a step has changed in the tables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// The addresses whose entries may be others now.
    pub addresses: BTreeSet<IpAddr>,
    /// New rules. A step removes none.
    pub rules: Vec<RuleKey>,
}

/// A pod of the node, and what policies make of it now.
type Selected = (NamespacedName, Option<SelectedPod>);

impl Index {
    /// Brings the tables to the changed pods. `None` if that takes a computation of everything; the tables are good only as its former
    /// ones then.
    ///
    /// The tables judge as those of [`Index::compile_after`] do. What is not used any more, such as the class of a pod that is gone,
    /// stays until everything is computed.
    #[must_use]
    pub fn step(&self, site: &Site, tables: &mut Compiled, changes: &Changes) -> Option<Step> {
        let (pods, addresses) = changes.parts()?;
        if tables.basis.site != *site {
            return None;
        }
        let named = LazyCell::new(|| self.named_ports());
        let selected: Option<Vec<Selected>> =
            pods.iter().map(|name| self.selected(site, tables, name, || &named)).collect();
        let selected = selected?;
        let mut step = Step::default();
        // The node's own addresses are those of no pod.
        for address in addresses.difference(&site.addresses) {
            let has_pods = self.holders(*address).next().is_some();
            let class = if has_pods { Some(self.class_of(tables, *address, &mut step)?) } else { None };
            match tables.basis.blocks.entry(*address, class) {
                Some(class) => {
                    tables.peers.insert((*address).into(), PeerEntry { class, is_own_node: false });
                }
                None => tables.peers.remove((*address).into()),
            }
            step.addresses.insert(*address);
        }
        for (name, selected) in selected {
            match selected {
                Some(pod) => drop(tables.pods.insert(name, pod)),
                None => drop(tables.pods.remove(&name)),
            }
        }
        Some(step)
    }

    /// Returns what policies make of a pod. `None` if it takes a profile that the tables don't have.
    fn selected<'a>(
        &self,
        site: &Site,
        tables: &Compiled,
        name: &NamespacedName,
        named: impl FnOnce() -> &'a BTreeSet<NamedPort>,
    ) -> Option<Selected> {
        let is_here = |pod: &&PodSpec| pod.node == site.node && pod.network == Network::Pod;
        let Some(pod) = self.pod(name).map(|(_, pod)| pod).filter(is_here) else {
            return Some((name.clone(), None));
        };
        let profile = |rules: Option<Joined>| match rules {
            None => Some(None),
            Some(rules) => rules.profiles(&tables.numbers.profiles).map(Some),
        };
        let [ingress, egress] = self.rules_of(&pod.traits, named()).map(profile);
        Some((name.clone(), SelectedPod::of(pod, ingress?, egress?)))
    }

    /// Returns the class of the pods with an address. A new class comes with its rules; `None` if it has no number.
    fn class_of(&self, tables: &mut Compiled, address: IpAddr, step: &mut Step) -> Option<u32> {
        let Compiled { numbers, basis, rules, .. } = tables;
        for (_, pod) in self.holders(address) {
            basis.members.learn(self, &numbers.sets, &pod.traits);
        }
        let sets = sets_of(self, &basis.members, address);
        if let Some(class) = numbers.classes.get(&sets) {
            return Some(*class);
        }
        let class = new_class(&sets, &numbers.classes)?;
        let mut new = Rules::default();
        for (set, profile) in &numbers.profiles {
            let is_meant = |peers: &Peers| match peers {
                Peers::Everyone => true,
                Peers::Set(set) => numbers.sets.get(set).is_some_and(|number| sets.contains(number)),
            };
            let classes_of = |peers: &Peers| is_meant(peers).then_some(class).into_iter().collect();
            write_rules(set, *profile, classes_of, &mut new);
        }
        for rule in new.iter() {
            rules.insert(*rule);
        }
        step.rules.extend(new.iter());
        numbers.classes.insert(sets, class);
        Some(class)
    }
}
