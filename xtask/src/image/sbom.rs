//! The list of everything that is inside an image, as CycloneDX.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::blob::with;
use super::crates::{Crate, Crates};
use super::packages::Package;
use super::platform::Arch;
use super::source::{Source, VERSION};
use super::{DESCRIPTION, PROGRAM, binary};
use crate::workspace::Workspace;

/// The media type, which is also the kind of the artifact.
pub const MEDIA_TYPE: &str = "application/vnd.cyclonedx+json";

/// Lists the crates in the program, and the packages beside it.
pub fn write(
    workspace: &Workspace,
    arch: Arch,
    source: &Source,
    mut crates: Crates,
    packages: &[Package],
) -> Result<Vec<u8>> {
    let lock = std::fs::read_to_string(workspace.root.join("Cargo.lock")).context("can't read Cargo.lock")?;
    let root = format!("{PROGRAM}@{VERSION}");
    let mut agent = crates.remove(&root).context("cargo tree does not show the agent")?;
    let sums = checksums(&lock);
    let mut components: Vec<Value> =
        crates.iter().map(|(id, found)| component(id, found, sums.get(id))).collect();
    for (name, version) in binary::compilers(workspace)? {
        let id = format!("pkg:generic/{name}@{version}");
        components
            .push(json!({"type": "library", "bom-ref": id, "name": name, "version": version, "purl": id}));
        agent.uses.insert(id);
    }
    components.extend(packages.iter().map(|package| debian(package, arch)));
    let object = crates.keys().find(|id| id.starts_with("proxy-ebpf@")).cloned();
    agent.uses.extend(object);
    agent.uses.extend(packages.iter().map(|package| purl(package, arch)));
    let graph: Vec<Value> = [(&root, &agent)]
        .into_iter()
        .chain(&crates)
        .map(|(id, found)| json!({"ref": id, "dependsOn": found.uses}))
        .collect();
    let document = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "timestamp": source.created,
            "component": {
                "type": "application",
                "bom-ref": root,
                "name": PROGRAM,
                "version": VERSION,
                "description": DESCRIPTION,
                "licenses": [{"expression": agent.licence}],
            },
        },
        "components": components,
        "dependencies": graph,
    });
    Ok(serde_json::to_vec_pretty(&document)?)
}

/// Returns the checksums of a Cargo.lock by `name@version`.
fn checksums(lock: &str) -> BTreeMap<String, String> {
    let field = |package: &str, name: &str| {
        let line = package.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(" = \""));
        line.map(|value| value.trim_end_matches('"').to_owned())
    };
    let packages = lock.split("[[package]]").filter_map(|package| {
        let id = format!("{}@{}", field(package, "name")?, field(package, "version")?);
        Some((id, field(package, "checksum")?))
    });
    packages.collect()
}

fn component(id: &str, found: &Crate, sum: Option<&String>) -> Value {
    let (name, version) = id.split_once('@').unwrap_or((id, ""));
    let component = json!({
        "type": "library",
        "bom-ref": id,
        "name": name,
        "version": version,
        "purl": format!("pkg:cargo/{}", id.replace('+', "%2B")),
        "licenses": [{"expression": found.licence}],
    });
    match sum {
        Some(sum) => with(component, "hashes", json!([{"alg": "SHA-256", "content": sum}])),
        None => component,
    }
}

fn debian(package: &Package, arch: Arch) -> Value {
    let id = purl(package, arch);
    json!({
        "type": "library",
        "bom-ref": id,
        "name": package.name,
        "version": package.version,
        "purl": id,
        "hashes": [{"alg": "SHA-256", "content": package.sha256}],
    })
}

/// Returns the package's URL, <https://github.com/package-url/purl-spec>.
fn purl(package: &Package, arch: Arch) -> String {
    let version = package.version.replace('+', "%2B").replace(':', "%3A").replace('~', "%7E");
    format!("pkg:deb/debian/{}@{version}?arch={}&distro=debian-12", package.name, arch.name())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::crates;
    use super::*;

    #[test]
    fn checksums_are_read_from_the_lock_file() {
        let lock = "[[package]]\nname = \"a\"\nversion = \"1.0.0\"\nsource = \"x\"\nchecksum = \"abc\"\n\n\
                    [[package]]\nname = \"own\"\nversion = \"0.1.0\"\n";
        assert_eq!(checksums(lock), BTreeMap::from([("a@1.0.0".to_owned(), "abc".to_owned())]));
    }

    #[test]
    fn the_sbom_of_the_program_names_crates_of_both_sides_with_licence_and_checksum() {
        let workspace = Workspace::locate().unwrap();
        let source = Source { revision: "0".to_owned(), created: "2026-01-01T00:00:00Z".to_owned() };
        let crates = crates::read(&workspace, Arch::Arm64).unwrap();
        let package = Package {
            name: "nftables".to_owned(),
            version: "1.0.6-2+deb12u2".to_owned(),
            sha256: "0".repeat(64),
        };
        let document = write(&workspace, Arch::Arm64, &source, crates, &[package]).unwrap();
        let document: Value = serde_json::from_slice(&document).unwrap();
        let components = document["components"].as_array().unwrap();
        let named = |name: &str| components.iter().find(|one| one["name"] == name);
        for name in ["aya", "aya-ebpf", "ring", "tokio"] {
            let found = named(name).unwrap();
            assert_eq!(found["hashes"][0]["content"].as_str().unwrap().len(), 64);
            assert!(found["licenses"][0]["expression"].is_string());
        }
        assert!(
            named("rust-std").is_some() && named("proptest").is_none() && named("serde_derive").is_none()
        );
        let nft = "pkg:deb/debian/nftables@1.0.6-2%2Bdeb12u2?arch=arm64&distro=debian-12";
        assert_eq!(named("nftables").unwrap()["purl"], nft);
        let references: BTreeSet<&str> =
            components.iter().map(|one| one["bom-ref"].as_str().unwrap()).collect();
        for node in document["dependencies"].as_array().unwrap() {
            for used in node["dependsOn"].as_array().unwrap() {
                assert!(references.contains(used.as_str().unwrap()), "{used} is no component");
            }
        }
    }
}
