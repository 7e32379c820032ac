//! The programs that send and count frames, and their maps.

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use aya::maps::{MapData, PerCpuArray, PerCpuValues, ProgramArray};
use aya::programs::{ProgramFd, TestRun, TestRunAttrs, TestRunOptions, Xdp};
use aya::util::nr_cpus;
use aya::{Ebpf, EbpfLoader};
use millrace_lab::net::{Namespace, Netlink};
use millrace_lab::program::object_path;
use nix::libc;
use nix::net::if_::if_nametoindex;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;

/// Bytes of every frame that is sent, as in the programs.
pub const FRAME: usize = 128;
/// The last bytes of every frame that is sent, as in the programs.
pub const MARK: [u8; 8] = *b"millrace";
/// The source port of the template, as in the programs.
pub const FIRST_PORT: u16 = 2_048;
const WORDS: usize = 12;
const ROOM: usize = 256;
/// Frames that the kernel sends before it lets their receiver run.
const BATCH: u32 = 64;

/// The programs' map entry, field by field as in `proxy-ebpf/src/bin/bench_rate.rs`.
#[repr(C)]
#[derive(Clone, Copy)]
struct SenderState {
    template: [u64; WORDS],
    flow: u32,
    flows: u32,
    first_flow: u32,
    is_v6: u32,
}

// SAFETY: repr(C) without padding (twelve words of eight bytes, then four of four), and all fields are integers.
unsafe impl aya::Pod for SenderState {}

/// The programs' map entry, as there.
#[repr(C)]
#[derive(Clone, Copy)]
struct ArrivalsState {
    frames: u64,
    length: u64,
    kept: [u8; ROOM],
}

// SAFETY: repr(C) without padding (two words of eight bytes, then bytes), and all fields are integers.
unsafe impl aya::Pod for ArrivalsState {}

/// The frames that arrived.
#[derive(Clone, Debug, Default)]
pub struct Arrivals {
    /// Their number.
    pub frames: u64,
    /// Some of them: one of each processor that received any.
    pub kept: Vec<Vec<u8>>,
}

/// The frame that is sent, and the number of its flows on each processor.
#[derive(Clone, Debug)]
pub struct Template {
    /// The frame of flow 0.
    pub frame: Vec<u8>,
    /// Its flows.
    pub flows: u32,
}

/// A spell of sending.
#[derive(Clone, Copy, Debug)]
pub struct Sent {
    /// The number of frames on all processors.
    pub frames: u64,
    /// The time of the slowest processor.
    pub time: Duration,
}

/// The loaded programs.
pub struct Programs {
    ebpf: Arc<Ebpf>,
    /// The prepared frame. The programs write only its headers.
    frame: Vec<u8>,
}

impl Programs {
    /// Loads them.
    pub fn load() -> Result<Self> {
        let path: PathBuf = object_path().with_file_name("millrace-rate-bpf");
        let object = std::fs::read(&path)
            .with_context(|| format!("{}: `cargo xtask bench` builds it", path.display()))?;
        let mut ebpf = EbpfLoader::new().load(&object)?;
        for name in ["send", "transmit", "pass", "count"] {
            <&mut Xdp>::try_from(ebpf.program_mut(name).context(name)?)?.load()?;
        }
        Ok(Self { ebpf: Arc::new(ebpf), frame: Vec::new() })
    }

    /// Returns a program of the object.
    pub fn program(&self, name: &str) -> Result<ProgramFd> {
        Ok(self
            .ebpf
            .program(name)
            .with_context(|| format!("there is no program {name}"))?
            .fd()?
            .try_clone()?)
    }

    /// Sets the frame, and the program that sends it.
    pub fn prepare(&mut self, template: &Template, target: &ProgramFd) -> Result<()> {
        ensure!(template.frame.len() == FRAME, "a frame has {FRAME} bytes, not {}", template.frame.len());
        let is_v6 = u32::from(template.frame.get(12) == Some(&0x86));
        let mut words = [0; WORDS];
        for (word, bytes) in words.iter_mut().zip(template.frame.as_chunks().0) {
            *word = u64::from_ne_bytes(*bytes);
        }
        let flows = template.flows;
        let state = |processor: usize| SenderState {
            template: words,
            flow: 0,
            flows,
            first_flow: processor as u32 * flows,
            is_v6,
        };
        let states: Vec<SenderState> = (0..processors()?).map(state).collect();
        let ebpf = Arc::get_mut(&mut self.ebpf).context("the programs are running")?;
        let mut sender: PerCpuArray<_, SenderState> = ebpf.map_mut("SENDER").context("SENDER")?.try_into()?;
        sender.set(0, PerCpuValues::try_from(states)?, 0)?;
        let mut targets: ProgramArray<_> = ebpf.map_mut("TARGET").context("TARGET")?.try_into()?;
        targets.set(0, target, 0)?;
        self.frame.clone_from(&template.frame);
        Ok(())
    }

    /// Sends the prepared frame live, as if it came in at a device of a namespace, on each of
    /// `processors` processors.
    pub fn send(&self, namespace: &Namespace, device: &str, processors: usize, frames: u32) -> Result<Sent> {
        let (ebpf, device, content) = (Arc::clone(&self.ebpf), device.to_owned(), self.frame.clone());
        namespace.run(async move || {
            let index = if_nametoindex(device.as_str())?;
            let start = Barrier::new(processors);
            // New threads are in the namespace of the thread that starts them.
            let times: Result<Vec<Duration>> = std::thread::scope(|scope| {
                let send = |processor| {
                    let (ebpf, content, start) = (&ebpf, &content, &start);
                    scope.spawn(move || {
                        keep_on(processor, start)?;
                        send_all(ebpf, content, index, frames)
                    })
                };
                let threads: Vec<_> = (0..processors).map(send).collect();
                let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
                    thread.join().map_err(|_| anyhow!("a sender has died"))?
                };
                threads.into_iter().map(join).collect()
            });
            let times = times?;
            let time = times.into_iter().max().context("no processor")?;
            Ok(Sent { frames: u64::from(frames) * processors as u64, time })
        })
    }

    /// Attaches the counting program to a device of a namespace.
    pub fn count_at(&self, namespace: &Namespace, device: &str) -> Result<()> {
        let (program, device) = (self.program("count")?, device.to_owned());
        namespace.run(async move || Netlink::open()?.attach_xdp(&device, program.as_fd()).await)
    }

    /// Returns what arrived since the last call of [`forget`](Self::forget).
    pub fn arrivals(&self) -> Result<Arrivals> {
        let map: PerCpuArray<&MapData, ArrivalsState> =
            self.ebpf.map("ARRIVALS").context("ARRIVALS")?.try_into()?;
        let values = map.get(&0, 0)?;
        let frames = values.iter().map(|value| value.frames).sum();
        let of_processor = |value: &ArrivalsState| {
            let length = usize::try_from(value.length).ok().filter(|length| *length > 0)?;
            Some(value.kept.get(..length)?.to_vec())
        };
        Ok(Arrivals { frames, kept: values.iter().filter_map(of_processor).collect() })
    }

    /// Forgets what arrived.
    pub fn forget(&mut self) -> Result<()> {
        let ebpf = Arc::get_mut(&mut self.ebpf).context("the programs are running")?;
        let mut map: PerCpuArray<_, ArrivalsState> =
            ebpf.map_mut("ARRIVALS").context("ARRIVALS")?.try_into()?;
        let none = ArrivalsState { frames: 0, length: 0, kept: [0; ROOM] };
        map.set(0, PerCpuValues::try_from(vec![none; processors()?])?, 0)?;
        Ok(())
    }
}

/// Returns the number of processors that the kernel has room for.
fn processors() -> Result<usize> {
    nr_cpus().map_err(|(place, error)| anyhow!("{place}: {error}"))
}

/// Keeps the calling thread on a processor, and waits for the other senders.
fn keep_on(processor: usize, start: &Barrier) -> Result<()> {
    let mut own = CpuSet::new();
    let bound = own.set(processor).and_then(|()| sched_setaffinity(Pid::from_raw(0), &own));
    let first = come_first();
    // Every thread comes to the barrier, even after a failure.
    start.wait();
    bound.context("can't keep a sender on its processor")?;
    first.context("can't give a sender the scheduling policy SCHED_FIFO")
}

/// Runs the calling thread before all usual ones, so that other work on the machine takes nothing of
/// a spell. The receiver's work is done in the same thread, after each batch.
fn come_first() -> std::io::Result<()> {
    let parameters = libc::sched_param { sched_priority: 1 };
    // SAFETY: the calling thread's own policy; the parameters live as long as the call.
    let result = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameters) };
    if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

fn send_all(ebpf: &Ebpf, frame: &[u8], device: u32, frames: u32) -> Result<Duration> {
    let program = <&Xdp>::try_from(ebpf.program("send").context("send")?)?;
    // struct xdp_md: data, data_end, data_meta, ingress_ifindex, rx_queue_index, egress_ifindex.
    let context = [0, FRAME as u32, 0, device, 0, 0];
    let context: Vec<u8> = context.into_iter().flat_map(u32::to_ne_bytes).collect();
    let began = Instant::now();
    program.test_run(TestRunOptions {
        data_in: Some(frame),
        ctx_in: Some(&context),
        repeat: frames,
        attrs: TestRunAttrs::new().xdp_live_frames(BATCH),
        ..TestRunOptions::default()
    })?;
    Ok(began.elapsed())
}
