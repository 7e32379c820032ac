//! Finds the BPF object the agent embeds.

use std::env;
use std::path::PathBuf;

const OBJECT: &str = "MILLRACE_BPF_OBJECT";
const DEFAULT: &str = "../target/bpf/millrace-bpf";

fn main() {
    println!("cargo::rerun-if-env-changed={OBJECT}");
    let object = env::var_os(OBJECT).map_or_else(
        || PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default()).join(DEFAULT),
        PathBuf::from,
    );
    println!("cargo::rerun-if-changed={}", object.display());
    match object.canonicalize() {
        Ok(object) => println!("cargo::rustc-env={OBJECT}={}", object.display()),
        Err(error) => println!(
            "cargo::error=no BPF object at {} ({error}): build it with `cargo xtask build`",
            object.display()
        ),
    }
}
