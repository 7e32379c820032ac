//! The settings that both data planes have.

use proxy_common::config::DEFAULT_MARK;

/// The firewall mark of packets to the stack: `mark = mark & !mask | value`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Bits to set; inside `mask`.
    pub value: u32,
    /// Bits that are ours; 0 = packets are not marked.
    pub mask: u32,
}

impl Default for Mark {
    fn default() -> Self {
        Self { value: DEFAULT_MARK, mask: DEFAULT_MARK }
    }
}

/// The Service addresses that refuse unknown ports. An address on a device of this node never does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RejectUnknown {
    /// Cluster IPs.
    #[default]
    ClusterIp,
    /// Cluster IPs, external IPs and load balancer addresses.
    All,
    /// None.
    Off,
}

impl RejectUnknown {
    /// All of them; the default is first.
    pub const ALL: [Self; 3] = [Self::ClusterIp, Self::All, Self::Off];

    /// Returns the flag's word.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::ClusterIp => "clusterip",
            Self::All => "all",
            Self::Off => "off",
        }
    }
}

/// The encapsulation of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Encapsulation {
    /// In an IP packet (protocol 4 or 41).
    #[default]
    Ipip,
    /// In UDP, to port 5555.
    Fou,
}

impl Encapsulation {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Ipip, Self::Fou];

    /// Returns the flag's word.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ipip => "ipip",
            Self::Fou => "fou",
        }
    }
}
