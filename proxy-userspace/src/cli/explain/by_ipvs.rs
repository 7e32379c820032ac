//! The explanation on a node that IPVS serves: a walk through what the kernel has. Nothing runs on the packet.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::net::SocketAddr;

use serde::Serialize;

use super::ExplainArgs;
use super::frame::Protocol;
use crate::cli::error::CliError;
use crate::cli::ipvs::{self, Entry, IpvsAnswer, IpvsStep, Question, ServiceView};
use crate::cli::output::Document;
use crate::cli::select::Selector;
use crate::config::ConfigError;

/// The way of one packet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Explanation {
    mode: &'static str,
    /// The packet's source; none for a process of the node.
    from: Option<SocketAddr>,
    /// Whether nobody named the client.
    from_default: bool,
    /// The process of a socket: `node`.
    caller: Option<&'static str>,
    to: SocketAddr,
    protocol: &'static str,
    /// The device that it comes in by.
    device: Option<String>,
    steps: Vec<IpvsStep>,
    /// The reasons that eBPF mode would count it under. The scheduler may choose between several.
    reasons: BTreeSet<&'static str>,
    drop: bool,
    /// The servers that may get it.
    backends: Vec<SocketAddr>,
    /// The cause in a clause.
    why: String,
}

/// The explanations, as in JSON.
#[derive(Serialize)]
struct Items<'a> {
    items: &'a [Explanation],
}

/// Explains the way of a packet to each destination; `None` if IPVS does not serve.
pub fn run(args: &ExplainArgs) -> Result<Option<()>, CliError> {
    let Some(services) = ipvs::services()? else { return Ok(None) };
    let refused = |origin: &str, message: &str| {
        CliError::from(ConfigError { origin: origin.to_owned(), message: message.to_owned() })
    };
    if args.origin.from_pod {
        let message = "IPVS serves here, which has no hooks of sockets; name the pod's address as FROM, and its device by --in";
        return Err(refused("--from-pod", message));
    }
    if args.dry_run_only {
        return Err(refused(
            "--dry-run-only",
            "IPVS serves here, and no program can be run; the walk alone answers",
        ));
    }
    let targets = targets(args, &services)?;
    let question = |(to, protocol): &(SocketAddr, Protocol)| {
        let entry =
            if args.origin.from_host { Entry::Process } else { Entry::Device(args.origin.device.clone()) };
        Ok::<_, CliError>(Question { from: args.client(*to)?, entry, to: *to, protocol: protocol.number() })
    };
    let questions = targets.iter().map(question).collect::<Result<Vec<_>, _>>()?;
    let Some(answers) = ipvs::explain(&questions)? else { return Ok(None) };
    let found: Vec<Explanation> = questions
        .iter()
        .zip(targets)
        .zip(answers)
        .map(|((question, (_, protocol)), answer)| {
            Explanation::of(question, protocol, args.second.is_none(), answer)
        })
        .collect();
    let texts: Vec<String> = found.iter().map(Explanation::text).collect();
    let document = Document::lines("ExplanationList", Items { items: &found }, texts.join("\n"))?;
    args.form.show(&args.place, &document)?;
    Ok(Some(()))
}

/// Returns the address with its port, or all ports of an address. IPVS knows no names.
fn targets(args: &ExplainArgs, services: &[ServiceView]) -> Result<Vec<(SocketAddr, Protocol)>, CliError> {
    let wrong = |message: String| CliError::from(ConfigError { origin: "TO".to_owned(), message });
    match Selector::parse(args.to()).map_err(|refused| wrong(refused.to_string()))? {
        Selector::Name { .. } => Err(wrong(format!(
            "{:?} is not accepted; takes ADDRESS:PORT: IPVS serves here, and has no names of Services",
            args.to()
        ))),
        Selector::Address { ip, port: Some(port), protocol } => {
            let named = args.frame.proto.or_else(|| Protocol::of(protocol.as_deref()?));
            let at = SocketAddr::new(ip, port);
            let known = || places(services).find(|(address, _)| *address == at).map(|(_, protocol)| protocol);
            Ok(vec![(at, named.or_else(known).unwrap_or(Protocol::Tcp))])
        }
        Selector::Address { ip, port: None, .. } => {
            let wanted = |protocol| args.frame.proto.is_none_or(|proto| proto == protocol);
            let found: BTreeSet<_> =
                places(services).filter(|(at, protocol)| at.ip() == ip && wanted(*protocol)).collect();
            if found.is_empty() {
                return Err(CliError::NotFound(format!("IPVS has no virtual service at {ip}")));
            }
            Ok(found.into_iter().collect())
        }
    }
}

fn places(services: &[ServiceView]) -> impl Iterator<Item = (SocketAddr, Protocol)> {
    let frontends = services.iter().flat_map(|service| &service.frontends);
    frontends.filter_map(|one| Some((one.address, Protocol::of(&one.protocol)?)))
}

impl Explanation {
    fn of(question: &Question, protocol: Protocol, from_default: bool, answer: IpvsAnswer) -> Self {
        let is_process = question.entry == Entry::Process;
        Self {
            mode: "ipvs",
            from: (!is_process).then_some(question.from),
            from_default: from_default && !is_process,
            caller: is_process.then_some("node"),
            to: question.to,
            protocol: protocol.name(),
            device: answer.device,
            steps: answer.steps,
            reasons: answer.reasons,
            drop: answer.is_drop,
            backends: answer.servers,
            why: answer.why,
        }
    }

    fn text(&self) -> String {
        let Self { to, protocol, device, .. } = self;
        let mut text = match self.from {
            Some(from) => {
                let other = if self.from_default { "; FROM names another client" } else { "" };
                let by = device.as_ref().map(|device| format!(", in by {device}")).unwrap_or_default();
                format!("packet      {protocol} {from} > {to}, new{by} (IPVS){other}\n")
            }
            None => format!("call        connect to {to} by {protocol}, of a process of the node (IPVS)\n"),
        };
        for (number, IpvsStep { step, found, sets }) in (1..).zip(&self.steps) {
            let sets = if sets.is_empty() { String::new() } else { format!("  [{sets}]") };
            let _ = writeln!(text, "{number:>2} {step:<8} {found}{sets}");
        }
        let reasons = self.reasons.iter().copied().collect::<Vec<_>>().join(" or ");
        let reasons = if self.drop { format!("DROP {reasons}") } else { reasons };
        let arrow = if self.backends.len() == 1 { " -> " } else { ": " };
        let _ = writeln!(text, "verdict     {reasons}{arrow}{}", self.why);
        let _ = writeln!(
            text,
            "checked     by the tables of nftables and IPVS alone: the kernel runs no packet for a test"
        );
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::argument::parsed;
    use crate::dataplane::ipvs::FrontendView;

    fn services() -> Vec<ServiceView> {
        let frontend = |address: &str, protocol: &str| FrontendView {
            address: address.parse().unwrap(),
            protocol: protocol.to_owned(),
            scope: "all",
            forwarding: "snat",
            affinity_seconds: 0,
            source_ranges: None,
        };
        vec![ServiceView {
            family: "IPv4".to_owned(),
            mark: None,
            scheduler: "rr".to_owned(),
            elsewhere: false,
            frontends: vec![frontend("10.96.0.10:53", "UDP"), frontend("10.96.0.10:53", "TCP")],
            backends: Vec::new(),
            draining: Vec::new(),
            packets: 0,
            bytes: 0,
        }]
    }

    fn found(line: &str) -> Result<Vec<String>, String> {
        let args: ExplainArgs = parsed(line);
        let found = targets(&args, &services()).map_err(|error| error.to_string())?;
        Ok(found.iter().map(|(at, protocol)| format!("{at}/{}", protocol.name())).collect())
    }

    #[test]
    fn an_address_is_explained_and_a_name_is_unknown_to_ipvs() {
        assert_eq!(found("10.96.0.10").unwrap(), ["10.96.0.10:53/TCP", "10.96.0.10:53/UDP"]);
        assert_eq!(found("10.96.0.10 --proto udp").unwrap(), ["10.96.0.10:53/UDP"]);
        assert_eq!(found("198.51.100.9 10.96.0.10:53/udp").unwrap(), ["10.96.0.10:53/UDP"]);
        assert_eq!(found("10.96.0.10:80").unwrap(), ["10.96.0.10:80/TCP"]);
        assert_eq!(found("10.96.0.11").unwrap_err(), "IPVS has no virtual service at 10.96.0.11");
        assert!(found("shop/web").unwrap_err().contains("IPVS serves here, and has no names of Services"));
    }

    #[test]
    fn the_text_has_the_steps_and_all_that_may_come_out() {
        let question = Question {
            from: "198.51.100.7:40000".parse().unwrap(),
            entry: Entry::Device(None),
            to: "203.0.113.9:80".parse().unwrap(),
            protocol: Protocol::Tcp.number(),
        };
        let answer = IpvsAnswer {
            device: Some("eth0".to_owned()),
            steps: vec![IpvsStep {
                step: "frontend",
                found: "it is one".to_owned(),
                sets: "services4".to_owned(),
            }],
            reasons: ["sent_snat", "served_local"].into(),
            is_drop: false,
            servers: vec!["10.1.0.5:80".parse().unwrap(), "10.1.1.6:80".parse().unwrap()],
            why: "rr chooses one of 10.1.0.5:80, 10.1.1.6:80".to_owned(),
        };
        let text = Explanation::of(&question, Protocol::Tcp, true, answer.clone()).text();
        assert_eq!(
            text,
            "packet      TCP 198.51.100.7:40000 > 203.0.113.9:80, new, in by eth0 (IPVS); FROM names another client\n \
             1 frontend it is one  [services4]\n\
             verdict     sent_snat or served_local: rr chooses one of 10.1.0.5:80, 10.1.1.6:80\n\
             checked     by the tables of nftables and IPVS alone: the kernel runs no packet for a test\n"
        );
        let refused = IpvsAnswer {
            reasons: ["no_endpoint"].into(),
            is_drop: true,
            servers: Vec::new(),
            why: "no server".to_owned(),
            ..answer
        };
        let question = Question { entry: Entry::Process, ..question };
        let text = Explanation::of(&question, Protocol::Tcp, true, refused).text();
        assert!(
            text.starts_with(
                "call        connect to 203.0.113.9:80 by TCP, of a process of the node (IPVS)\n"
            )
        );
        assert!(text.contains("verdict     DROP no_endpoint: no server\n"), "{text}");
    }
}
