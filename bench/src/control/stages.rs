//! The stages from listed to programmed.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Result, ensure};
use millrace::dataplane::Dataplane;
use millrace::dataplane::ebpf::Sizes;
use millrace::dataplane::ebpf::plan::{Capacities, Change, Found, Kernel, Plan};
use millrace::model::{Desired, Dirty, Model};

use super::clock::timed;
use super::listing;
use super::objects::Scale;
use super::pins::Pins;
use super::report::{Figure, Target};
use super::server::Server;
use super::source::{self, Source};

/// One second of CPU for each of the target's units.
const TARGET: Duration = Duration::from_secs(1);

/// The durations and counts of one run.
#[derive(Clone, Copy, Debug, Default)]
struct Run {
    decode: Duration,
    apply: Duration,
    refresh: Duration,
    plan: Duration,
    open: Duration,
    sync: Duration,
    again: Duration,
    bytes: usize,
    writes: usize,
}

/// Returns the figures of several runs.
pub fn measure(scale: Scale, runs: usize) -> Result<Vec<Figure>> {
    let runs = (0..runs).map(|_| run(scale)).collect::<Result<Vec<_>>>()?;
    let of = |stage: fn(&Run) -> Duration| runs.iter().map(stage).collect::<Vec<_>>();
    let count = |what: fn(&Run) -> usize| runs.first().map_or(0, what);
    let total = of(|run| run.apply + run.refresh + run.sync.max(run.plan));
    let target = match (scale.services, scale.endpoints) {
        (10_000, 10) => Target::AtMost(TARGET),
        (50_000, 5) => Target::AtMost(TARGET * 5),
        _ => Target::None,
    };
    Ok(vec![
        Figure::megabytes("text received", count(|run| run.bytes)),
        Figure::count("operations written", count(|run| run.writes)),
        Figure::cpu_of("source: receive and decode", &of(|run| run.decode), Target::None),
        Figure::cpu_of("model: apply", &of(|run| run.apply), Target::None),
        Figure::cpu_of("model: refresh", &of(|run| run.refresh), Target::None),
        Figure::cpu_of("plan (no kernel)", &of(|run| run.plan), Target::None),
        Figure::cpu_of("write (sync less plan)", &of(|run| run.sync.saturating_sub(run.plan)), Target::None),
        Figure::cpu_of("from listed to programmed", &total, target),
        Figure::cpu_of("open (programs and empty maps)", &of(|run| run.open), Target::None),
        Figure::cpu_of("agent starts again: open and sync", &of(|run| run.again), Target::None),
    ])
}

fn run(scale: Scale) -> Result<Run> {
    let mut run = Run::default();
    let mut model = Model::new(listing::settings());
    let server = Server::start(scale)?;
    let (source, mut events) = Source::start(&server)?;
    run.apply = source::list(&mut events, &mut model)?;
    run.decode = source.cpu()?;
    run.bytes = server.sent();
    drop(events);
    let topology = listing::topology(scale);
    ((), run.refresh) = timed(|| {
        model.refresh();
        model.set_node_addresses(topology.addresses.clone());
        model.refresh();
    });
    let desired = model.desired();
    let dirty = everything(desired);
    let mut plan = Plan::adopt(capacities(desired), Found::default(), Duration::ZERO);
    // The data plane below gets the same topology. The addresses of this node's devices decide what
    // is written of a Service's addresses.
    plan.set_topology(&topology, &BTreeSet::new(), Duration::ZERO, &mut NullKernel);
    let (planned, took) = timed(|| plan.sync(desired, &dirty, Duration::ZERO, &mut NullKernel));
    run.plan = took;
    drop(plan);

    let pins = Pins::new();
    let (dataplane, open) = timed(|| pins.open(desired));
    let mut dataplane = dataplane?;
    run.open = open;
    dataplane.set_topology(&topology);
    let (written, sync) = timed(|| dataplane.sync(desired, &dirty));
    run.sync = sync;
    run.writes = written.writes;
    ensure!(written.is_complete(), "not everything could be written: {:?}", written.pending.first());
    ensure!(planned.writes == written.writes, "planned {}, written {}", planned.writes, written.writes);
    drop(dataplane);
    let (again, took) = timed(|| {
        let mut dataplane = pins.open(desired)?;
        anyhow::Ok(dataplane.sync(desired, &dirty))
    });
    run.again = took;
    ensure!(again?.writes == 0, "a second agent changed what the first had written");
    Ok(run)
}

/// Returns the whole state as dirty, as for the first sync.
pub fn everything(desired: &Desired) -> Dirty {
    Dirty { ports: desired.ports.keys().cloned().collect(), nodes: true, ..Dirty::default() }
}

fn capacities(desired: &Desired) -> Capacities {
    let sizes = Sizes::for_desired(desired);
    Capacities {
        services: sizes.services,
        slots: sizes.slots,
        backends_v4: sizes.backends,
        backends_v6: sizes.backends,
        ways: sizes.nodes,
    }
}

/// A kernel that accepts every change and does nothing.
struct NullKernel;

impl Kernel for NullKernel {
    fn apply(&mut self, _change: &Change) -> Result<(), String> {
        Ok(())
    }
}
