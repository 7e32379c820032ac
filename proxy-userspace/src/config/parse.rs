//! One function a flag: text in, a checked value or one line out. Without a value it returns the default.
//! `origin` is the flag, or the file and field with the same meaning.

use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use ipnet::IpNet;
use proxy_common::config::DEFAULT_SNAT_PORTS;

use super::{ConfigError, Interval, ProxyMode, Source};
use crate::dataplane::ebpf::{Dispatch, OuterSource, OwnSource, SocketLb, Sockets, XdpMode};
use crate::dataplane::{Encapsulation, Mark, RejectUnknown};
use crate::model::{DEFAULT_MAGLEV_SIZE, NodePortAddresses, Scheduler, check_maglev_size};
use crate::node::DevicePattern;

const DEFAULT_FLOW_TABLE_SIZE: u32 = 262_144;
const FLOW_TABLE_SIZES: std::ops::RangeInclusive<u32> = 1024..=16_777_216;
/// A year: longer than any time-out that makes sense, and far from where 32-bit seconds wrap.
pub(super) const LONGEST_TIMEOUT: u32 = 31_536_000;
pub(super) const LONGEST_MIN_SYNC: Duration = Duration::from_mins(1);
/// In seconds.
pub(super) const LONGEST_MAX_SYNC: u32 = 3600;

pub(super) fn wrong(origin: &str, given: &str, takes: &str) -> ConfigError {
    ConfigError { origin: origin.to_owned(), message: format!("{given:?} is not accepted; takes {takes}") }
}

pub(super) fn source(text: Option<&str>, kubeconfig: Option<&Path>) -> Result<Source, ConfigError> {
    const FLAG: &str = "--source";
    const TAKES: &str = "kubernetes or directory:PATH";
    match text.map(|text| (text, text.split_once(':'))) {
        None | Some(("kubernetes", _)) => {
            Ok(Source::Kubernetes { kubeconfig: kubeconfig.map(Path::to_owned) })
        }
        Some((text, Some(("directory", path)))) if !path.is_empty() => match kubeconfig {
            None => Ok(Source::Directory(PathBuf::from(path))),
            Some(_) => Err(ConfigError {
                origin: "--kubeconfig".to_owned(),
                message: format!(
                    "is not accepted with --source {text}; takes effect with --source kubernetes"
                ),
            }),
        },
        Some((text, _)) => Err(wrong(FLAG, text, TAKES)),
    }
}

pub(super) fn proxy_mode(text: Option<&str>) -> Result<ProxyMode, ConfigError> {
    let modes = [ProxyMode::Auto, ProxyMode::Ebpf, ProxyMode::Ipvs, ProxyMode::None];
    let modes = modes.map(|mode| (mode.name(), mode));
    choice("--proxy-mode", text, &modes)
}

pub(super) fn scheduler(origin: &str, text: Option<&str>) -> Result<Scheduler, ConfigError> {
    choice(origin, text, &Scheduler::words())
}

/// Whether a flag is on. A flag without a value is on.
pub(super) fn switch(origin: &str, text: Option<&str>) -> Result<Option<bool>, ConfigError> {
    text.map(|text| choice(origin, Some(text), &[("true", true), ("false", false)])).transpose()
}

pub(super) fn xdp(text: Option<&str>) -> Result<XdpMode, ConfigError> {
    let modes = [
        ("auto", XdpMode::Auto),
        ("native", XdpMode::Native),
        ("generic", XdpMode::Generic),
        ("off", XdpMode::Off),
    ];
    choice("--xdp", text, &modes)
}

pub(super) fn reject_unknown(text: Option<&str>) -> Result<RejectUnknown, ConfigError> {
    choice("--reject-unknown-ports", text, &RejectUnknown::ALL.map(|kind| (kind.name(), kind)))
}

/// Returns the encapsulation that the node sends, and the other one that it accepts.
pub(super) fn encapsulations(
    texts: &[String],
) -> Result<(Encapsulation, Option<Encapsulation>), ConfigError> {
    let words = Encapsulation::ALL.map(|one| (one.name(), one));
    let read = |text: &String| choice("--dsr-encap", Some(text), &words);
    match texts {
        [] => Ok((Encapsulation::default(), None)),
        [sent] => Ok((read(sent)?, None)),
        [sent, taken] if read(sent)? != read(taken)? => Ok((read(sent)?, Some(read(taken)?))),
        _ => Err(wrong("--dsr-encap", &texts.join(","), "ipip, fou, or both once, what is sent first")),
    }
}

pub(super) fn dispatch(text: Option<&str>) -> Result<Dispatch, ConfigError> {
    choice("--dsr-dispatch", text, &Dispatch::ALL.map(|one| (one.name(), one)))
}

/// Reads the word `node` and at most one prefix of each family. A prefix of half the Internet would let
/// everybody in.
pub(super) fn outer_source(texts: &[String]) -> Result<OuterSource, ConfigError> {
    let takes = "the word node, or a prefix of /8 to /31, or one of /32 to /127 with IPv6, or one of each, \
                 with or without node before them";
    let mut source = OuterSource { own: OwnSource::Spread, ..OuterSource::default() };
    for (index, text) in texts.iter().enumerate() {
        let is_new = match text.parse() {
            _ if text == "node" && index == 0 => {
                source.own = OwnSource::Node;
                true
            }
            Ok(IpNet::V4(net)) if (8..=31).contains(&net.prefix_len()) => {
                source.v4.replace(net.trunc()).is_none()
            }
            Ok(IpNet::V6(net)) if (32..=127).contains(&net.prefix_len()) => {
                source.v6.replace(net.trunc()).is_none()
            }
            _ => false,
        };
        if !is_new {
            return Err(wrong("--dsr-outer-source", text, takes));
        }
    }
    Ok(if texts.is_empty() { OuterSource::default() } else { source })
}

pub(super) fn choice<T: Copy>(
    origin: &str,
    text: Option<&str>,
    choices: &[(&str, T)],
) -> Result<T, ConfigError> {
    let found = match text {
        None => choices.first(),
        Some(text) => choices.iter().find(|(word, _)| *word == text),
    };
    found.map(|(_, value)| *value).ok_or_else(|| {
        let words: Vec<&str> = choices.iter().map(|(word, _)| *word).collect();
        wrong(origin, text.unwrap_or_default(), &alternatives(&words))
    })
}

pub(super) fn node_name(origin: &str, name: Option<String>) -> Result<String, ConfigError> {
    // kube-proxy and the kubelet trim and lower-case the name, too.
    let name = name.unwrap_or_default().trim().to_lowercase();
    if name.is_empty() || name.contains(|c: char| c == '/' || c.is_whitespace()) {
        return Err(wrong(origin, &name, "the name of this node's Node object"));
    }
    Ok(name)
}

pub(super) fn service_proxy_name(name: Option<&str>) -> Result<Option<String>, ConfigError> {
    let usable = |name: &str| {
        (1..=63).contains(&name.len()) && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
    };
    match name {
        None => Ok(None),
        Some(name) if usable(name) => Ok(Some(name.to_owned())),
        Some(name) => Err(wrong("--service-proxy-name", name, "a label value of 1 to 63 characters")),
    }
}

pub(super) fn devices(origin: &str, names: &[String]) -> Result<Vec<String>, ConfigError> {
    let usable = |name: &str| {
        (1..=15).contains(&name.len()) && !name.contains(|c: char| c == '/' || c == '*' || c.is_whitespace())
    };
    match names.iter().find(|name| !usable(name)) {
        Some(name) => Err(wrong(origin, name, "names of devices, separated by commas")),
        None => Ok(names.to_vec()),
    }
}

pub(super) fn patterns(origin: &str, texts: &[String]) -> Result<Vec<DevicePattern>, ConfigError> {
    if texts.is_empty() {
        return Ok(DevicePattern::defaults());
    }
    let takes = "names of devices, separated by commas, in which * stands for any text";
    texts.iter().map(|text| DevicePattern::new(text).ok_or_else(|| wrong(origin, text, takes))).collect()
}

pub(super) fn node_ports(origin: &str, texts: &[String]) -> Result<NodePortAddresses, ConfigError> {
    if texts.is_empty() || texts == ["primary"] {
        return Ok(NodePortAddresses::Primary);
    }
    let takes = "the word primary alone, or all or CIDRs separated by commas";
    let mut ranges = Vec::new();
    for text in texts {
        let of_word: &[&str] = if text == "all" { &["0.0.0.0/0", "::/0"] } else { &[text] };
        let of_word = of_word.iter().map(|range| range.parse().map_err(|_| wrong(origin, text, takes)));
        ranges.extend(of_word.collect::<Result<Vec<IpNet>, _>>()?);
    }
    Ok(NodePortAddresses::Within(ranges))
}

/// Reads an address with or without a port; empty text = no server.
pub(super) fn bind_address(origin: &str, text: &str, port: u16) -> Result<Option<SocketAddr>, ConfigError> {
    if text.is_empty() {
        return Ok(None);
    }
    let address =
        text.parse().map(|address: IpAddr| SocketAddr::new(address, port)).or_else(|_| text.parse());
    let takes = || format!("an address or address:port such as 0.0.0.0:{port} or [::]:{port}");
    let address = address.ok().filter(|address: &SocketAddr| address.port() != 0);
    address.map(Some).ok_or_else(|| wrong(origin, text, &takes()))
}

pub(super) fn ranges(origin: &str, texts: &[String]) -> Result<Vec<IpNet>, ConfigError> {
    let takes = "a CIDR such as 203.0.113.0/24 or 2001:db8::/64";
    texts.iter().map(|text| text.parse().map_err(|_| wrong(origin, text, takes))).collect()
}

pub(super) fn seconds(origin: &str, text: Option<&str>, default: u32) -> Result<u32, ConfigError> {
    number(origin, text, default, 1..=LONGEST_TIMEOUT, "seconds")
}

pub(super) fn drain(text: Option<&str>) -> Result<Duration, ConfigError> {
    let seconds = number("--drain", text, 3600, 1..=LONGEST_TIMEOUT, "seconds")?;
    Ok(Duration::from_secs(u64::from(seconds)))
}

pub(super) fn flow_table_size(text: Option<&str>) -> Result<u32, ConfigError> {
    number("--flow-table-size", text, DEFAULT_FLOW_TABLE_SIZE, FLOW_TABLE_SIZES, "entries")
}

pub(super) fn min_sync_interval(text: Option<&str>) -> Result<Interval, ConfigError> {
    const FLAG: &str = "--min-sync-interval";
    let range = 0..=LONGEST_MIN_SYNC.as_millis();
    let milliseconds = number(FLAG, text, 1, range, "milliseconds")?;
    let period = Duration::from_millis(u64::try_from(milliseconds).unwrap_or_default());
    Ok(Interval { origin: FLAG.to_owned(), period })
}

pub(super) fn max_sync_interval(text: Option<&str>) -> Result<Interval, ConfigError> {
    const FLAG: &str = "--max-sync-interval";
    let seconds = number(FLAG, text, 30_u32, 1..=LONGEST_MAX_SYNC, "seconds")?;
    Ok(Interval { origin: FLAG.to_owned(), period: Duration::from_secs(u64::from(seconds)) })
}

pub(super) fn maglev_size(text: Option<&str>) -> Result<u32, ConfigError> {
    const FLAG: &str = "--maglev-table-size";
    let Some(text) = text else {
        return Ok(DEFAULT_MAGLEV_SIZE);
    };
    // Text that is no number counts as out of range, as zero does.
    check_maglev_size(text.parse().unwrap_or(0)).map_err(|error| ConfigError {
        origin: FLAG.to_owned(),
        message: format!("{text:?} is not accepted; {error}"),
    })
}

pub(super) fn snat_ports(text: Option<&str>) -> Result<RangeInclusive<u16>, ConfigError> {
    /// A single busy backend would use up fewer ports.
    const FEWEST: usize = 64;
    let Some(text) = text else {
        return Ok(DEFAULT_SNAT_PORTS);
    };
    let parsed =
        text.split_once('-').and_then(|(first, last)| Some(first.parse().ok()?..=last.parse().ok()?));
    let takes = format!("FIRST-LAST such as 61000-65535, at least {FEWEST} ports above 1023");
    parsed
        .filter(|ports: &RangeInclusive<u16>| *ports.start() > 1023 && ports.len() >= FEWEST)
        .ok_or_else(|| wrong("--snat-ports", text, &takes))
}

pub(super) fn mark(text: Option<&str>) -> Result<Mark, ConfigError> {
    let Some(text) = text else {
        return Ok(Mark::default());
    };
    let parsed =
        text.split_once('/').and_then(|(value, mask)| Some(Mark { value: word(value)?, mask: word(mask)? }));
    // A value of zero would be the mark that every packet has.
    let parsed = parsed.filter(|mark| mark.value & !mark.mask == 0 && (mark.value == 0) == (mark.mask == 0));
    let takes = "VALUE/MASK such as 0x1000/0x1000, VALUE not zero and every bit of it inside MASK, \
                 or 0/0 for no mark";
    parsed.ok_or_else(|| wrong("--fwmark", text, takes))
}

pub(super) fn bpffs(text: Option<&str>) -> Result<PathBuf, ConfigError> {
    absolute("--bpffs-path", text.unwrap_or("/sys/fs/bpf"))
}

/// Reads the settings of the socket hooks. Without a name, the control group stays open.
pub(super) fn sockets(
    lb: Option<&str>,
    bind_protection: Option<&str>,
    cgroup: Option<&str>,
) -> Result<Sockets, ConfigError> {
    let words = [SocketLb::All, SocketLb::Host, SocketLb::Off].map(|lb| (lb.name(), lb));
    Ok(Sockets {
        lb: choice("--socket-lb", lb, &words)?,
        bind_protection: choice("--bind-protection", bind_protection, &[("on", true), ("off", false)])?,
        cgroup: cgroup.map(|path| absolute("--cgroup-path", path)).transpose()?,
    })
}

fn absolute(origin: &str, text: &str) -> Result<PathBuf, ConfigError> {
    let path = Path::new(text);
    if path.is_absolute() { Ok(path.to_owned()) } else { Err(wrong(origin, text, "an absolute path")) }
}

/// Returns the words as `a, b or c`.
fn alternatives(words: &[&str]) -> String {
    match words.split_last() {
        Some((last, others)) if !others.is_empty() => format!("{} or {last}", others.join(", ")),
        _ => words.concat(),
    }
}

pub(super) fn number<T>(
    origin: &str,
    text: Option<&str>,
    default: T,
    range: std::ops::RangeInclusive<T>,
    unit: &str,
) -> Result<T, ConfigError>
where
    T: FromStr + PartialOrd + std::fmt::Display,
{
    let Some(text) = text else {
        return Ok(default);
    };
    let takes = || format!("{} to {} {unit}", range.start(), range.end());
    text.parse().ok().filter(|number| range.contains(number)).ok_or_else(|| wrong(origin, text, &takes()))
}

/// Reads a 32-bit word, decimal or hexadecimal with 0x.
fn word(text: &str) -> Option<u32> {
    match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}
