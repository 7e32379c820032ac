//! The cluster's DNS server, for Kubernetes' own specs.

use serde_json::{Value, json};

use super::plan::DNS;

const NAME: &str = "coredns";
const IMAGE: &str = "millrace/coredns:1";
/// The names of Services and pods. There are no others: no DNS server is beyond the cluster.
const COREFILE: &str = ".:53 {
    errors
    health
    ready
    kubernetes cluster.local in-addr.arpa ip6.arpa {
        pods insecure
    }
}
";

/// Returns the objects of the DNS server.
pub(super) fn objects() -> Vec<Value> {
    let labels = json!({"k8s-app": "kube-dns"});
    let named = json!({"name": NAME, "namespace": "kube-system"});
    let rule = |group: &str, resources: &[&str]| json!({"apiGroups": [group], "resources": resources, "verbs": ["list", "watch"]});
    vec![
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": named}),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": NAME},
            "rules": [rule("", &["services", "pods", "namespaces"]), rule("discovery.k8s.io", &["endpointslices"])],
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": NAME},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": NAME},
            "subjects": [{"kind": "ServiceAccount", "name": NAME, "namespace": "kube-system"}],
        }),
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": named, "data": {"Corefile": COREFILE}}),
        json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": named,
            "spec": {
                "replicas": 2,
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": pod()},
            },
        }),
        json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": "kube-dns", "namespace": "kube-system", "labels": labels},
            "spec": {
                "clusterIP": DNS,
                "selector": labels,
                "ports": [
                    {"name": "dns", "port": 53, "protocol": "UDP"},
                    {"name": "dns-tcp", "port": 53, "protocol": "TCP"},
                ],
            },
        }),
    ]
}

fn pod() -> Value {
    json!({
        "serviceAccountName": NAME,
        "dnsPolicy": "Default",
        "tolerations": [{"operator": "Exists"}],
        "containers": [{
            "name": NAME,
            "image": IMAGE,
            "imagePullPolicy": "Never",
            "volumeMounts": [{"name": "corefile", "mountPath": "/etc/coredns"}],
            "readinessProbe": {"httpGet": {"path": "/ready", "port": 8181}, "periodSeconds": 1},
        }],
        "volumes": [{"name": "corefile", "configMap": {"name": NAME}}],
    })
}
