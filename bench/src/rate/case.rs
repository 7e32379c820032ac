//! The cases: what is sent, and what must arrive.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Result, bail, ensure};
use millrace_lab::frame::{Frame, Layer, Mac, difference};
use millrace_lab::topology::{Bed, Family, Node, vip};

use super::programs::{FIRST_PORT, FRAME, MARK};

/// The node with the backends of all others. No proxy runs there.
pub const BACKENDS: u8 = 6;
/// Port of the Services.
pub const PORT: u16 = 80;
/// Port of the backends.
pub const TARGET: u16 = 8_080;
/// The work of a packet's walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Case {
    /// To a backend on another node, encapsulated. Others translate.
    Dsr,
    /// To a backend on another node, translated.
    Snat,
    /// To a backend on the node itself, translated.
    Local,
    /// To an address of no Service, routed to another node.
    Passing,
}

/// What must arrive.
#[derive(Clone, Debug)]
pub struct Expected {
    /// The addresses of an outer header.
    outer: Option<[IpAddr; 2]>,
    /// The source address, if it may not change.
    source: Option<IpAddr>,
    destination: SocketAddr,
    payload: Vec<u8>,
}

impl Case {
    /// Returns the title of the case's figures.
    pub const fn title(self) -> &'static str {
        match self {
            Self::Dsr => "to another node, DSR",
            Self::Snat => "to another node, SNAT",
            Self::Local => "to a pod of the node",
            Self::Passing => "to no Service",
        }
    }

    /// Returns the number of the case's Service for a node's frames; 0 without one.
    pub const fn service(self, node: u8) -> u8 {
        match self {
            Self::Dsr => 10,
            Self::Snat => 11,
            Self::Local => 20 + node,
            Self::Passing => 0,
        }
    }

    /// Returns the name of the pod that is the backend for a node's frames.
    pub fn backend(self, node: u8) -> String {
        let node = if self == Self::Local { node } else { BACKENDS };
        format!("pod-{node}a")
    }

    /// Returns the frame that a node gets from its router.
    pub fn frame(self, bed: &Bed, node: &Node, family: Family, macs: [Mac; 2]) -> Result<Vec<u8>> {
        let client = bed.client_addresses().of(family);
        let frame = Frame::ip(client, self.destination(bed, node, family)?.ip()).udp(FIRST_PORT, PORT);
        let headers = frame.build().len();
        let mut payload = vec![0x5a; FRAME - headers];
        // The word that balances the source port.
        payload.iter_mut().take(2).for_each(|byte| *byte = 0xff);
        let mark_at = payload.len() - MARK.len();
        payload.splice(mark_at.., MARK);
        Ok(frame.payload(payload).with_macs(macs[0], macs[1]).build().to_vec())
    }

    fn destination(self, bed: &Bed, node: &Node, family: Family) -> Result<SocketAddr> {
        let number = self.service(node.number());
        if number == 0 {
            return Ok(SocketAddr::new(bed.pod(&self.backend(node.number()))?.addresses().of(family), PORT));
        }
        Ok(SocketAddr::new(vip(number).of(family), PORT))
    }

    /// Returns what must arrive. `encapsulates` says whether the proxy knows Direct Server Return.
    pub fn expected(
        self,
        bed: &Bed,
        node: &Node,
        family: Family,
        encapsulates: bool,
        frame: &[u8],
    ) -> Result<Expected> {
        let sent = Frame::parse(frame)?;
        let backend = bed.pod(&self.backend(node.number()))?.addresses().of(family);
        let is_dsr = self == Self::Dsr && encapsulates;
        let nodes = [node.addresses().of(family), bed.node(BACKENDS)?.addresses().of(family)];
        let translated = SocketAddr::new(backend, if self == Self::Passing { PORT } else { TARGET });
        Ok(Expected {
            outer: is_dsr.then_some(nodes),
            source: match self {
                Self::Dsr if is_dsr => Some(sent.source().ip()),
                // The address of the node on the way to the backend.
                Self::Dsr | Self::Snat => Some(nodes[0]),
                // kube-proxy masquerades, Millrace keeps the client's address.
                Self::Local => None,
                Self::Passing => Some(sent.source().ip()),
            },
            destination: if is_dsr { sent.destination() } else { translated },
            payload: sent.payload.to_vec(),
        })
    }
}

impl Expected {
    /// Returns the expectation that a frame comes back as it was sent.
    pub fn unchanged(frame: &[u8]) -> Result<Self> {
        let sent = Frame::parse(frame)?;
        Ok(Self {
            outer: None,
            source: Some(sent.source().ip()),
            destination: sent.destination(),
            payload: sent.payload.to_vec(),
        })
    }

    /// Checks frames that arrived, with their lengths and checksums. There must be one at least.
    pub fn check(&self, arrived: &[Vec<u8>]) -> Result<()> {
        ensure!(!arrived.is_empty(), "no frame arrived");
        arrived.iter().try_for_each(|frame| self.check_one(frame))
    }

    fn check_one(&self, arrived: &[u8]) -> Result<()> {
        let mut frame = Frame::parse(arrived)?;
        if let Some(difference) = difference(&frame.build(), arrived) {
            bail!("lengths or checksums are wrong: {difference}");
        }
        if let Some(wanted) = self.outer {
            ensure!(frame.layers.len() > 2, "it is not encapsulated");
            let outer = addresses(frame.outermost())?;
            ensure!(outer == wanted, "the outer header has {outer:?} instead of {wanted:?}");
            frame = frame.decapsulated();
        }
        let (source, destination) = (frame.source(), frame.destination());
        ensure!(destination == self.destination, "it is for {destination} instead of {}", self.destination);
        if let Some(wanted) = self.source {
            ensure!(source.ip() == wanted, "it is from {source} instead of {wanted}");
        }
        let rest = |payload: &[u8]| payload.get(2..).map(<[u8]>::to_vec);
        ensure!(rest(&frame.payload) == rest(&self.payload), "its payload was changed");
        Ok(())
    }
}

fn addresses(layer: &Layer) -> Result<[IpAddr; 2]> {
    match layer {
        Layer::Ipv4(outer) => Ok([outer.source.into(), outer.destination.into()]),
        Layer::Ipv6(outer) => Ok([outer.source.into(), outer.destination.into()]),
        _ => bail!("the outermost header is no IP header"),
    }
}
