//! Running a program: the context of a test run, and the call.

use aya::programs::{ProgramError, SchedClassifier, TestRun, TestRunOptions, TestRunResult, Xdp};
use bytes::Bytes;

use super::Bed;
use super::outcome::{Counts, Outcome};
use super::run::{Hook, Ingress, RawRun};
use crate::frame::{Frame, show_if_verbose};

/// Bytes by which a program may lengthen a frame: the headroom of an XDP buffer, which metadata shares.
const HEADROOM: usize = 256;

impl Bed {
    /// Runs a program once on a frame that comes in at [`DEVICE`](super::DEVICE).
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
        let given = TestContext::new(hook, ingress, frame.len());
        let mut left = given.clone();
        let options = TestRunOptions {
            data_in: Some(frame),
            data_out: Some(&mut output),
            ctx_in: Some(given.bytes()),
            ctx_out: Some(left.bytes_mut()),
            ..TestRunOptions::default()
        };
        let result = self.test_run(hook, options).unwrap_or_else(|error| {
            panic!("{} does not run on {} bytes: {error:?}", hook.program(), frame.len())
        });
        output.truncate(result.data_size_out as usize);
        let frame = Bytes::from(output);
        RawRun {
            action: result.return_value,
            metadata: frame.slice(..left.metadata()),
            frame: frame.slice(left.metadata()..),
            mark: left.mark(),
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

/// The context of a test run: the kernel's `struct xdp_md` or `struct __sk_buff`.
#[derive(Clone, Debug)]
pub struct TestContext {
    bytes: Vec<u8>,
    is_xdp: bool,
}

impl TestContext {
    /// Returns the context of a frame of `length` bytes.
    #[must_use]
    pub fn new(hook: Hook, ingress: Ingress, length: usize) -> Self {
        let is_xdp = hook.is_xdp();
        Self { bytes: if is_xdp { xdp_md(ingress, length) } else { sk_buff(ingress) }, is_xdp }
    }

    /// Lets an skb have come in by another device, or by none (0).
    pub fn came_in_by(&mut self, device: u32) {
        self.bytes[SK_BUFF_INGRESS_IFINDEX..SK_BUFF_INGRESS_IFINDEX + 4]
            .copy_from_slice(&device.to_ne_bytes());
    }

    /// Returns the context as the kernel reads it.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the room for the context that the kernel writes.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// Returns the length of the metadata that XDP put in front of the frame.
    ///
    /// The output starts with it, and the context's `data` says how long it is.
    #[must_use]
    pub fn metadata(&self) -> usize {
        if self.is_xdp { self.word(0) as usize } else { 0 }
    }

    /// Returns the mark of an skb; 0 for XDP.
    #[must_use]
    pub fn mark(&self) -> u32 {
        if self.is_xdp { 0 } else { self.word(SK_BUFF_MARK) }
    }

    fn word(&self, at: usize) -> u32 {
        u32::from_ne_bytes(std::array::from_fn(|byte| self.bytes[at + byte]))
    }
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
