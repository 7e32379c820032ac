//! The control plane: etcd, API server, controllers, scheduler.

use std::path::Path;

use anyhow::Result;

use super::credentials::Credentials;
use super::machine::Program;
use super::plan::{API_PORT, CONTROL, PODS, Plan, SERVICES};
use super::programs::Assets;
use crate::etcd::{self, ETCD, flags};

/// Returns the programs of the control plane.
pub(super) fn programs(directory: &Path, credentials: &Credentials, assets: &Assets) -> Result<Vec<Program>> {
    let user = |name: &str| credentials.component(name, name, CONTROL);
    let (controller, scheduler) = (user("system:kube-controller-manager")?, user("system:kube-scheduler")?);
    Ok(vec![
        program(assets, "etcd", etcd::arguments(&directory.join("etcd")))?,
        program(assets, "kube-apiserver", server(credentials))?,
        program(assets, "kube-controller-manager", controllers(credentials, &controller))?,
        program(
            assets,
            "kube-scheduler",
            flags(&[("kubeconfig", &scheduler.display().to_string()), ("leader-elect", "false")]),
        )?,
    ])
}

/// Returns a program of the cluster with its arguments.
pub(super) fn program(assets: &Assets, name: &str, arguments: Vec<String>) -> Result<Program> {
    Ok(Program {
        name: name.to_owned(),
        path: assets.program(name)?,
        arguments,
        search_path: assets.search_path(),
    })
}

fn server(credentials: &Credentials) -> Vec<String> {
    let path = |name: &str| credentials.path(name).display().to_string();
    let [address, _] = Plan::control();
    flags(&[
        ("etcd-servers", ETCD),
        ("advertise-address", &address.to_string()),
        ("bind-address", "0.0.0.0"),
        ("secure-port", &API_PORT.to_string()),
        ("tls-cert-file", &path("server.crt")),
        ("tls-private-key-file", &path("server.key")),
        ("client-ca-file", &path("ca.crt")),
        ("kubelet-client-certificate", &path("kubelet-client.crt")),
        ("kubelet-client-key", &path("kubelet-client.key")),
        ("kubelet-preferred-address-types", "InternalIP"),
        ("service-account-issuer", "https://kubernetes.default.svc"),
        ("service-account-signing-key-file", &path("tokens.key")),
        ("service-account-key-file", &path("tokens.pub")),
        ("service-cluster-ip-range", SERVICES),
        ("authorization-mode", "Node,RBAC"),
        ("enable-admission-plugins", "NodeRestriction"),
        ("allow-privileged", "true"),
        ("shutdown-watch-termination-grace-period", "2s"),
    ])
}

fn controllers(credentials: &Credentials, kubeconfig: &Path) -> Vec<String> {
    let path = |name: &str| credentials.path(name).display().to_string();
    flags(&[
        ("kubeconfig", &kubeconfig.display().to_string()),
        ("root-ca-file", &path("ca.crt")),
        ("service-account-private-key-file", &path("tokens.key")),
        ("use-service-account-credentials", "true"),
        ("leader-elect", "false"),
        // By default, the controller of EndpointSlices needs 100 seconds for a thousand Services.
        ("kube-api-qps", "200"),
        ("kube-api-burst", "400"),
        // By default, all pods are taken for not ready when the API server was away for 50 seconds, because no kubelet
        // could report.
        ("node-monitor-grace-period", "2m"),
        // The nodes' ranges are fixed, because routes lead to them.
        ("allocate-node-cidrs", "false"),
        ("cluster-cidr", PODS),
    ])
}
