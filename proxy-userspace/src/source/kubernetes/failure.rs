//! Failures of requests to the API server, in words that say who has to act.

use std::error::Error;
use std::io;
use std::time::Duration;

use http::StatusCode;
use rustls::{CertificateError, Error as TlsError, InvalidMessage};

/// Shorter than kube's 30 s: an address that swallows packets is to be named soon.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The reasons for the end of a listing or a watch. Each may be gone at the next attempt.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Failure {
    /// No connection, or one that ended before an answer.
    #[error("can't be reached: {0}")]
    Unreachable(String),
    /// Plain text where TLS was to begin.
    #[error("does not speak TLS: its URL begins with https://, but it may be an http:// server")]
    PlainText,
    /// The server's certificate is not accepted.
    #[error("is not trusted: {0}")]
    Certificate(String),
    /// The agent's own certificate or token can't be read or made.
    #[error("can't be asked, the agent's own credentials can't be read: {0}")]
    Credentials(String),
    /// Status 401.
    #[error(
        "rejects the agent's credentials (401 Unauthorized): the token or client certificate is wrong or has expired"
    )]
    Unauthorized,
    /// Status 403.
    #[error(
        "forbids to {verb} {}: give the verbs list and watch on it in RBAC; it says: {message}",
        resource
    )]
    Forbidden { verb: &'static str, resource: &'static str, message: String },
    /// Status 410, or an ERROR event with it: the version of the last watch has expired.
    #[error("can't go on with {} from where the last watch ended", .0)]
    Gone(&'static str),
    /// Status 410 again and again, after a new listing each time.
    #[error("says of each listing of {} that it is too old to go on with (410 Gone)", .0)]
    Expiring(&'static str),
    /// The server does not have the version of the last watch: it lags, or its state is older.
    #[error("has an older state than before, as after a restore from a backup ({message})")]
    Older { message: String, retry_after: Option<Duration> },
    /// Another status that is the server's fault.
    #[error("answers {status}{}", said(.message))]
    Unable { status: StatusCode, message: String, retry_after: Option<Duration> },
    /// Another status that is the request's fault.
    #[error("refuses to {verb} {}: {status}{}", resource, said(.message))]
    Refused { verb: &'static str, resource: &'static str, status: StatusCode, message: String },
    /// A body that ended too early.
    #[error("cut an answer off: {0}")]
    Cut(String),
    /// No data at all, not even a bookmark.
    #[error("said nothing for {} s", .0.as_secs())]
    Silent(Duration),
    /// A watch that was to begin with a listing, and never sent its end.
    #[error("does not come to the end of a listing")]
    Endless,
    /// A watch that ends as soon as it begins.
    #[error("ends each watch as soon as it begins")]
    Ended,
    /// An answer that no Kubernetes API server gives.
    #[error("answers what no Kubernetes API server does: {0}")]
    Garbled(String),
}

fn said(message: &str) -> String {
    if message.is_empty() { String::new() } else { format!(": {message}") }
}

impl Failure {
    /// Returns the failure of a request that can't be built.
    pub fn request(error: &kube::core::request::Error) -> Self {
        Self::Garbled(error.to_string())
    }

    /// Returns the failure of a server that has `version` after it had `former`.
    pub fn older(version: &str, former: &str) -> Self {
        Self::Older { message: format!("version {version} after {former}"), retry_after: None }
    }

    /// Returns the failure of a request without an answer.
    pub fn before_answer(error: &kube::Error) -> Self {
        if let kube::Error::Auth(error) = error {
            return Self::Credentials(chain(error));
        }
        if let Some(error) = causes(error).find_map(tls_error) {
            return match error {
                TlsError::InvalidMessage(InvalidMessage::InvalidContentType) => Self::PlainText,
                error => Self::Certificate(explain(error)),
            };
        }
        if let Some(auth) = causes(error).find_map(|cause| cause.downcast_ref::<kube::client::AuthError>()) {
            return Self::Credentials(chain(auth));
        }
        Self::Unreachable(root(error))
    }

    /// Returns the failure of a broken answer.
    pub fn in_answer(error: &kube::Error) -> Self {
        Self::Cut(root(error))
    }

    /// Returns the wait that the server asks for.
    pub const fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Unable { retry_after, .. } | Self::Older { retry_after, .. } => *retry_after,
            _ => None,
        }
    }
}

/// Explains in one line why a request failed, without the wording of libraries.
#[must_use]
pub fn explain_refusal(error: &kube::Error) -> String {
    let kube::Error::Api(status) = error else {
        return format!("the API server {}", Failure::before_answer(error));
    };
    let code =
        StatusCode::from_u16(status.code).map_or_else(|_| status.code.to_string(), |code| code.to_string());
    format!("the API server answers {code}{}", said(&status.message))
}

/// Returns an error and its causes.
fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |&error| error.source())
}

/// Returns rustls' error.
///
/// Layers in between wrap it in I/O errors, sometimes several, which do not name it as their
/// source.
fn tls_error<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a TlsError> {
    let Some(error) = error.downcast_ref::<io::Error>() else {
        return error.downcast_ref();
    };
    tls_error(error.get_ref()?)
}

fn explain(error: &TlsError) -> String {
    let TlsError::InvalidCertificate(reason) = error else {
        return error.to_string();
    };
    match reason {
        // Clusters made by one tool have CAs of the same name. Then the signature is what differs.
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "its certificate was issued by another CA than the one in our configuration".to_owned()
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "its certificate has expired, or this node's clock is wrong".to_owned()
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "its certificate is not valid yet, or this node's clock is wrong".to_owned()
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            "its certificate is for another name or address".to_owned()
        }
        other => format!("its certificate is not valid: {other}"),
    }
}

/// Returns the last cause, with the one before it if that says where the failure happened.
fn root(error: &(dyn Error + 'static)) -> String {
    let texts: Vec<String> = causes(error).map(ToString::to_string).collect();
    let dns = texts.iter().any(|text| text == "dns error");
    let last = texts.last().map(String::as_str).unwrap_or_default();
    if dns {
        let cause = last.strip_prefix("failed to lookup address information: ").unwrap_or(last);
        return format!("its name is not resolved: {cause}");
    }
    // tokio's wording: kube resolves, connects and shakes hands within one limit.
    if last == "deadline has elapsed" {
        let limit = CONNECT_TIMEOUT.as_secs();
        return format!(
            "no connection within {limit} s: its name is not resolved, or its address does not answer"
        );
    }
    last.to_owned()
}

/// Joins all causes, each once: most of these errors repeat their cause.
fn chain(error: &(dyn Error + 'static)) -> String {
    let mut line = String::new();
    for text in causes(error).map(ToString::to_string) {
        if !line.contains(&text) {
            line = if line.is_empty() { text } else { format!("{line}: {text}") };
        }
    }
    line
}
