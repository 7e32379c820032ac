//! The walks of packets through the programs.

use millrace_lab::program::Hook;
use proxy_common::verdict::Reason;

/// The walk of a packet through the programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Walk {
    /// A packet to no frontend, from a port that never served.
    NotOurs,
    /// A packet to no client of a Service, but from a port of a backend.
    NotOursServed,
    /// A SYN to a backend on this node, from a client never seen before.
    LocalNew,
    /// A packet of a connection to a backend on this node.
    LocalEstablished,
    /// A datagram to a backend on this node.
    LocalUdp,
    /// A packet of a connection to a backend on this node, with session affinity.
    LocalAffinity,
    /// A packet of a connection to a backend on this node, with source ranges.
    LocalSourceRanges,
    /// A packet of a connection to a NodePort, with a backend on this node.
    LocalNodePort,
    /// The reply of a backend on this node.
    Reply,
    /// A SYN to a backend on another node, by Direct Server Return.
    DsrNew,
    /// A packet of a connection to a backend on another node, by Direct Server Return.
    DsrEstablished,
    /// A datagram to a backend on another node, by Direct Server Return.
    DsrUdp,
    /// A packet of a connection with a flow entry, because its slot is not settled.
    DsrUnsettled,
    /// A packet of a DSR connection with session affinity, and so with a flow entry.
    DsrAffinity,
    /// A packet of a DSR connection with source ranges.
    DsrSourceRanges,
    /// A packet of a connection to a NodePort, with a backend on another node.
    DsrNodePort,
    /// A SYN to a backend on another node, by SNAT, with all ports in use but unconfirmed.
    SnatNew,
    /// A packet of a connection to a backend on another node, by SNAT.
    SnatEstablished,
    /// A datagram to a backend on another node, by SNAT.
    SnatUdp,
    /// The reply of a backend on another node. The program asks the FIB for the client.
    SnatReply,
    /// A packet of a connection, in IPIP, on the backend's node.
    DecapIpip,
    /// A packet of a connection, in FoU, on the backend's node.
    DecapFou,
    /// An echo request to a Service's address.
    Echo,
    /// A router's error about a reply of a backend on this node.
    Error,
    /// A packet of a client that the source ranges refuse.
    Dropped,
}

/// The place of a walk's backend, and the way to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// On this node.
    Here,
    /// On another node, by Direct Server Return.
    Dsr,
    /// On another node, by SNAT.
    Snat,
}

impl Walk {
    /// Returns the name in the output. It stays the same between versions.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NotOurs => "not ours",
            Self::NotOursServed => "not ours, served port",
            Self::LocalNew => "local, new",
            Self::LocalEstablished => "local, established",
            Self::LocalUdp => "local, UDP",
            Self::LocalAffinity => "local, affinity",
            Self::LocalSourceRanges => "local, source ranges",
            Self::LocalNodePort => "local, NodePort",
            Self::Reply => "reply",
            Self::DsrNew => "DSR, new",
            Self::DsrEstablished => "DSR, established",
            Self::DsrUdp => "DSR, UDP",
            Self::DsrUnsettled => "DSR, unsettled slot",
            Self::DsrAffinity => "DSR, affinity",
            Self::DsrSourceRanges => "DSR, source ranges",
            Self::DsrNodePort => "DSR, NodePort",
            Self::SnatNew => "SNAT, new",
            Self::SnatEstablished => "SNAT, established",
            Self::SnatUdp => "SNAT, UDP",
            Self::SnatReply => "SNAT, reply",
            Self::DecapIpip => "decapsulation, IPIP",
            Self::DecapFou => "decapsulation, FoU",
            Self::Echo => "ICMP echo",
            Self::Error => "ICMP error",
            Self::Dropped => "dropped, source ranges",
        }
    }

    /// Returns the heading under which the walk's figures stand.
    pub const fn heading(self) -> &'static str {
        match self {
            Self::NotOurs | Self::NotOursServed => "Packets that are not ours",
            Self::LocalNew | Self::SnatNew => "New connections",
            Self::LocalEstablished
            | Self::LocalUdp
            | Self::LocalAffinity
            | Self::LocalSourceRanges
            | Self::LocalNodePort => "To a backend on this node",
            Self::DsrNew
            | Self::DsrEstablished
            | Self::DsrUdp
            | Self::DsrUnsettled
            | Self::DsrAffinity
            | Self::DsrSourceRanges
            | Self::DsrNodePort => "To another node, by Direct Server Return",
            Self::SnatEstablished | Self::SnatUdp => "To another node, by SNAT",
            Self::Reply | Self::SnatReply => "Replies",
            Self::DecapIpip | Self::DecapFou => "Decapsulation on the backend's node",
            Self::Echo | Self::Error => "ICMP",
            Self::Dropped => "Drops",
        }
    }

    /// Returns the place of the backend.
    pub const fn place(self) -> Place {
        match self {
            Self::NotOurs
            | Self::NotOursServed
            | Self::LocalNew
            | Self::LocalEstablished
            | Self::LocalUdp
            | Self::LocalAffinity
            | Self::LocalSourceRanges
            | Self::LocalNodePort
            | Self::Reply
            | Self::DecapIpip
            | Self::DecapFou
            | Self::Echo
            | Self::Error
            | Self::Dropped => Place::Here,
            Self::DsrNew
            | Self::DsrEstablished
            | Self::DsrUdp
            | Self::DsrUnsettled
            | Self::DsrAffinity
            | Self::DsrSourceRanges
            | Self::DsrNodePort => Place::Dsr,
            Self::SnatNew | Self::SnatEstablished | Self::SnatUdp | Self::SnatReply => Place::Snat,
        }
    }

    /// Returns whether the packet is a datagram.
    pub const fn is_udp(self) -> bool {
        matches!(self, Self::LocalUdp | Self::DsrUdp | Self::SnatUdp)
    }

    /// Returns whether the packet begins a connection.
    pub const fn is_new(self) -> bool {
        matches!(self, Self::LocalNew | Self::DsrNew | Self::SnatNew)
    }

    /// Returns whether the frontend is a port of this node.
    pub const fn is_node_port(self) -> bool {
        matches!(self, Self::LocalNodePort | Self::DsrNodePort)
    }

    /// Returns whether the packet arrives encapsulated.
    pub const fn is_tunnelled(self) -> bool {
        matches!(self, Self::DecapIpip | Self::DecapFou)
    }

    /// Returns whether the node must have entries of the rotated connections before the
    /// measurement.
    pub const fn has_entries(self) -> bool {
        match self {
            Self::NotOurs
            | Self::NotOursServed
            | Self::LocalNew
            | Self::Reply
            | Self::DsrNew
            | Self::DsrEstablished
            | Self::DsrUdp
            | Self::DsrSourceRanges
            | Self::DsrNodePort
            | Self::SnatNew
            | Self::SnatReply
            | Self::Echo
            | Self::Error
            | Self::Dropped => false,
            Self::LocalEstablished
            | Self::LocalUdp
            | Self::LocalAffinity
            | Self::LocalSourceRanges
            | Self::LocalNodePort
            | Self::DsrUnsettled
            | Self::DsrAffinity
            | Self::SnatEstablished
            | Self::SnatUdp
            | Self::DecapIpip
            | Self::DecapFou => true,
        }
    }

    /// Returns whether a connection of the client must exist, whose other packets are measured.
    pub const fn follows_a_connection(self) -> bool {
        matches!(self, Self::Reply | Self::NotOursServed | Self::SnatReply | Self::Error)
    }

    /// Returns the reason under which the program counts the packet.
    pub fn reason(self, hook: Hook) -> Reason {
        match self {
            Self::NotOurs | Self::NotOursServed => Reason::NotOurs,
            Self::Reply => Reason::Reply,
            Self::SnatReply => Reason::ReplySnat,
            Self::DecapIpip | Self::DecapFou => Reason::ServedDsr,
            Self::Echo => Reason::Echo,
            Self::Error => Reason::IcmpError,
            Self::Dropped => Reason::SourceRefused,
            _ => match self.place() {
                Place::Here if hook == Hook::TcPodIn => Reason::ServedPod,
                Place::Here => Reason::ServedLocal,
                Place::Dsr => Reason::SentDsr,
                Place::Snat => Reason::SentSnat,
            },
        }
    }
}
