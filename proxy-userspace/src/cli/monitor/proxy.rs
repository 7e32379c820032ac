//! The events of the proxy's programs, and the kernel's drops of packets of Services.

use std::collections::{BTreeMap, HashSet};

use proxy_common::event::{Monitor, services_bit};

use super::args::MonitorArgs;
use super::clock::Clock;
use super::kernel::Kernel;
use super::row::EventRow;
use crate::cli::error::CliError;
use crate::dataplane::ebpf::read::{PinnedMaps, Recorder};

/// A reader of the proxy's events.
#[derive(Debug)]
pub struct Proxy {
    pub maps: PinnedMaps,
    recorder: Recorder,
    labels: BTreeMap<u32, String>,
    kernel: Option<Kernel>,
    /// The bits of the wanted Services in a wish; 0 for all.
    services: u32,
}

impl Proxy {
    /// Opens the events.
    pub fn start(args: &MonitorArgs, maps: PinnedMaps) -> Result<Self, CliError> {
        Ok(Self {
            recorder: Recorder::open(&maps, args.last.is_some())?,
            labels: maps.service_labels()?,
            kernel: args.kernel.then(|| Kernel::start(&maps, args.rate)).transpose()?,
            services: 0,
            maps,
        })
    }

    /// Has the programs record what is meant.
    pub fn want(&mut self, wish: Monitor, now: u32) -> Result<(), CliError> {
        Ok(self.recorder.want(Monitor { services: self.services, ..wish }, now)?)
    }

    /// Looks for new ids of Services.
    pub fn renew_labels(&mut self) -> Result<(), CliError> {
        self.labels = self.maps.service_labels()?;
        Ok(())
    }

    /// Looks for the ids of the Services that are meant. Those of one that is gone for now stay.
    pub fn choose_services(&mut self, wanted: Option<&HashSet<String>>) {
        let bits = wanted.map_or(0, |wanted| bits_of(&self.labels, wanted));
        self.services = if bits == 0 { self.services } else { bits };
    }

    /// Returns the events since the last reading, the number of those left out, and whether a Service is new.
    pub fn rows(&mut self, clock: &Clock) -> Result<(Vec<EventRow>, u64, bool), CliError> {
        let recorded = self.recorder.read()?;
        let is_new = |id: u32| id != 0 && !self.labels.contains_key(&id);
        let has_new = recorded.events.iter().any(|event| is_new(event.service));
        if has_new {
            self.renew_labels()?;
        }
        let row = |event| {
            EventRow::of(event, &self.labels, clock, |reference, is_v6| {
                self.maps.backend_address(reference, is_v6)
            })
        };
        let mut rows: Vec<EventRow> = recorded.events.iter().map(row).collect();
        let mut missed = recorded.missed;
        if let Some(kernel) = &mut self.kernel {
            let (drops, left_out) = kernel.rows(&self.maps, clock)?;
            rows.extend(drops);
            missed += left_out;
        }
        Ok((rows, missed, has_new))
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
