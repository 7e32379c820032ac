//! `millrace monitor`: events as the programs record them.

mod decode;
mod kernel;
mod pcapng;
mod row;

use std::collections::{BTreeMap, HashSet};
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::time::Duration;

use clap::Args;
use ipnet::IpNet;
use proxy_common::event::{EventKind, Monitor, USUAL_RATE, services_bit};
use proxy_common::verdict::Reason;
use serde_json::Value;

use super::error::CliError;
use super::output::{Group, is_closed_within, note, write_bytes};
use super::place::Place;
use super::select::{SelectArgs, Selector};
use super::service_port::ServicePort;
use crate::config::{ConfigError, Refused};
use crate::dataplane::ebpf::read::{PinnedMaps, Recorder, monotonic_seconds};
pub use decode::headers;
use kernel::Kernel;
use row::{Clock, EventRow, KERNEL_DROP};

/// Time between two readings. A CPU keeps 256 events.
const INTERVAL: Duration = Duration::from_millis(100);
/// Seconds between two looks for new ids of the Services.
const LABELS_HOLD: u32 = 5;
/// Seconds for which a wish holds: a killed command leaves nothing behind.
const HOLDS: u32 = 3;

/// Arguments of `millrace monitor`.
#[derive(Args, Clone, Debug)]
pub struct MonitorArgs {
    #[command(flatten)]
    select: SelectArgs,
    /// Kinds of events: drop, opened, established, refused, reset
    #[arg(long, value_name = "KIND", value_delimiter = ',', default_value = "drop,refused,reset", value_parser = kind)]
    r#type: Vec<EventKind>,
    /// Reasons of drops, such as no_endpoint; all without it
    #[arg(long, value_name = "REASON", value_delimiter = ',', value_parser = reason)]
    reason: Vec<Reason>,
    /// Clients in this prefix
    #[arg(long, value_name = "CIDR", value_parser = super::argument::prefix)]
    client: Option<IpNet>,
    /// Show packets of Services that the kernel drops as well, with the kernel's own reason
    #[arg(long, conflicts_with = "last")]
    kernel: bool,
    /// Events a second that each CPU records at most; up to 10 it always does
    #[arg(long, value_name = "EVENTS", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rate: u32,
    /// Show the last events of the past, and end. Nobody needs to have watched: the programs always record some drops
    #[arg(long, value_name = "EVENTS", num_args = 0..=1, default_missing_value = "20")]
    last: Option<usize>,
    /// End after so many events
    #[arg(long, value_name = "EVENTS", conflicts_with = "last")]
    count: Option<usize>,
    /// Format: table, jsonl or pcapng
    #[arg(short, long, value_name = "FORMAT", default_value = "table", value_parser = format)]
    output: Form,
    #[command(flatten)]
    place: Place,
}

/// The form of the events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Table,
    Jsonl,
    /// Packets of drops, for Wireshark and tcpdump.
    Pcapng,
}

fn kind(text: &str) -> Result<EventKind, Refused> {
    let found = EventKind::ALL.into_iter().find(|kind| kind.name() == text);
    found.ok_or_else(|| Refused::new(text, "drop, opened, established, refused or reset"))
}

fn reason(text: &str) -> Result<Reason, Refused> {
    let drops = || Reason::ALL.iter().copied().filter(|reason| reason.is_drop());
    drops().find(|reason| reason.name() == text).ok_or_else(|| {
        let names: Vec<&str> = drops().map(Reason::name).collect();
        Refused::new(text, names.join(", "))
    })
}

fn format(text: &str) -> Result<Form, Refused> {
    match text {
        "table" => Ok(Form::Table),
        "jsonl" => Ok(Form::Jsonl),
        "pcapng" => Ok(Form::Pcapng),
        _ => Err(Refused::new(text, "table, jsonl or pcapng")),
    }
}

/// Prints events until interrupted.
pub fn run(args: &MonitorArgs) -> Result<(), CliError> {
    args.check(io::stdout().is_terminal())?;
    let maps = args.place.maps()?;
    let mut watch = Watch::start(args, &maps)?;
    if let Some(last) = args.last {
        return watch.show_last(&maps, last);
    }
    let (mut shown, mut renewed) = (0, 0);
    loop {
        let now = monotonic_seconds();
        if renewed != now {
            if now.is_multiple_of(LABELS_HOLD) && watch.wanted.is_some() {
                watch.renew_labels(&maps)?;
            }
            watch.want(now)?;
            renewed = now;
        }
        shown += watch.show(&maps, args.count.map(|count| count.saturating_sub(shown)))?;
        let is_enough = args.count.is_some_and(|count| shown >= count);
        if is_enough || is_closed_within(io::stdout().as_fd(), INTERVAL) {
            return Ok(());
        }
    }
}

/// Returns the events of a list in JSON, which another node wrote.
pub fn read(list: &Value, is_wide: bool) -> Result<Group, serde_json::Error> {
    Group::read::<EventRow>(list, is_wide)
}

impl MonitorArgs {
    /// Refuses a stream of packets that would be empty, or would garble a terminal.
    fn check(&self, is_terminal: bool) -> Result<(), ConfigError> {
        let refused = |flag: &str, message: &str| {
            Err(ConfigError { origin: flag.to_owned(), message: message.to_owned() })
        };
        match self.output {
            Form::Pcapng if !self.kernel && !self.r#type.contains(&EventKind::Drop) => {
                refused("--type", "pcapng has the packets of drops, and no other events: add drop")
            }
            Form::Pcapng if is_terminal => {
                refused("--output", "pcapng is not for a terminal: redirect it to a file or a program")
            }
            _ => Ok(()),
        }
    }

    fn wish(&self, now: u32) -> Monitor {
        let reasons =
            self.reason.iter().map(|reason| 1_u64 << *reason as u32).reduce(|one, other| one | other);
        Monitor {
            reasons: reasons.unwrap_or(u64::MAX),
            kinds: self.r#type.iter().map(|kind| kind.bit()).fold(0, |one, other| one | other),
            rate: self.rate.max(USUAL_RATE),
            services: 0,
            until: now + HOLDS,
        }
    }
}

/// A watching command.
struct Watch<'a> {
    args: &'a MonitorArgs,
    recorder: Recorder,
    /// The Service ports that are meant; none for all.
    wanted: Option<HashSet<String>>,
    /// The bits of their ids in a wish; 0 for all.
    services: u32,
    labels: BTreeMap<u32, String>,
    kernel: Option<Kernel>,
    clock: Clock,
    has_header: bool,
    stream: pcapng::Stream,
}

impl<'a> Watch<'a> {
    fn start(args: &'a MonitorArgs, maps: &PinnedMaps) -> Result<Self, CliError> {
        let wanted = if args.select.is_all() {
            None
        } else {
            // An address of a client, a frontend or an endpoint may be without a Service.
            let is_known = |selector: &Selector| !selector.is_name();
            let ports = args.select.choose(ServicePort::join(maps.services()?), is_known)?;
            Some(ports.iter().map(ServicePort::label).collect())
        };
        let mut watch = Self {
            args,
            recorder: Recorder::open(maps, args.last.is_some())?,
            wanted,
            services: 0,
            labels: maps.service_labels()?,
            kernel: args.kernel.then(|| Kernel::start(maps, args.rate)).transpose()?,
            clock: Clock::now(),
            has_header: false,
            stream: pcapng::Stream::default(),
        };
        watch.choose_services();
        Ok(watch)
    }

    /// Has the programs record what is meant.
    fn want(&mut self, now: u32) -> Result<(), CliError> {
        Ok(self.recorder.want(Monitor { services: self.services, ..self.args.wish(now) }, now)?)
    }

    fn renew_labels(&mut self, maps: &PinnedMaps) -> Result<(), CliError> {
        self.labels = maps.service_labels()?;
        self.choose_services();
        Ok(())
    }

    /// Looks for the ids of the Services that are meant. Those of one that is gone for now stay.
    fn choose_services(&mut self) {
        // An address need not be one of a Service.
        let named = self.wanted.as_ref().filter(|_| self.args.select.has_names_alone());
        let bits = named.map_or(0, |wanted| bits_of(&self.labels, wanted));
        self.services = if bits == 0 { self.services } else { bits };
    }

    /// Shows the last events of the past.
    fn show_last(&mut self, maps: &PinnedMaps, last: usize) -> Result<(), CliError> {
        let rows = self.rows(maps)?.0;
        let first = rows.len().saturating_sub(last);
        self.write(rows.get(first..).unwrap_or_default())
    }

    /// Shows the new events, at most so many, and returns their number.
    fn show(&mut self, maps: &PinnedMaps, most: Option<usize>) -> Result<usize, CliError> {
        let (mut rows, missed) = self.rows(maps)?;
        rows.truncate(most.unwrap_or(usize::MAX));
        self.write(&rows)?;
        if missed > 0 {
            note(&format!("{missed} events left out: more than --rate, or than a CPU keeps"));
        }
        Ok(rows.len())
    }

    fn rows(&mut self, maps: &PinnedMaps) -> Result<(Vec<EventRow>, u64), CliError> {
        let recorded = self.recorder.read()?;
        if recorded.events.iter().any(|event| event.service != 0 && !self.labels.contains_key(&event.service))
        {
            self.renew_labels(maps)?;
        }
        let row = |event| {
            EventRow::of(event, &self.labels, &self.clock, |reference, is_v6| {
                maps.backend_address(reference, is_v6)
            })
        };
        let mut rows: Vec<EventRow> = recorded.events.iter().map(row).collect();
        let mut missed = recorded.missed;
        if let Some(kernel) = &mut self.kernel {
            let (drops, left_out) = kernel.rows(maps, &self.clock)?;
            rows.extend(drops);
            rows.sort_by_key(|row| row.time);
            missed += left_out;
        }
        rows.retain(|row| self.keeps(row));
        Ok((rows, missed))
    }

    /// Whether a row is wanted: another command may watch other events.
    fn keeps(&self, row: &EventRow) -> bool {
        let args = self.args;
        (row.kind == KERNEL_DROP || args.r#type.iter().any(|kind| kind.name() == row.kind))
            && (args.output != Form::Pcapng || !row.frame.is_empty())
            && (args.reason.is_empty()
                || row.kind != "drop"
                || args.reason.iter().any(|reason| reason.name() == row.reason))
            && args.client.is_none_or(|net| row.client.is_some_and(|client| net.contains(&client.ip())))
            && self.wanted.as_ref().is_none_or(|labels| {
                let places = [row.client, row.frontend, row.backend];
                row.service.split(',').any(|service| labels.contains(service))
                    || places.into_iter().flatten().any(|place| args.select.is_at(place, &row.protocol))
            })
    }

    fn write(&mut self, rows: &[EventRow]) -> Result<(), CliError> {
        let mut bytes = Vec::new();
        if !self.has_header {
            match self.args.output {
                Form::Table => bytes.extend(row::HEADER.as_bytes()),
                Form::Jsonl => {}
                Form::Pcapng => bytes.extend(pcapng::Stream::header()),
            }
            self.has_header = true;
        }
        for row in rows {
            match self.args.output {
                Form::Table => bytes.extend(row.line().as_bytes()),
                Form::Jsonl => {
                    serde_json::to_writer(&mut bytes, row)?;
                    bytes.push(b'\n');
                }
                Form::Pcapng => bytes.extend(self.stream.packet(row)),
            }
        }
        Ok(write_bytes(&bytes)?)
    }
}

/// Returns the bits of the Services with these labels; 0 if there is none, which stands for all.
fn bits_of(labels: &BTreeMap<u32, String>, wanted: &HashSet<String>) -> u32 {
    let ids = labels.iter().filter(|(_, label)| wanted.contains(*label)).map(|(id, _)| *id);
    ids.map(services_bit).fold(0, |one, other| one | other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::argument::parsed;

    #[test]
    fn kinds_and_reasons_become_bits_and_the_wish_ends_by_itself() {
        let args: MonitorArgs = parsed("--type drop,opened --reason no_endpoint,no_way --rate 50");
        let wish = args.wish(100);
        assert_eq!(wish.kinds, 0b11);
        assert_eq!(wish.reasons, 1 << Reason::NoEndpoint as u32 | 1 << Reason::NoWay as u32);
        assert_eq!((wish.rate, wish.until), (50, 103));
        let args: MonitorArgs = parsed("");
        assert_eq!(args.wish(0).reasons, u64::MAX);
    }

    #[test]
    fn a_stream_of_packets_takes_drops_and_a_reader_that_is_no_terminal() {
        let refusal = |line: &str, is_terminal| {
            parsed::<MonitorArgs>(line).check(is_terminal).err().map(|error| error.to_string())
        };
        assert_eq!(refusal("-o pcapng", false), None);
        assert_eq!(refusal("--type opened", true), None);
        assert_eq!(
            refusal("-o pcapng --type opened", false).unwrap(),
            "--type: pcapng has the packets of drops, and no other events: add drop"
        );
        assert_eq!(
            refusal("-o pcapng", true).unwrap(),
            "--output: pcapng is not for a terminal: redirect it to a file or a program"
        );
    }

    #[test]
    fn a_wrong_kind_or_reason_names_those_there_are() {
        assert_eq!(
            kind("drops").unwrap_err().to_string(),
            "\"drops\" is not accepted; takes drop, opened, established, refused or reset"
        );
        let text = reason("served_local").unwrap_err().to_string();
        assert!(
            text.starts_with("\"served_local\" is not accepted; takes no_endpoint, no_local_endpoint"),
            "{text}"
        );
    }

    #[test]
    fn services_are_wanted_by_the_bits_of_their_ids() {
        let labels = [(3, "a/web:http"), (35, "a/db"), (4, "a/web:https")];
        let labels = labels.map(|(id, label)| (id, label.to_owned())).into();
        let bits = |wanted: &[&str]| bits_of(&labels, &wanted.iter().map(|one| (*one).to_owned()).collect());
        assert_eq!(bits(&["a/web:http", "a/web:https"]), 1 << 3 | 1 << 4);
        assert_eq!(bits(&["a/db"]), 1 << 3, "it shares the bit of id 3");
        assert_eq!(bits(&["b/gone"]), 0);
    }
}
