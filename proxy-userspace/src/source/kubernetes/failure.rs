//! Why the API server could not be asked, in words that say whose turn it is.

use std::error::Error;
use std::io;
use std::time::Duration;

use http::StatusCode;
use rustls::{CertificateError, Error as TlsError, InvalidMessage};

use super::connect::CONNECT_TIMEOUT;
use super::query::resource;
use crate::source::Kind;

/// Why a listing or a watch has ended. All of these may be over by the next attempt.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Failure {
    /// No connection, or one that ended before an answer came.
    #[error("can't be reached: {0}")]
    Unreachable(String),
    /// An answer in plain text where TLS was to begin.
    #[error("does not speak TLS: its URL begins with https://, but it may be an http:// server")]
    PlainText,
    /// The server is not who it says, or can't prove it.
    #[error("is not trusted: {0}")]
    Certificate(String),
    /// The agent's own certificate or token could not be read or made.
    #[error("can't be asked, our own credentials are not to be had: {0}")]
    Credentials(String),
    /// 401.
    #[error(
        "does not know who we are (401 Unauthorized): the token or client certificate is wrong or has expired"
    )]
    Unauthorized,
    /// 403.
    #[error("forbids to {verb} {}: give the verbs list and watch on it in RBAC; it says: {message}", resource(*kind))]
    Forbidden { verb: &'static str, kind: Kind, message: String },
    /// 410, or an ERROR event that means the same: the version we know is too old to go on from.
    #[error("can't go on with {} from where the last watch ended", resource(*.0))]
    Gone(Kind),
    /// 410 again and again, though everything is listed anew each time.
    #[error("says of each listing of {} that it is too old to go on with (410 Gone)", resource(*.0))]
    Expiring(Kind),
    /// Any other status that is not our doing.
    #[error("answers {status}{}", said(.message))]
    Unable { status: StatusCode, message: String, retry_after: Option<Duration> },
    /// Any other status that means the request was wrong.
    #[error("refuses to {verb} {}: {status}{}", resource(*kind), said(.message))]
    Refused { verb: &'static str, kind: Kind, status: StatusCode, message: String },
    /// A body that ended too soon.
    #[error("cut an answer off: {0}")]
    Cut(String),
    /// Nothing came, not even a bookmark.
    #[error("said nothing for {} s", .0.as_secs())]
    Silent(Duration),
    /// A watch that was to begin with everything there is, and never said that this was all.
    #[error("does not come to the end of a listing")]
    Endless,
    /// A watch that ends as soon as it begins.
    #[error("ends each watch as soon as it begins")]
    Ended,
    /// What came is not what a Kubernetes API server says.
    #[error("answers what no Kubernetes API server does: {0}")]
    Garbled(String),
}

fn said(message: &str) -> String {
    if message.is_empty() { String::new() } else { format!(": {message}") }
}

impl Failure {
    /// A request that can't be made.
    pub fn request(error: &kube::core::request::Error) -> Self {
        Self::Garbled(error.to_string())
    }

    /// Before an answer came.
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

    /// While the answer was read.
    pub fn in_answer(error: &kube::Error) -> Self {
        Self::Cut(root(error))
    }

    /// How long the server wants to be left alone.
    pub const fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Unable { retry_after, .. } => *retry_after,
            _ => None,
        }
    }
}

/// Why a request was not done, in one line without a library's inner words.
#[must_use]
pub fn explain_refusal(error: &kube::Error) -> String {
    let kube::Error::Api(status) = error else {
        return format!("the API server {}", Failure::before_answer(error));
    };
    let code =
        StatusCode::from_u16(status.code).map_or_else(|_| status.code.to_string(), |code| code.to_string());
    format!("the API server answers {code}{}", said(&status.message))
}

/// An error and what it comes from.
fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |&error| error.source())
}

/// rustls' error. What is on the way wraps it in I/O errors, in one another at times, which don't name what they hold
/// as their source.
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
        // Clusters made by one tool have CAs of one name: then it is the signature that does not fit.
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

/// The last cause, with what the one before says if that adds where it happened.
fn root(error: &(dyn Error + 'static)) -> String {
    let texts: Vec<String> = causes(error).map(ToString::to_string).collect();
    let dns = texts.iter().any(|text| text == "dns error");
    let last = texts.last().map(String::as_str).unwrap_or_default();
    if dns {
        let cause = last.strip_prefix("failed to lookup address information: ").unwrap_or(last);
        return format!("its name is not resolved: {cause}");
    }
    // tokio's words: kube looks up, connects and shakes hands within one limit.
    if last == "deadline has elapsed" {
        let limit = CONNECT_TIMEOUT.as_secs();
        return format!(
            "no connection within {limit} s: its name is not resolved, or its address does not answer"
        );
    }
    last.to_owned()
}

/// All causes, each once; most of these errors repeat what they come from.
fn chain(error: &(dyn Error + 'static)) -> String {
    let mut line = String::new();
    for text in causes(error).map(ToString::to_string) {
        if !line.contains(&text) {
            line = if line.is_empty() { text } else { format!("{line}: {text}") };
        }
    }
    line
}
