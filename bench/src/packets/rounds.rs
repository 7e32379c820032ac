//! The settings of the wrapper: the frame's template, and the rotation of source and destination.

use anyhow::{Result, ensure};

/// The size of every measured frame. The wrapper restores so many bytes each round, and has the
/// same constant.
pub const FRAME: usize = 128;
const WORDS: usize = 12;
/// Source port of flow 0.
pub const FIRST_PORT: u16 = 1024;

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
    is_v6: u32,
}

// SAFETY: repr(C) without padding (twelve words of eight bytes, then six of four), and all fields are integers.
unsafe impl aya::Pod for Rounds {}

impl Rounds {
    /// Returns settings that rotate over this number of flows and frontends, from the first of
    /// each.
    pub fn new(frame: &[u8], flows: u32, frontends: u32) -> Result<Self> {
        ensure!(frame.len() == FRAME, "a measured frame has {FRAME} bytes, not {}", frame.len());
        let mut template = [0; WORDS];
        for (word, bytes) in template.iter_mut().zip(frame.as_chunks().0) {
            *word = u64::from_ne_bytes(*bytes);
        }
        let is_v6 = u32::from(frame.get(12) == Some(&0x86));
        let (last_flow, last_frontend) = (flows.saturating_sub(1), frontends.saturating_sub(1));
        Ok(Self { template, flow: 0, first_flow: 0, last_flow, frontend: 0, last_frontend, is_v6 })
    }

    /// Returns the same settings for a part of the flows.
    pub const fn between(self, first: u32, last: u32) -> Self {
        Self { flow: first, first_flow: first, last_flow: last, frontend: 0, ..self }
    }

    /// Returns the settings of the round before.
    pub const fn back(self) -> Self {
        let flow = if self.flow == self.first_flow { self.last_flow } else { self.flow - 1 };
        let frontend = if self.frontend == 0 { self.last_frontend } else { self.frontend - 1 };
        Self { flow, frontend, ..self }
    }
}
