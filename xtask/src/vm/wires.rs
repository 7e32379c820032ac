//! Bridges that join the cards of a machine, in a network namespace of this machine.

use std::fmt::Write;
use std::io::Write as _;
use std::process::{self, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, ensure};

use super::nic::{self, Nic, Wire};
use crate::workspace::Workspace;

/// A network namespace with a bridge for each node, and a device for each of its two cards.
#[derive(Debug)]
pub struct Wires {
    namespace: String,
}

impl Wires {
    /// Makes the bridges of a machine with such cards; none if QEMU joins them itself.
    pub fn of(workspace: &Workspace, nic: &Nic) -> Result<Option<Self>> {
        static NUMBER: AtomicU32 = AtomicU32::new(1);
        let Wire::Bridge { .. } = nic.wire else { return Ok(None) };
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let namespace = format!("millrace-vm-{}-{number}", process::id());
        ip(workspace, &["netns", "add", &namespace], "")?;
        let wires = Self { namespace };
        ip(workspace, &["-netns", &wires.namespace, "-batch", "-"], &devices()?)?;
        Ok(Some(wires))
    }

    /// Returns a command that runs in the namespace.
    pub fn command(&self, workspace: &Workspace, program: &str) -> Command {
        let mut ip = workspace.command("ip");
        ip.args(["netns", "exec", &self.namespace, program]);
        ip
    }
}

impl Drop for Wires {
    fn drop(&mut self) {
        let removed = Command::new("ip").args(["netns", "delete", &self.namespace]).status();
        if !removed.is_ok_and(|status| status.success()) {
            eprintln!("can't remove the network namespace {}", self.namespace);
        }
    }
}

/// Returns the lines for `ip -batch`. No device has an address, so this machine sends no frames of its own.
fn devices() -> Result<String> {
    let mut lines = String::new();
    for (node, end) in nic::ends() {
        let (bridge, card) = (format!("wire{node}"), nic::card(node, end));
        if end == 0 {
            writeln!(lines, "link add {bridge} type bridge mcast_snooping 0")?;
            writeln!(lines, "link set {bridge} addrgenmode none up")?;
        }
        writeln!(lines, "tuntap add dev {card} mode tap multi_queue")?;
        writeln!(lines, "link set {card} addrgenmode none master {bridge} up")?;
    }
    Ok(lines)
}

fn ip(workspace: &Workspace, words: &[&str], input: &str) -> Result<()> {
    let mut ip = workspace.command("ip");
    let mut child = ip.args(words).stdin(Stdio::piped()).spawn().context("can't run ip")?;
    if let Some(stdin) = &mut child.stdin {
        stdin.write_all(input.as_bytes()).context("ip takes no lines")?;
    }
    let ended = child.wait_with_output()?;
    ensure!(ended.status.success(), "ip {} has failed", words.join(" "));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_cards_of_a_wire_are_ports_of_one_bridge() {
        let lines = devices().unwrap();
        assert_eq!(lines.matches(" type bridge ").count(), 3);
        assert!(lines.contains("link set card20 addrgenmode none master wire2 up\n"), "{lines}");
        assert!(lines.contains("link set card21 addrgenmode none master wire2 up\n"), "{lines}");
    }
}
