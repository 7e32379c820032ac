//! The connection to the API server, by a kubeconfig or by a pod's service account.

use std::env;
use std::fmt;
use std::path::Path;

use http::Uri;
use kube::Client;

use super::origin::{Origin, client};
use super::renew::{Asked, renewing};
use crate::source::{Signs, SourceError};

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
