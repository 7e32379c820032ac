//! The command line of `millrace monitor`.

use clap::Args;
use ipnet::IpNet;
use proxy_common::event::{EventKind, Monitor, USUAL_RATE};
use proxy_common::policy::PolicyDrop;
use proxy_common::verdict::Reason;

use super::row::POLICY_DROP;
use crate::cli::argument::prefix;
use crate::cli::place::Place;
use crate::cli::select::SelectArgs;
use crate::config::{ConfigError, Refused};

/// Seconds for which a wish holds: a killed command leaves nothing behind.
const HOLDS: u32 = 3;

/// Arguments of `millrace monitor`.
#[derive(Args, Clone, Debug)]
pub struct MonitorArgs {
    #[command(flatten)]
    pub(super) select: SelectArgs,
    /// Kinds of events: drop, policy_drop (by the pod firewall), opened, established, refused, reset
    #[arg(long, value_name = "KIND", value_delimiter = ',', default_value = "drop,policy_drop,refused,reset", value_parser = kind)]
    r#type: Vec<Kind>,
    /// Reasons of drops, such as no_endpoint or denied; all without it
    #[arg(long, value_name = "REASON", value_delimiter = ',', value_parser = reason)]
    reason: Vec<Why>,
    /// Clients in this prefix
    #[arg(long, value_name = "CIDR", value_parser = prefix)]
    pub(super) client: Option<IpNet>,
    /// Show packets of Services that the kernel drops as well, with the kernel's own reason
    #[arg(long, conflicts_with = "last")]
    pub(super) kernel: bool,
    /// Events a second that each CPU records at most; up to 10 it always does
    #[arg(long, value_name = "EVENTS", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(super) rate: u32,
    /// Show the last events of the past, and end. Nobody needs to have watched: the programs always record some drops
    #[arg(long, value_name = "EVENTS", num_args = 0..=1, default_missing_value = "20")]
    pub(super) last: Option<usize>,
    /// End after so many events
    #[arg(long, value_name = "EVENTS", conflicts_with = "last")]
    pub(super) count: Option<usize>,
    /// Format: table, jsonl or pcapng
    #[arg(short, long, value_name = "FORMAT", default_value = "table", value_parser = format)]
    pub(super) output: Form,
    #[command(flatten)]
    pub(super) place: Place,
}

/// The form of the events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Table,
    Jsonl,
    /// Packets of drops, for Wireshark and tcpdump.
    Pcapng,
}

/// A kind of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Of the proxy.
    Proxy(EventKind),
    /// A drop of the pod firewall.
    PolicyDrop,
}

/// The reason of a drop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    /// Of the proxy.
    Proxy(Reason),
    /// Of the pod firewall.
    Policy(PolicyDrop),
}

impl Why {
    const fn name(self) -> &'static str {
        match self {
            Self::Proxy(reason) => reason.name(),
            Self::Policy(reason) => reason.name(),
        }
    }
}

fn kind(text: &str) -> Result<Kind, Refused> {
    if text == POLICY_DROP {
        return Ok(Kind::PolicyDrop);
    }
    let found = EventKind::ALL.into_iter().find(|kind| kind.name() == text).map(Kind::Proxy);
    found.ok_or_else(|| Refused::new(text, "drop, policy_drop, opened, established, refused or reset"))
}

fn reason(text: &str) -> Result<Why, Refused> {
    let of_proxy = Reason::ALL.iter().copied().filter(|reason| reason.is_drop()).map(Why::Proxy);
    let all: Vec<Why> = of_proxy.chain(PolicyDrop::ALL.map(Why::Policy)).collect();
    all.iter().find(|reason| reason.name() == text).copied().ok_or_else(|| {
        let names: Vec<&str> = all.iter().map(|reason| reason.name()).collect();
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

impl MonitorArgs {
    /// Refuses a stream of packets that would be empty, or would garble a terminal.
    pub(super) fn check(&self, is_terminal: bool) -> Result<(), ConfigError> {
        let refused = |flag: &str, message: &str| {
            Err(ConfigError { origin: flag.to_owned(), message: message.to_owned() })
        };
        match self.output {
            Form::Pcapng if !self.kernel && !self.r#type.contains(&Kind::Proxy(EventKind::Drop)) => {
                refused("--type", "pcapng has the packets of drops, and no other events: add drop")
            }
            Form::Pcapng if is_terminal => {
                refused("--output", "pcapng is not for a terminal: redirect it to a file or a program")
            }
            _ => Ok(()),
        }
    }

    /// Returns what the proxy's programs are to record.
    pub(super) fn wish(&self, now: u32) -> Monitor {
        let reason = |reason: &Why| match reason {
            Why::Proxy(reason) => 1_u64 << *reason as u32,
            Why::Policy(_) => 0,
        };
        let kind = |kind: &Kind| match kind {
            Kind::Proxy(kind) => kind.bit(),
            Kind::PolicyDrop => 0,
        };
        Monitor {
            reasons: self.reason.iter().map(reason).reduce(|one, other| one | other).unwrap_or(u64::MAX),
            kinds: self.r#type.iter().map(kind).fold(0, |one, other| one | other),
            rate: self.rate.max(USUAL_RATE),
            services: 0,
            until: now + HOLDS,
        }
    }

    /// Whether events of this type are wanted.
    pub(super) fn has_type(&self, name: &str) -> bool {
        self.r#type.iter().any(|kind| match kind {
            Kind::Proxy(kind) => kind.name() == name,
            Kind::PolicyDrop => name == POLICY_DROP,
        })
    }

    /// Whether drops for this reason are wanted.
    pub(super) fn has_reason(&self, name: &str) -> bool {
        self.reason.is_empty() || self.reason.iter().any(|reason| reason.name() == name)
    }

    /// Whether drops of the firewall alone, without the proxy's maps, are no answer.
    pub(super) fn needs_proxy(&self) -> bool {
        self.kernel || self.select.has_names()
    }
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
    fn kinds_and_reasons_of_the_firewall_are_no_wish_of_the_proxys_programs() {
        let args: MonitorArgs = parsed("--type policy_drop --reason denied");
        assert_eq!((args.wish(0).kinds, args.wish(0).reasons), (0, 0));
        assert!(args.has_type("policy_drop") && !args.has_type("drop"));
        assert!(args.has_reason("denied") && !args.has_reason("unreadable"));
        let args: MonitorArgs = parsed("");
        assert!(args.has_type("policy_drop") && args.has_type("drop") && args.has_reason("unreadable"));
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
            "\"drops\" is not accepted; takes drop, policy_drop, opened, established, refused or reset"
        );
        let text = reason("served_local").unwrap_err().to_string();
        assert!(
            text.starts_with("\"served_local\" is not accepted; takes no_endpoint, no_local_endpoint"),
            "{text}"
        );
        assert!(text.ends_with("denied, unknown_pod, foreign_source, unreadable"), "{text}");
    }

    #[test]
    fn names_of_services_and_the_kernels_drops_need_the_proxys_maps() {
        for (line, needs) in
            [("", false), ("-n shop", false), ("10.1.0.1", false), ("shop/web", true), ("--kernel", true)]
        {
            assert_eq!(parsed::<MonitorArgs>(line).needs_proxy(), needs, "{line}");
        }
    }
}
