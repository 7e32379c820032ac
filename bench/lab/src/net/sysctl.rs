//! /proc/sys. Its `net` directory belongs to the namespace of the thread that reads or writes it.

use std::path::PathBuf;

use anyhow::{Context, Result};

/// Writes a setting such as `net/ipv4/ip_forward`.
pub fn write_sysctl(name: &str, value: &str) -> Result<()> {
    std::fs::write(path(name), value).with_context(|| format!("can't set {name} to {value}"))
}

/// Reads a setting.
pub fn read_sysctl(name: &str) -> Result<String> {
    let value = std::fs::read_to_string(path(name)).with_context(|| format!("can't read {name}"))?;
    Ok(value.trim_end().to_owned())
}

fn path(name: &str) -> PathBuf {
    PathBuf::from("/proc/sys").join(name)
}
