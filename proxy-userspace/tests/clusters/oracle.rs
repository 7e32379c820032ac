//! NetworkPolicy as its specification reads, straight on the manifests. It shares no code with the model.
//!
//! It is slow and plain: for each pair of addresses it walks through all policies, and keeps the `ports` of the
//! rules whose peers match.

use std::net::IpAddr;

use serde_json::Value;

/// A cluster in manifests.
pub struct Oracle<'a> {
    pub namespaces: &'a [Value],
    pub pods: &'a [Value],
    pub policies: &'a [Value],
    /// The addresses of each node.
    pub nodes: &'a [(&'a str, Vec<String>)],
}

/// What the policies say about two addresses.
pub struct Pair<'a> {
    /// At the source.
    pub egress: End<'a>,
    /// At the destination.
    pub ingress: End<'a>,
}

/// What the policies of one end say.
pub enum End<'a> {
    /// They allow everything.
    Open,
    /// The `ports` of the rules that match, and the pods whose names of ports count.
    Isolated { ports: Vec<&'a Value>, target: Option<&'a Value> },
}

impl<'a> Oracle<'a> {
    /// Returns the policies of two addresses.
    pub fn pair(&self, from: &str, to: &str) -> Pair<'a> {
        let (source, target) = (self.pod_at(from), self.pod_at(to));
        Pair {
            egress: self.end("egress", source, from, target, to),
            ingress: self.end("ingress", target, to, source, from),
        }
    }

    /// Returns the pod with an address that policies can select.
    pub fn pod_at(&self, address: &str) -> Option<&'a Value> {
        self.pods.iter().find(|pod| {
            let phase = pod["status"]["phase"].as_str().unwrap_or("");
            let has_ended = phase == "Succeeded" || phase == "Failed";
            let is_host = pod["spec"]["hostNetwork"] == true;
            let addresses = pod["status"]["podIPs"].as_array().unwrap();
            !has_ended && !is_host && addresses.iter().any(|one| one["ip"] == address)
        })
    }

    fn end(
        &self,
        direction: &str,
        own: Option<&'a Value>,
        own_address: &str,
        peer: Option<&'a Value>,
        peer_address: &str,
    ) -> End<'a> {
        let Some(own) = own else { return End::Open };
        let mut is_isolated = false;
        let mut ports = Vec::new();
        for policy in self.policies {
            let spec = &policy["spec"];
            let namespace = &policy["metadata"]["namespace"];
            if *namespace != own["metadata"]["namespace"] || !concerns(spec, direction) {
                continue;
            }
            let requirements = requirements(&spec["podSelector"]);
            let valid = requirements.iter().flatten();
            if !valid.clone().all(|requirement| requirement.holds(&own["metadata"]["labels"])) {
                continue;
            }
            is_isolated = true;
            if requirements.iter().any(Option::is_none) {
                continue;
            }
            for rule in spec[direction].as_array().into_iter().flatten() {
                let peers = &rule[if direction == "ingress" { "from" } else { "to" }];
                let peers = peers.as_array().map_or(&[][..], Vec::as_slice);
                if peers.is_empty()
                    || peers.iter().any(|one| self.is_peer(one, namespace, peer, peer_address))
                {
                    ports.push(&rule["ports"]);
                }
            }
        }
        let is_own_node = direction == "ingress"
            && self.nodes.iter().any(|(name, addresses)| {
                own["spec"]["nodeName"] == *name && addresses.iter().any(|one| one == peer_address)
            });
        if !is_isolated || own_address == peer_address || is_own_node {
            return End::Open;
        }
        let target = if direction == "ingress" { Some(own) } else { peer };
        End::Isolated { ports, target }
    }

    fn is_peer(&self, peer: &Value, namespace: &Value, pod: Option<&Value>, address: &str) -> bool {
        let (pods, namespaces, block) = (&peer["podSelector"], &peer["namespaceSelector"], &peer["ipBlock"]);
        if !block.is_null() {
            return pods.is_null() && namespaces.is_null() && is_in_block(block, address).unwrap_or(false);
        }
        let Some(pod) = pod else { return false };
        if pods.is_null() && namespaces.is_null() {
            return false;
        }
        let is_of_namespace = if namespaces.is_null() {
            pod["metadata"]["namespace"] == *namespace
        } else {
            let name = &pod["metadata"]["namespace"];
            let found = self.namespaces.iter().find(|one| one["metadata"]["name"] == *name).unwrap();
            selects(namespaces, &found["metadata"]["labels"])
        };
        is_of_namespace && selects(pods, &pod["metadata"]["labels"])
            // Both selectors are of one peer, so a fault in either is a fault of the peer.
            && requirements(pods).iter().chain(&requirements(namespaces)).all(Option::is_some)
    }
}

impl Pair<'_> {
    /// Returns whether both ends allow a connection.
    pub fn allows(&self, protocol: &str, port: u64) -> bool {
        self.egress.allows(protocol, port) && self.ingress.allows(protocol, port)
    }
}

impl End<'_> {
    /// Returns whether this end allows a connection.
    pub fn allows(&self, protocol: &str, port: u64) -> bool {
        match self {
            End::Open => true,
            End::Isolated { ports, target } => ports.iter().any(|ports| {
                let entries = ports.as_array().map_or(&[][..], Vec::as_slice);
                entries.is_empty()
                    || entries.iter().any(|entry| is_port(entry, *target, protocol, port).unwrap_or(false))
            }),
        }
    }
}

/// Whether a policy isolates in a direction.
fn concerns(spec: &Value, direction: &str) -> bool {
    let types = spec["policyTypes"].as_array().map_or(&[][..], Vec::as_slice);
    if types.is_empty() {
        return direction == "ingress" || !spec["egress"].as_array().is_none_or(Vec::is_empty);
    }
    types.iter().any(|one| match one.as_str().unwrap() {
        "Ingress" => direction == "ingress",
        "Egress" => direction == "egress",
        // The model isolates both ways where it does not understand.
        _ => true,
    })
}

/// A requirement of a selector: key, operator and values.
struct Requirement<'a> {
    key: &'a str,
    operator: &'a str,
    values: Vec<&'a str>,
}

/// Returns the requirements of a selector; `None` for each invalid one.
fn requirements(selector: &Value) -> Vec<Option<Requirement<'_>>> {
    let mut found = Vec::new();
    for (key, value) in selector["matchLabels"].as_object().into_iter().flatten() {
        found.push(Some(Requirement { key, operator: "In", values: vec![value.as_str().unwrap()] }));
    }
    for expression in selector["matchExpressions"].as_array().into_iter().flatten() {
        let operator = expression["operator"].as_str().unwrap();
        let values: Vec<&str> = expression["values"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|value| value.as_str().unwrap())
            .collect();
        let is_valid = match operator {
            "In" | "NotIn" => !values.is_empty(),
            "Exists" | "DoesNotExist" => values.is_empty(),
            _ => false,
        };
        let key = expression["key"].as_str().unwrap();
        found.push(is_valid.then_some(Requirement { key, operator, values }));
    }
    found
}

impl Requirement<'_> {
    fn holds(&self, labels: &Value) -> bool {
        let value = labels[self.key].as_str();
        let is_listed = value.is_some_and(|value| self.values.contains(&value));
        match self.operator {
            "In" => is_listed,
            "NotIn" => !is_listed,
            "Exists" => value.is_some(),
            "DoesNotExist" => value.is_none(),
            other => panic!("{other}"),
        }
    }
}

/// Whether a selector without a fault selects these labels; a missing one selects all.
fn selects(selector: &Value, labels: &Value) -> bool {
    requirements(selector).iter().all(|one| one.as_ref().is_some_and(|one| one.holds(labels)))
}

/// Whether an address is in an `ipBlock`; `None` if the block has a fault.
fn is_in_block(block: &Value, address: &str) -> Option<bool> {
    let cidr = parse_cidr(block["cidr"].as_str().unwrap())?;
    let mut is_excepted = false;
    for except in block["except"].as_array().into_iter().flatten() {
        let except = parse_cidr(except.as_str().unwrap())?;
        if except.2 <= cidr.2 || !is_in(cidr, (except.0, except.1)) {
            return None;
        }
        is_excepted |= is_in(except, parse_address(address)?);
    }
    Some(is_in(cidr, parse_address(address)?) && !is_excepted)
}

/// Bits of the family, address.
fn parse_address(text: &str) -> Option<(u32, u128)> {
    Some(match text.parse().ok()? {
        IpAddr::V4(address) => (32, u128::from(u32::from(address))),
        IpAddr::V6(address) => (128, u128::from(address)),
    })
}

/// Bits of the family, address, length.
fn parse_cidr(text: &str) -> Option<(u32, u128, u32)> {
    let (address, length) = text.split_once('/')?;
    let (bits, address) = parse_address(address)?;
    let length: u32 = length.parse().ok()?;
    (length <= bits).then_some((bits, address, length))
}

fn is_in((bits, network, length): (u32, u128, u32), (family, address): (u32, u128)) -> bool {
    let rest = bits - length;
    bits == family && (rest == 128 || network >> rest == address >> rest)
}

/// Whether an entry of `ports` matches; `None` if it has a fault.
fn is_port(entry: &Value, target: Option<&Value>, protocol: &str, port: u64) -> Option<bool> {
    let wanted = entry["protocol"].as_str().unwrap_or("TCP");
    if !["TCP", "UDP", "SCTP"].contains(&wanted) {
        return None;
    }
    let end = entry["endPort"].as_i64();
    let is_number = |number: i64| (1..=65535).contains(&number);
    let is_match = match &entry["port"] {
        Value::Null if end.is_none() => true,
        Value::Number(first) => {
            let first = first.as_i64().unwrap();
            let last = end.unwrap_or(first);
            if !is_number(first) || !is_number(last) || last < first {
                return None;
            }
            u64::try_from(first).unwrap() <= port && port <= u64::try_from(last).unwrap()
        }
        Value::String(name) if end.is_none() && name.contains(char::is_alphabetic) => named_ports(target?)
            .any(|one| {
                one["name"] == name.as_str()
                    && one["protocol"].as_str().unwrap_or("TCP") == wanted
                    && one["containerPort"] == port
            }),
        _ => return None,
    };
    Some(is_match && wanted == protocol)
}

/// Returns the ports of all containers that run beside each other.
fn named_ports(pod: &Value) -> impl Iterator<Item = &Value> {
    let init = pod["spec"]["initContainers"].as_array().into_iter().flatten();
    let init = init.filter(|container| container["restartPolicy"] == "Always");
    let containers = pod["spec"]["containers"].as_array().into_iter().flatten();
    containers.chain(init).flat_map(|container| container["ports"].as_array().into_iter().flatten())
}
