//! The programs, their arguments, and the objects of the repository that the API needs.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde_json::Value;

use super::credentials::Credentials;
use crate::etcd::ETCD;

/// The variable with the folder's path, by envtest's convention.
const ASSETS: &str = "KUBEBUILDER_ASSETS";
/// The range of the ClusterIPs that [`Service`](crate::manifests::Service) gives out.
const CLUSTER_IPS: &str = "10.96.0.0/16,2001:db8:5::/108";

/// The folder of kube-apiserver and etcd.
#[derive(Clone, Debug)]
pub struct Programs {
    folder: PathBuf,
}

impl Programs {
    /// Finds them in the folder of KUBEBUILDER_ASSETS.
    pub fn find() -> Result<Self> {
        let folder = env::var_os(ASSETS).map(PathBuf::from).with_context(|| {
            format!(
                "{ASSETS} is not set: `cargo xtask setup --apiserver` says to what, `cargo xtask test` sets it"
            )
        })?;
        let programs = Self { folder };
        for program in [programs.server(), programs.etcd()] {
            if !program.is_file() {
                bail!("{ASSETS} names a folder without {}", program.display());
            }
        }
        Ok(programs)
    }

    pub(super) fn server(&self) -> PathBuf {
        self.folder.join("kube-apiserver")
    }

    pub(super) fn etcd(&self) -> PathBuf {
        self.folder.join("etcd")
    }

    /// Returns the server's arguments: RBAC and admission as in a real cluster, and nothing that
    /// needs a controller.
    pub(super) fn server_arguments(credentials: &Credentials, port: u16) -> Vec<String> {
        let path = |name: &str| credentials.path(name).display().to_string();
        [
            ("etcd-servers", ETCD.to_owned()),
            ("bind-address", "0.0.0.0".to_owned()),
            ("secure-port", port.to_string()),
            ("tls-cert-file", path("server.crt")),
            ("tls-private-key-file", path("server.key")),
            ("client-ca-file", path("ca.crt")),
            ("service-account-issuer", "https://kubernetes.default.svc".to_owned()),
            ("service-account-signing-key-file", path("tokens.key")),
            ("service-account-key-file", path("tokens.pub")),
            ("service-cluster-ip-range", CLUSTER_IPS.to_owned()),
            ("authorization-mode", "RBAC".to_owned()),
            // No client needs the endpoints of the Service `kubernetes`.
            ("endpoint-reconciler-type", "none".to_owned()),
            // Otherwise a stopping server waits a minute for its watches.
            ("shutdown-watch-termination-grace-period", "2s".to_owned()),
        ]
        .map(|(flag, value)| format!("--{flag}={value}"))
        .to_vec()
    }
}

/// Returns the objects of rbac.yaml in a folder of manifests, in `namespace` as its kustomization would put
/// them.
pub(super) fn rbac(folder: &str, namespace: &str) -> Result<Vec<Value>> {
    const NAMESPACED: [&str; 3] = ["ServiceAccount", "Role", "RoleBinding"];
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../manifests").join(folder).join("rbac.yaml");
    let text = std::fs::read_to_string(&path).with_context(|| format!("can't read {}", path.display()))?;
    let documents = serde_norway::Deserializer::from_str(&text).map(Value::deserialize);
    let mut objects: Vec<Value> = documents.collect::<Result<_, _>>().context("rbac.yaml is no YAML")?;
    for object in &mut objects {
        if object.get("kind").and_then(Value::as_str).is_some_and(|kind| NAMESPACED.contains(&kind)) {
            let metadata = object.pointer_mut("/metadata").and_then(Value::as_object_mut);
            metadata.context("an object without metadata")?.insert("namespace".into(), namespace.into());
        }
    }
    Ok(objects)
}
