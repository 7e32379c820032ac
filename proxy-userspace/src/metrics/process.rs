//! The process metrics of every Prometheus client, read from /proc/self at each scrape.

use std::fmt;
use std::fs;

use nix::unistd::{SysconfVar, sysconf};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use super::catalogue;

/// The metrics `process_*`, with the names and meanings of Prometheus' own clients. Unreadable ones are left
/// out.
#[derive(Debug)]
pub struct ProcessMetrics;

impl Collector for ProcessMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        let stat = Stat::parse(&stat);
        let cpu = stat.as_ref().and_then(|stat| seconds(stat.ticks));
        if let Some(cpu) = cpu {
            ConstCounter::new(cpu).encode(catalogue::PROCESS_CPU.encode(&mut encoder)?)?;
        }
        let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
        let resident = stat.as_ref().and_then(|stat| bytes_of_pages(stat.resident_pages));
        for (definition, value) in [
            (catalogue::PROCESS_START, start(stat.as_ref())),
            (catalogue::PROCESS_RESIDENT, resident),
            (catalogue::PROCESS_VIRTUAL, stat.as_ref().map(|stat| exact(stat.virtual_bytes))),
            (catalogue::PROCESS_OPEN_FDS, open_descriptors()),
            (catalogue::PROCESS_MAX_FDS, soft_limit(&limits, "Max open files")),
        ] {
            let Some(value) = value else { continue };
            ConstGauge::new(value).encode(definition.encode(&mut encoder)?)?;
        }
        Ok(())
    }
}

/// The fields of /proc/self/stat that are shown.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    /// CPU time, and the time from boot to the process' begin, in ticks.
    ticks: u64,
    started: u64,
    virtual_bytes: u64,
    resident_pages: u64,
}

impl Stat {
    /// The program's name comes second, in brackets, and may have spaces and brackets itself.
    fn parse(text: &str) -> Option<Self> {
        let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
        // proc(5) counts from 1, and the first of these is its third.
        let field = |number: usize| fields.get(number.checked_sub(3)?)?.parse::<u64>().ok();
        Some(Self {
            ticks: field(14)? + field(15)?,
            started: field(22)?,
            virtual_bytes: field(23)?,
            resident_pages: field(24)?,
        })
    }
}

fn start(stat: Option<&Stat>) -> Option<f64> {
    let of_boot = fs::read_to_string("/proc/stat").ok()?;
    let boot = of_boot.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()?;
    Some(exact(boot) + seconds(stat?.started)?)
}

fn seconds(ticks: u64) -> Option<f64> {
    let per_second = sysconf(SysconfVar::CLK_TCK).ok()??;
    Some(exact(ticks) / exact(u64::try_from(per_second).ok()?))
}

fn bytes_of_pages(pages: u64) -> Option<f64> {
    let size = u64::try_from(sysconf(SysconfVar::PAGE_SIZE).ok()??).ok()?;
    Some(exact(pages.checked_mul(size)?))
}

fn open_descriptors() -> Option<f64> {
    // The one that reads the directory is among them.
    let count = fs::read_dir("/proc/self/fd").ok()?.count().saturating_sub(1);
    Some(exact(u64::try_from(count).ok()?))
}

/// `Max open files            1024                 524288               files`; `unlimited` is none.
fn soft_limit(limits: &str, name: &str) -> Option<f64> {
    let limit = limits.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next()?;
    limit.parse().ok().map(exact)
}

#[expect(clippy::cast_precision_loss, reason = "no process has so many bytes, and no clock so many ticks")]
const fn exact(value: u64) -> f64 {
    value as f64
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;
    use prometheus_client::registry::Registry;

    use super::*;

    #[test]
    fn a_programs_name_may_have_brackets_and_spaces() {
        let rest = "S 1 2 3 4 5 6 7 8 9 10 300 45 0 0 20 0 9 0 8800 4096000 77 18446744073709551615";
        let stat = Stat { ticks: 345, started: 8800, virtual_bytes: 4_096_000, resident_pages: 77 };
        assert_eq!(Stat::parse(&format!("42 (a) b (c) {rest}")), Some(stat));
        assert_eq!(Stat::parse("42 (a) S 1"), None);
    }

    #[test]
    fn a_limit_is_the_soft_one() {
        let limits = "Limit                     Soft Limit           Hard Limit           Units\n\
                      Max open files            1024                 524288               files\n";
        assert_eq!(soft_limit(limits, "Max open files"), Some(1024.0));
        assert_eq!(
            soft_limit("Max open files            unlimited            unlimited\n", "Max open files"),
            None
        );
    }

    #[test]
    fn this_process_has_all_of_them() {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(ProcessMetrics));
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        let value = |name: &str| {
            let line = text.lines().find(|line| line.starts_with(&format!("{name} ")));
            line.unwrap_or_else(|| panic!("no {name} in {text}"))
                .rsplit(' ')
                .next()
                .unwrap()
                .parse::<f64>()
                .unwrap()
        };
        assert!(value("process_cpu_seconds_total") >= 0.0);
        assert!(value("process_resident_memory_bytes") > 1e6);
        assert!(value("process_virtual_memory_bytes") >= value("process_resident_memory_bytes"));
        assert!((4.0..value("process_max_fds")).contains(&value("process_open_fds")));
        let now = jiff::Timestamp::now().as_duration().as_secs_f64();
        assert!((now - 86_400.0..=now + 1.0).contains(&value("process_start_time_seconds")));
    }
}
