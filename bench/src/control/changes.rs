//! EndpointSlices that change one at a time, or a thousand a second.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use millrace::agent::BATCHES;
use millrace::dataplane::Dataplane;
use millrace::dataplane::fake::FakeDataplane;
use millrace::model::{Desired, Kind, Model};
use millrace::source::SourceEvent;
use tokio::sync::mpsc;

use super::clock::quantile;
use super::cluster::Cluster;
use super::driver::{Driver, Sync};
use super::listing;
use super::objects::Scale;
use super::pins::Pins;
use super::report::{Figure, Target};
use super::server::Server;
use super::source::{self, Source};
use super::stages::everything;

/// The pace of changes.
#[derive(Clone, Copy, Debug)]
pub enum Pace {
    /// This number of changes. Each comes after the one before is in the maps.
    OneByOne(u32),
    /// A thousand a second for this number of seconds.
    Stream(u32),
}

/// Changes a second.
const RATE: u32 = 1_000;
const MEDIAN: Target = Target::AtMost(Duration::from_millis(2));
const P99: Target = Target::AtMost(Duration::from_millis(10));

/// Measures with the fake data plane and with the real one. Ends with a check of the last state.
pub fn measure(scale: Scale, pace: Pace) -> Result<Vec<Figure>> {
    let mut cluster = Cluster::new(scale);
    let (mut figures, fake) = pace.run(&mut cluster, "fake", |_| Ok(FakeDataplane::default()))?;
    ensure!(fake.served == cluster.desired()?.ports, "the fake data plane does not serve the last state");
    drop(fake);
    let mut cluster = Cluster::new(scale);
    let pins = Pins::new();
    let (with_maps, dataplane) = pace.run(&mut cluster, "real maps", |desired| pins.open(desired))?;
    drop(dataplane);
    check_maps(&pins, &cluster.desired()?)?;
    figures.extend(with_maps);
    Ok(figures)
}

/// Checks that a new agent finds the last state in the maps.
///
/// Backends that left a moment ago still have their grace there, and the new agent does not know of
/// it. It may write only those backends.
fn check_maps(pins: &Pins, expected: &Desired) -> Result<()> {
    let mut dataplane = pins.open(expected)?;
    let report = dataplane.sync(expected, &everything(expected));
    ensure!(report.is_complete(), "the last state can't be written: {:?}", report.pending.first());
    eprintln!("a new agent writes {} operations", report.writes);
    let again = dataplane.sync(expected, &everything(expected));
    ensure!(again.writes == 0, "a new agent writes again in its second sync");
    Ok(())
}

impl Pace {
    fn run<D: Dataplane + Send + 'static>(
        self,
        cluster: &mut Cluster,
        name: &str,
        open: impl FnOnce(&Desired) -> Result<D>,
    ) -> Result<(Vec<Figure>, D)> {
        let (figures, driver) = match self {
            Self::OneByOne(changes) => one_by_one(cluster, changes, name, open)?,
            Self::Stream(seconds) => stream(cluster, seconds, name, open)?,
        };
        let (dataplane, desired) = driver.stop()?;
        ensure!(
            desired == cluster.desired()?,
            "the model ended in another state than one that was told only that"
        );
        Ok((figures, dataplane))
    }
}

/// Measures changes one by one, without the source. A change arrives when the loop receives it.
fn one_by_one<D: Dataplane + Send + 'static>(
    cluster: &mut Cluster,
    changes: u32,
    name: &str,
    open: impl FnOnce(&Desired) -> Result<D>,
) -> Result<(Vec<Figure>, Driver<D>)> {
    let model = cluster.model()?;
    let dataplane = open(model.desired())?;
    let (sender, events) = mpsc::channel(BATCHES);
    let mut driver = Driver::start(model, listing::topology(cluster.scale()), dataplane, events)?;
    let (mut latencies, mut spent) = (Vec::new(), Vec::new());
    for number in 0..changes {
        // The distance is 5 to 15 ms, so the changes meet the loop's timers at any point.
        std::thread::sleep(Duration::from_micros(u64::from(5_000 + number.wrapping_mul(7_919) % 10_000)));
        let change = listing::decode(Kind::EndpointSlice, &cluster.change()?)?;
        if number + 1 == changes {
            driver.keep_desired();
        }
        let began = Instant::now();
        sender.blocking_send(vec![SourceEvent::Change(change)]).context("the loop has ended")?;
        let sync = sync_with_events(&mut driver)?;
        latencies.push(sync.at.saturating_duration_since(began));
        spent.push(sync.spent);
    }
    let of = |what: &str| format!("one EndpointSlice, {name}: {what}");
    let figures = vec![
        Figure::cpu_of(of("CPU, median"), &spent, Target::None),
        Figure::cpu(of("CPU, p99"), quantile(&spent, 0.99), Target::None),
        Figure::time_of(of("latency, median"), &latencies, MEDIAN),
        Figure::time(of("latency, p99"), quantile(&latencies, 0.99), P99),
    ];
    Ok((figures, driver))
}

/// Measures a stream of changes from the server on. Latencies begin when the server sends.
fn stream<D: Dataplane + Send + 'static>(
    cluster: &mut Cluster,
    seconds: u32,
    name: &str,
    open: impl FnOnce(&Desired) -> Result<D>,
) -> Result<(Vec<Figure>, Driver<D>)> {
    let server = Server::start(cluster.scale())?;
    let (source, mut events) = Source::start(&server)?;
    let mut model = Model::new(listing::settings());
    source::list(&mut events, &mut model)?;
    model.refresh();
    let dataplane = open(model.desired())?;
    let mut driver = Driver::start(model, listing::topology(cluster.scale()), dataplane, events)?;
    // This sync also does the work that the first one has left for later.
    server.change(&cluster.change()?)?;
    let first = sync_with_events(&mut driver)?;
    let (decoded, total) = (source.cpu()?, RATE * seconds);
    let mut sent = Vec::new();
    let began = Instant::now();
    for number in 0..total {
        let text = cluster.change()?;
        let due = began + Duration::from_secs(1) / RATE * number;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        if number + 1 == total {
            driver.keep_desired();
        }
        sent.push(Instant::now());
        server.change(&text)?;
    }
    let mut syncs: Vec<Sync> = Vec::new();
    let mut lags = Vec::new();
    while lags.len() < sent.len() {
        let sync = sync_with_events(&mut driver)?;
        let brought = sent.iter().skip(lags.len()).take(sync.events);
        lags.extend(brought.map(|sent| sync.at.saturating_duration_since(*sent)).collect::<Vec<_>>());
        syncs.push(sync);
    }
    let took = began.elapsed();
    let share = |time: Duration| time.as_secs_f64() / took.as_secs_f64();
    let looped = syncs.last().map_or(Duration::ZERO, |last| last.cpu.saturating_sub(first.cpu));
    let decoding = source.cpu()?.saturating_sub(decoded);
    let of = |what: &str| format!("{RATE} a second for {seconds} s, {name}: {what}");
    let figures = vec![
        Figure::percent(of("pace kept"), f64::from(seconds) / took.as_secs_f64()),
        Figure::count(of("syncs"), syncs.len()),
        Figure::percent(of("CPU of the source"), share(decoding)),
        Figure::percent(of("CPU of source and loop"), share(looped + decoding)).at_most(100.0),
        Figure::time_of(of("latency, median"), &lags, Target::None),
        Figure::time(of("latency, p99"), quantile(&lags, 0.99), Target::None),
        Figure::time(of("latency, longest"), quantile(&lags, 1.0), Target::None),
    ];
    Ok((figures, driver))
}

/// Returns the next sync with events. Fails if it is incomplete.
fn sync_with_events<D: Dataplane + Send + 'static>(driver: &mut Driver<D>) -> Result<Sync> {
    loop {
        let sync = driver.next_sync()?;
        ensure!(sync.complete, "a sync is incomplete");
        if sync.events > 0 {
            return Ok(sync);
        }
    }
}
