//! Whether the policies allow a connection, and which of them.

use std::fmt::{self, Write as _};
use std::net::IpAddr;

use clap::Args;
use serde::Serialize;

use super::Cluster;
use crate::cli::error::CliError;
use crate::cli::output::Document;
use crate::config::Refused;
use crate::policy::{Connection, Direction, Explanation, NamespacedName, PodView, Side, Verdict};

/// The connection to judge.
#[derive(Args, Clone, Debug)]
pub struct QuestionArgs {
    /// Source of a connection to judge: an address, or NAMESPACE/NAME of a pod
    #[arg(
        long,
        value_name = "ADDRESS|POD",
        requires_all = ["manifests", "to", "port"],
        conflicts_with_all = ["pod", "node", "namespace"],
        value_parser = End::parse
    )]
    from: Option<End>,
    /// Destination of the connection, as in --from
    #[arg(long, value_name = "ADDRESS|POD", requires_all = ["from", "port"], value_parser = End::parse)]
    to: Option<End>,
    /// Destination port of the connection; the protocol is tcp, udp or sctp [default protocol: tcp]
    #[arg(long, value_name = "PORT[/PROTOCOL]", requires_all = ["from", "to"], value_parser = Port::parse)]
    port: Option<Port>,
}

/// A connection between ends that have one address or one of each family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    from: End,
    to: End,
    port: Port,
}

/// An end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
enum End {
    Address(IpAddr),
    Pod { namespace: String, name: String },
}

/// A port and its protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Port {
    number: u16,
    protocol: &'static str,
    /// IP protocol number.
    protocol_number: u8,
}

/// The protocols with ports, and their IP protocol numbers.
const PROTOCOLS: [(&str, u8); 3] = [("TCP", 6), ("UDP", 17), ("SCTP", 132)];

/// The judgement about a connection, as in JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Judgement {
    from: IpAddr,
    to: IpAddr,
    protocol: &'static str,
    port: u16,
    allowed: bool,
    /// What the policies of the source say; none if it is no pod that policies can select.
    egress: Option<SideRow>,
    /// What the policies of the destination say; none if it is no pod that policies can select.
    ingress: Option<SideRow>,
}

/// The judgement at one end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct SideRow {
    /// The pod, as `namespace/name`.
    pod: String,
    allowed: bool,
    /// `not-isolated`, `itself`, `own-node`, `rule`, or `no-rule`.
    reason: &'static str,
    /// The rules that allow it, as `namespace/name ingress[0]`.
    rules: Vec<String>,
    /// The policies that isolate the pod, if none of their rules allows it.
    isolated_by: Vec<String>,
}

#[derive(Serialize)]
struct Items<'a> {
    items: &'a [Judgement],
}

impl QuestionArgs {
    /// Returns the question, if there is one.
    pub fn asked(&self) -> Option<Question> {
        Some(Question { from: self.from.clone()?, to: self.to.clone()?, port: self.port? })
    }
}

impl Question {
    /// Judges the connection in each family that both ends have.
    pub fn answer(&self, cluster: &Cluster) -> Result<Document, CliError> {
        let (from, to) = (self.from.addresses(cluster)?, self.to.addresses(cluster)?);
        let pairs = from.iter().flat_map(|from| to.iter().map(move |to| (*from, *to)));
        let pairs = pairs.filter(|(from, to)| from.is_ipv4() == to.is_ipv4());
        let judgements: Vec<Judgement> = pairs.map(|(from, to)| self.judge(cluster, from, to)).collect();
        if judgements.is_empty() {
            let message = format!("{} and {} have no addresses of the same family", self.from, self.to);
            return Err(CliError::NotFound(message));
        }
        let text: Vec<String> = judgements.iter().map(Judgement::text).collect();
        Document::lines("PolicyJudgementList", Items { items: &judgements }, text.join("\n"))
    }

    fn judge(&self, cluster: &Cluster, from: IpAddr, to: IpAddr) -> Judgement {
        let Port { number, protocol, protocol_number } = self.port;
        let named = [self.from.pod(), self.to.pod()];
        let [_, target] = &named;
        let is_target = |pod: &PodView<'_>| match target {
            Some(target) => pod.name == target,
            None => !pod.is_host_network && pod.addresses.contains(&to),
        };
        let target = cluster.index.pods().find(is_target);
        let node = target.and_then(|pod| cluster.nodes.get(pod.node)).cloned().unwrap_or_default();
        let connection = Connection { from, to, protocol: protocol_number, port: number };
        let explanation =
            cluster.index.explain_between(connection, &node, named.each_ref().map(Option::as_ref));
        let allowed = explanation.is_allowed();
        let Explanation { egress, ingress } = explanation;
        let row = |side: Option<Side>| side.map(SideRow::of);
        Judgement { from, to, protocol, port: number, allowed, egress: row(egress), ingress: row(ingress) }
    }
}

impl End {
    fn parse(text: &str) -> Result<Self, Refused> {
        if let Ok(address) = text.parse::<IpAddr>() {
            return Ok(Self::Address(address.to_canonical()));
        }
        match text.split_once('/') {
            // A namespace can't have dots or colons, as in a prefix.
            Some((namespace, name))
                if !namespace.is_empty()
                    && !namespace.contains(['.', ':'])
                    && !name.is_empty()
                    && !name.contains('/') =>
            {
                Ok(Self::Pod { namespace: namespace.to_owned(), name: name.to_owned() })
            }
            _ => Err(Refused::new(text, "an address such as 192.0.2.1, or NAMESPACE/NAME of a pod")),
        }
    }

    fn pod(&self) -> Option<NamespacedName> {
        match self {
            Self::Address(_) => None,
            Self::Pod { namespace, name } => Some(NamespacedName::new(namespace.as_str(), name.as_str())),
        }
    }

    fn addresses(&self, cluster: &Cluster) -> Result<Vec<IpAddr>, CliError> {
        let (namespace, name) = match self {
            Self::Address(address) => return Ok(vec![*address]),
            Self::Pod { namespace, name } => (namespace, name),
        };
        let is_meant = |pod: &PodView<'_>| pod.name.namespace == *namespace && pod.name.name == *name;
        let found = cluster.index.pods().find(is_meant);
        let Some(pod) = found else {
            return Err(CliError::NotFound(format!("no pod in the manifests matches \"{self}\"")));
        };
        if pod.addresses.is_empty() {
            return Err(CliError::NotFound(format!("{self} has no address in status.podIPs")));
        }
        Ok(pod.addresses.iter().copied().collect())
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => write!(f, "{address}"),
            Self::Pod { namespace, name } => write!(f, "{namespace}/{name}"),
        }
    }
}

impl Port {
    fn parse(text: &str) -> Result<Self, Refused> {
        let (number, wanted) = text.split_once('/').unwrap_or((text, "tcp"));
        let found = PROTOCOLS.into_iter().find(|(protocol, _)| protocol.eq_ignore_ascii_case(wanted));
        let number = number.parse().ok().filter(|number| *number > 0);
        match (number, found) {
            (Some(number), Some((protocol, protocol_number))) => {
                Ok(Self { number, protocol, protocol_number })
            }
            _ => Err(Refused::new(text, "a port such as 80, or 53/udp; protocols are tcp, udp and sctp")),
        }
    }
}

impl SideRow {
    fn of(side: Side) -> Self {
        let allowed = side.verdict.is_allowed();
        let (reason, rules, isolated_by) = match side.verdict {
            Verdict::NotIsolated => ("not-isolated", Vec::new(), Vec::new()),
            Verdict::Itself => ("itself", Vec::new(), Vec::new()),
            Verdict::OwnNode => ("own-node", Vec::new(), Vec::new()),
            Verdict::Allowed(rules) => ("rule", rules.iter().map(ToString::to_string).collect(), Vec::new()),
            Verdict::Denied(policies) => {
                ("no-rule", Vec::new(), policies.iter().map(ToString::to_string).collect())
            }
        };
        Self { pod: side.pod.to_string(), allowed, reason, rules, isolated_by }
    }

    fn line(&self, direction: Direction) -> String {
        let pod = &self.pod;
        match self.reason {
            "not-isolated" => format!("allowed: no policy isolates {pod} for {direction}"),
            "itself" => format!("allowed: {pod} always reaches itself"),
            "own-node" => format!("allowed: its own node always reaches {pod}"),
            "rule" => format!("allowed by {}", self.rules.join(", ")),
            _ => format!("denied: {} for {direction}, without a rule for this", self.isolation()),
        }
    }

    fn isolation(&self) -> String {
        let verb = if self.isolated_by.len() == 1 { "isolates" } else { "isolate" };
        format!("{} {verb} {}", self.isolated_by.join(", "), self.pod)
    }
}

impl Judgement {
    fn text(&self) -> String {
        let Self { from, to, protocol, port, .. } = self;
        let verdict = if self.allowed { "allowed" } else { "denied" };
        let mut text = format!("connection  {protocol} {from} > {to}, port {port}\n");
        for (direction, side) in [(Direction::Egress, &self.egress), (Direction::Ingress, &self.ingress)] {
            let line = side.as_ref().map_or_else(
                || format!("{} is no pod that policies can select", self.end(direction)),
                |side| side.line(direction),
            );
            // Writing to a String never fails.
            let _ = writeln!(text, "{:<12}{line}", direction.name());
        }
        let _ = writeln!(text, "verdict     {verdict}, by the manifests alone");
        text
    }

    const fn end(&self, direction: Direction) -> IpAddr {
        match direction {
            Direction::Egress => self.from,
            Direction::Ingress => self.to,
        }
    }
}
