//! `millrace monitor`: events as the programs record them.

mod args;
mod clock;
mod decode;
mod firewall;
mod kernel;
mod pcapng;
mod proxy;
mod row;

use std::collections::HashSet;
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::time::Duration;

use serde_json::Value;

use super::error::CliError;
use super::output::{Group, is_closed_within, note, write_bytes};
use super::select::Selector;
use super::service_port::ServicePort;
use crate::dataplane::ebpf::read::{ReadError, monotonic_seconds};
use args::Form;
pub use args::MonitorArgs;
use clock::Clock;
pub use decode::headers;
use firewall::Firewall;
use proxy::Proxy;
use row::{EventRow, KERNEL_DROP, POLICY_DROP};

/// Time between two readings. A CPU keeps 256 events.
const INTERVAL: Duration = Duration::from_millis(100);
/// Seconds between two looks for new ids of the Services.
const LABELS_HOLD: u32 = 5;

/// Prints events until interrupted.
pub fn run(args: &MonitorArgs) -> Result<(), CliError> {
    args.check(io::stdout().is_terminal())?;
    let mut watch = Watch::start(args)?;
    if let Some(last) = args.last {
        return watch.show_last(last);
    }
    let (mut shown, mut renewed) = (0, 0);
    loop {
        let now = monotonic_seconds();
        if renewed != now {
            watch.want(now)?;
            renewed = now;
        }
        shown += watch.show(args.count.map(|count| count.saturating_sub(shown)))?;
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

/// A watching command.
struct Watch<'a> {
    args: &'a MonitorArgs,
    /// None on a node that has the firewall alone, beside IPVS or another proxy.
    proxy: Option<Proxy>,
    firewall: Option<Firewall>,
    /// The Service ports that are meant; none for all.
    wanted: Option<HashSet<String>>,
    clock: Clock,
    has_header: bool,
    stream: pcapng::Stream,
}

impl<'a> Watch<'a> {
    fn start(args: &'a MonitorArgs) -> Result<Self, CliError> {
        let firewall = Firewall::start(&args.place, args.last.is_some())?;
        let proxy = match args.place.maps() {
            Err(ReadError::Absent { .. }) if firewall.is_some() && !args.needs_proxy() => None,
            maps => Some(Proxy::start(args, maps?)?),
        };
        let wanted = if args.select.is_all() {
            None
        } else {
            let services = proxy.as_ref().map(|proxy| proxy.maps.services()).transpose()?;
            // An address of a client, a frontend or an endpoint may be without a Service.
            let is_known = |selector: &Selector| !selector.is_name();
            let ports = args.select.choose(ServicePort::join(services.unwrap_or_default()), is_known)?;
            Some(ports.iter().map(ServicePort::label).collect())
        };
        let (clock, stream) = (Clock::now(), pcapng::Stream::default());
        let mut watch = Self { args, proxy, firewall, wanted, clock, has_header: false, stream };
        watch.choose_services();
        Ok(watch)
    }

    /// Has the proxy's programs record what is meant.
    fn want(&mut self, now: u32) -> Result<(), CliError> {
        if now.is_multiple_of(LABELS_HOLD)
            && self.wanted.is_some()
            && let Some(proxy) = &mut self.proxy
        {
            proxy.renew_labels()?;
            self.choose_services();
        }
        self.proxy.as_mut().map_or(Ok(()), |proxy| proxy.want(self.args.wish(now), now))
    }

    fn choose_services(&mut self) {
        // An address need not be one of a Service.
        let named = self.wanted.as_ref().filter(|_| self.args.select.has_names_alone());
        if let Some(proxy) = &mut self.proxy {
            proxy.choose_services(named);
        }
    }

    /// Shows the last events of the past.
    fn show_last(&mut self, last: usize) -> Result<(), CliError> {
        let rows = self.rows()?.0;
        let first = rows.len().saturating_sub(last);
        self.write(rows.get(first..).unwrap_or_default())
    }

    /// Shows the new events, at most so many, and returns their number.
    fn show(&mut self, most: Option<usize>) -> Result<usize, CliError> {
        let (mut rows, missed) = self.rows()?;
        rows.truncate(most.unwrap_or(usize::MAX));
        self.write(&rows)?;
        if missed > 0 {
            note(&format!("{missed} events left out: more than --rate, or than a CPU keeps"));
        }
        Ok(rows.len())
    }

    fn rows(&mut self) -> Result<(Vec<EventRow>, u64), CliError> {
        let (mut rows, mut missed) = (Vec::new(), 0);
        if let Some(proxy) = &mut self.proxy {
            let (events, left_out, has_new) = proxy.rows(&self.clock)?;
            rows.extend(events);
            missed += left_out;
            if has_new {
                self.choose_services();
            }
        }
        if self.args.has_type(POLICY_DROP)
            && let Some(firewall) = &mut self.firewall
        {
            let (drops, overwritten) = firewall.rows(&self.clock)?;
            rows.extend(drops);
            missed += overwritten;
        }
        rows.sort_by_key(|row| row.time);
        rows.retain(|row| self.keeps(row));
        Ok((rows, missed))
    }

    /// Whether a row is wanted: another command may watch other events.
    fn keeps(&self, row: &EventRow) -> bool {
        let args = self.args;
        (row.kind == KERNEL_DROP || args.has_type(&row.kind))
            && (args.output != Form::Pcapng || !row.frame.is_empty())
            && (!["drop", POLICY_DROP].contains(&&*row.kind) || args.has_reason(&row.reason))
            && args.client.is_none_or(|net| row.client.is_some_and(|client| net.contains(&client.ip())))
            && self.wanted.as_ref().is_none_or(|labels| {
                let places = [row.client, row.frontend, row.backend];
                row.service.split(',').any(|service| labels.contains(service))
                    || places.into_iter().flatten().any(|place| args.select.is_at(place, &row.protocol))
                    || args.select.whole_namespace().is_some_and(|name| row.is_of_namespace(name))
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
