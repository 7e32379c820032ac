//! The test's objects in the cluster: made, waited for, asked, and removed.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Namespace, Node as NodeObject, Pod, Service};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::core::Status;
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use super::objects::{self, CONTAINER, Kind, OWNER, RUNNING, Role};
use super::plan::{Frontends, Node};
use crate::echo::{Probe, Protocol, Reply};
use crate::kubectl::agents::{self, Agent, Container};
use crate::kubectl::error::KubectlError;

const PAUSE: Duration = Duration::from_millis(250);
/// The probes of one call. They stand in the address that the API server is asked for.
const AT_ONCE: usize = 64;
/// Waits of a test, each as long as it may be.
const PHASES: u32 = 4;

/// A namespace of the test.
pub struct Place<'a> {
    pub client: &'a Client,
    pub namespace: &'a str,
    /// The longest time for pods, Services and the namespace to become what they are to be.
    pub longest: Duration,
}

impl Place<'_> {
    fn namespaces(&self) -> Api<Namespace> {
        Api::all(self.client.clone())
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), self.namespace)
    }

    /// Makes room for the namespace: one that a former test left is removed, one in use or of somebody else is an error.
    pub async fn make_room(&self) -> Result<(), KubectlError> {
        let Some(found) = self.namespaces().get_opt(self.namespace).await? else { return Ok(()) };
        if !is_ours(&found) {
            return Err(KubectlError::Usage(format!(
                "--namespace: {} exists, and is not of `kubectl millrace test`; name another",
                self.namespace
            )));
        }
        let is_ending = found.metadata.deletion_timestamp.is_some();
        if is_in_use(&found, Timestamp::now()) && !is_ending {
            return Err(KubectlError::Usage(format!(
                "--namespace: another test runs in {name}, or was killed; name another, or end it: `kubectl delete \
                 namespace {name}`",
                name = self.namespace
            )));
        }
        self.remove().await?;
        let gone = async || Ok(self.namespaces().get_opt(self.namespace).await?.is_none());
        self.wait("the former namespace is there", gone).await
    }

    /// Makes the namespace.
    pub async fn make_namespace(&self) -> Result<(), KubectlError> {
        let namespace = objects::namespace(self.namespace, Timestamp::now() + self.longest * PHASES)?;
        self.within(self.namespaces().create(&PostParams::default(), &namespace)).await?;
        Ok(())
    }

    /// Waits for an answer of the API server, for a while.
    async fn within<T>(&self, asked: impl Future<Output = kube::Result<T>>) -> Result<T, KubectlError> {
        let not_in_time = |_| KubectlError::NotInTime {
            what: "the API server does not answer".to_owned(),
            longest: self.longest,
        };
        Ok(timeout(self.longest, asked).await.map_err(not_in_time)??)
    }

    /// Leaves the namespace to whoever looks into it, and to the next test.
    pub async fn keep(&self) -> Result<(), KubectlError> {
        let patch = Patch::Merge(json!({"metadata": {"annotations": {RUNNING: null}}}));
        self.within(self.namespaces().patch(self.namespace, &PatchParams::default(), &patch)).await?;
        Ok(())
    }

    /// Removes the namespace with all in it, and does not wait.
    pub async fn remove(&self) -> Result<(), KubectlError> {
        let (namespaces, parameters) = (self.namespaces(), DeleteParams::default());
        let deletion = async {
            match namespaces.delete(self.namespace, &parameters).await {
                Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
                result => result.map(drop),
            }
        };
        self.within(deletion).await
    }

    /// Makes all pods and Services. Returns where the Services are reached.
    pub async fn make(
        &self,
        nodes: &[String],
        image: &str,
    ) -> Result<BTreeMap<Kind, Frontends>, KubectlError> {
        for (index, node) in nodes.iter().enumerate() {
            for role in Role::ALL {
                self.make_pod(&objects::pod(role, node, index == 0, image)?).await?;
            }
        }
        let services = Api::<Service>::namespaced(self.client.clone(), self.namespace);
        let mut frontends = BTreeMap::new();
        for kind in Kind::ALL {
            let made = services.create(&PostParams::default(), &objects::service(kind)?).await?;
            let mut found = found(&made);
            found.balancer_ips = self.give_balancer_ips(&services, kind, &found.cluster_ips).await?;
            frontends.insert(kind, found);
        }
        Ok(frontends)
    }

    /// Makes a pod. A new namespace has no `ServiceAccount` at first, and the API server refuses its pods.
    async fn make_pod(&self, pod: &Pod) -> Result<(), KubectlError> {
        let end = Instant::now() + self.longest;
        loop {
            match self.pods().create(&PostParams::default(), pod).await {
                Err(kube::Error::Api(status)) if is_too_early(&status) && Instant::now() < end => {
                    sleep(PAUSE).await;
                }
                result => return Ok(result.map(drop)?),
            }
        }
    }

    /// Gives a Service its addresses of a load balancer. Returns none if this user may not.
    async fn give_balancer_ips(
        &self,
        services: &Api<Service>,
        kind: Kind,
        families: &[IpAddr],
    ) -> Result<Vec<IpAddr>, KubectlError> {
        let of_family = |ip: &&IpAddr| families.iter().any(|one| one.is_ipv4() == ip.is_ipv4());
        let addresses: Vec<IpAddr> = kind.balancer_ips().iter().filter(of_family).copied().collect();
        if addresses.is_empty() {
            return Ok(addresses);
        }
        let ingress: Vec<Value> = addresses.iter().map(|ip| json!({"ip": ip})).collect();
        let patch = Patch::Merge(json!({"status": {"loadBalancer": {"ingress": ingress}}}));
        match services.patch_status(kind.name(), &PatchParams::default(), &patch).await {
            Ok(_) => Ok(addresses),
            Err(kube::Error::Api(status)) if status.code == 403 => Ok(Vec::new()),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits until all pods are ready.
    pub async fn wait_for_pods(&self) -> Result<(), KubectlError> {
        let end = Instant::now() + self.longest;
        loop {
            let pods = self.pods().list(&ListParams::default()).await?;
            let Some(waiting) = pods.items.iter().find_map(not_ready) else { return Ok(()) };
            if Instant::now() > end {
                return Err(KubectlError::NotInTime { what: waiting, longest: self.longest });
            }
            sleep(PAUSE).await;
        }
    }

    /// Waits until all agents serve all Services with their endpoints.
    pub async fn wait_for_agents(
        &self,
        agents: &[Agent],
        names: &[String],
        services: &BTreeMap<Kind, Frontends>,
    ) -> Result<(), KubectlError> {
        let words = ["services", "-n", self.namespace, "-o", "json"].map(str::to_owned);
        let end = Instant::now() + self.longest;
        loop {
            let answers = agents::ask(self.client, agents, &words, self.longest).await;
            let lacking = answers.iter().find_map(|answer| {
                let document: Value = serde_json::from_str(&answer.output).unwrap_or_default();
                let why = match answer.complaints().next() {
                    // A Service that the agent does not have yet is a complaint, too.
                    Some(line) if document.is_null() => Some(line.to_owned()),
                    _ => lacking(&document, names, &answer.node, services),
                };
                Some(format!("{}: {}", answer.node, why?))
            });
            let Some(lacking) = lacking else { return Ok(()) };
            if Instant::now() > end {
                return Err(KubectlError::NotInTime { what: lacking, longest: self.longest });
            }
            sleep(PAUSE).await;
        }
    }

    async fn wait(
        &self,
        what: &str,
        is_done: impl AsyncFn() -> Result<bool, KubectlError>,
    ) -> Result<(), KubectlError> {
        let end = Instant::now() + self.longest;
        while !is_done().await? {
            if Instant::now() > end {
                return Err(KubectlError::NotInTime { what: what.to_owned(), longest: self.longest });
            }
            sleep(PAUSE).await;
        }
        Ok(())
    }

    /// Sends the probes from a pod. A pod that can't be asked has no replies, and the reason.
    pub async fn ask(&self, pod: &str, probes: &[Probe]) -> (Vec<Vec<Reply>>, Option<String>) {
        let container = Container { namespace: self.namespace, pod, name: CONTAINER };
        let mut replies = Vec::with_capacity(probes.len());
        for some in probes.chunks(AT_ONCE) {
            let words: Vec<String> =
                ["probe".to_owned()].into_iter().chain(some.iter().map(ToString::to_string)).collect();
            let answer = agents::exec(self.client, pod, &container, &words, self.longest).await;
            match serde_json::from_str::<Vec<Vec<Reply>>>(&answer.output) {
                Ok(found) if found.len() == some.len() => replies.extend(found),
                _ => return (replies, Some(answer.complaints().collect::<Vec<_>>().join("; "))),
            }
        }
        (replies, None)
    }
}

fn is_ours(namespace: &Namespace) -> bool {
    namespace.labels().get(OWNER.0).map(String::as_str) == Some(OWNER.1)
}

/// Whether a test may run in the namespace. One that was killed left its time there.
fn is_in_use(namespace: &Namespace, now: Timestamp) -> bool {
    let until = namespace.annotations().get(RUNNING).and_then(|text| text.parse::<Timestamp>().ok());
    until.is_some_and(|until| now < until)
}

/// Whether a pod was refused because its namespace has no `ServiceAccount` yet.
fn is_too_early(status: &Status) -> bool {
    status.code == 403 && status.message.contains("error looking up service account")
}

/// Returns the nodes with their internal addresses.
pub async fn nodes(client: &Client, names: &[String]) -> Result<Vec<Node>, KubectlError> {
    let api = Api::<NodeObject>::all(client.clone());
    let mut nodes = Vec::with_capacity(names.len());
    for name in names {
        let node = api.get(name).await?;
        let addresses = node.status.and_then(|status| status.addresses).unwrap_or_default();
        let internal = addresses.iter().filter(|address| address.type_ == "InternalIP");
        let addresses: Vec<IpAddr> = internal.filter_map(|address| address.address.parse().ok()).collect();
        nodes.push(Node { name: name.clone(), addresses });
    }
    Ok(nodes)
}

/// Returns the image of an agent.
pub async fn image(client: &Client, agent: &Agent) -> Result<String, KubectlError> {
    let pod = Api::<Pod>::namespaced(client.clone(), &agent.namespace).get(&agent.pod).await?;
    let containers = pod.spec.map(|spec| spec.containers).unwrap_or_default();
    let image = containers.into_iter().find(|one| one.name == agents::CONTAINER).and_then(|one| one.image);
    image.ok_or_else(|| KubectlError::Usage(format!("{} has no image; name one by --image", agent.pod)))
}

fn found(service: &Service) -> Frontends {
    let spec = service.spec.clone().unwrap_or_default();
    let ports = spec.ports.unwrap_or_default();
    let node_ports = ports.iter().filter_map(|port| {
        let protocol = Protocol::ALL.into_iter().find(|one| port.name.as_deref() == Some(one.name()))?;
        Some((protocol, u16::try_from(port.node_port?).ok()?))
    });
    let cluster_ips = spec.cluster_ips.unwrap_or_default();
    Frontends {
        cluster_ips: cluster_ips.iter().filter_map(|address| address.parse().ok()).collect(),
        balancer_ips: Vec::new(),
        node_ports: node_ports.collect(),
    }
}

/// Returns why a pod is not ready.
fn not_ready(pod: &Pod) -> Option<String> {
    let status = pod.status.clone().unwrap_or_default();
    let is_ready =
        |one: &k8s_openapi::api::core::v1::PodCondition| one.type_ == "Ready" && one.status == "True";
    if status.conditions.iter().flatten().any(is_ready) {
        return None;
    }
    let waiting = status.container_statuses.into_iter().flatten().find_map(|one| one.state?.waiting);
    let reason = waiting.map_or_else(
        || status.phase.unwrap_or_else(|| "Pending".to_owned()),
        |waiting| [waiting.reason, waiting.message].into_iter().flatten().collect::<Vec<_>>().join(": "),
    );
    Some(format!("the pod {} is not ready: {reason}", pod.name_any()))
}

/// Returns a Service that an agent lacks, or whose endpoints it does.
fn lacking(
    document: &Value,
    nodes: &[String],
    node: &str,
    services: &BTreeMap<Kind, Frontends>,
) -> Option<String> {
    let items = document.get("items").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    if items.iter().any(|item| item.get("mode").is_some_and(|mode| mode == "ipvs")) {
        return Some("IPVS serves there, which the test does not know; name other nodes by --on".to_owned());
    }
    for kind in Kind::ALL {
        // With internalTrafficPolicy Local each node has its own alone.
        let servers = kind.servers(nodes);
        let is_meant = |server: &&String| {
            kind != Kind::Internal
                || [Role::First, Role::Second].iter().any(|role| role.pod(node) == **server)
        };
        let wanted = servers.iter().filter(is_meant).count();
        for protocol in Protocol::ALL {
            let field = |item: &Value, field: &str| item.get(field).cloned().unwrap_or_default();
            let item = items
                .iter()
                .find(|item| field(item, "name") == kind.name() && field(item, "port") == protocol.name());
            let Some(item) = item else {
                return Some(format!("the agent lacks the Service {}:{}", kind.name(), protocol.name()));
            };
            let addresses: BTreeSet<IpAddr> =
                serde_json::from_value(field(item, "addresses")).unwrap_or_default();
            let balancer_ips = services.get(&kind).map(|found| found.balancer_ips.as_slice());
            if let Some(ip) = balancer_ips.unwrap_or_default().iter().find(|ip| !addresses.contains(ip)) {
                return Some(format!(
                    "the agent lacks the address {ip} of the Service {}:{}",
                    kind.name(),
                    protocol.name()
                ));
            }
            let ready = field(item, "ready").as_u64().and_then(|count| usize::try_from(count).ok());
            if ready != Some(wanted) {
                return Some(format!(
                    "the agent has {} of {wanted} endpoints of the Service {}:{}",
                    ready.unwrap_or_default(),
                    kind.name(),
                    protocol.name()
                ));
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pod_that_waits_says_why() {
        let pod = |status: Value| -> Pod {
            serde_json::from_value(json!({"metadata": {"name": "echo-a-x"}, "status": status})).unwrap()
        };
        let waiting = json!({"phase": "Pending", "containerStatuses": [{"name": "echo", "image": "", "imageID": "",
            "ready": false, "restartCount": 0,
            "state": {"waiting": {"reason": "ErrImagePull", "message": "no such image"}}}]});
        assert_eq!(
            not_ready(&pod(waiting)).unwrap(),
            "the pod echo-a-x is not ready: ErrImagePull: no such image"
        );
        assert_eq!(not_ready(&pod(json!({}))).unwrap(), "the pod echo-a-x is not ready: Pending");
        assert_eq!(not_ready(&pod(json!({"conditions": [{"type": "Ready", "status": "True"}]}))), None);
    }

    #[test]
    fn a_namespace_is_in_use_until_the_time_that_its_test_has() {
        let later = |seconds| Timestamp::UNIX_EPOCH + Duration::from_secs(seconds);
        let namespace = objects::namespace("t", later(60)).unwrap();
        assert!(is_ours(&namespace) && is_in_use(&namespace, later(59)));
        assert!(!is_in_use(&namespace, later(60)));
        assert!(!is_in_use(&Namespace::default(), later(0)), "a test that was over kept it");
    }

    #[test]
    fn a_pod_of_a_namespace_without_a_service_account_is_too_early() {
        let status = |code, message: &str| Status { code, message: message.to_owned(), ..Status::default() };
        let early = "pods \"echo\" is forbidden: error looking up service account t/default: not found";
        assert!(is_too_early(&status(403, early)));
        assert!(!is_too_early(&status(403, "pods is forbidden: User \"u\" cannot create")));
    }

    #[test]
    fn an_agent_must_have_all_services_with_their_endpoints() {
        let nodes = ["node-a".to_owned()];
        let item = |kind: Kind, protocol: Protocol, ready: usize| json!({"name": kind.name(), "port": protocol.name(), "ready": ready});
        let mut items: Vec<Value> = Kind::ALL
            .into_iter()
            .flat_map(|kind| Protocol::ALL.map(|protocol| item(kind, protocol, kind.servers(&nodes).len())))
            .collect();
        let mut services = BTreeMap::new();
        let lacking = |items: &[Value], services: &BTreeMap<Kind, Frontends>| {
            super::lacking(&json!({"items": items}), &nodes, "node-a", services)
        };
        assert_eq!(lacking(&items, &services), None);
        let balancer_ips = Kind::Balanced.balancer_ips().to_vec();
        services
            .insert(Kind::Balanced, Frontends { balancer_ips: balancer_ips.clone(), ..Frontends::default() });
        assert_eq!(
            lacking(&items, &services).unwrap(),
            "the agent lacks the address 198.18.255.1 of the Service balanced:tcp"
        );
        for item in items.iter_mut().filter(|item| item["name"] == "balanced") {
            item["addresses"] = json!(balancer_ips);
        }
        assert_eq!(lacking(&items, &services), None);
        items[0] = item(Kind::Plain, Protocol::Tcp, 1);
        assert_eq!(
            lacking(&items, &services).unwrap(),
            "the agent has 1 of 2 endpoints of the Service plain:tcp"
        );
        assert_eq!(lacking(&[], &services).unwrap(), "the agent lacks the Service plain:tcp");
    }
}
