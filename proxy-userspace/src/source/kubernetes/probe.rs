//! Asks the API server whether an agent could work: version, rights, the Node, and the server's own address.

use std::net::IpAddr;
use std::time::Duration;

use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use k8s_openapi::api::core::v1::{Node, Service};
use kube::Api;
use kube::api::{ListParams, PostParams};
use tokio::time::timeout;

use super::{Connection, explain_refusal};

/// What the agent asks for, as in the manifests: group, resource and verb.
pub const RIGHTS: [Right; 8] = [
    Right::of("", "services", "list"),
    Right::of("", "services", "watch"),
    Right::of("", "nodes", "list"),
    Right::of("", "nodes", "watch"),
    Right::of("discovery.k8s.io", "endpointslices", "list"),
    Right::of("discovery.k8s.io", "endpointslices", "watch"),
    Right::of("events.k8s.io", "events", "create"),
    Right::of("events.k8s.io", "events", "patch"),
];

/// What it asks for besides with `--network-policy on`.
pub const POLICY_RIGHTS: [Right; 6] = [
    Right::of("", "namespaces", "list"),
    Right::of("", "namespaces", "watch"),
    Right::of("", "pods", "list"),
    Right::of("", "pods", "watch"),
    Right::of("networking.k8s.io", "networkpolicies", "list"),
    Right::of("networking.k8s.io", "networkpolicies", "watch"),
];

/// A right of RBAC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Right {
    /// The API group; empty for the core.
    pub group: &'static str,
    /// The resource.
    pub resource: &'static str,
    /// The verb.
    pub verb: &'static str,
}

impl Right {
    const fn of(group: &'static str, resource: &'static str, verb: &'static str) -> Self {
        Self { group, resource, verb }
    }
}

/// The API server's answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// The URL.
    pub server: String,
    /// The configuration is that of a pod's service account.
    pub is_pod: bool,
    /// The server's version, or why it can't be asked.
    pub version: Result<String, String>,
    /// The rights that the agent lacks, or why that is not known.
    pub missing: Result<Vec<Right>, String>,
    /// The addresses of the Node with this node's name; none if there is no such Node.
    pub node: Result<Option<Vec<IpAddr>>, String>,
    /// The addresses of the Service default/kubernetes, or why they are not known.
    pub service: Result<Vec<IpAddr>, String>,
}

impl Probe {
    /// Returns the host in the URL, if it is an address.
    #[must_use]
    pub fn address(&self) -> Option<IpAddr> {
        let rest = self.server.split_once("://").map_or(self.server.as_str(), |(_, rest)| rest);
        let host = rest.split('/').next()?;
        let bare = host.strip_prefix('[').and_then(|host| host.split(']').next());
        bare.or_else(|| host.rsplit_once(':').map(|(host, _)| host)).unwrap_or(host).parse().ok()
    }
}

/// Asks the API server, also for these rights. Each answer may take `patience`.
pub async fn probe(connection: &Connection, node: &str, rights: &[Right], patience: Duration) -> Probe {
    let client = &connection.client;
    let version = within(patience, client.apiserver_version()).await.map(|info| info.git_version);
    let mut probe = Probe {
        server: connection.server.clone(),
        is_pod: connection.hint.is_some(),
        missing: Err("it can't be asked".to_owned()),
        node: Err("it can't be asked".to_owned()),
        service: Err("it can't be asked".to_owned()),
        version,
    };
    if probe.version.is_err() {
        return probe;
    }
    // The agent may list, and not get.
    let named = |name: &str| ListParams::default().fields(&format!("metadata.name={name}"));
    let nodes = Api::<Node>::all(client.clone());
    let found = within(patience, nodes.list(&named(node))).await;
    probe.node = found.map(|nodes| nodes.items.first().map(addresses));
    let services = Api::<Service>::namespaced(client.clone(), "default");
    let found = within(patience, services.list(&named("kubernetes"))).await;
    probe.service = found.map(|services| services.items.first().map(cluster_ips).unwrap_or_default());
    probe.missing = missing(connection, rights, patience).await;
    probe
}

async fn within<T>(
    patience: Duration,
    answer: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, String> {
    match timeout(patience, answer).await {
        Ok(answer) => answer.map_err(|error| explain_refusal(&error)),
        Err(_) => Err(format!("the API server gave no answer within {} s", patience.as_secs())),
    }
}

async fn missing(
    connection: &Connection,
    rights: &[Right],
    patience: Duration,
) -> Result<Vec<Right>, String> {
    let reviews = Api::<SelfSubjectAccessReview>::all(connection.client.clone());
    let mut missing = Vec::new();
    for right in rights {
        let attributes = ResourceAttributes {
            group: Some(right.group.to_owned()),
            resource: Some(right.resource.to_owned()),
            verb: Some(right.verb.to_owned()),
            ..ResourceAttributes::default()
        };
        let spec =
            SelfSubjectAccessReviewSpec { resource_attributes: Some(attributes), ..Default::default() };
        let review = SelfSubjectAccessReview { spec, ..Default::default() };
        let answer = within(patience, reviews.create(&PostParams::default(), &review)).await?;
        if !answer.status.is_some_and(|status| status.allowed) {
            missing.push(*right);
        }
    }
    Ok(missing)
}

fn addresses(node: &Node) -> Vec<IpAddr> {
    let addresses = node.status.iter().flat_map(|status| status.addresses.iter().flatten());
    let internal = addresses.filter(|address| address.type_ == "InternalIP");
    internal.filter_map(|address| address.address.parse().ok()).collect()
}

fn cluster_ips(service: &Service) -> Vec<IpAddr> {
    let addresses = service.spec.iter().flat_map(|spec| spec.cluster_ips.iter().flatten());
    addresses.filter_map(|address| address.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use axum::routing::{get, post};
    use axum::{Router, body::Bytes, http::Uri, http::header};
    use serde_json::{Value, json};
    use tokio::net::TcpListener;

    use super::super::origin::{Origin, client};
    use super::*;
    use crate::source::Signs;

    const PATIENCE: Duration = Duration::from_secs(20);

    fn answer(value: &Value) -> ([(header::HeaderName, &'static str); 1], String) {
        ([(header::CONTENT_TYPE, "application/json")], value.to_string())
    }

    /// Returns a server with one Node and one right less than needed.
    fn server() -> Router {
        let version = json!({
            "major": "1", "minor": "36", "gitVersion": "v1.36.1", "gitCommit": "", "gitTreeState": "", "buildDate": "",
            "goVersion": "", "compiler": "", "platform": "",
        });
        let nodes = |uri: Uri| async move {
            let addresses =
                json!([{"type": "Hostname", "address": "n"}, {"type": "InternalIP", "address": "10.0.0.5"}]);
            let node = json!({"metadata": {"name": "node-a"}, "status": {"addresses": addresses}});
            let is_asked =
                uri.query().is_some_and(|query| query.contains("fieldSelector=metadata.name%3Dnode-a"));
            let items = if is_asked { vec![node] } else { Vec::new() };
            answer(&json!({"metadata": {}, "items": items}))
        };
        let services = || async {
            let spec = json!({"clusterIPs": ["10.96.0.1", "fd00::1"]});
            answer(&json!({"metadata": {}, "items": [{"metadata": {"name": "kubernetes"}, "spec": spec}]}))
        };
        let review = |body: Bytes| async move {
            let mut review: Value = serde_json::from_slice(&body).unwrap();
            let asked = &review["spec"]["resourceAttributes"];
            let allowed =
                asked["verb"] != "watch" || (asked["resource"] != "services" && asked["resource"] != "pods");
            review["status"] = json!({ "allowed": allowed });
            answer(&review)
        };
        Router::new()
            .route("/version", get(|| async move { answer(&version) }))
            .route("/api/v1/nodes", get(nodes))
            .route("/api/v1/namespaces/default/services", get(services))
            .route("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", post(review))
    }

    async fn connection(router: Option<Router>) -> Connection {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = format!("http://{}", listener.local_addr().unwrap());
        if let Some(router) = router {
            tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        }
        let (client, _) = client(kube::Config::new(server.parse().unwrap()), &Origin::Pod).unwrap();
        Connection { client, server, hint: None, signs: Signs::default() }
    }

    #[tokio::test]
    async fn each_answer_is_taken_by_itself() {
        let connection = connection(Some(server())).await;
        let rights: Vec<Right> = RIGHTS.into_iter().chain(POLICY_RIGHTS).collect();
        let found = probe(&connection, "node-a", &rights, PATIENCE).await;
        assert_eq!(found.version.as_deref(), Ok("v1.36.1"));
        assert_eq!(found.node, Ok(Some(vec!["10.0.0.5".parse().unwrap()])));
        let missing = ["services", "pods"].map(|resource| Right::of("", resource, "watch"));
        assert_eq!(found.missing, Ok(missing.to_vec()));
        assert_eq!(found.service.unwrap().len(), 2);
        assert_eq!(probe(&connection, "node-b", &RIGHTS, PATIENCE).await.node, Ok(None));
    }

    #[tokio::test]
    async fn a_server_that_can_not_be_reached_is_asked_once() {
        let found = probe(&connection(None).await, "node-a", &RIGHTS, PATIENCE).await;
        assert!(found.version.unwrap_err().starts_with("the API server can't be reached"));
        assert!(found.missing.is_err() && found.node.is_err());
    }

    #[test]
    fn the_address_in_a_url_is_found() {
        let of = |server: &str| {
            Probe {
                server: server.to_owned(),
                is_pod: true,
                version: Ok(String::new()),
                missing: Ok(Vec::new()),
                node: Ok(None),
                service: Ok(Vec::new()),
            }
            .address()
            .map(|address| address.to_string())
        };
        assert_eq!(of("https://10.96.0.1:443").as_deref(), Some("10.96.0.1"));
        assert_eq!(of("https://10.96.0.1/").as_deref(), Some("10.96.0.1"));
        assert_eq!(of("https://[fd00::1]:443").as_deref(), Some("fd00::1"));
        assert_eq!(of("https://api.example:6443"), None);
    }

    /// Returns the rights in rules of RBAC: group, resource and verb.
    fn granted(rules: &Value) -> BTreeSet<[String; 3]> {
        let words = |value: &Value| -> Vec<String> {
            value.as_array().unwrap().iter().map(|word| word.as_str().unwrap().to_owned()).collect()
        };
        let mut granted = BTreeSet::new();
        for rule in rules.as_array().unwrap() {
            for (group, resource) in words(&rule["apiGroups"]).iter().flat_map(|group| {
                words(&rule["resources"]).into_iter().map(move |resource| (group.clone(), resource))
            }) {
                let verbs = words(&rule["verbs"]).into_iter();
                granted.extend(verbs.map(|verb| [group.clone(), resource.clone(), verb]));
            }
        }
        granted
    }

    fn asked(rights: &[Right]) -> BTreeSet<[String; 3]> {
        rights.iter().map(|right| [right.group, right.resource, right.verb].map(str::to_owned)).collect()
    }

    #[test]
    fn the_rights_that_are_asked_for_are_those_of_the_manifests() {
        let text = include_str!("../../../../manifests/base/rbac.yaml");
        let role = text.split("---").find(|one| one.contains("kind: ClusterRole\n")).unwrap();
        let role: Value = serde_norway::from_str(role).unwrap();
        assert_eq!(asked(&RIGHTS), granted(&role["rules"]));

        let text = include_str!("../../../../manifests/components/network-policy/kustomization.yaml");
        let component: Value = serde_norway::from_str(text).unwrap();
        let patches = component["patches"].as_array().unwrap().iter();
        let of_role = patches.clone().find(|patch| patch["target"]["kind"] == "ClusterRole").unwrap();
        let operations: Value = serde_norway::from_str(of_role["patch"].as_str().unwrap()).unwrap();
        let rules = operations.as_array().unwrap().iter().map(|operation| operation["value"].clone());
        assert_eq!(asked(&POLICY_RIGHTS), granted(&rules.collect()));
    }
}
