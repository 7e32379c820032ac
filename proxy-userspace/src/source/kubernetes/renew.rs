//! Reads credentials again when the server refuses them: tokens and certificates are replaced in
//! their files while the agent runs.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::header::AUTHORIZATION;
use http::{HeaderValue, Request, Response, StatusCode};
use kube::Client;
use kube::client::Body;
use tokio::sync::Mutex;
use tower::{BoxError, Service};
use tracing::debug;

use super::failure::Failure;
use super::origin::{Origin, client};
use super::token::TokenFile;
use crate::source::{Signs, SourceError};

/// Returns a client that reads its configuration again after a refusal. kube reads a kubeconfig and
/// the files that it names only once.
pub(super) fn renewing(client: Client, token: Option<TokenFile>, origin: Origin, asked: Asked) -> Client {
    let namespace = client.default_namespace().to_owned();
    let state = Arc::new(Mutex::new(State { client, token, origin, is_refused: false }));
    Client::new(Renewing { state, asked }, namespace)
}

/// Counts the requests to a server.
#[derive(Clone)]
pub(super) struct Asked {
    /// Host and port of the server.
    pub host: String,
    pub signs: Signs,
}

#[derive(Clone)]
struct Renewing {
    state: Arc<Mutex<State>>,
    asked: Asked,
}

struct State {
    client: Client,
    token: Option<TokenFile>,
    origin: Origin,
    /// Whether the last answer refused our credentials, or we refused the server's.
    is_refused: bool,
}

impl Renewing {
    async fn send(self, mut request: Request<Body>) -> Result<Response<Body>, BoxError> {
        let (client, authorization) = self.current().await;
        let method = request.method().to_string();
        if let Some(authorization) = authorization {
            request.headers_mut().insert(AUTHORIZATION, authorization);
        }
        let result = client.send(request).await;
        let code = result
            .as_ref()
            .map_or_else(|_| "<error>".to_owned(), |response| response.status().as_str().to_owned());
        self.asked.signs.count_request(code, method, self.asked.host.clone());
        let is_refused = match &result {
            Ok(response) => response.status() == StatusCode::UNAUTHORIZED,
            Err(error) => {
                matches!(Failure::before_answer(error), Failure::Certificate(_) | Failure::Credentials(_))
            }
        };
        if is_refused {
            self.state.lock().await.is_refused = true;
        }
        Ok(result?)
    }

    async fn current(&self) -> (Client, Option<HeaderValue>) {
        let mut state = self.state.lock().await;
        if std::mem::take(&mut state.is_refused) {
            match renewed(&state.origin).await {
                Ok((client, token)) => {
                    debug!(origin = %state.origin, "credentials were refused and read again");
                    (state.client, state.token) = (client, token);
                }
                // The follower reports the refusal, which stays the cause.
                Err(error) => debug!(%error, "credentials were refused and can't be read again"),
            }
        }
        let authorization = state.token.as_mut().map(TokenFile::header);
        (state.client.clone(), authorization)
    }
}

async fn renewed(origin: &Origin) -> Result<(Client, Option<TokenFile>), SourceError> {
    client(origin.read().await?, origin)
}

impl Service<Request<Body>> for Renewing {
    type Response = Response<Body>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(self.clone().send(request))
    }
}
