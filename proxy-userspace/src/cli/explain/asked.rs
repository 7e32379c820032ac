//! The packet or the call that an explanation is about.

use std::net::SocketAddr;

use serde::Serialize;

use super::frame::{Frame, Protocol};
use crate::explain::{Call, Caller};

/// The packet, or the call of a socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Asked {
    /// The packet's source; none for a call.
    from: Option<SocketAddr>,
    /// Whether nobody named the client.
    from_default: bool,
    /// The process of a socket: `node` or `pod`.
    caller: Option<&'static str>,
    to: SocketAddr,
    protocol: &'static str,
    /// Names of the TCP flags; empty for UDP, and for a call.
    flags: String,
    /// Bytes of the IP packet.
    size: Option<usize>,
    /// The device that it comes in by.
    device: Option<String>,
}

impl Asked {
    /// Returns the question about a frame that comes in by a device.
    pub fn frame(frame: &Frame, device: &str, from_default: bool) -> Self {
        Self {
            from: Some(frame.from),
            from_default,
            caller: None,
            to: frame.to,
            protocol: frame.protocol.name(),
            flags: frame.flags.clone(),
            size: Some(frame.size()),
            device: Some(device.to_owned()),
        }
    }

    /// Returns the question about a call.
    pub fn call(call: Call, protocol: Protocol) -> Self {
        Self {
            from: None,
            from_default: false,
            caller: Some(if call.caller == Caller::Node { "node" } else { "pod" }),
            to: call.to,
            protocol: protocol.name(),
            flags: String::new(),
            size: None,
            device: None,
        }
    }

    /// Returns source and destination.
    pub fn ends(&self) -> String {
        match (self.from, self.caller) {
            (Some(from), _) => format!("{from} > {}", self.to),
            (None, caller) => format!("a connect of the {} to {}", caller.unwrap_or_default(), self.to),
        }
    }

    /// Returns the first line of the text. `programs` are those that see the packet.
    pub fn line(&self, programs: &[&str]) -> String {
        let programs = programs.join(", then ");
        let (protocol, to) = (self.protocol, self.to);
        let Some(from) = self.from else {
            let process = if self.caller == Some("node") { "the node" } else { "a pod" };
            return format!(
                "call        connect to {to} by {protocol}, of a process of {process} ({programs})"
            );
        };
        let flags = if self.flags.is_empty() { String::new() } else { format!(", {}", self.flags) };
        let (size, device) = (self.size.unwrap_or_default(), self.device.as_deref().unwrap_or_default());
        let other = if self.from_default { "; FROM names another client" } else { "" };
        format!(
            "packet      {protocol} {from} > {to}{flags}, {size} bytes, in by {device} ({programs}){other}"
        )
    }
}
