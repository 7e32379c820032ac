//! The connection to the API server, by a kubeconfig or by a pod's service account.

use std::env;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http::Uri;
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};

use super::renew::{Asked, renewing};
use super::token::TokenFile;
use crate::source::{Signs, SourceError};

/// Shorter than kube's 30 s: an address that swallows packets is to be named soon.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The hint for a pod, whose configuration names the API server by its Service.
const IN_CLUSTER_HINT: &str = " (in a pod its address is that of a Service, which may not be served yet: set \
                               --kubeconfig, or KUBERNETES_SERVICE_HOST and _PORT to the server's own address; \
                               the DaemonSet takes them from the ConfigMap millrace-api-server)";

/// A connection to an API server. No request was sent yet.
#[derive(Clone)]
pub struct Connection {
    /// The client. All clones share credentials and connections.
    pub client: Client,
    /// The server's URL, for messages.
    pub(super) server: String,
    /// A hint for the case that the server can't be reached.
    pub(super) hint: Option<&'static str>,
    /// The record of requests and of the source's state.
    pub(super) signs: Signs,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("server", &self.server).finish_non_exhaustive()
    }
}

/// Reads the configuration: `kubeconfig`, else KUBECONFIG, else a pod's service account, else
/// `~/.kube/config`.
///
/// Fails if there is none, or none that could ever work. Requests are counted in `signs`.
pub async fn connect(kubeconfig: Option<&Path>, signs: Signs) -> Result<Connection, SourceError> {
    let origin = kubeconfig.map(|path| Origin::Flag(path.to_owned()));
    let origin =
        origin.or_else(|| Origin::of(|name| env::var_os(name).map(|value| value.to_string_lossy().into())));
    open(origin.ok_or(SourceError::NoConfiguration)?, signs).await
}

async fn open(origin: Origin, signs: Signs) -> Result<Connection, SourceError> {
    let config = origin.read().await?;
    let server = config.cluster_url.to_string().trim_end_matches('/').to_owned();
    let asked = Asked { host: host(&config.cluster_url), signs: signs.clone() };
    let hint = matches!(origin, Origin::Pod).then_some(IN_CLUSTER_HINT);
    let (client, token) = client(config, &origin)?;
    Ok(Connection { client: renewing(client, token, origin, asked), server, hint, signs })
}

/// Returns host and port, as client-go's metrics name a server.
fn host(url: &Uri) -> String {
    let host = url.host().unwrap_or_default();
    url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
}

/// Returns a client for a configuration from `origin`, and the token that kube is not to send
/// itself.
pub(super) fn client(
    mut config: Config,
    origin: &Origin,
) -> Result<(Client, Option<TokenFile>), SourceError> {
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    // kube's own retries would wait for minutes without a log line; the followers know what they
    // retry.
    config.default_retry = false;
    let token = TokenFile::take(&mut config.auth_info).map_err(|message| origin.wrong(&message))?;
    let client = Client::try_from(config).map_err(|error| origin.wrong(&error.to_string()))?;
    Ok((client, token))
}

/// The origin of the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// The file of `--kubeconfig`.
    Flag(PathBuf),
    /// The files of KUBECONFIG, separated by colons.
    Variable(String),
    /// A pod's service account.
    Pod,
    /// `~/.kube/config`.
    Home(PathBuf),
}

impl Origin {
    /// Returns the origin that the environment names. An empty variable counts as unset.
    pub fn of(variable: impl Fn(&str) -> Option<String>) -> Option<Self> {
        let variable = |name| variable(name).filter(|value| !value.is_empty());
        if let Some(paths) = variable("KUBECONFIG") {
            return Some(Self::Variable(paths));
        }
        if variable("KUBERNETES_SERVICE_HOST").is_some() {
            return Some(Self::Pod);
        }
        let path = PathBuf::from(variable("HOME")?).join(".kube/config");
        path.exists().then_some(Self::Home(path))
    }

    pub async fn read(&self) -> Result<Config, SourceError> {
        let kubeconfig = match self {
            Self::Pod => return Config::incluster_env().map_err(|error| self.wrong(&error.to_string())),
            Self::Flag(path) | Self::Home(path) => Kubeconfig::read_from(path),
            Self::Variable(paths) => {
                let mut paths = env::split_paths(paths).filter(|path| !path.as_os_str().is_empty());
                paths.try_fold(Kubeconfig::default(), |all, path| all.merge(Kubeconfig::read_from(path)?))
            }
        };
        let wrong = |error: KubeconfigError| self.wrong(&explain(&error));
        let options = KubeConfigOptions::default();
        Config::from_custom_kubeconfig(kubeconfig.map_err(wrong)?, &options).await.map_err(wrong)
    }

    fn wrong(&self, message: &str) -> SourceError {
        let message = message.lines().next().unwrap_or_default().trim().to_owned();
        SourceError::Kubeconfig { origin: self.to_string(), message }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(path) => write!(f, "--kubeconfig {}", path.display()),
            Self::Variable(paths) => write!(f, "KUBECONFIG={paths}"),
            Self::Pod => f.write_str("in-cluster configuration"),
            Self::Home(path) => path.display().fmt(f),
        }
    }
}

/// Explains the error: in kube's words if they say what to do, else in ours.
fn explain(error: &KubeconfigError) -> String {
    match error {
        KubeconfigError::ReadConfig(cause, path) => format!("{}: {cause}", path.display()),
        KubeconfigError::Parse(cause) => format!("is no kubeconfig: {cause}"),
        KubeconfigError::CurrentContextNotSet => "current-context is not set".to_owned(),
        KubeconfigError::LoadContext(name) => format!("there is no context {name:?}"),
        KubeconfigError::LoadClusterOfContext(name) => format!("there is no cluster {name:?}"),
        other => other.to_string(),
    }
}
