//! Helpers for the tests of this module.

use std::collections::BTreeSet;
use std::net::IpAddr;

use serde_json::{Value, from_value, json};

pub(super) use super::clusters::manifest::{namespace, pod, policy};
use super::{
    Change, Connection, Decision, Direction, Explanation, Index, NamespacedName, Object, Site, Traffic,
    Verdict,
};

/// Parses an object from a manifest.
pub(super) fn object(manifest: Value) -> Object {
    match manifest["kind"].as_str().unwrap() {
        "Namespace" => Object::Namespace(from_value(manifest).unwrap()),
        "Pod" => Object::Pod(from_value(manifest).unwrap()),
        "NetworkPolicy" => Object::NetworkPolicy(from_value(manifest).unwrap()),
        other => panic!("{other}"),
    }
}

impl Index {
    pub(super) fn tell(&mut self, manifest: Value) {
        self.apply(Change::Upsert { object: object(manifest), file: None });
    }

    pub(super) fn tell_all<'a>(&mut self, manifests: impl IntoIterator<Item = &'a Value>) {
        for manifest in manifests {
            self.tell(manifest.clone());
        }
    }

    pub(super) fn forget(&mut self, manifest: Value) {
        self.apply(Change::Delete(object(manifest).key()));
    }

    /// Returns the problems, each as the text behind its object.
    pub(super) fn complaints(&self) -> Vec<String> {
        self.problems().map(|problem| format!("{}: {}", problem.field, problem.message)).collect()
    }
}

/// Returns the addresses of a node.
pub(super) fn node(name: &str) -> BTreeSet<IpAddr> {
    let texts = match name {
        "node-1" => ["172.16.0.1", "fd00:16::1"],
        "node-2" => ["172.16.0.2", "fd00:16::2"],
        _ => return BTreeSet::new(),
    };
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

/// Returns a cluster without policies:
///
/// - `node-1`: `shop/web` 10.1.1.1 and fd00:1::11, `shop/api` 10.1.1.2, and `shop/agent` in the host's network;
/// - `node-2`: `shop/job` 10.1.2.1, `data/db` 10.1.2.2 and fd00:1::22, `data/web` 10.1.2.3.
pub(super) fn cluster() -> Index {
    let mut index = Index::default();
    index.tell(namespace("shop", json!({"team": "a"})));
    index.tell(namespace("data", json!({"team": "b"})));
    let http = |number: u16| json!([{"name": "http", "containerPort": number}]);
    let ports = json!([
        {"name": "http", "containerPort": 8080},
        {"name": "dns", "containerPort": 5353, "protocol": "UDP"},
        {"name": "sig", "containerPort": 3868, "protocol": "SCTP"},
    ]);
    let labels = json!({"app": "web", "tier": "front"});
    index.tell(pod("shop/web", "node-1", &["10.1.1.1", "fd00:1::11"], labels, ports));
    index.tell(pod("shop/api", "node-1", &["10.1.1.2"], json!({"app": "api"}), http(9090)));
    index.tell(pod("shop/job", "node-2", &["10.1.2.1"], json!({"app": "job"}), json!([])));
    let sql = json!([{"name": "sql", "containerPort": 5432}]);
    index.tell(pod("data/db", "node-2", &["10.1.2.2", "fd00:1::22"], json!({"app": "db"}), sql));
    index.tell(pod("data/web", "node-2", &["10.1.2.3"], json!({"app": "web"}), http(80)));
    let mut agent = pod("shop/agent", "node-1", &["172.16.0.1"], json!({"app": "agent"}), http(8080));
    agent["spec"]["hostNetwork"] = json!(true);
    index.tell(agent);
    index
}

/// Returns the cluster with a policy in `shop` that has no fault.
#[track_caller]
pub(super) fn with(spec: Value) -> Index {
    let mut index = cluster();
    index.tell(policy("shop/p", spec));
    assert_eq!(index.complaints(), [""; 0]);
    index
}

/// Returns the cluster with a rule for ingress to `shop/web` alone.
pub(super) fn ingress(rule: Value) -> Index {
    let rules = Value::Array(vec![rule]);
    with(json!({"podSelector": {"matchLabels": {"app": "web"}}, "ingress": rules}))
}

/// Returns the cluster with a rule for egress of `shop/web` alone.
pub(super) fn egress(rule: Value) -> Index {
    let rules = Value::Array(vec![rule]);
    with(json!({"podSelector": {"matchLabels": {"app": "web"}}, "policyTypes": ["Egress"], "egress": rules}))
}

/// Parses `TCP 80`, or a protocol without ports: `ICMP`.
fn protocol_and_port(text: &str) -> (u8, u16) {
    let (protocol, port) = text.split_once(' ').unwrap_or((text, "0"));
    let protocol = match protocol {
        "ICMP" => 1,
        "TCP" => 6,
        "UDP" => 17,
        "SCTP" => 132,
        other => panic!("{other}"),
    };
    (protocol, port.parse().unwrap())
}

/// Returns the address, or the IPv4 address of the pod with this name.
fn address(index: &Index, text: &str) -> IpAddr {
    text.parse().unwrap_or_else(|_| {
        let (namespace, name) = text.split_once('/').unwrap();
        let (_, pod) = index.pod(&NamespacedName::new(namespace, name)).unwrap();
        *pod.addresses.first().unwrap()
    })
}

pub(super) fn connection(index: &Index, from: &str, to: &str, port: &str) -> Connection {
    let (protocol, port) = protocol_and_port(port);
    Connection { from: address(index, from), to: address(index, to), protocol, port }
}

/// Explains a connection by the objects.
pub(super) fn explain(index: &Index, from: &str, to: &str, port: &str) -> Explanation {
    let connection = connection(index, from, to, port);
    let target = index.holders(connection.to).next().map(|(_, pod)| pod.node.as_str());
    index.explain(connection, &node(target.unwrap_or_default()))
}

/// Returns whether a connection is allowed, by the tables. The explanation must come to the same.
pub(super) fn is_allowed(index: &Index, from: &str, to: &str, port: &str) -> bool {
    let asked = connection(index, from, to, port);
    let explanation = explain(index, from, to, port);
    let ends = [
        (Direction::Egress, asked.from, asked.to, &explanation.egress),
        (Direction::Ingress, asked.to, asked.from, &explanation.ingress),
    ];
    let mut is_allowed = true;
    for (direction, own, peer, side) in ends {
        let Some((name, pod)) = index.holders(own).next() else { continue };
        let compiled = index.compile(&Site { node: pod.node.clone(), addresses: node(&pod.node) });
        let traffic = Traffic { direction, peer, protocol: asked.protocol, port: asked.port };
        let decision = compiled.decide(name, traffic);
        let explained = decision_of(&side.as_ref().unwrap().verdict);
        assert_eq!(decision, explained, "{direction} of {name}: {from} > {to} {port}");
        is_allowed &= decision.is_allowed();
    }
    assert_eq!(is_allowed, explanation.is_allowed());
    is_allowed
}

/// Returns the decision that an explanation comes to.
pub(super) const fn decision_of(verdict: &Verdict) -> Decision {
    match verdict {
        Verdict::NotIsolated => Decision::NotIsolated,
        Verdict::Itself => Decision::Itself,
        Verdict::OwnNode => Decision::OwnNode,
        Verdict::Allowed(_) => Decision::Allowed,
        Verdict::Denied(_) => Decision::Denied,
    }
}

/// Checks rows of `from > to port`, of which those in the first list are allowed, and the others denied.
#[track_caller]
pub(super) fn check(index: &Index, allowed: &[&str], denied: &[&str]) {
    let rows = allowed.iter().map(|row| (row, true)).chain(denied.iter().map(|row| (row, false)));
    for (row, expected) in rows {
        let (from, rest) = row.split_once(" > ").unwrap();
        let (to, port) = rest.split_once(' ').unwrap();
        assert_eq!(is_allowed(index, from, to, port), expected, "{row}");
    }
}
