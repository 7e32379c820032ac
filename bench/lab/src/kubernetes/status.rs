//! What a person wants to know about a running cluster.

use anyhow::Result;

use super::plan::{OUTSIDE, node_name};
use super::{Cluster, Proxy, install};

/// Prints nodes, pods, Services and proxies, and how to reach the API.
pub(super) fn print(cluster: &Cluster) -> Result<()> {
    let kubectl = cluster.kubectl();
    for arguments in [
        ["get", "nodes", "--output", "wide"].as_slice(),
        &["get", "pods", "--all-namespaces", "--output", "wide"],
        &["get", "services", "--all-namespaces"],
    ] {
        println!("{}", kubectl.run(arguments)?);
    }
    print_proxies(cluster);
    let plan = cluster.plan();
    println!("export KUBECONFIG={}", cluster.kubeconfig().display());
    println!("kubectl: {} get pods --all-namespaces", kubectl.program().display());
    println!("outside: ip netns exec {} curl ...", plan.namespace(OUTSIDE));
    println!("on a node: cargo xtask cluster exec {} curl ...", node_name(1));
    Ok(())
}

fn print_proxies(cluster: &Cluster) {
    let proxy = match cluster.settings.proxy {
        Proxy::None => return println!("no proxy: Services are not served\n"),
        Proxy::Millrace => "millrace",
        Proxy::KubeProxy => "kube-proxy",
    };
    for number in 1..=cluster.settings.nodes {
        let health = match install::health(cluster, number) {
            Ok(200) => "serves".to_owned(),
            Ok(status) => format!("does not serve: /healthz answers {status}"),
            Err(error) => format!("does not answer: {error:#}"),
        };
        println!("{proxy} on {} {health}", node_name(number));
    }
    println!();
}
