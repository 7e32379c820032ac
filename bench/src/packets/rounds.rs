//! The settings of the wrapper: the frame's template, and the rotation of source and destination.

use anyhow::{Result, bail, ensure};
use millrace_lab::frame::{Frame, Layer};

/// The size of every measured frame. The wrapper restores so many bytes each round, and has the
/// same constant.
pub const FRAME: usize = 128;
const WORDS: usize = FRAME / 8;
/// Source port of flow 0.
pub const FIRST_PORT: u16 = 1024;
/// Ports of one source address before the next address is taken, as a power of two. The wrapper has
/// the same constant.
const PORT_BITS: u32 = 15;

/// The wrapper's one map entry, field by field as in `proxy-ebpf/src/bin/bench_wrapper.rs`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Rounds {
    template: [u64; WORDS],
    flow: u32,
    first_flow: u32,
    last_flow: u32,
    frontend: u32,
    last_frontend: u32,
    source: u32,
    destination: u32,
    port: u32,
    header_checksum: u32,
    checksum: u32,
}

// SAFETY: repr(C) without padding (sixteen words of eight bytes, then ten of four), and all fields are integers.
unsafe impl aya::Pod for Rounds {}

/// The flow and the frontend of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Round {
    /// The number of the flow.
    pub flow: u32,
    /// The number of the frontend.
    pub frontend: u32,
}

impl Round {
    /// The first round.
    pub const FIRST: Self = Self { flow: 0, frontend: 0 };

    /// Returns the number that the wrapper adds to the source address.
    pub const fn address(self) -> u32 {
        self.flow >> PORT_BITS
    }

    /// Returns the source port.
    pub const fn port(self) -> u16 {
        FIRST_PORT + (self.flow & ((1 << PORT_BITS) - 1)) as u16
    }
}

impl Rounds {
    /// Returns settings that rotate over this number of flows and frontends, from the first of
    /// each.
    pub fn new(frame: &Frame, flows: u32, frontends: u32) -> Result<Self> {
        let bytes = frame.build();
        ensure!(bytes.len() == FRAME, "a measured frame has {FRAME} bytes, not {}", bytes.len());
        let mut template = [0; WORDS];
        for (word, bytes) in template.iter_mut().zip(bytes.as_chunks().0) {
            *word = u64::from_ne_bytes(*bytes);
        }
        let Offsets { source, destination, port, header_checksum, checksum } = Offsets::of(frame)?;
        let (last_flow, last_frontend) = (flows.saturating_sub(1), frontends.saturating_sub(1));
        Ok(Self {
            template,
            flow: 0,
            first_flow: 0,
            last_flow,
            frontend: 0,
            last_frontend,
            source,
            destination,
            port,
            header_checksum,
            checksum,
        })
    }

    /// Returns the same settings for a part of the flows.
    pub const fn between(self, first: u32, last: u32) -> Self {
        Self { flow: first, first_flow: first, last_flow: last, frontend: 0, ..self }
    }

    /// Returns the round before the next one.
    pub const fn last(&self) -> Round {
        Round {
            flow: if self.flow == self.first_flow { self.last_flow } else { self.flow - 1 },
            frontend: if self.frontend == 0 { self.last_frontend } else { self.frontend - 1 },
        }
    }
}

/// Places in a frame that change with flow and frontend: those of the innermost headers.
struct Offsets {
    source: u32,
    destination: u32,
    port: u32,
    header_checksum: u32,
    checksum: u32,
}

impl Offsets {
    fn of(frame: &Frame) -> Result<Self> {
        let (mut at, mut network) = (14, None);
        for layer in &frame.layers {
            match (layer, network) {
                (Layer::Ipv4(_), _) => network = Some((at + 12, at + 16, at + 10)),
                // The last words of the addresses.
                (Layer::Ipv6(_), _) => network = Some((at + 8 + 12, at + 24 + 12, 0)),
                (Layer::Tcp(_) | Layer::Udp(_) | Layer::Icmp(_), Some((source, destination, header))) => {
                    let checksum = match layer {
                        Layer::Tcp(_) => 16,
                        Layer::Udp(_) => 6,
                        _ => 2,
                    };
                    let inner = Self {
                        source,
                        destination,
                        port: at,
                        header_checksum: header,
                        checksum: at + checksum,
                    };
                    if std::ptr::eq(layer, frame.layers.last().unwrap_or(layer)) {
                        return Ok(inner);
                    }
                }
                _ => {}
            }
            at += u32::try_from(layer.length())?;
        }
        bail!("a measured frame ends with a transport header: {:?}", frame.layers)
    }
}
