//! One request to the API server: the status of its answer, and its body line by line.

use std::time::Duration;

use futures_util::FutureExt;
use http::header::RETRY_AFTER;
use http::{HeaderMap, StatusCode};
use http_body_util::{BodyExt, Limited};
use kube::Client;
use kube::client::Body;
use kube::core::Status;
use tokio::time::timeout;

use super::failure::Failure;
use super::query::HttpRequest;

/// Bytes that are handed on together. Data that the reader has not taken waits in such pieces.
const CHUNK: usize = 1 << 17;
/// The longest explanation of an error, in bytes.
const LONGEST_ERROR: usize = 1 << 16;
/// The longest wait that a server may ask for.
const LONGEST_RETRY_AFTER: Duration = Duration::from_mins(5);

/// Sends requests to the API server.
#[derive(Clone)]
pub(super) struct Link {
    pub client: Client,
    /// Silence after which a server counts as hanging. Bookmarks come every minute.
    pub idle: Duration,
}

impl Link {
    /// Sends a request, and waits for a status of success.
    pub async fn open(
        &self,
        request: HttpRequest,
        resource: &'static str,
        verb: &'static str,
    ) -> Result<Lines, Failure> {
        let response = timeout(self.idle, self.client.send(request)).await;
        let response = response.map_err(|_| Failure::Silent(self.idle))?;
        let (head, body) = response.map_err(|error| Failure::before_answer(&error))?.into_parts();
        if head.status.is_success() {
            return Ok(Lines { body, idle: self.idle, buffer: Vec::new(), whole: 0, end: None });
        }
        let text = timeout(self.idle, Limited::new(body, LONGEST_ERROR).collect()).await;
        let text = text.ok().and_then(Result::ok).map(|body| body.to_bytes().to_vec()).unwrap_or_default();
        Err(refusal(resource, verb, head.status, &text, retry_after(&head.headers)))
    }

    /// Sends a request, and reads the whole answer.
    pub async fn get(
        &self,
        request: HttpRequest,
        resource: &'static str,
        verb: &'static str,
    ) -> Result<Vec<u8>, Failure> {
        let mut lines = self.open(request, resource, verb).await?;
        while lines.end.is_none() {
            lines.read().await;
        }
        match lines.end {
            Some(Err(failure)) => Err(failure),
            _ => Ok(lines.buffer),
        }
    }
}

/// A body of lines.
pub(super) struct Lines {
    body: Body,
    idle: Duration,
    buffer: Vec<u8>,
    /// Bytes of the buffer up to the end of its last whole line.
    whole: usize,
    /// The end of the body, once it was reached.
    end: Option<Result<(), Failure>>,
}

impl Lines {
    /// Returns the next lines, all that came together, or `None` after the last.
    ///
    /// Half a line at the end is dropped. Cancelling this loses nothing.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, Failure> {
        loop {
            while self.buffer.len() < CHUNK && self.end.is_none() {
                let Some(frame) = self.body.frame().now_or_never() else { break };
                self.take(frame);
            }
            if self.whole > 0 {
                let rest = self.buffer.split_off(self.whole);
                self.whole = 0;
                return Ok(Some(std::mem::replace(&mut self.buffer, rest)));
            }
            match &self.end {
                Some(Ok(())) => return Ok(None),
                Some(Err(failure)) => return Err(failure.clone()),
                None => self.read().await,
            }
        }
    }

    async fn read(&mut self) {
        match timeout(self.idle, self.body.frame()).await {
            Ok(frame) => self.take(frame),
            Err(_) => self.end = Some(Err(Failure::Silent(self.idle))),
        }
    }

    fn take(&mut self, frame: Option<Result<http_body::Frame<bytes::Bytes>, kube::Error>>) {
        match frame {
            None => self.end = Some(Ok(())),
            Some(Err(error)) => self.end = Some(Err(Failure::in_answer(&error))),
            Some(Ok(frame)) => {
                let Some(data) = frame.data_ref() else { return };
                if let Some(last) = data.iter().rposition(|byte| *byte == b'\n') {
                    self.whole = self.buffer.len() + last + 1;
                }
                self.buffer.extend_from_slice(data);
            }
        }
    }
}

/// Returns the failure that an unsuccessful answer, or an ERROR event, stands for.
pub(super) fn refusal(
    resource: &'static str,
    verb: &'static str,
    status: StatusCode,
    body: &[u8],
    retry_after: Option<Duration>,
) -> Failure {
    let read: Option<Status> = serde_json::from_slice(body).ok();
    let asked = read.as_ref().and_then(|status| status.details.as_ref()?.retry_after_seconds.into());
    let retry_after = retry_after.or(asked.filter(|s| *s > 0).map(|s| Duration::from_secs(u64::from(s))));
    let retry_after = retry_after.map(|wait| wait.min(LONGEST_RETRY_AFTER));
    let is_older = read.as_ref().is_some_and(names_older);
    let message = match read {
        Some(status) => status.message,
        None => String::from_utf8_lossy(body).lines().next().unwrap_or_default().chars().take(200).collect(),
    };
    match status {
        StatusCode::UNAUTHORIZED => Failure::Unauthorized,
        StatusCode::FORBIDDEN => Failure::Forbidden { verb, resource, message },
        StatusCode::GONE => Failure::Gone(resource),
        StatusCode::GATEWAY_TIMEOUT if is_older => Failure::Older { message, retry_after },
        StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT => {
            Failure::Unable { status, message, retry_after }
        }
        _ if status.is_client_error() => Failure::Refused { verb, resource, status, message },
        _ => Failure::Unable { status, message, retry_after },
    }
}

/// Returns whether a status says that the server does not have a version yet.
fn names_older(status: &Status) -> bool {
    const CAUSE: &str = "ResourceVersionTooLarge";
    let mut causes = status.details.iter().flat_map(|details| &details.causes);
    causes.any(|cause| cause.reason == CAUSE)
}

/// Parses the header in seconds. For a date the agent's own back-off is enough.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds).min(LONGEST_RETRY_AFTER))
}
