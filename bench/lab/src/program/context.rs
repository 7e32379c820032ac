//! Running a program: which one, and what its context says beside the frame.

use aya::programs::{ProgramError, SchedClassifier, TestRun, TestRunOptions, TestRunResult, Xdp};
use bytes::Bytes;
use proxy_common::verdict::Program;

use super::outcome::{Counts, Outcome};
use super::{Bed, DEVICE};
use crate::frame::{Frame, show_if_verbose};

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
    /// The program's name in the object.
    #[must_use]
    pub const fn program(self) -> &'static str {
        self.counted_as().name()
    }

    /// Whose counters the program writes.
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

    /// Whether a test run takes this frame: the kernel wants an Ethernet header, and for an skb also the whole
    /// IP header the Ethernet type announces.
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

/// What the context says beside the frame.
#[derive(Clone, Copy, Debug)]
pub struct Ingress {
    /// Index of the device the frame comes in at; it must exist in the caller's network namespace.
    pub device: u32,
    /// The mark an skb already has.
    pub mark: u32,
    /// Bytes of a segment, where an skb is to be cut up.
    pub segment: u32,
    /// Whether the node itself sends the skb: it came in by no device.
    pub is_own: bool,
}

impl Default for Ingress {
    fn default() -> Self {
        Self { device: DEVICE, mark: 0, segment: 0, is_own: false }
    }
}

/// Bytes by which a program may lengthen a frame: the headroom of an XDP buffer, which metadata shares.
const HEADROOM: usize = 256;

impl Bed {
    /// Runs a program once on a frame that comes in at [`DEVICE`].
    #[track_caller]
    pub fn run(&self, hook: Hook, frame: &[u8]) -> Outcome {
        self.run_with(hook, frame, Ingress::default())
    }

    /// Builds a frame and runs a program once on it.
    #[track_caller]
    pub fn send(&self, hook: Hook, frame: &Frame) -> Outcome {
        self.run(hook, &frame.build())
    }

    /// Runs a program once; see [`Ingress`].
    #[track_caller]
    pub fn run_with(&self, hook: Hook, frame: &[u8], ingress: Ingress) -> Outcome {
        let before = self.counters();
        let run = self.run_raw(hook, frame, ingress);
        let counts = Counts::between(hook, &before, &self.counters());
        show_if_verbose(&format!("{} is given", hook.program()), frame);
        show_if_verbose(&format!("{} returns {}, {counts}", hook.program(), run.action), &run.frame);
        Outcome::new(hook, Bytes::copy_from_slice(frame), run, counts)
    }

    /// Runs a program once and reads no counters: for the millions of frames of a fuzz run.
    ///
    /// # Panics
    /// If the kernel refuses the run: [`Hook::takes`] says no, or the device does not exist.
    #[track_caller]
    pub fn run_raw(&self, hook: Hook, frame: &[u8], ingress: Ingress) -> RawRun {
        let mut output = vec![0; frame.len() + HEADROOM];
        let mut context_out = [0; SK_BUFF_BYTES];
        let context = if hook.is_xdp() { xdp_md(ingress, frame.len()) } else { sk_buff(ingress) };
        let context_out = &mut context_out[..context.len()];
        let options = TestRunOptions {
            data_in: Some(frame),
            data_out: Some(&mut output),
            ctx_in: Some(&context),
            ctx_out: Some(context_out),
            ..TestRunOptions::default()
        };
        let result = self.test_run(hook, options).unwrap_or_else(|error| {
            panic!("{} does not run on {} bytes: {error:?}", hook.program(), frame.len())
        });
        output.truncate(result.data_size_out as usize);
        let word = |at: usize| u32::from_ne_bytes(std::array::from_fn(|byte| context_out[at + byte]));
        // XDP's output starts with the metadata; the context's `data` says how long it is.
        let (metadata, mark) = if hook.is_xdp() { (word(0) as usize, 0) } else { (0, word(SK_BUFF_MARK)) };
        let frame = Bytes::from(output);
        RawRun {
            action: result.return_value,
            metadata: frame.slice(..metadata),
            frame: frame.slice(metadata..),
            mark,
        }
    }

    fn test_run(&self, hook: Hook, options: TestRunOptions<'_>) -> Result<TestRunResult, ProgramError> {
        let ebpf = self.with_program(hook);
        let program = ebpf.program(hook.program()).expect("a program that was loaded");
        if hook.is_xdp() {
            <&Xdp>::try_from(program)?.test_run(options)
        } else {
            <&SchedClassifier>::try_from(program)?.test_run(options)
        }
    }
}

/// What the kernel returns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawRun {
    /// The program's return value.
    pub action: u32,
    /// What XDP put in front of the frame for TC.
    pub metadata: Bytes,
    /// The frame as the program left it.
    pub frame: Bytes,
    /// The skb's mark; 0 for XDP.
    pub mark: u32,
}

/// Size of the kernel's `struct __sk_buff` and offsets of the fields a test run may set.
const SK_BUFF_BYTES: usize = 192;
const SK_BUFF_MARK: usize = 8;
const SK_BUFF_INGRESS_IFINDEX: usize = 36;
const SK_BUFF_IFINDEX: usize = 40;
const SK_BUFF_GSO_SIZE: usize = 176;

// struct xdp_md: data, data_end, data_meta, ingress_ifindex, rx_queue_index, egress_ifindex.
fn xdp_md(ingress: Ingress, length: usize) -> Vec<u8> {
    [0, length as u32, 0, ingress.device, 0, 0].into_iter().flat_map(u32::to_ne_bytes).collect()
}

fn sk_buff(ingress: Ingress) -> Vec<u8> {
    let mut context = vec![0; SK_BUFF_BYTES];
    for (at, value) in [
        (SK_BUFF_MARK, ingress.mark),
        (SK_BUFF_INGRESS_IFINDEX, if ingress.is_own { 0 } else { ingress.device }),
        (SK_BUFF_IFINDEX, ingress.device),
        (SK_BUFF_GSO_SIZE, ingress.segment),
    ] {
        context[at..at + 4].copy_from_slice(&value.to_ne_bytes());
    }
    context
}
