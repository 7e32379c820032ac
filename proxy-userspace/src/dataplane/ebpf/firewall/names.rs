//! The names of pods behind devices, for people: POLICY_NAMES.
//!
//! No program reads it. Commands read it while no agent runs.

use std::collections::BTreeMap;
use std::path::Path;

use aya::maps::{HashMap, MapData};
use proxy_common::policy::{POLICY_NAME_BYTES, POLICY_PODS_ENTRIES, PolicyDirection, PolicyName};

use super::maps::{gone, typed};
use crate::dataplane::ebpf::error::OpenError;
use crate::dataplane::ebpf::map::explain;
use crate::policy::{Direction, PodView, SelectedPod, Selecting};

const NAMES: &str = "POLICY_NAMES";
/// Bytes that stay free for the last line, such as `+3`.
const LAST_LINE: usize = 12;
/// The letters of a policy's line.
const LETTERS: [(Direction, char); 2] = [(Direction::Ingress, 'i'), (Direction::Egress, 'e')];

/// A pod by its name, and the policies that isolate it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodNames {
    /// Namespace of the pod and of its policies.
    pub namespace: String,
    /// Name of the pod.
    pub name: String,
    /// The policies that isolate it, by name.
    pub policies: Vec<PolicyNames>,
    /// Further policies, which had no room.
    pub left_out: u32,
}

/// A policy that isolates a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyNames {
    /// Its name. It is in the pod's namespace.
    pub name: String,
    /// The directions in which it isolates the pod.
    pub directions: Vec<Direction>,
    /// The profile of its rules alone, by direction. One that adds nothing to a policy that allows everything has none.
    pub profiles: BTreeMap<Direction, u32>,
}

impl PolicyNames {
    fn of(policy: &Selecting<'_>, pod: Option<&SelectedPod>) -> Self {
        let profile = |direction: &Direction| {
            let apart = match direction {
                Direction::Ingress => &pod?.ingress_apart,
                Direction::Egress => &pod?.egress_apart,
            };
            Some((*direction, *apart.get(policy.policy)?))
        };
        Self {
            name: policy.policy.name.clone(),
            directions: policy.directions.clone(),
            profiles: policy.directions.iter().filter_map(profile).collect(),
        }
    }

    /// Whether it isolates the pod in a direction.
    #[must_use]
    pub fn isolates(&self, direction: PolicyDirection) -> bool {
        self.directions.contains(&of(direction))
    }

    /// Returns the profile of its rules alone.
    #[must_use]
    pub fn profile(&self, direction: PolicyDirection) -> Option<u32> {
        self.profiles.get(&of(direction)).copied()
    }

    /// Returns the line of the map, such as `i12e7 name`.
    fn line(&self) -> String {
        let is_meant = |(direction, _): &(Direction, char)| self.directions.contains(direction);
        let number = |direction: &Direction| self.profiles.get(direction).map(u32::to_string);
        let letters = LETTERS.into_iter().filter(is_meant).map(|(direction, letter)| {
            let number = number(&direction).unwrap_or_default();
            format!("{letter}{number}")
        });
        format!("{} {}", letters.collect::<String>(), self.name)
    }

    fn parse(line: &str) -> Option<Self> {
        let (word, name) = line.split_once(' ')?;
        let mut policy = Self { name: name.to_owned(), directions: Vec::new(), profiles: BTreeMap::new() };
        for (direction, letter) in LETTERS {
            let Some((_, rest)) = word.split_once(letter) else { continue };
            policy.directions.push(direction);
            let digits = rest.split(|c: char| !c.is_ascii_digit()).next().unwrap_or_default();
            policy.profiles.extend(digits.parse().ok().map(|profile| (direction, profile)));
        }
        Some(policy)
    }
}

impl PodNames {
    /// Returns the names of a pod. `selected` is the pod in the tables; `None` = no policy selects it.
    #[must_use]
    pub fn of(pod: &PodView<'_>, selected: Option<&SelectedPod>) -> Self {
        let policies = pod.policies.iter().map(|one| PolicyNames::of(one, selected));
        Self {
            namespace: pod.name.namespace.clone(),
            name: pod.name.name.clone(),
            policies: policies.collect(),
            left_out: 0,
        }
    }

    /// Returns the value of the map. Policies that have no room are counted.
    #[must_use]
    pub fn encode(&self) -> PolicyName {
        let mut text = format!("{}/{}", self.namespace, self.name);
        text.truncate(text.floor_char_boundary(POLICY_NAME_BYTES - LAST_LINE));
        let mut left_out = self.left_out;
        for policy in &self.policies {
            let line = format!("\n{}", policy.line());
            if left_out > self.left_out || text.len() + line.len() + LAST_LINE > POLICY_NAME_BYTES {
                left_out += 1;
            } else {
                text += &line;
            }
        }
        if left_out > 0 {
            text.extend(["\n+", &left_out.to_string()]);
        }
        PolicyName::new(&text).unwrap_or_default()
    }

    /// Returns the names in a value of the map.
    #[must_use]
    pub fn decode(value: &PolicyName) -> Option<Self> {
        let mut lines = value.text()?.lines();
        let (namespace, name) = lines.next()?.split_once('/')?;
        let mut names = Self { namespace: namespace.to_owned(), name: name.to_owned(), ..Self::default() };
        for line in lines {
            if let Some(count) = line.strip_prefix('+') {
                names.left_out = count.parse().ok()?;
                continue;
            }
            names.policies.push(PolicyNames::parse(line)?);
        }
        Some(names)
    }
}

const fn of(direction: PolicyDirection) -> Direction {
    match direction {
        PolicyDirection::Ingress => Direction::Ingress,
        PolicyDirection::Egress => Direction::Egress,
    }
}

/// The map, as the agent writes it.
pub struct Names {
    map: HashMap<MapData, u32, PolicyName>,
    /// What the map holds.
    held: BTreeMap<u32, PolicyName>,
}

impl std::fmt::Debug for Names {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Names").field("devices", &self.held.len()).finish_non_exhaustive()
    }
}

impl Names {
    /// Opens the pinned map.
    pub fn open(directory: &Path) -> Result<Self, OpenError> {
        let map: HashMap<MapData, u32, PolicyName> = typed(directory, NAMES)?;
        let failed = |error| OpenError::Map { map: NAMES.to_owned(), error };
        let held = map.iter().collect::<Result<_, _>>().map_err(failed)?;
        Ok(Self { map, held })
    }

    /// Writes the names that differ. Returns their number.
    pub fn write(&mut self, wanted: &BTreeMap<u32, PolicyName>) -> Result<usize, String> {
        let mut writes = 0;
        for (device, name) in wanted {
            if self.held.get(device) != Some(name) {
                let written = self.map.insert(device, name, 0);
                written.map_err(|error| explain(NAMES, POLICY_PODS_ENTRIES, &error))?;
                self.held.insert(*device, *name);
                writes += 1;
            }
        }
        Ok(writes)
    }

    /// Removes the names of all other devices. Returns their number.
    pub fn retain(&mut self, wanted: &BTreeMap<u32, PolicyName>) -> Result<usize, String> {
        let others: Vec<u32> =
            self.held.keys().filter(|device| !wanted.contains_key(device)).copied().collect();
        for device in &others {
            gone(NAMES, self.map.remove(device))?;
            self.held.remove(device);
        }
        Ok(others.len())
    }
}

/// Reads the names of all devices.
pub(super) fn read_names(directory: &Path) -> Result<BTreeMap<u32, PodNames>, OpenError> {
    let held = Names::open(directory)?.held;
    Ok(held.into_iter().filter_map(|(device, name)| Some((device, PodNames::decode(&name)?))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(name: &str, directions: &[Direction]) -> PolicyNames {
        PolicyNames { name: name.to_owned(), directions: directions.to_vec(), profiles: BTreeMap::new() }
    }

    fn pod(policies: Vec<PolicyNames>) -> PodNames {
        PodNames { namespace: "shop".to_owned(), name: "web-0".to_owned(), policies, left_out: 0 }
    }

    #[test]
    fn names_survive_the_round_trip() {
        let both = [Direction::Ingress, Direction::Egress];
        let mut names =
            pod(vec![policy("closed", &both[..1]), policy("from-api", &both), policy("out", &both[1..])]);
        names.policies[1].profiles = [(both[0], 12), (both[1], u32::MAX)].into();
        names.policies[2].profiles = [(both[1], 7)].into();
        assert_eq!(names.encode().text(), Some("shop/web-0\ni closed\ni12e4294967295 from-api\ne7 out"));
        for names in [names, pod(Vec::new())] {
            assert_eq!(PodNames::decode(&names.encode()), Some(names));
        }
        assert_eq!(PodNames::decode(&PolicyName::default()), None);
    }

    #[test]
    fn policies_without_room_are_counted() {
        let long = "x".repeat(253);
        let policies: Vec<_> = (0..9).map(|_| policy(&long, &[Direction::Ingress])).collect();
        let read = PodNames::decode(&pod(policies.clone()).encode()).unwrap();
        assert_eq!((read.policies.as_slice(), read.left_out), (&policies[..3], 6));
        // A short name behind the first long one would make the count unclear.
        let mut mixed = policies;
        mixed[4].name = "y".to_owned();
        assert_eq!(PodNames::decode(&pod(mixed).encode()).unwrap().left_out, 6);
    }

    #[test]
    fn a_name_that_is_too_long_is_cut() {
        let names = PodNames { name: "ü".repeat(POLICY_NAME_BYTES), ..pod(Vec::new()) };
        let read = PodNames::decode(&names.encode()).unwrap();
        assert!(read.name.len() > 900 && names.name.starts_with(&read.name), "{}", read.name.len());
    }
}
