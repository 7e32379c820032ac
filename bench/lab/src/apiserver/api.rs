//! The API, one call after the other.

use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use http::Request;
use kube::api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::{GroupVersionKind, TypeMeta};
use kube::{Api, Client, Config};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::programs::ETCD;
use crate::net::Namespace;

/// Who the API server takes us for when fields are owned by somebody.
const MANAGER: &str = "test-bed";
/// How long a call may take.
const CALL_LIMIT: Duration = Duration::from_secs(30);

/// A user of the API in a namespace from which the server is reached.
#[derive(Clone)]
pub struct Kube {
    namespace: Arc<Namespace>,
    client: Client,
}

impl Kube {
    /// The user that a kubeconfig describes.
    pub fn connect(namespace: &Arc<Namespace>, kubeconfig: &Path) -> Result<Self> {
        let kubeconfig = Kubeconfig::read_from(kubeconfig)?;
        let client = namespace.run(async move || {
            let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
            Ok(Client::try_from(config)?)
        })?;
        Ok(Self { namespace: Arc::clone(namespace), client })
    }

    /// etcd speaks JSON over HTTP too.
    pub(super) fn connect_to_etcd(namespace: &Arc<Namespace>) -> Result<Self> {
        let client = namespace.run(async || {
            let mut config = Config::new(ETCD.parse()?);
            // There are none: it is plain HTTP. Else the machine's own would be looked for.
            config.accept_invalid_certs = true;
            Ok(Client::try_from(config)?)
        })?;
        Ok(Self { namespace: Arc::clone(namespace), client })
    }

    /// The client, to be used in the [`namespace`](Self::namespace)'s own thread only.
    #[must_use]
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// The namespace it speaks from.
    #[must_use]
    pub const fn namespace(&self) -> &Arc<Namespace> {
        &self.namespace
    }

    /// Creates an object, or makes the one there is equal to it (server-side apply); its status too, if it has one.
    pub fn put(&self, object: Value) -> Result<()> {
        self.put_all([object])
    }

    /// The same for several, one after the other.
    pub fn put_all(&self, objects: impl IntoIterator<Item = Value>) -> Result<()> {
        let objects: Vec<Value> = objects.into_iter().collect();
        let client = self.client.clone();
        self.call(async move {
            for object in objects {
                let label = label(&object);
                put(&client, object).await.with_context(|| format!("can't put {label}"))?;
            }
            Ok(())
        })
    }

    /// Changes fields of an object by a merge patch.
    pub fn patch(&self, version: &str, kind: &str, namespace: &str, name: &str, patch: Value) -> Result<()> {
        let api = api(&self.client, version, kind, Some(namespace).filter(|name| !name.is_empty()))?;
        let (kind, name) = (kind.to_owned(), name.to_owned());
        self.call(async move {
            let patched = api.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await;
            patched.map(drop).with_context(|| format!("can't patch {kind} {name}"))
        })
    }

    /// Deletes an object; one that is not there is deleted already.
    pub fn delete(&self, version: &str, kind: &str, namespace: &str, name: &str) -> Result<()> {
        let api = api(&self.client, version, kind, Some(namespace).filter(|name| !name.is_empty()))?;
        let (kind, name) = (kind.to_owned(), name.to_owned());
        self.call(async move {
            match api.delete(&name, &DeleteParams::default()).await {
                Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
                other => other.map(drop).with_context(|| format!("can't delete {kind} {name}")),
            }
        })
    }

    /// All objects of a kind in a namespace.
    pub fn list(&self, version: &str, kind: &str, namespace: &str) -> Result<Vec<Value>> {
        let api = api(&self.client, version, kind, Some(namespace).filter(|name| !name.is_empty()))?;
        self.call(async move {
            let objects = api.list(&kube::api::ListParams::default()).await?;
            objects.items.into_iter().map(|object| Ok(serde_json::to_value(object)?)).collect()
        })
    }

    /// What a GET of a path answers.
    pub fn read(&self, path: &str) -> Result<String> {
        let (client, request) = (self.client.clone(), Request::get(path).body(Vec::new())?);
        self.call(async move { Ok(client.request_text(request).await?) })
    }

    /// What a POST of an object to a path answers.
    pub fn write(&self, path: &str, body: &Value) -> Result<Value> {
        let request = Request::post(path).header("Content-Type", "application/json");
        let request = request.body(serde_json::to_vec(body)?)?;
        let client = self.client.clone();
        self.call(async move { Ok(client.request(request).await?) })
    }

    /// A new token of a ServiceAccount.
    pub fn token(&self, namespace: &str, account: &str) -> Result<String> {
        let api = api(&self.client, "v1", "ServiceAccount", Some(namespace))?;
        let account = account.to_owned();
        let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}});
        let answer: Value = self.call(async move {
            Ok(api.create_subresource("token", &account, &PostParams::default(), &request).await?)
        })?;
        let token = answer.pointer("/status/token").and_then(Value::as_str);
        token.map(str::to_owned).context("the API server gave no token")
    }

    fn call<T: Send + 'static>(&self, call: impl Future<Output = Result<T>> + Send + 'static) -> Result<T> {
        let run = async move || timeout(CALL_LIMIT, call).await.context("the call took too long")?;
        self.namespace.run(run)
    }
}

impl std::fmt::Debug for Kube {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Kube").field("namespace", &self.namespace.name()).finish_non_exhaustive()
    }
}

async fn put(client: &Client, mut object: Value) -> Result<()> {
    without_nulls(&mut object);
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
    let version = text("/apiVersion").context("it has no apiVersion")?;
    let kind = text("/kind").context("it has no kind")?;
    let name = text("/metadata/name").context("it has no name")?;
    let api = api(client, &version, &kind, text("/metadata/namespace").as_deref())?;
    let status = object.as_object_mut().and_then(|fields| fields.remove("status"));
    api.patch(&name, &PatchParams::apply(MANAGER).force(), &Patch::Apply(object)).await?;
    if let Some(status) = status {
        let patch = Patch::Merge(json!({"status": status}));
        api.patch_status(&name, &PatchParams::default(), &patch).await.context("its status")?;
    }
    Ok(())
}

/// The plural that paths have is the one of every kind a test needs.
fn api(client: &Client, version: &str, kind: &str, namespace: Option<&str>) -> Result<Api<DynamicObject>> {
    let types = TypeMeta { api_version: version.to_owned(), kind: kind.to_owned() };
    let resource = ApiResource::from_gvk(&GroupVersionKind::try_from(&types)?);
    Ok(match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    })
}

/// Manifests say null for what is not there; server-side apply would own it.
fn without_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, field| !field.is_null());
            fields.values_mut().for_each(without_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(without_nulls),
        _ => {}
    }
}

fn label(object: &Value) -> String {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or("?");
    format!("{} {}", text("/kind"), text("/metadata/name"))
}
