//! The origin of the configuration, and the client for it.

use std::env;
use std::fmt;
use std::path::PathBuf;

use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};

use super::failure::CONNECT_TIMEOUT;
use super::token::TokenFile;
use crate::source::SourceError;

/// The origin of the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// The file that the flag names.
    Flag(PathBuf),
    /// The files that KUBECONFIG names, separated by colons.
    Variable(String),
    /// The service account of the pod.
    Pod,
    /// `~/.kube/config`.
    Home(PathBuf),
}

impl Origin {
    /// Returns the origin that the environment names. An empty variable counts as not set.
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
