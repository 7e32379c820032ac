//! The programs as the kernel has them: verified instructions, instructions, machine code, and the
//! time that loading takes.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use millrace_lab::program::{Bed, Load, LoadedProgram};
use proxy_common::config::{TAKES_FOU, TAKES_IPIP, TAKES_POD_PACKETS};

use crate::report::{Figure, Group, MILLRACE, Output, Section, Unit};

const METHOD: &str = "Every program of the object is loaded anew for each sample, one after another: with an \
    agent's default settings, and with all features on. The counts are the kernel's (bpf_prog_info). The \
    load time is that of the system call: verification and compilation.";

/// The measurement and the output.
#[derive(clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    output: Output,
    /// Loads of all programs; the median counts
    #[arg(long, default_value_t = 5)]
    samples: usize,
}

/// Loads the programs and prints their figures.
pub fn run(arguments: &Arguments) -> Result<()> {
    ensure!(arguments.samples > 0, "--samples takes a positive number");
    let mut section = Section::new("programs", "Programs in the kernel", METHOD);
    let everything =
        Bed::builder().fou().takes(TAKES_IPIP | TAKES_FOU | TAKES_POD_PACKETS).pods_answer().spread();
    for (builder, suffix) in [(Bed::builder(), ""), (everything, ", all features")] {
        eprintln!("loading all programs {} times{suffix} ...", arguments.samples);
        let loads: Vec<Load> = (0..arguments.samples).map(|_| builder.load_programs()).collect();
        add(&mut section, &loads, suffix)?;
    }
    arguments.output.write(vec![section])
}

/// A number of a program.
type Count = fn(&LoadedProgram) -> u32;
/// A part of a load's time.
type Part = fn(&Load) -> Duration;

/// Adds the figures of the programs, the largest first, and of all together.
fn add(section: &mut Section, loads: &[Load], suffix: &str) -> Result<()> {
    let [first, ..] = loads else { return Ok(()) };
    let mut programs: Vec<&LoadedProgram> = first.programs.iter().collect();
    programs.sort_by_key(|program| std::cmp::Reverse((program.verified, program.name.clone())));
    let counts: [(&str, Unit, f64, Count); 3] = [
        ("Verified instructions", Unit::Instructions, 64_000.0, |program| program.verified),
        ("Instructions", Unit::Instructions, 16_000.0, |program| program.instructions),
        ("Machine code", Unit::Bytes, 80_000.0, |program| program.machine_code),
    ];
    for (title, unit, most, count) in counts {
        let mut group = Group::new(format!("{title}{suffix}"), unit);
        for program in &programs {
            let figure = Figure::new(&program.name, MILLRACE, &[f64::from(count(program))])?;
            group.add(figure.target(most));
        }
        section.add(group);
    }
    let mut times = Group::new(format!("Load time{suffix}"), Unit::Milliseconds);
    for (name, most, time) in totals() {
        let samples: Vec<f64> = loads.iter().map(|load| milliseconds(time(load))).collect();
        times.add(Figure { target: most, ..Figure::new(name, MILLRACE, &samples)? });
    }
    for LoadedProgram { name, .. } in programs {
        times.add(Figure::new(name, MILLRACE, &times_of(loads, name)?)?);
    }
    section.add(times);
    Ok(())
}

/// The parts of a start, and the time of each in a load.
fn totals() -> [(&'static str, Option<f64>, Part); 3] {
    [
        ("all programs of a node with XDP", Some(1000.0), |load| sum(load, |name| !name.ends_with("_l3"))),
        ("all programs", None, |load| sum(load, |_| true)),
        ("object parsed and maps made", None, |load| load.maps),
    ]
}

fn sum(load: &Load, is_wanted: fn(&str) -> bool) -> Duration {
    load.programs.iter().filter(|program| is_wanted(&program.name)).map(|program| program.time).sum()
}

fn times_of(loads: &[Load], name: &str) -> Result<Vec<f64>> {
    let time = |load: &Load| {
        let program = load.programs.iter().find(|program| program.name == name);
        program.map(|program| milliseconds(program.time)).with_context(|| format!("{name} was not loaded"))
    };
    loads.iter().map(time).collect()
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}
