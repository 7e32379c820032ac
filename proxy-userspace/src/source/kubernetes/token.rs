//! A token in a file. kube sends the file's text as it is, but a header can't contain a line's end.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use http::HeaderValue;
use kube::config::AuthInfo;

/// Age at which the file is read again, as in client-go.
const LIFETIME: Duration = Duration::from_mins(1);

/// The token of a file, and the time when it was read.
#[derive(Debug)]
pub(super) struct TokenFile {
    path: PathBuf,
    header: HeaderValue,
    read_at: Instant,
}

impl TokenFile {
    /// Takes the file out of `user` if its token would be sent. The error names the file.
    pub fn take(user: &mut AuthInfo) -> Result<Option<Self>, String> {
        let has_password = user.username.is_some() && user.password.is_some();
        if has_password || user.token.is_some() || user.auth_provider.is_some() {
            return Ok(None);
        }
        let Some(path) = user.token_file.take().map(PathBuf::from) else { return Ok(None) };
        let header = read(&path)?;
        Ok(Some(Self { path, header, read_at: Instant::now() }))
    }

    /// Returns the value of the header `Authorization`.
    ///
    /// If the file has become unreadable, the last token is sent: the server says when it has
    /// expired.
    pub fn header(&mut self) -> HeaderValue {
        if self.read_at.elapsed() >= LIFETIME {
            self.read_at = Instant::now();
            if let Ok(header) = read(&self.path) {
                self.header = header;
            }
        }
        self.header.clone()
    }
}

fn read(path: &PathBuf) -> Result<HeaderValue, String> {
    let text = fs::read_to_string(path).map_err(|error| format!("token file {}: {error}", path.display()))?;
    let token = text.trim();
    if token.is_empty() {
        return Err(format!("token file {}: is empty; takes a token", path.display()));
    }
    let mut header = HeaderValue::try_from(format!("Bearer {token}"))
        .map_err(|_| format!("token file {}: is no token; takes one line of ASCII", path.display()))?;
    header.set_sensitive(true);
    Ok(header)
}
