//! Our nftables table, for everything that IPVS can't do.
//!
//! It has sets, maps, and fixed chains. The program `nft` writes it, each time in one transaction.

mod direct;
mod forged;
mod listing;
mod text;

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::process::{Command, Stdio};

pub use listing::{Found, NotOurs};
pub use text::{Extent, Layout, NAME, TABLE, set_name};

use super::state::Member;

/// The errors of nft.
#[derive(Debug, thiserror::Error)]
pub enum NftError {
    /// nft is not installed.
    #[error("the program nft is missing: install nftables")]
    Missing,
    /// nft can't be run.
    #[error("running nft failed: {0}")]
    Run(#[from] io::Error),
    /// nft refused a command.
    #[error("nft refused a command: {0}")]
    Refused(String),
    /// nft printed something other than our table.
    #[error("reading table {TABLE} failed: {0}")]
    NotOurs(#[from] NotOurs),
}

/// Returns the table in this network namespace; `None` if it does not exist.
pub fn read() -> Result<Option<Found>, NftError> {
    list(&["--json", "--numeric"])
}

/// Returns the table without members; `None` if it does not exist.
pub fn rules() -> Result<Option<Found>, NftError> {
    list(&["--json", "--numeric", "--terse"])
}

fn list(options: &[&str]) -> Result<Option<Found>, NftError> {
    match run(&[options, &["list", "table", "inet", "millrace"]].concat(), "") {
        Ok(json) => Ok(Some(listing::parse(&json)?)),
        Err(NftError::Refused(why)) if why.contains("No such file or directory") => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns a foreign table with rules that put connections into our conntrack zone.
///
/// Rules that nft can't list are not found.
pub fn other_user_of_zone() -> Option<String> {
    let json = run(&["--json", "--numeric", "--terse", "list", "ruleset"], "").ok()?;
    listing::user_of_zone(&json, direct::ZONE)
}

/// Returns the error for such a table.
pub fn zone_is_taken(table: &str) -> String {
    format!(
        "the nftables table {table} uses zone {} of connection tracking, which Direct Server Return needs for itself; packets that other nodes encapsulate for backends here are lost until the agent starts without that table",
        direct::ZONE
    )
}

/// Returns the number of forged tunnels that this node has dropped since the agent made the table.
pub fn forged_tunnels() -> Result<u64, NftError> {
    match run(&["--json", "--numeric", "list", "chain", "inet", "millrace", forged::CHAIN], "") {
        Ok(json) => Ok(forged::count(&json)),
        // The table is of an earlier build, without this chain.
        Err(NftError::Refused(why)) if why.contains("No such file or directory") => Ok(0),
        Err(error) => Err(error),
    }
}

/// Makes the table anew.
pub fn replace(layout: &Layout, members: &BTreeMap<Member, Option<u32>>) -> Result<(), NftError> {
    apply(&layout.replace(members))
}

/// Writes the whole table by `write`, or the bare one if the kernel refuses the whole. Returns the reason for
/// the refusal.
pub fn write_largest(
    whole: &Layout,
    bare: &Layout,
    write: impl Fn(&Layout) -> Result<(), NftError>,
) -> Result<Option<String>, NftError> {
    match write(whole) {
        Err(NftError::Refused(why)) => write(bare).map(|()| Some(why)),
        done => done.map(|()| None),
    }
}

/// Removes the members in `gone`, then adds `members`, in one transaction.
pub fn change(members: &[(Member, Option<u32>)], gone: &[(Member, Option<u32>)]) -> Result<(), NftError> {
    let pairs = |members: &[(Member, Option<u32>)], verb| {
        text::change(verb, members.iter().map(|(member, mark)| (member, *mark)))
    };
    apply(&format!("{}{}", pairs(gone, "delete"), pairs(members, "add")))
}

/// Removes the table. Returns whether it existed.
pub fn remove() -> Result<bool, NftError> {
    match apply(&format!("delete table {TABLE}\n")) {
        Ok(()) => Ok(true),
        Err(NftError::Refused(why)) if why.contains("No such file or directory") => Ok(false),
        Err(error) => Err(error),
    }
}

fn apply(text: &str) -> Result<(), NftError> {
    run(&["--file", "-"], text).map(drop)
}

fn run(arguments: &[&str], input: &str) -> Result<String, NftError> {
    let mut command = Command::new("nft");
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => NftError::Missing,
        _ => NftError::Run(error),
    })?;
    if let Some(mut stdin) = child.stdin.take() {
        match stdin.write_all(input.as_bytes()) {
            // nft has ended already. Its output has the cause.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
            written => written?,
        }
    }
    let output = child.wait_with_output()?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(NftError::Refused(last_words(&String::from_utf8_lossy(&output.stderr))))
}

/// Returns the first error without the quoted command, which may be very long.
fn last_words(stderr: &str) -> String {
    let line = stderr.lines().find(|line| line.contains("Error:")).or_else(|| stderr.lines().next());
    let line = line.unwrap_or("it printed no error");
    let start = line.find("Error:").map_or(0, |at| at + "Error:".len());
    line.get(start..).unwrap_or(line).trim().to_owned()
}

#[cfg(test)]
mod tests;
