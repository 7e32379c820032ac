//! The packets that a trace build of the programs logs: `proxy_common::trace` describes the lines.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result};
use aya::maps::MapInfo;
use aya::programs::loaded_programs;
use aya_log::EbpfLogger;
use log::{Metadata, Record};
use proxy_common::part::PARTS;
use proxy_common::trace::{Step, TRACE_MAPS};
use proxy_common::verdict::{Program, Reason};

use crate::agent::Proxy;

/// Time between two readings. The buffer holds a thousand packets or so.
const INTERVAL: Duration = Duration::from_millis(20);

/// The log of the programs that were loaded together.
pub struct PacketLog {
    logger: EbpfLogger<Sink>,
    lines: Sink,
    /// The packet of each CPU, until its verdict.
    unfinished: BTreeMap<String, TracedPacket>,
}

/// A packet that a program took.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct TracedPacket {
    /// Nanoseconds from the boot to the end of the program.
    pub at: u64,
    /// Program, protocol, addresses, steps and verdict.
    pub text: String,
}

/// Takes the lines of aya-log.
#[derive(Clone, Debug, Default)]
struct Sink(Arc<Mutex<Vec<String>>>);

impl log::Log for Sink {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(record.args().to_string());
    }

    fn flush(&self) {}
}

/// Returns the id of the log's map; `None` if the program is gone or of a usual build.
fn map_of(program: u32) -> Option<u32> {
    let info = loaded_programs().filter_map(Result::ok).find(|info| info.id() == program)?;
    let maps = info.map_ids().ok()??;
    let is_log = |id: &u32| {
        MapInfo::from_id(*id).is_ok_and(|map| map.name_as_str().is_some_and(|name| TRACE_MAPS[1] == name))
    };
    maps.into_iter().find(is_log)
}

impl PacketLog {
    /// Opens the log of the program with this id, and of those that were loaded with it.
    ///
    /// # Errors
    /// The program is not loaded, or of a usual build, or this process lacks the rights.
    pub fn open(program: u32) -> Result<Self> {
        let lines = Sink::default();
        let logger = EbpfLogger::init_from_id_with_logger(program, lines.clone());
        let logger = logger.with_context(|| format!("program {program} logs no packets"))?;
        Ok(Self { logger, lines, unfinished: BTreeMap::new() })
    }

    /// Returns the packets whose program ended since the last call, in the order of each CPU.
    pub fn packets(&mut self) -> Vec<TracedPacket> {
        self.logger.flush();
        let lines = std::mem::take(&mut *self.lines.0.lock().unwrap_or_else(PoisonError::into_inner));
        lines.iter().filter_map(|line| self.add(line)).collect()
    }

    /// Takes a line; returns a packet's line with its verdict.
    fn add(&mut self, line: &str) -> Option<TracedPacket> {
        let (cpu, what) = line.split_once(' ')?;
        let words: Vec<&str> = what.split(' ').collect();
        match words.as_slice() {
            ["packet", at, program, protocol, source, from, destination, to] => {
                let program = named(program, Program::ALL, |one| one as u32, Program::name);
                let protocol = protocol_name(protocol);
                let text = format!("{program} {protocol} {source}:{from} > {destination}:{to}");
                self.unfinished.insert(cpu.to_owned(), TracedPacket { at: at.parse().ok()?, text });
                None
            }
            ["step", step, value] => {
                let step = Step::ALL.iter().find(|one| step.parse() == Ok(**one as u32))?;
                let text = &mut self.unfinished.get_mut(cpu)?.text;
                text.push_str(", ");
                text.push_str(&shown(*step, value));
                None
            }
            ["verdict", reason] => {
                let reason = named(reason, Reason::ALL, |one| one as u32, Reason::name);
                let TracedPacket { at, text } = self.unfinished.remove(cpu)?;
                Some(TracedPacket { at, text: format!("{text}: {reason}") })
            }
            _ => None,
        }
    }
}

/// Returns the name of a number.
fn named<T: Copy>(
    number: &str,
    all: &[T],
    of: impl Fn(T) -> u32,
    name: impl Fn(T) -> &'static str,
) -> String {
    let found = all.iter().copied().find(|one| number.parse() == Ok(of(*one)));
    found.map_or_else(|| number.to_owned(), |one| name(one).to_owned())
}

fn protocol_name(number: &str) -> &str {
    match number {
        "6" => "TCP",
        "17" => "UDP",
        "132" => "SCTP",
        _ => number,
    }
}

fn shown(step: Step, value: &str) -> String {
    let name = step.name();
    match (step, value.parse::<u32>()) {
        (Step::Flow, Ok(bits)) => {
            let table = if bits & 0x100 == 0 { "FLOWS" } else { "FLOWS_NEW" };
            format!("{name} in {table} flags {:#04x}", bits & 0xff)
        }
        (Step::Part, Ok(number)) => {
            let part = PARTS.iter().map(|program| program.part).find(|part| *part as u32 == number);
            part.map_or_else(|| format!("{name} {number}"), |part| format!("{name} {part:?}"))
        }
        _ => format!("{name} {value}"),
    }
}

/// Prints the packets of all nodes until it is dropped.
pub struct Tracer {
    is_over: Arc<AtomicBool>,
    printing: Option<JoinHandle<()>>,
}

impl Tracer {
    /// Begins to print what the programs of these nodes log.
    ///
    /// # Errors
    /// An agent has programs of a usual build.
    pub fn start(proxies: &[Proxy]) -> Result<Self> {
        let mut logs = Vec::new();
        for proxy in proxies {
            let mut known = BTreeSet::new();
            for attached in proxy.attached()? {
                if map_of(attached.program_id).is_some_and(|map| known.insert(map)) {
                    logs.push((proxy.node().to_string(), PacketLog::open(attached.program_id)?));
                }
            }
            let node = proxy.node();
            anyhow::ensure!(
                !known.is_empty(),
                "{node} has no program that logs packets: `cargo xtask run --trace`"
            );
        }
        let is_over = Arc::new(AtomicBool::new(false));
        let until = Arc::clone(&is_over);
        let printing = thread::spawn(move || {
            loop {
                let is_last = until.load(Ordering::Acquire);
                let of_log = |(node, log): &mut (String, PacketLog)| {
                    let packets = log.packets().into_iter();
                    packets.map(|packet| (packet.at, format!("{node} {}", packet.text))).collect::<Vec<_>>()
                };
                let mut packets: Vec<_> = logs.iter_mut().flat_map(of_log).collect();
                packets.sort();
                for (_, text) in packets {
                    println!("{text}");
                }
                if is_last {
                    return;
                }
                thread::sleep(INTERVAL);
            }
        });
        Ok(Self { is_over, printing: Some(printing) })
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        if let Some(printing) = self.printing.take() {
            let _ = printing.join();
        }
    }
}
