//! Packets a second through whole nodes: Millrace by XDP and by TC, beside a bare loop, beside the
//! kernel's routing, and beside the real kube-proxy with the same Services.
//!
//! The kernel sends live frames (`BPF_PROG_TEST_RUN` with `BPF_F_TEST_XDP_LIVE_FRAMES`) as if they
//! came in at the node's uplink. An XDP program counts and drops them where they arrive. All sides
//! are nodes of one bed, measured in turn in short spells. A figure stands only if a frame that
//! arrived is the expected one.

mod case;
mod programs;
mod report;
mod sides;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use aya::util::online_cpus;
use clap::ValueEnum;
use millrace_lab::topology::Family;

use case::{Case, Expected};
use programs::{FRAME, Programs};
use report::Row;
use sides::{Side, Sides};

use crate::peers;
use crate::report::{Output, Section};

/// Frames of a spell whose only purpose is to find neighbours and to fill tables.
const FIRST: u32 = 20_000;
/// The longest time until a proxy serves.
const PATIENCE: Duration = Duration::from_mins(1);
/// The longest time of sent frames to arrive.
const DELAY: Duration = Duration::from_millis(20);

/// The settings of the measurement and of the output.
#[derive(clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    output: Output,
    /// Measure only these cases [default: all]
    #[arg(long, value_delimiter = ',')]
    case: Vec<Case>,
    /// Flows on each processor
    #[arg(long, default_value_t = 1_000)]
    flows: u32,
    /// Spells of each side; the median counts
    #[arg(long, default_value_t = 9)]
    spells: usize,
    /// Milliseconds of a spell
    #[arg(long, default_value_t = 200)]
    milliseconds: u32,
    /// Leave kube-proxy out
    #[arg(long)]
    no_peers: bool,
    /// Measure IPv4 alone
    #[arg(long)]
    ipv4: bool,
}

/// A side in a case, ready to send.
struct Prepared {
    side: Side,
    template: programs::Template,
    target: aya::programs::ProgramFd,
    expected: Expected,
}

/// A bed, and the programs that send and count.
struct Bench<'a> {
    arguments: &'a Arguments,
    sides: Sides,
    programs: Programs,
}

/// Measures all cases and prints them.
pub fn run(arguments: &Arguments) -> Result<()> {
    ensure!(arguments.spells > 0 && arguments.milliseconds > 0, "--spells and --milliseconds are positive");
    ensure!((1..=16_000).contains(&arguments.flows), "--flows takes numbers from 1 to 16000");
    let online = online_cpus().map_err(|(place, error)| anyhow::anyhow!("{place}: {error}"))?.len().min(2);
    let mut section = section(arguments);
    let has_peers = !arguments.no_peers && peers::are_there(&mut section);
    let sides = Sides::start(has_peers, online as u32)?;
    let mut bench = Bench { arguments, sides, programs: Programs::load()? };
    let cases = if arguments.case.is_empty() { Case::value_variants() } else { &arguments.case };
    let families = if arguments.ipv4 { &Family::ALL[..1] } else { &Family::ALL };
    for case in cases {
        for family in families {
            for processors in 1..=online {
                bench.measure(*case, *family, processors, &mut section)?;
            }
        }
    }
    arguments.output.write(vec![section])
}

fn section(arguments: &Arguments) -> Section {
    let method = format!(
        "The kernel sends live frames of {FRAME} bytes, of {} flows a CPU, as if they came in at the node's \
         uplink. An XDP program counts them where they arrive. All sides take turns in spells of {} ms.",
        arguments.flows, arguments.milliseconds
    );
    let mut section = Section::new("rate", "Packets a second", &method);
    section.leave_out("IPVS", "it needs another kernel, in a virtual machine");
    section
}

impl Bench<'_> {
    /// Measures all sides of a case in turn.
    fn measure(
        &mut self,
        case: Case,
        family: Family,
        processors: usize,
        section: &mut Section,
    ) -> Result<()> {
        eprintln!("{}, {family}, {processors} CPU ...", case.title());
        let mut rows = Vec::new();
        for side in self.sides.all().filter(|side| side.serves(case)).collect::<Vec<_>>() {
            let prepared = self.prepare(side, case, family)?;
            let checked = self.wait_until_right(&prepared);
            let refusal = match checked {
                Ok(()) => None,
                Err(error) if side.is_own() => {
                    let counted = self.sides.counted(side)?;
                    return Err(error.context(format!("{}; the node counted {counted}", side.name())));
                }
                Err(error) => Some(format!("{error:#}")),
            };
            let frames = if refusal.is_none() { self.frames_of_spell(&prepared, processors)? } else { 0 };
            rows.push((prepared, frames, Row::new(side, refusal)));
        }
        for _ in 0..self.arguments.spells {
            for (prepared, frames, row) in rows.iter_mut().filter(|(.., row)| row.stands()) {
                let (sent, arrived) = self.spell(prepared, processors, *frames)?;
                row.add(sent, arrived);
            }
        }
        let rows: Vec<Row> = rows.into_iter().map(|(.., row)| row).collect();
        report::add(section, case, family, processors, &rows)
    }

    fn prepare(&self, side: Side, case: Case, family: Family) -> Result<Prepared> {
        self.sides.count(side, case, &self.programs)?;
        let template = self.sides.template(side, case, family, self.arguments.flows)?;
        let target = self.sides.target(side, &self.programs)?;
        let bed = self.sides.cluster().bed();
        let node = bed.node(side.node())?;
        let expected = if side == Side::BareTransmit {
            Expected::unchanged(&template.frame)?
        } else {
            case.expected(bed, node, family, side.is_own(), &template.frame)?
        };
        Ok(Prepared { side, template, target, expected })
    }

    /// Sends frames until they arrive as expected: a proxy may have just begun.
    fn wait_until_right(&mut self, prepared: &Prepared) -> Result<()> {
        let end = Instant::now() + PATIENCE;
        loop {
            self.spell(prepared, 1, FIRST)?;
            let checked = prepared.expected.check(&self.programs.arrivals()?.kept);
            if checked.is_ok() || Instant::now() > end {
                return checked;
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// Returns the number of frames, on each processor, that fill a spell.
    fn frames_of_spell(&mut self, prepared: &Prepared, processors: usize) -> Result<u32> {
        let (sent, _) = self.spell(prepared, processors, FIRST)?;
        let a_second = f64::from(FIRST) / sent.time.as_secs_f64();
        let frames = a_second * f64::from(self.arguments.milliseconds) / 1e3;
        #[allow(clippy::cast_sign_loss, reason = "a product of positive numbers")]
        Ok((frames as u32).max(1))
    }

    /// Sends frames, waits until no more arrive, and checks one of them. Returns how many arrived.
    fn spell(
        &mut self,
        prepared: &Prepared,
        processors: usize,
        frames: u32,
    ) -> Result<(programs::Sent, u64)> {
        let node = self.sides.cluster().bed().node(prepared.side.node())?.number();
        self.programs.prepare(&prepared.template, &prepared.target)?;
        self.programs.forget()?;
        let namespace = self.sides.cluster().bed().node(node)?.namespace();
        let sent = self.programs.send(namespace, "eth0", processors, frames)?;
        let mut arrived = self.programs.arrivals()?;
        loop {
            std::thread::sleep(DELAY);
            let now = self.programs.arrivals()?;
            if now.frames == arrived.frames {
                break;
            }
            arrived = now;
        }
        if arrived.frames > sent.frames {
            bail!("{} frames arrived of {}", arrived.frames, sent.frames);
        }
        if frames > FIRST {
            prepared.expected.check(&arrived.kept).with_context(|| prepared.side.name())?;
        }
        Ok((sent, arrived.frames))
    }
}
