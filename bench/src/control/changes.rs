//! EndpointSlices that change one at a time, and many a second.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use millrace::dataplane::Dataplane;
use millrace::dataplane::fake::FakeDataplane;
use millrace::model::Desired;

use super::clock::{median, quantile, timed};
use super::cluster::Cluster;
use super::driver::{Driver, Sync};
use super::listing;
use super::objects::Scale;
use super::pins::Pins;
use super::report::{Figure, Target};
use super::stages::everything;

/// What is measured of changes.
#[derive(Clone, Copy, Debug)]
pub enum Pace {
    /// So many, each after the one before is in the maps.
    OneByOne(u32),
    /// A thousand a second for so many seconds.
    Stream(u32),
}

/// Changes a second.
const RATE: u32 = 1_000;
const MEDIAN: Target = Target::AtMost(Duration::from_millis(2));
const P99: Target = Target::AtMost(Duration::from_millis(10));

/// With the fake data plane and with the real one; ends with a check that the last state is the right one.
pub fn measure(scale: Scale, pace: Pace) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    let model = listing::model(scale)?;
    let mut cluster = Cluster::new(scale);
    let mut driver = Driver::start(model, listing::topology(scale), FakeDataplane::default())?;
    figures.extend(pace.run(&mut driver, &mut cluster, "fake")?);
    let (fake, desired) = driver.stop()?;
    let expected = cluster.desired()?;
    ensure!(
        desired == expected,
        "the model ended in another state than one that was told the last state only"
    );
    ensure!(fake.served == expected.ports, "the fake data plane does not serve the last state");
    drop((fake, desired, expected));

    let pins = Pins::new();
    let model = listing::model(scale)?;
    let mut cluster = Cluster::new(scale);
    let dataplane = pins.open(model.desired())?;
    let mut driver = Driver::start(model, listing::topology(scale), dataplane)?;
    figures.extend(pace.run(&mut driver, &mut cluster, "real maps")?);
    let (dataplane, desired) = driver.stop()?;
    drop(dataplane);
    let expected = cluster.desired()?;
    ensure!(
        desired == expected,
        "the model ended in another state than one that was told the last state only"
    );
    check_maps(&pins, &expected)?;
    Ok(figures)
}

/// An agent that knows nothing but the last state must find it in the maps. What left a moment ago still has its
/// grace there, which is not known to it: those backends are all it may write.
fn check_maps(pins: &Pins, expected: &Desired) -> Result<()> {
    let mut dataplane = pins.open(expected)?;
    let report = dataplane.sync(expected, &everything(expected));
    ensure!(report.is_complete(), "the last state can't be written: {:?}", report.pending.first());
    eprintln!("a new agent writes {} operations", report.writes);
    let again = dataplane.sync(expected, &everything(expected));
    ensure!(again.writes == 0, "a new agent does not come to rest");
    Ok(())
}

impl Pace {
    fn run<D: Dataplane + Send + 'static>(
        self,
        driver: &mut Driver<D>,
        cluster: &mut Cluster,
        dataplane: &str,
    ) -> Result<Vec<Figure>> {
        match self {
            Self::OneByOne(changes) => one_by_one(driver, cluster, changes, dataplane),
            Self::Stream(seconds) => stream(driver, cluster, seconds, dataplane),
        }
    }
}

fn one_by_one<D: Dataplane + Send + 'static>(
    driver: &mut Driver<D>,
    cluster: &mut Cluster,
    changes: u32,
    dataplane: &str,
) -> Result<Vec<Figure>> {
    let (mut latencies, mut spent, mut decoding) = (Vec::new(), Vec::new(), Vec::new());
    for number in 0..changes {
        // Between 5 and 15 ms apart, so that they meet the loop's timers at any point.
        std::thread::sleep(Duration::from_micros(u64::from(5_000 + number.wrapping_mul(7_919) % 10_000)));
        let text = cluster.change()?;
        let (change, took) = timed(|| listing::decode_slice(&text));
        decoding.push(took);
        if number + 1 == changes {
            driver.keep_desired();
        }
        let began = Instant::now();
        driver.send(change?)?;
        let sync = sync_with_events(driver)?;
        latencies.push(sync.at.saturating_duration_since(began));
        spent.push(sync.spent);
    }
    let of = |what: &str| format!("one EndpointSlice, {dataplane}: {what}");
    Ok(vec![
        Figure::cpu(of("decode, median"), median(&decoding), Target::None),
        Figure::cpu(of("CPU, median"), median(&spent), Target::None),
        Figure::cpu(of("CPU, p99"), quantile(&spent, 0.99), Target::None),
        Figure::time(of("latency, median"), median(&latencies), MEDIAN),
        Figure::time(of("latency, p99"), quantile(&latencies, 0.99), P99),
    ])
}

fn stream<D: Dataplane + Send + 'static>(
    driver: &mut Driver<D>,
    cluster: &mut Cluster,
    seconds: u32,
    dataplane: &str,
) -> Result<Vec<Figure>> {
    let total = RATE * seconds;
    let mut sent = Vec::with_capacity(total as usize);
    let mut decoding = Duration::ZERO;
    let mut before = None;
    let began = Instant::now();
    for number in 0..total {
        let text = cluster.change()?;
        let (change, took) = timed(|| listing::decode_slice(&text));
        decoding += took;
        let due = began + Duration::from_secs(1) / RATE * number;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        if number + 1 == total {
            driver.keep_desired();
        }
        sent.push(Instant::now());
        driver.send(change?)?;
        if number == 0 {
            before = Some(sync_with_events(driver)?);
        }
    }
    let mut syncs = vec![before];
    let mut brought = 1;
    while brought < total as usize {
        let sync = sync_with_events(driver)?;
        brought += sync.events;
        syncs.push(Some(sync));
    }
    let syncs: Vec<Sync> = syncs.into_iter().flatten().collect();
    let took = began.elapsed();
    let cpu = match (syncs.first(), syncs.last()) {
        (Some(first), Some(last)) => last.cpu.saturating_sub(first.cpu),
        _ => Duration::ZERO,
    };
    let mut waiting = sent.iter();
    let lags: Vec<Duration> = syncs
        .iter()
        .flat_map(|sync| {
            waiting
                .by_ref()
                .take(sync.events)
                .map(|sent| sync.at.saturating_duration_since(*sent))
                .collect::<Vec<_>>()
        })
        .collect();
    let of = |what: &str| format!("{RATE} a second for {seconds} s, {dataplane}: {what}");
    let share = |time: Duration| time.as_secs_f64() / took.as_secs_f64();
    Ok(vec![
        Figure::percent(of("changes taken"), f64::from(total) / f64::from(RATE) / took.as_secs_f64()),
        Figure::percent(of("CPU of decoding"), share(decoding)),
        Figure::percent(of("CPU of both"), share(cpu + decoding)).at_most(100.0),
        Figure::count(of("syncs"), syncs.len()),
        Figure::time(of("latency, median"), median(&lags), Target::None),
        Figure::time(of("latency, p99"), quantile(&lags, 0.99), Target::None),
        Figure::time(of("latency, longest"), quantile(&lags, 1.0), Target::None),
    ])
}

/// The next sync that a change led to, all of it done.
fn sync_with_events<D: Dataplane + Send + 'static>(driver: &mut Driver<D>) -> Result<Sync> {
    loop {
        let sync = driver.next_sync()?;
        ensure!(sync.complete, "a sync could not do everything");
        if sync.events > 0 {
            return Ok(sync);
        }
    }
}
