//! Which API server, and as whom: a kubeconfig, or what a pod is given.

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

/// Sooner than kube's 30 s: an address that swallows packets shall be named soon.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// A pod's configuration names the API server by its Service.
const IN_CLUSTER_HINT: &str = " (in a pod its address is that of a Service, which nobody may serve yet: give \
                               --kubeconfig, or KUBERNETES_SERVICE_HOST and _PORT, an address of its own; \
                               the DaemonSet takes them from the ConfigMap millrace-api-server)";

/// An API server that can be asked. Nothing was sent yet.
#[derive(Clone)]
pub struct Connection {
    /// Cheap to clone; all clones share credentials and connections.
    pub client: Client,
    /// The server's URL, for messages.
    pub(super) server: String,
    /// What to try where it can't be reached.
    pub(super) hint: Option<&'static str>,
    /// Where it is counted what is asked of it, and said how it is.
    pub(super) signs: Signs,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("server", &self.server).finish_non_exhaustive()
    }
}

/// Reads the configuration: `kubeconfig`, else the environment's KUBECONFIG, else what a pod is given, else
/// `~/.kube/config`. Fails where there is none, or none that could ever work. What is asked is counted in `signs`.
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

/// Host and port, as client-go's metrics name a server.
fn host(url: &Uri) -> String {
    let host = url.host().unwrap_or_default();
    url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
}

/// A client with this configuration, which came from `origin`, and the token that it does not send by itself.
pub(super) fn client(
    mut config: Config,
    origin: &Origin,
) -> Result<(Client, Option<TokenFile>), SourceError> {
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    // It would wait without a word, for minutes; our own retries know what they are for.
    config.default_retry = false;
    let token = TokenFile::take(&mut config.auth_info).map_err(|message| origin.wrong(&message))?;
    let client = Client::try_from(config).map_err(|error| origin.wrong(&error.to_string()))?;
    Ok((client, token))
}

/// Where the configuration is from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// The file that the flag names.
    Flag(PathBuf),
    /// The files that KUBECONFIG names, separated by colons.
    Variable(String),
    /// What a pod is given.
    Pod,
    /// `~/.kube/config`.
    Home(PathBuf),
}

impl Origin {
    /// What the environment says; a variable that is empty counts as not set.
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

/// kube's words, where they say what is to be done; ours where they don't.
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
