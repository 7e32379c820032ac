//! A run of a program: its hook, its context and its result.

use bytes::Bytes;
use proxy_common::verdict::Program;

/// Index of the device that receives frames, unless a test says otherwise. It is the loopback
/// device, because a test run needs an existing device.
pub const DEVICE: u32 = 1;

/// A program and its hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// `xdp_ingress`.
    XdpIngress,
    /// `tc_ingress`.
    TcIngress,
    /// `tc_egress`.
    TcEgress,
    /// `tc_pod_in`.
    TcPodIn,
    /// `tc_pod_out`.
    TcPodOut,
}

impl Hook {
    /// Returns the program's name in the object.
    #[must_use]
    pub const fn program(self) -> &'static str {
        self.counted_as().name()
    }

    /// Returns the program whose counters it writes.
    #[must_use]
    pub const fn counted_as(self) -> Program {
        match self {
            Self::XdpIngress => Program::XdpIngress,
            Self::TcIngress => Program::TcIngress,
            Self::TcEgress => Program::TcEgress,
            Self::TcPodIn => Program::TcPodIn,
            Self::TcPodOut => Program::TcPodOut,
        }
    }

    /// Whether it is XDP's; else it is TC's.
    #[must_use]
    pub const fn is_xdp(self) -> bool {
        matches!(self, Self::XdpIngress)
    }

    /// Whether a test run takes this frame: the kernel wants an Ethernet header, and for an skb also the
    /// whole IP header the Ethernet type announces.
    #[must_use]
    pub fn takes(self, frame: &[u8]) -> bool {
        let behind_ethernet = match frame.get(12..14) {
            _ if self.is_xdp() => 0,
            Some([0x08, 0x00]) => 20,
            Some([0x86, 0xdd]) => 40,
            _ => 1,
        };
        frame.len() >= 14 + behind_ethernet
    }
}

/// The context of a run beside the frame.
#[derive(Clone, Copy, Debug)]
pub struct Ingress {
    /// Index of the device the frame comes in at; it must exist in the caller's network namespace.
    pub device: u32,
    /// The mark an skb already has.
    pub mark: u32,
    /// Bytes of a segment, for an skb that is to be cut up.
    pub segment: u32,
    /// Whether the node itself sends the skb: it came in by no device.
    pub is_own: bool,
}

impl Default for Ingress {
    fn default() -> Self {
        Self { device: DEVICE, mark: 0, segment: 0, is_own: false }
    }
}

/// The result of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawRun {
    /// The program's return value.
    pub action: u32,
    /// The metadata that XDP put in front of the frame for TC.
    pub metadata: Bytes,
    /// The frame after the run.
    pub frame: Bytes,
    /// The skb's mark; 0 for XDP.
    pub mark: u32,
}
