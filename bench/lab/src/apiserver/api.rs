//! The API: one call at a time.

use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use futures_util::{StreamExt, TryStreamExt, stream};
use http::Request;
use kube::api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::{GroupVersionKind, TypeMeta};
use kube::{Api, Client, Config};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::etcd::ETCD;
use crate::net::Namespace;

/// The bed's name as an owner of fields.
const MANAGER: &str = "test-bed";
/// The longest duration of a call.
const CALL_LIMIT: Duration = Duration::from_secs(30);

/// A user of the API, in a namespace that reaches the server.
#[derive(Clone)]
pub struct Kube {
    namespace: Arc<Namespace>,
    client: Client,
}

impl Kube {
    /// Connects as the user of a kubeconfig.
    pub fn connect(namespace: &Arc<Namespace>, kubeconfig: &Path) -> Result<Self> {
        let kubeconfig = Kubeconfig::read_from(kubeconfig)?;
        let client = namespace.run(async move || {
            let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
            Ok(Client::try_from(config)?)
        })?;
        Ok(Self { namespace: Arc::clone(namespace), client })
    }

    /// Connects to etcd, which speaks JSON over HTTP as well.
    pub(super) fn connect_to_etcd(namespace: &Arc<Namespace>) -> Result<Self> {
        let client = namespace.run(async || {
            let mut config = Config::new(ETCD.parse()?);
            // Plain HTTP has no certificates. Otherwise the client would look for the machine's
            // own.
            config.accept_invalid_certs = true;
            Ok(Client::try_from(config)?)
        })?;
        Ok(Self { namespace: Arc::clone(namespace), client })
    }

    /// Returns the client. Only the [`namespace`](Self::namespace)'s own thread may use it.
    #[must_use]
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Returns the namespace of the user.
    #[must_use]
    pub const fn namespace(&self) -> &Arc<Namespace> {
        &self.namespace
    }

    /// Creates an object or makes the existing one equal to it (server-side apply), with its status
    /// if it has one.
    pub fn put(&self, object: Value) -> Result<()> {
        self.put_all([object])
    }

    /// Puts several objects, one after the other.
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

    /// Deletes an object. A missing one counts as deleted.
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

    /// Returns all objects of a kind in a namespace.
    pub fn list(&self, version: &str, kind: &str, namespace: &str) -> Result<Vec<Value>> {
        let api = api(&self.client, version, kind, Some(namespace).filter(|name| !name.is_empty()))?;
        self.call(async move {
            let objects = api.list(&kube::api::ListParams::default()).await?;
            objects.items.into_iter().map(|object| Ok(serde_json::to_value(object)?)).collect()
        })
    }

    /// Returns the answer to a GET of a path.
    pub fn read(&self, path: &str) -> Result<String> {
        let (client, request) = (self.client.clone(), Request::get(path).body(Vec::new())?);
        self.call(async move { Ok(client.request_text(request).await?) })
    }

    /// Returns the answer to a POST of an object to a path.
    pub fn write(&self, path: &str, body: &Value) -> Result<Value> {
        let request = Request::post(path).header("Content-Type", "application/json");
        let request = request.body(serde_json::to_vec(body)?)?;
        let client = self.client.clone();
        self.call(async move { Ok(client.request(request).await?) })
    }

    /// Creates many objects of one path, several at a time.
    pub fn create_all(&self, path: &str, objects: Vec<Value>) -> Result<()> {
        const AT_A_TIME: usize = 16;
        const LIMIT: Duration = Duration::from_mins(10);
        let (client, path) = (self.client.clone(), path.to_owned());
        let create = async move {
            let calls = objects.into_iter().map(|object| {
                let (client, path) = (client.clone(), path.clone());
                async move {
                    let request = Request::post(path).header("Content-Type", "application/json");
                    let created = client.request::<Value>(request.body(serde_json::to_vec(&object)?)?).await;
                    created.map(drop).with_context(|| format!("can't create {}", label(&object)))
                }
            });
            stream::iter(calls).buffer_unordered(AT_A_TIME).try_collect::<()>().await
        };
        self.namespace.run(async move || timeout(LIMIT, create).await.context("the calls took too long")?)
    }

    /// Returns a new token of a ServiceAccount.
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

/// Returns the API of a kind. The default plural of paths is right for every kind that tests need.
fn api(client: &Client, version: &str, kind: &str, namespace: Option<&str>) -> Result<Api<DynamicObject>> {
    let types = TypeMeta { api_version: version.to_owned(), kind: kind.to_owned() };
    let resource = ApiResource::from_gvk(&GroupVersionKind::try_from(&types)?);
    Ok(match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    })
}

/// Removes nulls. Manifests have them for missing fields, and server-side apply would own those
/// fields.
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
