//! Requests over TCP and UDP, IPv4 and IPv6, by each way to a backend.

use anyhow::Result;
use millrace_lab::capture::Trail;
use millrace_lab::topology::vip;
use millrace_lab::walk::Walk;

use crate::fixture::{Way, counted, shared};

#[test]
fn a_backend_on_the_director_sees_the_client() -> Result<()> {
    let cluster = shared();
    cluster.expect(&Walk::to("local", vip(1), 80, Way::Local.pods(), Trail::local("node1")))
}

#[test]
fn backends_on_other_nodes_see_the_director_with_snat() -> Result<()> {
    let cluster = shared();
    let node = cluster.bed().node(1)?.addresses();
    let walk = Walk::to("snat", vip(2), 80, Way::Snat.pods(), Trail::local("node1"));
    cluster.expect(&Walk { translated_to: Some(node), ..walk })?;
    assert!(counted(&cluster, 1, "sent_snat")? > 0 && counted(&cluster, 1, "reply_snat")? > 0);
    Ok(())
}

#[test]
fn backends_on_other_nodes_answer_the_client_themselves_with_direct_server_return() -> Result<()> {
    let cluster = shared();
    for (name, number, pod, node) in [("dsr-2", 5, "pod-2a", "node2"), ("dsr-3", 6, "pod-3a", "node3")] {
        let service = cluster.service(name, number, &[pod])?.load_balancer(vip(number));
        cluster.apply(&service.annotation("millrace.dev/forwarding", "dsr"), &[1, 2, 3])?;
        cluster.expect(&Walk::to(name, vip(number), 80, &[pod], Trail::direct_return("node1", node)))?;
    }
    Ok(())
}
