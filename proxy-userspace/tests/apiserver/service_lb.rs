//! `millrace controller`, with the rights of manifests/controller, and the agents that serve its addresses.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use millrace_lab::agent;
use millrace_lab::apiserver::{ApiServer, Kube};
use millrace_lab::capture::{Capture, Trail};
use millrace_lab::manifests::{Service, nodes};
use millrace_lab::pool::Taken;
use millrace_lab::process::{self, Process};
use millrace_lab::topology::{Dual, Family};
use millrace_lab::traffic::{Answer, Connection, Protocol, ask, get_status};
use millrace_lab::walk::Walk;
use serde_json::{Value, json};

use crate::fixture::{SERVED, UNSERVED, remove, set_ready, shared};

const CLASS: &str = "millrace.dev/node-ip";
/// A Lease's duration, and the time to notice.
const TAKE_OVER: Duration = Duration::from_secs(40);

/// The common cluster with controllers on the node without an agent.
struct Stage {
    cluster: Taken,
    kubeconfig: PathBuf,
    controllers: Vec<Process>,
}

impl Stage {
    /// Starts as many controllers. Nodes with an agent are ready, the other one is not.
    fn new(controllers: usize) -> Result<Self> {
        let cluster = shared();
        let kubeconfig = cluster.api_server()?.controller_kubeconfig()?;
        // What an earlier test's controller has left would have to run out first.
        cluster.api_server()?.kube().delete(
            "coordination.k8s.io/v1",
            "Lease",
            "kube-system",
            "millrace-controller",
        )?;
        let mut stage = Self { cluster, kubeconfig, controllers: Vec::new() };
        // A Service of a failed test would have the ports of the next one.
        for service in stage.kube().list("v1", "Service", "default")? {
            if service["spec"]["loadBalancerClass"] == CLASS {
                let name = service["metadata"]["name"].as_str().unwrap_or_default();
                stage.kube().delete("v1", "Service", "default", name)?;
            }
        }
        for node in SERVED {
            stage.set_ready(node, true)?;
        }
        stage.set_ready(UNSERVED, false)?;
        (0..controllers).try_for_each(|_| stage.start())?;
        Ok(stage)
    }

    /// Starts a controller, and waits until it is ready, as a Deployment does.
    fn start(&mut self) -> Result<()> {
        static PORT: AtomicU16 = AtomicU16::new(10_270);
        let bed = self.cluster.bed();
        let address = SocketAddr::from(([127, 0, 0, 1], PORT.fetch_add(1, Ordering::Relaxed)));
        let arguments = [
            "controller",
            "--service-lb-default=false",
            "--lease-namespace=kube-system",
            &format!("--bind-address={address}"),
            &format!("--kubeconfig={}", self.kubeconfig.display()),
        ];
        let arguments = arguments.map(str::to_owned).to_vec();
        let namespace = bed.node(UNSERVED)?.namespace();
        self.controllers.push(Process::start(namespace, agent::binary()?, arguments, &self.log())?);
        let ready = || namespace.run(async move || get_status(address, "/readyz").await);
        self.cluster.proxy(SERVED[0])?.wait_until("the controller is ready", || Ok(ready()? == 200))
    }

    fn log(&self) -> PathBuf {
        self.cluster.bed().directory().join("controller.log")
    }

    fn server(&self) -> &ApiServer {
        self.cluster.api_server().expect("the shared cluster has one")
    }

    fn kube(&self) -> &Kube {
        self.server().kube()
    }

    /// Writes a Node's condition, as its kubelet or the node controller would.
    fn set_ready(&self, node: u8, is_ready: bool) -> Result<()> {
        set_ready(&self.cluster, node, is_ready)
    }

    /// Puts a Service of the controller's class with these pods.
    fn put(&self, service: &Service) -> Result<()> {
        let mut objects = service.objects();
        let spec = &mut objects[0]["spec"];
        spec["type"] = "LoadBalancer".into();
        spec["loadBalancerClass"] = CLASS.into();
        if let Some(fields) = objects[0].as_object_mut() {
            fields.remove("status");
        }
        self.kube().put_all(objects)
    }

    fn status(&self, name: &str) -> Result<Value> {
        let text = self.kube().read(&format!("/api/v1/namespaces/default/services/{name}"))?;
        let service: Value = serde_json::from_str(&text)?;
        Ok(service["status"].clone())
    }

    /// Waits until a Service has exactly the addresses of these nodes, IPv4 first.
    fn expect(&self, name: &str, nodes: &[u8]) -> Result<()> {
        let mut wanted = Vec::new();
        for family in Family::ALL {
            for node in nodes {
                wanted.push(self.cluster.bed().node(*node)?.addresses().of(family).to_string());
            }
        }
        self.expect_addresses(name, &wanted)
    }

    /// Waits until a Service has exactly these addresses.
    fn expect_addresses(&self, name: &str, wanted: &[String]) -> Result<()> {
        self.wait(&format!("{name} has {wanted:?}"), TAKE_OVER, || {
            let status = self.status(name)?;
            let entries = status["loadBalancer"]["ingress"].as_array().cloned().unwrap_or_default();
            ensure!(entries.iter().all(|entry| entry["ipMode"] == "VIP"), "{status}");
            let found: Vec<&str> = entries.iter().filter_map(|entry| entry["ip"].as_str()).collect();
            Ok(found == wanted)
        })
    }

    fn wait(&self, what: &str, limit: Duration, condition: impl Fn() -> Result<bool>) -> Result<()> {
        let waited = self.cluster.proxy(SERVED[0])?.wait_until_within(limit, what, condition);
        waited.with_context(|| std::fs::read_to_string(self.log()).unwrap_or_default())
    }

    /// Waits until an agent serves a load balancer's address, or doesn't.
    fn wait_for_agent(&self, node: u8, service: &str, target: IpAddr, serves: bool) -> Result<()> {
        let proxy = self.cluster.proxy(node)?;
        proxy.wait_until(&format!("{service} at {target}: {serves}"), || {
            let rows = proxy.services()?.into_iter().filter(|row| row.name == service);
            let mut frontends = rows.flat_map(|row| row.frontends);
            Ok(frontends.any(|one| one.address.ip() == target && one.kind == "LoadBalancer") == serves)
        })
    }

    fn holder(&self) -> Result<String> {
        let path = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/millrace-controller";
        let lease: Value = serde_json::from_str(&self.kube().read(path)?)?;
        Ok(lease["spec"]["holderIdentity"].as_str().unwrap_or_default().to_owned())
    }

    fn events(&self, reason: &str) -> Result<Vec<Value>> {
        let events = self.kube().list("events.k8s.io/v1", "Event", "default")?;
        Ok(events.into_iter().filter(|event| event["reason"] == reason).collect())
    }
}

#[test]
fn clients_reach_a_service_at_the_addresses_of_ready_nodes_and_pods_see_the_client() -> Result<()> {
    let stage = Stage::new(1)?;
    let service = stage.cluster.service("nodeip", 60, &["pod-1a", "pod-1b"])?;
    stage.put(&service)?;
    stage.expect("nodeip", &SERVED)?;
    let node = stage.cluster.bed().node(1)?.addresses();
    for address in node.both() {
        stage.wait_for_agent(1, "nodeip", address, true)?;
    }
    stage.cluster.expect(&Walk::to("nodeip", node, 80, &["pod-1a", "pod-1b"], Trail::local("node1")))?;
    remove(&stage.cluster, &service)
}

#[test]
fn clients_of_a_public_address_that_a_router_maps_to_the_node_are_served_and_seen() -> Result<()> {
    let stage = Stage::new(1)?;
    let bed = stage.cluster.bed();
    let node = bed.node(1)?;
    let public = Dual { v4: "192.0.2.211".parse()?, v6: "2001:db8:f::211".parse()? };
    let own = node.addresses();
    let rules = format!(
        "table inet cloud {{ chain translate {{ type nat hook prerouting priority dstnat; \
         ip daddr {} dnat ip to {}; ip6 daddr {} dnat ip6 to {}; }}; }}",
        public.v4, own.v4, public.v6, own.v6
    );
    process::output(bed.router(), &["nft", &rules])?;
    let mut object = nodes(bed).remove(0);
    ensure!(object["metadata"]["name"] == node.name());
    object["status"]["conditions"] = json!([{ "type": "Ready", "status": "True" }]);
    let addresses = object["status"]["addresses"].as_array_mut().context("a Node has addresses")?;
    addresses.extend(public.both().map(|address| json!({ "type": "ExternalIP", "address": address })));
    stage.kube().put(object)?;
    let service = stage.cluster.service("mapped", 67, &["pod-1a", "pod-1b"])?;
    stage.put(&service)?;
    // As in k3s, one ExternalIP keeps all InternalIPs away. The other node has none.
    let wanted: Vec<String> = public.both().iter().map(ToString::to_string).collect();
    stage.expect_addresses("mapped", &wanted)?;
    for family in Family::ALL {
        stage.wait_for_agent(1, "mapped", own.of(family), true)?;
        for protocol in Protocol::ALL {
            let mut capture = Capture::start(bed.router(), &["node1", "node2"])?;
            let Answer { sighting: seen, client } =
                ask(bed.client(), protocol, SocketAddr::new(public.of(family), 80))?;
            assert_eq!(seen.peer.ip(), bed.client_addresses().of(family), "{protocol:?}");
            let trail = Trail::of(capture.packets()?, client, SocketAddr::new(own.of(family), 80));
            assert_eq!(trail, Trail::local("node1"), "{protocol:?}");
            assert!(["pod-1a", "pod-1b"].contains(&seen.backend.as_str()), "{seen:?}");
        }
    }
    process::output(bed.router(), &["nft", "delete table inet cloud"])?;
    stage.set_ready(1, true)?;
    remove(&stage.cluster, &service)
}

#[test]
fn a_node_that_fails_leaves_the_status_and_serves_its_connections_on() -> Result<()> {
    let stage = Stage::new(1)?;
    let service = stage.cluster.service("drained", 61, &["pod-2a"])?;
    stage.put(&service)?;
    stage.expect("drained", &SERVED)?;
    let target = stage.cluster.bed().node(2)?.addresses().both();
    for address in target {
        stage.wait_for_agent(2, "drained", address, true)?;
    }
    let client = stage.cluster.bed().client();
    let target = SocketAddr::new(target[0], 80);
    let mut connection = client.run(async move || Connection::open(target).await)?;
    stage.set_ready(2, false)?;
    let failed = Instant::now();
    stage.expect("drained", &[1])?;
    eprintln!("the address left the status {:?} after the Node's change", failed.elapsed());
    // The agent has seen the status by then: node 1's frontends stay, node 2's agent serves its own, too.
    stage.wait_for_agent(1, "drained", target.ip(), false)?;
    stage.wait_for_agent(2, "drained", target.ip(), true)?;
    let connection = client.run(async move || {
        ensure!(connection.upload(1000).await?.sighting.received == 1000);
        Ok(connection)
    })?;
    drop(connection);
    // A new client that has the former address is served, too.
    stage.cluster.exchange(target, 1000)?;
    stage.set_ready(2, true)?;
    stage.expect("drained", &SERVED)?;
    // If all nodes seem to have failed, the addresses stay.
    stage.set_ready(1, false)?;
    stage.expect("drained", &SERVED[1..])?;
    stage.set_ready(2, false)?;
    stage.wait("an Event tells of it", TAKE_OVER, || Ok(!stage.events("NoReadyNode")?.is_empty()))?;
    stage.expect("drained", &SERVED[1..])?;
    remove(&stage.cluster, &service)
}

#[test]
fn with_policy_local_the_addresses_follow_the_pods() -> Result<()> {
    let stage = Stage::new(1)?;
    for (pods, nodes) in
        [(&["pod-1a"][..], &[1][..]), (&["pod-2a"], &[2]), (&["pod-1a", "pod-2b"], &[1, 2]), (&[], &[])]
    {
        // Only a Service with an external address has the policy in its manifest.
        let service = stage.cluster.service("follows", 62, pods)?.node_ports(30162).local();
        stage.put(&service)?;
        stage.expect("follows", nodes)?;
    }
    remove(&stage.cluster, &stage.cluster.service("follows", 62, &[])?)
}

#[test]
fn of_two_controllers_one_writes_and_the_other_takes_over_when_it_dies_or_stops() -> Result<()> {
    let mut stage = Stage::new(1)?;
    stage.wait("the first one leads", TAKE_OVER, || Ok(!stage.holder()?.is_empty()))?;
    let first = stage.holder()?;
    stage.start()?;
    let service = stage.cluster.service("elected", 63, &["pod-1a"])?;
    stage.put(&service)?;
    stage.expect("elected", &SERVED)?;
    assert_eq!(stage.holder()?, first);
    let killed = Instant::now();
    stage.controllers.remove(0).kill()?;
    stage.set_ready(2, false)?;
    stage.expect("elected", &[1])?;
    let second = stage.holder()?;
    eprintln!("the other controller wrote {:?} after the first one was killed", killed.elapsed());
    assert_ne!(second, first);
    stage.start()?;
    let stopped = Instant::now();
    // SIGTERM gives the Lease back.
    ensure!(stage.controllers.remove(0).stop()?.success());
    stage.set_ready(2, true)?;
    stage.expect("elected", &SERVED)?;
    eprintln!("the next one wrote {:?} after SIGTERM", stopped.elapsed());
    assert_ne!(stage.holder()?, second);
    remove(&stage.cluster, &service)
}

#[test]
fn the_younger_of_two_services_with_one_port_is_told_and_gets_it_when_the_older_is_gone() -> Result<()> {
    let stage = Stage::new(1)?;
    let older = stage.cluster.service("older", 64, &["pod-1a"])?;
    stage.put(&older)?;
    stage.expect("older", &SERVED)?;
    // The API server's times have whole seconds, and the name would decide. It is a later one.
    let younger = stage.cluster.service("younger", 65, &["pod-2a"])?;
    stage.put(&younger)?;
    stage.wait("an Event tells of it", TAKE_OVER, || Ok(!stage.events("PortConflict")?.is_empty()))?;
    let condition = || Ok(stage.status("younger")?["conditions"][0].clone());
    stage.wait("a condition tells of it", TAKE_OVER, || Ok(condition()?["status"] == "True"))?;
    let condition: Value = {
        let found: Result<Value> = condition();
        found?
    };
    assert_eq!(
        (&condition["type"], &condition["reason"]),
        (&json!("LoadBalancerPortsError"), &json!("PortConflict"))
    );
    let message = condition["message"].as_str().unwrap_or_default();
    assert!(message.starts_with("port 80 TCP is Service default/older's on all nodes"), "{message}");
    stage.expect("younger", &[])?;
    remove(&stage.cluster, &older)?;
    stage.expect("younger", &SERVED)?;
    stage.wait("the condition is over", TAKE_OVER, || {
        Ok(stage.status("younger")?["conditions"][0]["status"] == "False")
    })?;
    remove(&stage.cluster, &younger)
}

#[test]
fn a_port_of_a_process_of_the_node_stays_the_process_and_an_event_says_so() -> Result<()> {
    const PORT: u16 = 8199;
    let mut stage = Stage::new(1)?;
    stage.cluster.start_host_server(1, PORT)?;
    let service = stage.cluster.service("sshd", 66, &["pod-2a"])?;
    let service = service.port(PORT, 8080);
    stage.put(&service)?;
    stage.expect("sshd", &SERVED)?;
    let (first, second) =
        (stage.cluster.bed().node(1)?.addresses(), stage.cluster.bed().node(2)?.addresses());
    stage.wait_for_agent(2, "sshd", second.both()[0], true)?;
    stage.wait("an Event tells of it", TAKE_OVER, || {
        let note = format!("a process of this node has {}:{PORT} TCP; not served there", first.both()[0]);
        Ok(stage
            .events("RefusedAddress")?
            .iter()
            .any(|event| event["note"].as_str().is_some_and(|text| text.contains(&note))))
    })?;
    let rows = stage.cluster.proxy(1)?.services()?.into_iter().filter(|row| row.name == "sshd");
    let at_first: Vec<u16> = rows
        .flat_map(|row| row.frontends)
        .filter(|one| first.both().contains(&one.address.ip()) && one.kind == "LoadBalancer")
        .map(|one| one.address.port())
        .collect();
    assert!(at_first.contains(&80) && !at_first.contains(&PORT), "{at_first:?}");
    remove(&stage.cluster, &service)
}
