//! `millrace explain`: why a packet goes where it goes.

mod advice;
mod answer;
mod asked;
mod by_ipvs;
mod firewall;
mod frame;
mod target;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use clap::{Args, ValueEnum};
use proxy_common::verdict::Program;
use serde::Serialize;

use super::error::CliError;
use super::output::{Document, OutputArgs};
use super::place::Place;
use super::select::Selector;
use super::service_port::ServicePort;
use crate::config::{ConfigError, Refused};
use crate::dataplane::ebpf::read::{IngressView, Lookups, PinnedMaps, ReadError};
use crate::explain::{Call, Caller, Door, Engines, Explainer, Pass, Past, Run, walk_call};
use answer::{Explanation, Shown};
use asked::Asked;
use firewall::{Pinned, Unknown};
use frame::FrameArgs;
use target::{Target, Wanted, targets};

/// Clients outside: addresses of documentation (RFC 5737, RFC 3849).
const CLIENT4: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 7);
const CLIENT6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 7);
const CLIENT_PORT: u16 = 40000;

/// Arguments of `millrace explain`.
#[derive(Args, Clone, Debug)]
pub struct ExplainArgs {
    /// The client, ADDRESS or ADDRESS:PORT, before a second argument; else the destination as in TO
    #[arg(value_name = "FROM|TO")]
    first: String,
    /// The destination: ADDRESS:PORT, ADDRESS:PORT/PROTOCOL, or a Service as NAME, NAMESPACE/NAME or NAMESPACE/NAME:PORT
    #[arg(value_name = "TO")]
    second: Option<String>,
    #[command(flatten)]
    origin: Origin,
    /// Connections that the node knows: any, or new to treat the packet as if there were none
    #[arg(long, value_name = "STATE", value_enum, default_value = "any")]
    state: State,
    #[command(flatten)]
    frame: FrameArgs,
    /// Show what the programs do, without the steps
    #[arg(long, conflicts_with = "maps_only")]
    dry_run_only: bool,
    /// Show what the maps say, without a run of the programs
    #[arg(long)]
    maps_only: bool,
    #[command(flatten)]
    form: OutputArgs,
    #[command(flatten)]
    place: Place,
}

/// The place where a packet, or a call, comes from.
#[derive(Args, Clone, Debug)]
struct Origin {
    /// Device that the packet comes in by; a pod's packet, if it leads to pods [default: the first uplink]
    #[arg(long = "in", value_name = "DEVICE")]
    device: Option<String>,
    /// Explain the connect of a process of the node, which a hook of sockets sees
    #[arg(long, conflicts_with_all = ["second", "device", "from_pod", "dry_run_only", "flags", "size", "df", "state"])]
    from_host: bool,
    /// Explain the connect of a process in a pod, which a hook of sockets sees
    #[arg(long, conflicts_with_all = ["second", "device", "dry_run_only", "flags", "size", "df", "state"])]
    from_pod: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum State {
    Any,
    New,
}

/// The explanations, as in JSON.
#[derive(Serialize)]
struct Items<'a> {
    items: &'a [Explanation],
}

/// Explains the way of a packet to each destination. Fails if the two engines differ.
pub fn run(args: &ExplainArgs) -> Result<(), CliError> {
    let maps = match args.place.maps() {
        Err(ReadError::Absent { path }) => {
            return by_ipvs::run(args)?.ok_or_else(|| ReadError::Absent { path }.into());
        }
        maps => maps?,
    };
    let Some(lookups) = maps.lookups()? else { return by_ipvs::run(args)?.ok_or_else(nothing_serves) };
    let found = match args.caller() {
        Some(caller) => args.calls(&maps, &lookups, caller)?,
        None => args.packets(&maps, &lookups)?,
    };
    let shown = if args.dry_run_only { Shown::Verdict } else { Shown::Steps };
    let texts: Vec<String> = found.iter().map(|one| one.text(shown)).collect();
    let document = Document::lines("ExplanationList", Items { items: &found }, texts.join("\n"))?;
    args.form.show(&args.place, &document)?;
    found.iter().find_map(Explanation::difference).map_or(Ok(()), |text| Err(CliError::Differ(text)))
}

fn nothing_serves() -> CliError {
    CliError::NotFound("neither eBPF programs nor IPVS serve on this node".to_owned())
}

impl ExplainArgs {
    /// Explains a packet to each destination.
    fn packets(&self, maps: &PinnedMaps, lookups: &Lookups<'_>) -> Result<Vec<Explanation>, CliError> {
        let pinned = Pinned::open(&self.place)?;
        let device =
            self.device(&maps.ingress()?, |name| pinned.as_ref().is_some_and(|one| one.closes(name)))?;
        if self.second.is_none() && is_of_pods(&device) {
            let message = format!("missing; takes the address of a pod behind {}", device.name);
            return Err(ConfigError { origin: "FROM".to_owned(), message }.into());
        }
        let engines = if self.maps_only { Engines::Walk } else { Engines::Both };
        let past = if self.state == State::New { Past::Ignored } else { Past::Known };
        let mut explainer = Explainer::new(lookups, self.place.bpffs_path.clone(), engines, past);
        let mut guard = pinned.as_ref().map(|pinned| pinned.guard(engines, past));
        let mut unknown = Unknown::of(pinned.as_ref());
        let door = Door { device: device.device, programs: &device.programs, is_bare: device.is_bare };
        let mut found = Vec::new();
        for target in self.targets(maps, is_of_pods(&device))? {
            let frame = self.frame.build(self.client(target.at)?, target.at, target.protocol)?;
            let passes = explainer.explain(door, &frame.bytes)?;
            let asked = Asked::frame(&frame, &device.name, self.second.is_none());
            let explanation = Explanation::of(asked, &passes, target.service.as_deref());
            found.push(match &mut guard {
                Some(guard) => {
                    let mut device_of = |address| unknown.device_of(address);
                    explanation.with_firewall(&guard.explain(door, &frame.bytes, &passes, &mut device_of)?)
                }
                None => explanation,
            });
        }
        Ok(found)
    }

    fn caller(&self) -> Option<Caller> {
        let Origin { from_host, from_pod, .. } = self.origin;
        from_host.then_some(Caller::Node).or_else(|| from_pod.then_some(Caller::Pod))
    }

    /// Explains the call of a socket to each destination, by the maps alone.
    fn calls(
        &self,
        maps: &PinnedMaps,
        lookups: &Lookups<'_>,
        caller: Caller,
    ) -> Result<Vec<Explanation>, CliError> {
        let pinned = Pinned::open(&self.place)?.filter(|_| caller == Caller::Node);
        let guard = pinned.as_ref().map(|pinned| pinned.guard(Engines::Walk, Past::Known));
        let mut unknown = Unknown::of(pinned.as_ref());
        let mut found = Vec::new();
        for target in self.targets(maps, true)? {
            let call = Call { caller, to: target.at, protocol: target.protocol.number() };
            let program = call.program();
            if !maps.has_hook(program)? {
                let message =
                    format!("{} is attached to no control group: --socket-lb is off", program.name());
                return Err(CliError::NotFound(message));
            }
            let walk = walk_call(lookups, call);
            lookups.take_failure()?;
            let run = Run::NotRun("the kernel runs hooks of sockets for real calls only".to_owned());
            let asked = Asked::call(call, target.protocol);
            let pass = Pass { program, walk, run };
            let to = pass.reached(call.to);
            let explanation = Explanation::of(asked, &[pass], target.service.as_deref());
            found.push(match (&guard, to) {
                (Some(guard), Some(to)) => {
                    let mut device_of = |address| unknown.device_of(address);
                    let crossed = guard.explain_node(to.ip(), &mut device_of)?;
                    explanation.with_firewall(crossed.as_slice())
                }
                _ => explanation,
            });
        }
        Ok(found)
    }

    /// Returns the destination as it was given.
    fn to(&self) -> &str {
        self.second.as_deref().unwrap_or(&self.first)
    }

    /// Returns the client: the one that was given, or one outside of the destination's family.
    fn client(&self, to: SocketAddr) -> Result<SocketAddr, CliError> {
        let outside = match to {
            SocketAddr::V4(_) => IpAddr::from(CLIENT4),
            SocketAddr::V6(_) => CLIENT6.into(),
        };
        let Some(text) = self.second.as_ref().map(|_| self.first.as_str()) else {
            return Ok(SocketAddr::new(outside, CLIENT_PORT));
        };
        let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
        let alone = || bare.parse().ok().map(|ip: IpAddr| SocketAddr::new(ip, CLIENT_PORT));
        text.parse()
            .ok()
            .or_else(alone)
            .ok_or_else(|| wrong("FROM", text, "an address, or an address and a port"))
    }

    /// Returns the device that the packet comes in by. `is_closed` says whether nftables closes one.
    fn device(&self, all: &[IngressView], is_closed: impl Fn(&str) -> bool) -> Result<IngressView, CliError> {
        let found = match &self.origin.device {
            None => all.first(),
            Some(name) => all.iter().find(|view| view.name == *name),
        };
        found.cloned().ok_or_else(|| {
            let names: Vec<&str> = all.iter().map(|view| view.name.as_str()).collect();
            let there = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            CliError::NotFound(match &self.origin.device {
                Some(name) if is_closed(name) => {
                    format!("no program takes packets from {name}: it is closed by nftables until an agent attaches them")
                }
                Some(name) => format!("no program takes packets from {name}; devices with programs: {there}"),
                None => "no program is attached to a device here".to_owned(),
            })
        })
    }

    /// Returns the destinations: frontends for this node's own clients, or those for clients outside.
    fn targets(&self, maps: &PinnedMaps, is_internal: bool) -> Result<Vec<Target>, CliError> {
        let refused =
            |refused: Refused| ConfigError { origin: "TO".to_owned(), message: refused.to_string() };
        let selector = Selector::parse(self.to()).map_err(refused)?;
        let any = SocketAddr::from(([0; 4], 0));
        let client = self.second.as_ref().map(|_| self.client(any)).transpose()?;
        let wanted = Wanted {
            scope: if is_internal { "internal" } else { "external" },
            protocol: self.frame.proto,
            is_v4: client.map(|client| client.is_ipv4()),
        };
        targets(&selector, &ServicePort::join(maps.services()?), wanted)
    }
}

/// Whether a device leads to pods.
fn is_of_pods(device: &IngressView) -> bool {
    device.programs.contains(&Program::TcPodIn)
}

fn wrong(origin: &str, given: &str, takes: &str) -> CliError {
    let message = Refused::new(given, takes).to_string();
    ConfigError { origin: origin.to_owned(), message }.into()
}
