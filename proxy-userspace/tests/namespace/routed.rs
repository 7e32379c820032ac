//! Routes: to addresses of Services, which routing daemons announce, and to the pods of other nodes.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::mpsc;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use millrace_lab::capture::Trail;
use millrace_lab::cluster::Cluster;
use millrace_lab::process::{output, run};
use millrace_lab::routing::{Daemon, Speaker, routes_to};
use millrace_lab::topology::{Family, Shape, vip};
use millrace_lab::traffic::{Connection, LongConnections, Protocol, Stream, ask, ping};
use millrace_lab::walk::Walk;
use tokio::task::JoinSet;

use crate::fixture::{wait_until, xdp};

const FLAGS: [&str; 4] = ["--route-announce", "203.0.113.0/24,2001:db8:e::/64", "--forwarding", "dsr"];
/// The longest time for daemons to agree on a busy test machine.
const LIMIT: Duration = Duration::from_secs(30);

fn three_nodes(flags: &[&str]) -> Result<Cluster> {
    Cluster::start_with(Shape { nodes: 3, pods: 1, ..Shape::default() }, &xdp(), flags)
}

fn host(address: IpAddr) -> String {
    format!("{address}/{}", if address.is_ipv4() { 32 } else { 128 })
}

/// Returns the nodes that the router sends packets for an address to.
fn next_hops(cluster: &Cluster, address: IpAddr) -> Result<BTreeSet<u8>> {
    let shown = routes_to(cluster.bed().router(), &host(address))?;
    let words: BTreeSet<&str> = shown.split_whitespace().collect();
    let mut hops = BTreeSet::new();
    for node in cluster.bed().nodes() {
        // FRR takes a link-local address if the other daemon tells one.
        let own = output(node.namespace(), &["ip", "-brief", "address", "show", "dev", "eth0"])?;
        let mut own = own.split_whitespace().filter_map(|word| word.split_once('/'));
        if own.any(|(address, _)| words.contains(address)) {
            hops.insert(node.number());
        }
    }
    Ok(hops)
}

fn wait_for_next_hops(cluster: &Cluster, address: IpAddr, nodes: &[u8]) -> Result<Duration> {
    let wanted: BTreeSet<u8> = nodes.iter().copied().collect();
    let shown = || routes_to(cluster.bed().router(), &host(address));
    wait_until(LIMIT, &format!("{address} is routed to {nodes:?}"), || {
        Ok(next_hops(cluster, address)? == wanted)
    })
    .with_context(|| shown().unwrap_or_default())
}

/// Takes the bed's own routes to load balancers away, and starts a daemon on the router and on each node.
fn start_daemons(cluster: &Cluster, of_router: Daemon) -> Result<Vec<Speaker>> {
    let bed = cluster.bed();
    for (family, range) in [("-4", "203.0.113.0/24"), ("-6", "2001:db8:e::/64")] {
        run(bed.router(), &["ip", family, "route", "del", range])?;
    }
    let mut speakers = vec![Speaker::of_router(bed, of_router)?];
    for (node, daemon) in bed.nodes().iter().zip([Daemon::Frr, Daemon::Bird, Daemon::Frr]) {
        speakers.push(Speaker::on_node(bed, node, daemon)?);
    }
    // The same connection always by the same node, as hardware routers do.
    bed.router().run(async || {
        millrace_lab::net::write_sysctl("net/ipv4/fib_multipath_hash_policy", "1")?;
        millrace_lab::net::write_sysctl("net/ipv6/fib_multipath_hash_policy", "1")
    })?;
    Ok(speakers)
}

/// Returns the configuration of a daemon in docs/bgp.md.
fn documented(daemon: &str) -> Option<&'static str> {
    let (_, behind) = include_str!("../../../docs/bgp.md").split_once(&format!("**{daemon}**"))?;
    behind.split("```").nth(1)?.strip_prefix("text\n")
}

#[test]
fn frr_and_bird_take_the_configurations_of_the_guide() -> Result<()> {
    for (daemon, check) in [
        ("FRR", ["/usr/lib/frr/bgpd", "--dryrun", "--config_file"].as_slice()),
        ("BIRD", &["/usr/sbin/bird", "-p", "-c"]),
    ] {
        let config = documented(daemon).context("docs/bgp.md has no such block")?;
        let file = std::env::temp_dir().join(format!("millrace-{daemon}-{}.conf", std::process::id()));
        std::fs::write(&file, config)?;
        let [program, words @ ..] = check else { continue };
        let checked = std::process::Command::new(program).args(words).arg(&file).output();
        std::fs::remove_file(&file)?;
        let checked = checked?;
        let said =
            [checked.stdout, checked.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
        ensure!(checked.status.success() && !said.contains(" on config line "), "{daemon}: {said}");
    }
    Ok(())
}

/// The router has routes to the nodes with an endpoint, and the pods see the client.
fn expect_announced_where_served(cluster: &Cluster) -> Result<()> {
    let service = |pods: &[&str]| anyhow::Ok(cluster.service("web", 1, pods)?.local().load_balancer(vip(1)));
    for nodes in [&[1, 2][..], &[2, 3], &[1], &[1, 2, 3]] {
        let pods: Vec<String> = nodes.iter().map(|node| format!("pod-{node}a")).collect();
        let pods: Vec<&str> = pods.iter().map(String::as_str).collect();
        cluster.apply(&service(&pods)?, &[1, 2, 3])?;
        for address in vip(1).both() {
            let took = wait_for_next_hops(cluster, address, nodes)?;
            println!("{address} is routed to {nodes:?} after {took:?}");
            for protocol in Protocol::ALL {
                let answer = ask(cluster.bed().client(), protocol, SocketAddr::new(address, 80))?;
                ensure!(
                    answer.kept_client() && pods.contains(&answer.sighting.backend.as_str()),
                    "{answer:?}"
                );
            }
        }
        if let [node] = nodes {
            let trail = Trail::local(&format!("node{node}"));
            cluster.expect(&Walk::to("web", vip(1), 80, &pods, trail))?;
        }
    }
    Ok(())
}

#[test]
fn an_frr_router_follows_frr_and_bird() -> Result<()> {
    let cluster = three_nodes(&FLAGS)?;
    let _speakers = start_daemons(&cluster, Daemon::Frr)?;
    expect_announced_where_served(&cluster)
}

#[test]
fn frr_and_bird_announce_an_address_where_it_is_served_and_nowhere_else() -> Result<()> {
    let mut cluster = three_nodes(&FLAGS)?;
    let _speakers = start_daemons(&cluster, Daemon::Bird)?;
    expect_announced_where_served(&cluster)?;
    // Routes outlive the agent, as its programs do.
    let streams = vip(1)
        .both()
        .into_iter()
        .map(|address| {
            Stream::start(cluster.bed().client(), SocketAddr::new(address, 80), Duration::from_millis(50))
        })
        .collect::<Result<Vec<_>>>()?;
    cluster.take_agent(1)?.kill()?;
    sleep(Duration::from_secs(2));
    for stream in streams {
        let lost = stream.stop()?.lost;
        ensure!(lost.is_empty(), "a killed agent cost {lost:?}");
    }
    for address in vip(1).both() {
        ensure!(
            next_hops(&cluster, address)? == BTreeSet::from([1, 2, 3]),
            "a killed agent took {address} away"
        );
    }
    // One with the same settings goes on, and one that is not to announce removes its own routes alone.
    let node = cluster.bed().node(1)?.namespace().clone();
    run(&node, &["ip", "route", "add", "unreachable", "203.0.113.99/32", "protocol", "static"])?;
    cluster.start_agent(1)?;
    for address in vip(1).both() {
        wait_for_next_hops(&cluster, address, &[2, 3])?;
        ensure!(routes_to(&node, &host(address))?.is_empty(), "{address}");
    }
    ensure!(!routes_to(&node, "203.0.113.99/32")?.is_empty(), "a route of others was removed");
    // A clean-up removes them, too.
    cluster.take_agent(2)?.stop()?;
    let output = cluster.proxy(2)?.command(&["cleanup"])?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for address in vip(1).both() {
        wait_for_next_hops(&cluster, address, &[3])?;
    }
    Ok(())
}

#[test]
fn with_dsr_a_dead_node_behind_an_ecmp_router_cuts_only_connections_of_its_own_endpoint() -> Result<()> {
    const CONNECTIONS: usize = 60;
    let cluster = three_nodes(&FLAGS)?;
    let _speakers = start_daemons(&cluster, Daemon::Bird)?;
    let service = cluster.service("web", 2, &["pod-1a", "pod-2a", "pod-3a"])?.load_balancer(vip(2));
    cluster.apply(&service, &[1, 2, 3])?;
    for address in vip(2).both() {
        wait_for_next_hops(&cluster, address, &[1, 2, 3])?;
        let (opened, open) = mpsc::channel();
        let (go, gone) = tokio::sync::oneshot::channel::<()>();
        let target = SocketAddr::new(address, 80);
        let client = cluster.bed().client().spawn(async move || {
            let mut connections = Vec::new();
            for _ in 0..CONNECTIONS {
                let mut connection = Connection::open(target).await?;
                let backend = connection.request().await?.sighting.backend;
                connections.push((connection, backend));
            }
            opened.send(())?;
            gone.await?;
            let mut requests = JoinSet::new();
            for (mut connection, backend) in connections {
                requests.spawn(async move {
                    let answer = connection.request().await;
                    let is_kept = answer.is_ok_and(|answer| answer.sighting.backend == backend);
                    (backend, is_kept)
                });
            }
            let outcomes: Vec<(String, bool)> = requests.join_all().await;
            Ok(outcomes)
        });
        open.recv().context("no connections were opened")?;
        cluster.bed().unplug("node1")?;
        let took = wait_for_next_hops(&cluster, address, &[2, 3])?;
        let _ = go.send(());
        let outcomes = client.join_within(LIMIT * 4)?;
        let of_dead = outcomes.iter().filter(|(backend, _)| backend == "pod-1a").count();
        let cut = outcomes.iter().filter(|(_, is_kept)| !is_kept).count();
        println!(
            "{address}: node 1 dead, routed to the others after {took:?}; {cut} of {CONNECTIONS} connections cut, \
             {of_dead} of them had its endpoint"
        );
        ensure!(of_dead > 0 && of_dead < CONNECTIONS, "{outcomes:?}");
        let cut_of_others: Vec<_> =
            outcomes.iter().filter(|(backend, is_kept)| backend != "pod-1a" && !is_kept).collect();
        ensure!(cut_of_others.is_empty(), "{cut_of_others:?}");
        cluster.bed().plug_in("node1")?;
    }
    Ok(())
}

#[test]
fn a_daemon_that_is_killed_takes_its_node_out_and_costs_nothing() -> Result<()> {
    const CONNECTIONS: usize = 30;
    let cluster = three_nodes(&FLAGS)?;
    let mut speakers = start_daemons(&cluster, Daemon::Bird)?;
    let service = cluster.service("web", 4, &["pod-1a", "pod-2a", "pod-3a"])?.load_balancer(vip(4));
    cluster.apply(&service, &[1, 2, 3])?;
    let (client, address) = (cluster.bed().client(), vip(4).v4.into());
    let target = SocketAddr::new(address, 80);
    wait_for_next_hops(&cluster, address, &[1, 2, 3])?;
    for (number, daemon) in [(1, Daemon::Frr), (2, Daemon::Bird)] {
        let connections = LongConnections::open(client, target, CONNECTIONS, 0)?;
        let stream = Stream::start(client, target, Duration::from_millis(20))?;
        // The router's daemon is the first.
        drop(speakers.remove(usize::from(number)));
        let left: Vec<u8> = (1..=3).filter(|node| *node != number).collect();
        let out = wait_for_next_hops(&cluster, address, &left)?;
        let speaker = Speaker::on_node(cluster.bed(), cluster.bed().node(number)?, daemon)?;
        speakers.insert(number.into(), speaker);
        let back = wait_for_next_hops(&cluster, address, &[1, 2, 3])?;
        let (kept, delivery) = (connections.stop()?, stream.stop()?);
        println!(
            "{daemon:?} of node {number} killed: out after {out:?}, back {back:?} after its start; {kept} of {CONNECTIONS} \
             connections kept, {} of {} datagrams lost",
            delivery.lost.len(),
            delivery.sent
        );
        ensure!(kept == CONNECTIONS && delivery.lost.is_empty(), "{delivery:?}");
    }
    Ok(())
}

/// The routes to addresses of Services come and go; that to the node's own pods stays.
#[test]
fn a_nodes_own_range_of_pods_is_announced_where_that_is_asked_for() -> Result<()> {
    let mut cluster = three_nodes(&["--route-announce-pods", "on"])?;
    for number in [1, 2, 3] {
        for (range, address) in cluster.bed().node(number)?.pod_ranges().into_iter().zip(Family::ALL) {
            let family = if address == Family::V4 { "-4" } else { "-6" };
            run(cluster.bed().router(), &["ip", family, "route", "del", &range.to_string()])?;
        }
    }
    let _router = Speaker::of_router(cluster.bed(), Daemon::Bird)?;
    let node = cluster.bed().node(2)?;
    let _speaker = Speaker::on_node(cluster.bed(), node, Daemon::Bird)?;
    for (range, family) in node.pod_ranges().into_iter().zip(Family::ALL) {
        let gateway = node.addresses().of(family).to_string();
        let shown = || routes_to(cluster.bed().router(), &range.to_string());
        wait_until(LIMIT, &format!("the router has a route to {range}"), || {
            Ok(shown()?.contains(&gateway) && shown()?.contains("bird"))
        })
        .with_context(|| shown().unwrap_or_default())?;
        let pod = cluster.bed().pod("pod-2a")?.addresses().of(family);
        ping(cluster.bed().client(), pod, b"by the daemon's route")?;
    }
    // An agent without the flag takes the routes back.
    let namespace = node.namespace().clone();
    cluster.take_agent(2)?.stop()?;
    cluster.start_agent(2)?;
    for range in cluster.bed().node(2)?.pod_ranges() {
        let shown = || routes_to(&namespace, &range.to_string());
        wait_until(LIMIT, "our route is gone", || Ok(!shown()?.contains("109")))?;
        ensure!(!shown()?.is_empty(), "the bridge's own route is gone, too");
    }
    Ok(())
}

#[test]
fn pods_of_other_nodes_are_reached_by_our_routes_and_those_of_others_stay() -> Result<()> {
    let mut cluster = three_nodes(&["--pod-routes", "subnet"])?;
    let node = cluster.bed().node(1)?.namespace().clone();
    for number in [2, 3] {
        for (range, own) in cluster.bed().node(number)?.pod_ranges().into_iter().zip(Family::ALL) {
            let gateway = cluster.bed().node(number)?.addresses().of(own).to_string();
            let shown = || routes_to(&node, &range.to_string());
            wait_until(LIMIT, "our route is there", || Ok(shown()?.contains("109")))?;
            // The bed has a route of its own, which is preferred. Ours serves without it.
            ensure!(shown()?.lines().count() == 2, "{}", shown()?);
            let family = if range.addr().is_ipv4() { "-4" } else { "-6" };
            run(
                &node,
                &[
                    "ip",
                    family,
                    "route",
                    "del",
                    &range.to_string(),
                    "via",
                    &gateway,
                    "metric",
                    if own == Family::V4 { "0" } else { "1024" },
                ],
            )?;
            ensure!(shown()?.lines().count() == 1 && shown()?.contains("109"), "{}", shown()?);
        }
        let target = cluster.bed().pod(&format!("pod-{number}a"))?.addresses();
        for address in target.both() {
            ping(cluster.bed().pod("pod-1a")?.namespace(), address, b"by our route")?;
        }
    }
    // A node that goes takes its routes along.
    let nodes: Vec<_> = millrace_lab::manifests::nodes(cluster.bed()).into_iter().take(2).collect();
    let list = serde_json::json!({"apiVersion": "v1", "kind": "List", "items": nodes});
    cluster.manifests().put("nodes.yaml", &list.to_string())?;
    for range in cluster.bed().node(3)?.pod_ranges() {
        wait_until(LIMIT, "the route is gone", || Ok(routes_to(&node, &range.to_string())?.is_empty()))?;
    }
    for range in cluster.bed().node(2)?.pod_ranges() {
        ensure!(!routes_to(&node, &range.to_string())?.is_empty(), "{range}");
    }
    cluster.take_agent(1)?.stop()?;
    Ok(())
}

/// This kernel may lack the module. Nodes on the subnet are reached all the same.
#[test]
fn a_node_behind_a_router_gets_a_tunnel_or_the_log_says_what_is_missing() -> Result<()> {
    let mut cluster = Cluster::without_agents(Shape { nodes: 3, pods: 1, ..Shape::default() }, &xdp())?;
    let (node, behind) = (cluster.bed().node(1)?.namespace().clone(), cluster.bed().node(2)?.addresses().v4);
    let router = cluster.bed().lan_gateway_addresses().v4.to_string();
    run(&node, &["ip", "route", "add", &host(behind.into()), "via", &router])?;
    cluster.start_agent_with(1, &["--pod-routes", "ipip"])?;
    cluster.wait_for_hooks(1)?;
    let [range, _] = cluster.bed().node(2)?.pod_ranges();
    let proxy = cluster.proxy(1)?;
    proxy.wait_until("there is a tunnel or a reason", || {
        let has_tunnel = routes_to(&node, &range.to_string())?.contains("dev mr-");
        Ok(has_tunnel || proxy.log().contains("modprobe ipip"))
    })?;
    for (range, address) in
        cluster.bed().node(3)?.pod_ranges().into_iter().zip(cluster.bed().node(3)?.addresses().both())
    {
        let shown = || routes_to(&node, &range.to_string());
        let wanted = format!("via {address} dev eth0 proto 109");
        proxy.wait_until(&format!("{range} is routed"), || Ok(shown()?.contains(&wanted)))?;
    }
    Ok(())
}
