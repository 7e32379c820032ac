//! The crates that are in the program.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;

use super::platform::Arch;
use crate::command;
use crate::workspace::Workspace;

/// A crate, and the crates that it uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Crate {
    /// The licence, as SPDX writes it.
    pub licence: String,
    /// The others, by `name@version`.
    pub uses: BTreeSet<String>,
}

/// Crates by `name@version`.
pub type Crates = BTreeMap<String, Crate>;

/// Asks cargo for the crates of the agent, and of the BPF object that it embeds.
pub fn read(workspace: &Workspace, arch: Arch) -> Result<Crates> {
    let agent = tree(workspace, &["--package", "millrace", "--target", &arch.target()])?;
    let object = ["--package", "proxy-ebpf", "--features", "bpf", "--target", "bpfel-unknown-none"];
    let mut crates = parse_tree(&tree(workspace, &object)?);
    // Both have proxy-common, and the agent's has more features.
    crates.extend(parse_tree(&agent));
    Ok(crates)
}

fn tree(workspace: &Workspace, selection: &[&str]) -> Result<String> {
    let mut cargo = workspace.cargo();
    cargo.args(["tree", "--locked", "--edges", "normal,no-proc-macro", "--prefix", "depth"]);
    command::output(cargo.args(["--format", "|{p}|{l}"]).args(selection))
}

/// Reads lines such as `2|bytes v1.12.1|MIT (*)`, the number being the depth in the tree.
fn parse_tree(text: &str) -> Crates {
    let mut crates = Crates::new();
    let mut above: Vec<String> = Vec::new();
    for line in text.lines() {
        let mut parts = line.splitn(3, '|');
        let (Some(depth), Some(package), Some(licence)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        let mut words = package.split_whitespace();
        let (Ok(depth), Some(name), Some(version)) = (depth.parse::<usize>(), words.next(), words.next())
        else {
            continue;
        };
        let id = format!("{name}@{}", version.trim_start_matches('v'));
        above.truncate(depth);
        if let Some(user) = above.last().and_then(|user| crates.get_mut(user)) {
            user.uses.insert(id.clone());
        }
        let found = crates.entry(id.clone()).or_default();
        // cargo's own former separator is none of SPDX.
        licence.trim_end_matches(" (*)").replace('/', " OR ").clone_into(&mut found.licence);
        above.push(id);
    }
    crates
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crates_and_their_uses_are_read_from_a_tree() {
        let text = "0|millrace v0.1.0 (/folder)|MIT\n1|axum v0.8.9|MIT\n2|bytes v1.12.1|MIT/Apache-2.0\n\
                    1|hyper v1.0.0|MIT\n2|bytes v1.12.1|MIT/Apache-2.0 (*)\n";
        let crates = parse_tree(text);
        let uses = |id: &str| crates[id].uses.iter().cloned().collect::<Vec<_>>();
        assert_eq!(uses("millrace@0.1.0"), ["axum@0.8.9", "hyper@1.0.0"]);
        assert_eq!(uses("hyper@1.0.0"), ["bytes@1.12.1"]);
        assert_eq!(crates["bytes@1.12.1"].licence, "MIT OR Apache-2.0");
        assert_eq!(crates.len(), 4);
    }
}
