//! The devices whose incoming packets the programs see.

use proxy_common::verdict::Program;

use super::{PinnedMaps, ReadError};
use crate::dataplane::ebpf::bpffs::entries;
use crate::dataplane::ebpf::link::{LinkKey, LinkKind};
use crate::node::device_name;

/// A device whose incoming packets the programs see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IngressView {
    /// Index of the device.
    pub device: u32,
    /// Name of the device.
    pub name: String,
    /// The programs, in the order in which a packet meets them.
    pub programs: Vec<Program>,
    /// Whether its frames have no Ethernet header.
    pub is_bare: bool,
}

impl PinnedMaps {
    /// Returns the devices of this network namespace with programs for incoming packets, uplinks first.
    pub fn ingress(&self) -> Result<Vec<IngressView>, ReadError> {
        let mut found: Vec<IngressView> = Vec::new();
        for path in entries(&self.layout.links())? {
            let name = path.file_name().and_then(|name| name.to_str());
            let Some(LinkKey { kind, device }) = name.and_then(LinkKey::parse) else { continue };
            let (Some(program), Some(name)) = (program(kind), device_name(device)) else { continue };
            let is_bare = kind == LinkKind::TcIngressL3;
            match found.iter_mut().find(|view| view.device == device) {
                Some(view) => view.programs.push(program),
                None => found.push(IngressView { device, name, programs: vec![program], is_bare }),
            }
        }
        for view in &mut found {
            view.programs.sort_unstable();
            view.programs.dedup();
        }
        found.sort_by_key(|view| (view.programs.contains(&Program::TcPodIn), view.device));
        Ok(found)
    }

    /// Whether a hook of sockets, such as `cg_connect4`, is attached.
    pub fn has_hook(&self, program: Program) -> Result<bool, ReadError> {
        let is_its = |path: &std::path::PathBuf| path.file_name().is_some_and(|name| name == program.name());
        Ok(entries(&self.layout.links())?.iter().any(is_its))
    }
}

const fn program(kind: LinkKind) -> Option<Program> {
    match kind {
        LinkKind::XdpNative | LinkKind::XdpGeneric => Some(Program::XdpIngress),
        LinkKind::TcIngress | LinkKind::TcIngressL3 => Some(Program::TcIngress),
        LinkKind::TcPodIn => Some(Program::TcPodIn),
        LinkKind::TcEgress | LinkKind::TcPodOut | LinkKind::TcEgressL3 => None,
    }
}
