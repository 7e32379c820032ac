//! The desired state as text, one fact a line.

use std::collections::BTreeSet;
use std::fmt::{Debug, Write as _};

use millrace::model::{Desired, Dirty, Eligibility, Endpoint, List, PortKey, ServicePort};

/// Returns the changes, the present state, and the new problems.
pub fn desired(desired: &Desired, dirty: &Dirty, problems: &BTreeSet<String>) -> String {
    let mut out = String::new();
    let others = [(dirty.nodes, "nodes"), (dirty.health, "health")];
    let others = others.iter().filter(|(is_dirty, _)| *is_dirty).map(|(_, word)| (*word).to_owned());
    line(&mut out, "changed:", dirty.ports.iter().map(title).chain(others));
    for (name, addresses) in &desired.nodes {
        line(&mut out, &format!("node {name}:"), addresses.iter().map(ToString::to_string));
    }
    if !desired.cluster_sources.is_empty() {
        line(&mut out, "cluster sources:", desired.cluster_sources.iter().map(ToString::to_string));
    }
    if desired.own_sources != desired.cluster_sources {
        let near = desired.own_sources.iter().map(ToString::to_string);
        line(&mut out, "sources without externalTrafficPolicy:", near);
    }
    if desired.eligibility != Eligibility::Eligible {
        writeln!(out, "this node: {}", word(desired.eligibility)).unwrap();
    }
    if !desired.health_checks.is_empty() {
        let addresses = desired.health_check_addresses.iter().map(ToString::to_string);
        line(&mut out, "health checks are answered on:", addresses);
    }
    for (key, check) in &desired.health_checks {
        writeln!(out, "health check {key}: port {}, {} endpoints", check.port, check.local_endpoints)
            .unwrap();
    }
    for (key, port) in &desired.ports {
        service_port(&mut out, key, port);
    }
    for problem in problems {
        writeln!(out, "{problem}").unwrap();
    }
    out
}

fn service_port(out: &mut String, key: &PortKey, port: &ServicePort) {
    write!(out, "{}: {} {} {}", title(key), port.protocol, word(port.forwarding), word(port.algorithm))
        .unwrap();
    if port.affinity_seconds > 0 {
        write!(out, " affinity {}s", port.affinity_seconds).unwrap();
    }
    out.push_str(if port.has_any { "\n" } else { " without a usable endpoint\n" });
    for frontend in &port.frontends {
        let (scope, list) = (word(frontend.scope), word(frontend.list));
        writeln!(out, "  {:?} {} {scope}: {list}", frontend.kind, frontend.address).unwrap();
    }
    if let Some(ranges) = &port.source_ranges {
        line(out, "  source ranges:", ranges.iter().map(ToString::to_string));
    }
    let lists = [(List::Cluster, &port.cluster), (List::Local, &port.local)];
    for (list, _) in lists.iter().filter(|(_, members)| members.is_some()) {
        line(out, &format!("  {} list:", word(list)), port.members(*list).map(ToString::to_string));
    }
    for (address, endpoint) in &port.endpoints {
        line(out, &format!("  endpoint {address}"), conditions(endpoint));
    }
}

fn conditions(endpoint: &Endpoint) -> impl Iterator<Item = String> {
    let node = endpoint.node.as_ref().map(|node| format!("on {node}"));
    let flags = [
        (endpoint.local, "here"),
        (!endpoint.ready, "unready"),
        (!endpoint.serving, "not serving"),
        (endpoint.terminating, "terminating"),
    ];
    node.into_iter().chain(flags.into_iter().filter(|(set, _)| *set).map(|(_, word)| word.to_owned()))
}

fn title(key: &PortKey) -> String {
    format!("{key} {}", key.family)
}

fn line(out: &mut String, head: &str, words: impl Iterator<Item = String>) {
    let words: Vec<String> = words.collect();
    writeln!(out, "{head} {}", if words.is_empty() { "-".to_owned() } else { words.join(", ") }).unwrap();
}

fn word(value: impl Debug) -> String {
    format!("{value:?}").to_lowercase()
}
