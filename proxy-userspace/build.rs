//! Finds the BPF objects the agent embeds.

use std::env;
use std::path::{Path, PathBuf};

/// The objects: the variable that names one, and where `cargo xtask build` leaves it.
const OBJECTS: [(&str, &str); 3] = [
    ("MILLRACE_BPF_OBJECT", "../target/bpf/millrace-bpf"),
    ("MILLRACE_KERNEL_BPF_OBJECT", "../target/bpf/millrace-kernel-bpf"),
    ("MILLRACE_POLICY_BPF_OBJECT", "../target/bpf/millrace-policy-bpf"),
];

fn main() {
    for (variable, usual) in OBJECTS {
        println!("cargo::rerun-if-env-changed={variable}");
        let usual = || PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default()).join(usual);
        embed(variable, &env::var_os(variable).map_or_else(usual, PathBuf::from));
    }
}

fn embed(variable: &str, object: &Path) {
    println!("cargo::rerun-if-changed={}", object.display());
    match object.canonicalize() {
        Ok(object) => println!("cargo::rustc-env={variable}={}", object.display()),
        Err(error) => println!(
            "cargo::error=no BPF object at {} ({error}): build it with `cargo xtask build`",
            object.display()
        ),
    }
}
