//! Problems of NetworkPolicies, for the owners of the policies.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::model::Severity;
use crate::policy::{Change, Index, Kind, NamespacedName, Object, Problem};

/// A problem of a NetworkPolicy, which the nodes of its pods all see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyProblem {
    /// The policy.
    pub policy: NamespacedName,
    /// Its `metadata.uid`.
    pub uid: String,
    /// One word in CamelCase.
    pub reason: &'static str,
    /// The text for people.
    pub note: String,
}

/// Time between two looks for names of ports that no pod has. Both must find a name: pods may come after their policy.
const PATIENCE: Duration = Duration::from_mins(1);

/// Policy and reason.
type Matter = (NamespacedName, &'static str);
/// The notes of each matter.
type Matters = BTreeMap<Matter, BTreeSet<String>>;

/// Hands problems to the task that writes Events.
#[derive(Debug)]
pub(super) struct Teller {
    problems: mpsc::Sender<PolicyProblem>,
    uids: BTreeMap<NamespacedName, String>,
    told: Matters,
    /// When names of ports are looked for next; `None` while nothing has changed.
    look_at: Option<Instant>,
    /// The names of the last look, and those that it found again.
    last: Matters,
    lasting: Matters,
}

impl Teller {
    pub fn new(problems: mpsc::Sender<PolicyProblem>) -> Self {
        Self {
            problems,
            uids: BTreeMap::new(),
            told: Matters::new(),
            look_at: None,
            last: Matters::new(),
            lasting: Matters::new(),
        }
    }

    /// Learns the uid of a policy, without which an Event belongs to no object.
    pub fn learn(&mut self, change: &Change, now: Instant) {
        match change {
            Change::Upsert { object, .. } => {
                if let Object::NetworkPolicy(policy) = object
                    && let Some(uid) = &policy.metadata.uid
                {
                    self.uids.insert(object.key().name, uid.clone());
                }
            }
            Change::Delete(key) => {
                if key.kind == Kind::NetworkPolicy {
                    self.uids.remove(&key.name);
                }
            }
        }
        self.look_at.get_or_insert(now + PATIENCE);
    }

    /// Tells what is new.
    pub fn tell(&mut self, index: &Index, now: Instant) {
        if self.look_at.is_some_and(|at| at <= now) {
            let found = matters(&index.unresolved_ports(), "UnresolvedPort");
            let is_lasting =
                |(matter, notes): &(&Matter, &BTreeSet<String>)| self.last.get(matter) == Some(*notes);
            self.lasting =
                found.iter().filter(is_lasting).map(|(one, notes)| (one.clone(), notes.clone())).collect();
            self.look_at = (self.lasting != found).then(|| now + PATIENCE);
            self.last = found;
        }
        let wrong = index.problems().filter(|problem| problem.severity >= Severity::Warning);
        let mut found = matters(wrong, "InvalidField");
        found.extend(self.lasting.clone());
        for (matter, notes) in &found {
            if self.told.get(matter) != Some(notes)
                && let Some(uid) = self.uids.get(&matter.0)
            {
                let note = notes.iter().map(String::as_str).collect::<Vec<_>>().join("; ");
                let (policy, reason) = matter.clone();
                // If the channel is full, the problem is in the log only.
                let _ = self.problems.try_send(PolicyProblem { policy, uid: uid.clone(), reason, note });
            }
        }
        self.told = found;
    }
}

/// Returns the problems of policies, without the names of the policies.
fn matters<'a>(problems: impl IntoIterator<Item = &'a Problem>, reason: &'static str) -> Matters {
    let mut matters = Matters::new();
    for problem in problems {
        if let Some(object) = problem.object.as_ref().filter(|object| object.kind == Kind::NetworkPolicy) {
            let note = Problem { file: None, object: None, ..problem.clone() }.to_string();
            matters.entry((object.name.clone(), reason)).or_default().insert(note);
        }
    }
    matters
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    struct Bench {
        teller: Teller,
        index: Index,
        problems: mpsc::Receiver<PolicyProblem>,
        now: Instant,
    }

    impl Bench {
        fn new() -> Self {
            let (sender, problems) = mpsc::channel(8);
            Self { teller: Teller::new(sender), index: Index::default(), problems, now: Instant::now() }
        }

        fn put(&mut self, object: Object) {
            let change = Change::Upsert { object, file: None };
            self.teller.learn(&change, self.now);
            self.index.apply(change);
        }

        fn put_policy(&mut self, spec: &Value) {
            let policy =
                json!({"metadata": {"namespace": "shop", "name": "p", "uid": "uid-1"}, "spec": spec});
            self.put(Object::NetworkPolicy(serde_json::from_value(policy).unwrap()));
        }

        fn put_pod(&mut self, port: &str) {
            let pod = json!({"metadata": {"namespace": "shop", "name": "web"},
                "spec": {"containers": [{"name": "main", "ports": [{"name": port, "containerPort": 80}]}]},
                "status": {"podIPs": [{"ip": "10.1.0.1"}]}});
            self.put(Object::Pod(serde_json::from_value(pod).unwrap()));
        }

        /// Returns what is told after so many seconds.
        fn after(&mut self, seconds: u64) -> Vec<(&'static str, String)> {
            self.now += Duration::from_secs(seconds);
            self.teller.tell(&self.index, self.now);
            std::iter::from_fn(|| self.problems.try_recv().ok())
                .map(|problem| {
                    assert_eq!(
                        (problem.policy.to_string().as_str(), problem.uid.as_str()),
                        ("shop/p", "uid-1")
                    );
                    (problem.reason, problem.note)
                })
                .collect()
        }
    }

    #[test]
    fn a_wrong_field_is_told_at_once_and_once() {
        let mut bench = Bench::new();
        let block =
            |cidr: &str| json!({"podSelector": {}, "ingress": [{"from": [{"ipBlock": {"cidr": cidr}}]}]});
        bench.put_policy(&block("10.0.0.0/33"));
        let told = bench.after(0);
        assert_eq!((told.len(), told[0].0), (1, "InvalidField"), "{told:?}");
        assert!(told[0].1.starts_with("spec.ingress[0].from[0].ipBlock.cidr: "), "{told:?}");
        assert!(bench.after(1).is_empty());
        bench.put_policy(&block("10.0.0.0/34"));
        assert_eq!(bench.after(1).len(), 1, "another problem");
        bench.put_policy(&block("10.0.0.0/8"));
        assert!(bench.after(200).is_empty());
        bench.put_policy(&block("10.0.0.0/34"));
        assert_eq!(bench.after(1).len(), 1, "it is back");
    }

    #[test]
    fn a_name_of_a_port_is_told_if_no_pod_brings_it_in_time() {
        let mut bench = Bench::new();
        bench.put_policy(&json!({"podSelector": {}, "ingress": [{"ports": [{"port": "http"}]}]}));
        assert!(bench.after(0).is_empty() && bench.after(61).is_empty(), "pods may come after their policy");
        let told = bench.after(61);
        assert_eq!((told.len(), told[0].0), (1, "UnresolvedPort"), "{told:?}");
        assert!(told[0].1.contains("has a TCP port with the name \"http\""), "{told:?}");
        assert!(bench.after(500).is_empty());
        bench.put_pod("http");
        assert!(bench.after(500).is_empty() && bench.after(500).is_empty());
        bench.put_pod("other");
        assert!(bench.after(61).is_empty());
        bench.put_pod("http");
        assert!(
            bench.after(61).is_empty() && bench.after(61).is_empty(),
            "a pod was without it for a moment"
        );
    }

    #[test]
    fn a_policy_without_a_uid_and_another_object_get_no_event() {
        let mut bench = Bench::new();
        let wrong = json!({"metadata": {"namespace": "shop", "name": "p"},
            "spec": {"podSelector": {}, "ingress": [{"from": [{"ipBlock": {"cidr": "x"}}]}]}});
        bench.put(Object::NetworkPolicy(serde_json::from_value(wrong).unwrap()));
        assert!(bench.index.problems().next().is_some() && bench.after(0).is_empty());
    }
}
