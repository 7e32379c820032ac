//! `millrace top`: rates between two readings of the maps.

mod backends;
mod drops;
mod programs;
mod rate;
mod screen;
mod services;

use std::collections::BTreeMap;
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use serde_json::Value;

use super::error::CliError;
use super::output::{
    CLEAR, Column, Group, List, OutputArgs, Row, duration, is_closed_within, write_out, wrong_column,
};
use super::place::Place;
use super::select::SelectArgs;
use super::service_port::ServicePort;
use crate::dataplane::ebpf::read::{BackendView, CounterView, PinnedMaps};
use backends::BackendRate;
use drops::DropRate;
use programs::{ProgramRate, Runs};
use rate::rate;
use services::ServiceRate;

/// Arguments of `millrace top`.
#[derive(Args, Clone, Debug)]
pub struct TopArgs {
    /// What to show
    #[arg(long, value_enum, value_name = "VIEW", default_value = "services")]
    view: View,
    #[command(flatten)]
    select: SelectArgs,
    /// Column to sort by, by its title or JSON key; the largest comes first [default: the view's rate]
    #[arg(long, value_name = "COLUMN")]
    by: Option<String>,
    /// The most rows
    #[arg(long, value_name = "NUMBER", default_value = "20", value_parser = clap::value_parser!(u16).range(1..))]
    rows: u16,
    /// Time between two readings
    #[arg(short, long, value_name = "DURATION", default_value = "2s", value_parser = duration)]
    delay: Duration,
    /// Show the rates of one interval, and end
    #[arg(long)]
    once: bool,
    /// Write each interval below the last one, on a terminal as well, and take no keys
    #[arg(short, long)]
    batch: bool,
    #[command(flatten)]
    form: OutputArgs,
    #[command(flatten)]
    place: Place,
}

/// A table of rates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum View {
    /// Service ports: connections, packets, refusals, times to the first answer, drops
    Services,
    /// Endpoints: connections, refusals
    Backends,
    /// Drops by program, reason and Service
    Drops,
    /// Programs: runs, time of a run, share of a CPU; the kernel measures them while this runs
    Programs,
}

impl View {
    const fn kind(self) -> &'static str {
        match self {
            Self::Services => "ServiceRateList",
            Self::Backends => "BackendRateList",
            Self::Drops => "DropRateList",
            Self::Programs => "ProgramRateList",
        }
    }

    /// Returns the keys of the columns.
    fn columns(self) -> Vec<&'static str> {
        let columns = match self {
            Self::Services => ServiceRate::COLUMNS,
            Self::Backends => BackendRate::COLUMNS,
            Self::Drops => DropRate::COLUMNS,
            Self::Programs => ProgramRate::COLUMNS,
        };
        columns.iter().map(Column::key).collect()
    }

    /// The column that the rows are sorted by.
    const fn main(self) -> &'static str {
        match self {
            Self::Services | Self::Drops => "packets_per_second",
            Self::Backends => "connections_per_second",
            Self::Programs => "cpu_percent",
        }
    }
}

/// What the maps said at one time.
struct Reading {
    at: Instant,
    counters: Vec<CounterView>,
    services: BTreeMap<String, ServicePort>,
    backends: Vec<BackendView>,
    runs: Runs,
}

/// Two readings.
struct Interval<'a> {
    before: &'a Reading,
    now: &'a Reading,
    seconds: f64,
}

/// Prints rates, until interrupted or until the reader closes the pipe.
pub fn run(args: &TopArgs) -> Result<(), CliError> {
    if screen::is_there() && args.form.is_table() && !args.batch && !args.once {
        return screen::run(args);
    }
    let _measured = (args.view == View::Programs).then(programs::measure).transpose()?;
    let clear = if io::stdout().is_terminal() && !args.batch && !args.once { CLEAR } else { "" };
    let mut before = args.read()?;
    loop {
        if is_closed_within(io::stdout().as_fd(), args.delay) {
            return Ok(());
        }
        let now = args.read()?;
        let text = args.text(&Interval::between(&before, &now))?;
        write_out(&format!("{clear}{text}"))?;
        if args.once {
            return Ok(());
        }
        before = now;
    }
}

/// Returns the rows of a list in JSON, which another node wrote.
pub fn read(list: &Value, is_wide: bool) -> Result<Group, serde_json::Error> {
    let kind = list.get("kind").and_then(Value::as_str);
    let view = View::value_variants().iter().find(|view| Some(view.kind()) == kind);
    match view.unwrap_or(&View::Services) {
        View::Services => Group::read::<ServiceRate>(list, is_wide),
        View::Backends => Group::read::<BackendRate>(list, is_wide),
        View::Drops => Group::read::<DropRate>(list, is_wide),
        View::Programs => Group::read::<ProgramRate>(list, is_wide),
    }
}

impl TopArgs {
    /// Reads what the view needs: the figures of Services take a walk through all connections.
    fn read(&self) -> Result<Reading, CliError> {
        let maps = self.place.maps()?;
        let mut services = match self.view {
            View::Services | View::Backends | View::Drops => maps.services()?,
            View::Programs => Vec::new(),
        };
        let mut backends = if self.view == View::Backends { maps.backends()? } else { Vec::new() };
        if self.view != View::Programs {
            let figures = maps.figures()?;
            figures.fill_services(&mut services);
            figures.fill_backends(&mut backends);
        }
        let chosen = self.select.choose(ServicePort::join(services), |selector| {
            backends.iter().any(|one| selector.is_at(one.address, ""))
        })?;
        Ok(Reading {
            at: Instant::now(),
            counters: maps.counters()?,
            services: chosen.into_iter().map(|port| (port.label(), port)).collect(),
            backends,
            runs: self.runs(&maps)?,
        })
    }

    fn runs(&self, maps: &PinnedMaps) -> Result<Runs, CliError> {
        Ok(if self.view == View::Programs { programs::read(&maps.status()?.attached) } else { Runs::new() })
    }

    fn text(&self, interval: &Interval<'_>) -> Result<String, CliError> {
        let group = match self.view {
            View::Services => Group::of_node(&services::rows(interval), self.form.is_wide()),
            View::Backends => Group::of_node(&backends::rows(interval, &self.select), self.form.is_wide()),
            View::Drops => Group::of_node(&drops::rows(interval), self.form.is_wide()),
            View::Programs => Group::of_node(&programs::rows(interval), self.form.is_wide()),
        }?;
        let mut list = List::new(self.view.kind(), vec![group]);
        let column = self.by.as_deref().unwrap_or(self.view.main());
        list.sort(&format!("-{column}")).map_err(|takes| wrong_column("--by", column, &takes))?;
        list.keep_first(self.rows.into());
        let text = self.form.text(&self.place, &list)?;
        let is_table = self.form.is_table();
        let space = if self.once { "" } else { "\n" };
        Ok(if is_table { format!("{}\n{text}{space}", interval.head(&self.place.node())) } else { text })
    }
}

impl<'a> Interval<'a> {
    fn between(before: &'a Reading, now: &'a Reading) -> Self {
        Self { before, now, seconds: now.at.duration_since(before.at).as_secs_f64() }
    }

    /// Returns the rate of a count.
    #[expect(clippy::cast_precision_loss, reason = "a rate is shown with three digits")]
    fn per_second(&self, before: u64, now: u64) -> f64 {
        // A count that became smaller began anew.
        let more = now.checked_sub(before).unwrap_or(now);
        more as f64 / self.seconds
    }

    /// Returns a line about the node as a whole.
    fn head(&self, node: &str) -> String {
        let mut reasons: Vec<(f64, &str)> = drops::reasons(self).into_iter().map(|(a, b)| (b, a)).collect();
        reasons.sort_by(|one, other| other.0.total_cmp(&one.0));
        let all: f64 = reasons.iter().map(|(rate, _)| rate).sum();
        let named = reasons.iter().filter(|(rate, _)| *rate > 0.0).take(3);
        let named: Vec<String> =
            named.map(|(packets, reason)| format!("{reason} {}", rate(*packets))).collect();
        let of = if named.is_empty() { String::new() } else { format!(": {}", named.join(", ")) };
        format!("{node}: rates of {:.1} s; drops {}/s{of}", self.seconds, rate(all))
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr, SocketAddr};

    use super::*;
    use crate::cli::argument::parsed;
    use crate::cli::service_port::tests::shop;
    use crate::dataplane::ebpf::read::ConnectionsView;

    fn backend(last: u8, local: bool) -> BackendView {
        BackendView {
            address: SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 1, 0, last)), 8080),
            id: last.into(),
            generation: 0,
            exists: true,
            local,
            pod: false,
            ready: true,
            serving: true,
            node: None,
            hint: 0,
            services: vec!["shop/web:http".to_owned()],
            connections: ConnectionsView::default(),
        }
    }

    /// Returns a reading with two Service ports, three endpoints and a drop counter.
    pub fn reading() -> Reading {
        let counter = CounterView {
            program: "tc_ingress".into(),
            reason: "no_endpoint".into(),
            drop: true,
            packets: 10,
            bytes: 600,
        };
        Reading {
            at: Instant::now(),
            counters: vec![counter],
            services: shop().into_iter().map(|port| (port.label(), port)).collect(),
            backends: vec![backend(1, true), backend(2, false), backend(3, false)],
            runs: Runs::new(),
        }
    }

    pub const fn interval<'a>(before: &'a Reading, now: &'a Reading, seconds: f64) -> Interval<'a> {
        Interval { before, now, seconds }
    }

    #[test]
    fn the_largest_rates_come_first() {
        let (before, mut now) = (reading(), reading());
        now.services.get_mut("shop/web:http").unwrap().packets += 10;
        now.services.get_mut("shop/db").unwrap().connections.opened += 5;
        let interval = interval(&before, &now, 1.0);
        let shown = |arguments: &str| parsed::<TopArgs>(arguments).text(&interval);
        assert_eq!(shown("-o name").unwrap(), "shop/web:http\nshop/db\n");
        assert_eq!(shown("-o name --by conn/s --rows 1").unwrap(), "shop/db\n");
        let error = shown("--by color").unwrap_err().to_string();
        assert!(error.starts_with("--by: \"color\" is not accepted; takes active, "), "{error}");
        for view in ["services", "backends", "drops", "programs"] {
            let list = shown(&format!("--view {view} -o json")).unwrap();
            let read = read(&serde_json::from_str(&list).unwrap(), false);
            assert!(read.is_ok(), "{view} is read as it is written: {list} {read:?}");
        }
        let table = shown("--no-headers").unwrap();
        assert!(table.contains(": rates of 1.0 s; drops 0/s\n"), "{table}");
    }
}
