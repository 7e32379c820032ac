//! Credentials that are read again when the server no longer takes them: tokens and certificates are replaced in
//! their files while the agent runs.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Request, Response, StatusCode};
use kube::Client;
use kube::client::Body;
use tokio::sync::Mutex;
use tower::{BoxError, Service};
use tracing::debug;

use super::connect::{Origin, client};
use super::failure::Failure;
use crate::source::SourceError;

/// A client that makes another of itself after it was refused. kube reads a token's file once a minute by itself, but
/// a kubeconfig and the files it names only once.
pub(super) fn renewing(client: Client, origin: Origin) -> Client {
    let namespace = client.default_namespace().to_owned();
    Client::new(Renewing(Arc::new(Mutex::new(State { client, origin, is_refused: false }))), namespace)
}

#[derive(Clone)]
struct Renewing(Arc<Mutex<State>>);

struct State {
    client: Client,
    origin: Origin,
    /// The last answer was that our credentials are wrong, or the server's are.
    is_refused: bool,
}

impl Renewing {
    async fn send(self, request: Request<Body>) -> Result<Response<Body>, BoxError> {
        let client = self.current().await;
        let result = client.send(request).await;
        let is_refused = match &result {
            Ok(response) => response.status() == StatusCode::UNAUTHORIZED,
            Err(error) => {
                matches!(Failure::before_answer(error), Failure::Certificate(_) | Failure::Credentials(_))
            }
        };
        if is_refused {
            self.0.lock().await.is_refused = true;
        }
        Ok(result?)
    }

    async fn current(&self) -> Client {
        let mut state = self.0.lock().await;
        if std::mem::take(&mut state.is_refused) {
            match renewed(&state.origin).await {
                Ok(client) => {
                    debug!("credentials were refused; {} was read again", state.origin);
                    state.client = client;
                }
                // What the server refuses is said elsewhere, and is still the cause.
                Err(error) => debug!("credentials can't be read again: {error}"),
            }
        }
        state.client.clone()
    }
}

async fn renewed(origin: &Origin) -> Result<Client, SourceError> {
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
