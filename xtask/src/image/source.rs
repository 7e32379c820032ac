//! What an image says about its origin.

use std::collections::BTreeMap;
use std::env;

use anyhow::{Context, Result};

use crate::command;
use crate::workspace::Workspace;

/// The version of every package of the workspace.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The variable by which the time is set: <https://reproducible-builds.org/specs/source-date-epoch/>.
const EPOCH: &str = "SOURCE_DATE_EPOCH";
/// The end of the hash of a commit that files differ from.
const DIRTY: &str = "-dirty";

/// The commit that an image is built from.
#[derive(Clone, Debug)]
pub struct Source {
    /// The commit's hash, with `-dirty` if files differ from it.
    pub revision: String,
    /// The time of the commit, or of `SOURCE_DATE_EPOCH`, by RFC 3339.
    pub created: String,
}

impl Source {
    /// Asks git, whose time is the same on each machine and each day.
    pub fn read(workspace: &Workspace) -> Result<Self> {
        let git = |words: &[&str]| {
            let printed = command::output(workspace.command("git").args(words));
            printed.map(|line| line.trim().to_owned()).context("an image says which commit it is built from")
        };
        let mut revision = git(&["rev-parse", "HEAD"])?;
        if !git(&["status", "--porcelain", "--untracked-files=no"])?.is_empty() {
            revision.push_str(DIRTY);
        }
        let seconds = match env::var(EPOCH) {
            Ok(seconds) if !seconds.is_empty() => seconds,
            _ => git(&["show", "--no-patch", "--format=%ct", "HEAD"])?,
        };
        Ok(Self { revision, created: time(workspace, &seconds)? })
    }

    /// Returns whether files differ from the commit.
    pub fn is_dirty(&self) -> bool {
        self.revision.ends_with(DIRTY)
    }

    /// Returns the labels, by the names of the OCI image specification.
    pub fn labels(&self, title: &str, description: &str) -> BTreeMap<String, String> {
        let labels = [
            ("title", title),
            ("description", description),
            ("version", VERSION),
            ("revision", &self.revision),
            ("created", &self.created),
            ("source", env!("CARGO_PKG_REPOSITORY")),
            ("licenses", env!("CARGO_PKG_LICENSE")),
        ];
        labels.map(|(name, value)| (format!("org.opencontainers.image.{name}"), value.to_owned())).into()
    }
}

/// Returns seconds since 1970 as RFC 3339 writes a time.
fn time(workspace: &Workspace, seconds: &str) -> Result<String> {
    let mut date = workspace.command("date");
    date.args(["--utc", "+%Y-%m-%dT%H:%M:%SZ", "--date"]).arg(format!("@{seconds}"));
    let time = command::output(&mut date);
    let time =
        time.with_context(|| format!("{EPOCH}={seconds} is not accepted; takes seconds since 1970"))?;
    Ok(time.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_written_by_rfc_3339() {
        let workspace = Workspace::locate().unwrap();
        assert_eq!(time(&workspace, "951782400").unwrap(), "2000-02-29T00:00:00Z");
        let error = time(&workspace, "today").unwrap_err();
        assert!(error.to_string().ends_with("takes seconds since 1970"), "{error}");
    }
}
