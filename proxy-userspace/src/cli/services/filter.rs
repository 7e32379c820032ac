//! The filters of `millrace services`.

use clap::{Args, ValueEnum};
use ipnet::IpNet;

use crate::cli::argument::prefix;
use crate::cli::service_port::ServicePort;
use crate::config::Refused;
use crate::dataplane::ebpf::read::FrontendView;

/// The filters; a Service port has to pass all that are given.
#[derive(Args, Clone, Debug, Default)]
#[allow(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
pub struct FilterArgs {
    /// Services of this type
    #[arg(long = "type", value_name = "TYPE", value_enum, value_delimiter = ',')]
    kinds: Vec<Kind>,
    /// Frontends for clients of this scope
    #[arg(long, value_name = "SCOPE", value_enum)]
    scope: Option<Scope>,
    /// Frontends of this address family
    #[arg(long, value_name = "FAMILY", value_enum)]
    family: Option<Family>,
    /// Frontends with an address in this prefix
    #[arg(long, value_name = "PREFIX", value_parser = prefix)]
    address: Option<IpNet>,
    /// Frontends with this port number
    #[arg(long, value_name = "PORT", value_parser = port)]
    port: Option<u16>,
    /// Frontends of this protocol
    #[arg(long, value_name = "PROTOCOL", value_enum)]
    protocol: Option<Protocol>,
    /// Services without a usable endpoint
    #[arg(long)]
    no_endpoints: bool,
    /// Services with policy Local
    #[arg(long)]
    local: bool,
    /// Services with Direct Server Return
    #[arg(long)]
    dsr: bool,
    /// Services with a PROBLEM
    #[arg(long)]
    problems: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "PascalCase")]
enum Kind {
    #[value(alias = "lb")]
    LoadBalancer,
    #[value(alias = "np")]
    NodePort,
    #[value(name = "ClusterIP", alias = "cip")]
    ClusterIp,
    #[value(name = "ExternalIP", alias = "ext")]
    ExternalIp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Scope {
    External,
    Internal,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Family {
    #[value(name = "4")]
    V4,
    #[value(name = "6")]
    V6,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Protocol {
    Tcp,
    Udp,
    Sctp,
}

fn port(text: &str) -> Result<u16, Refused> {
    text.parse().ok().filter(|port| *port > 0).ok_or_else(|| Refused::new(text, "1 to 65535"))
}

impl FilterArgs {
    /// Whether a Service port passes.
    pub fn keeps(&self, service: &ServicePort) -> bool {
        let is_local = [&service.external_policy, &service.internal_policy]
            .into_iter()
            .flatten()
            .any(|policy| policy == "Local");
        (self.kinds.is_empty() || self.kinds.iter().any(|kind| kind.name() == service.kind))
            && (!self.no_endpoints || service.ready == 0)
            && (!self.local || is_local)
            && (!self.dsr || service.forwarding == "dsr")
            && (!self.problems || service.problem.is_some())
            && service.frontends().any(|one| self.keeps_frontend(one))
    }

    /// Whether a frontend passes the filters that concern frontends.
    pub fn keeps_frontend(&self, frontend: &FrontendView) -> bool {
        let ip = frontend.address.ip();
        self.scope.is_none_or(|scope| scope.name() == frontend.scope)
            && self.family.is_none_or(|family| (family == Family::V4) == ip.is_ipv4())
            && self.address.is_none_or(|prefix| prefix.contains(&ip))
            && self.port.is_none_or(|port| port == frontend.address.port())
            && self.protocol.is_none_or(|protocol| protocol.name() == frontend.protocol)
    }
}

impl Kind {
    const fn name(self) -> &'static str {
        match self {
            Self::LoadBalancer => "LoadBalancer",
            Self::NodePort => "NodePort",
            Self::ClusterIp => "ClusterIP",
            Self::ExternalIp => "ExternalIP",
        }
    }
}

impl Scope {
    const fn name(self) -> &'static str {
        match self {
            Self::External => "external",
            Self::Internal => "internal",
        }
    }
}

impl Protocol {
    const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Sctp => "SCTP",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::argument::parsed;
    use crate::cli::service_port::tests::{list, shop};

    fn kept(flags: &str) -> Vec<String> {
        let filter: FilterArgs = parsed(flags);
        let mut ports = shop();
        let mut dsr = list("lan/dns", "Cluster", &[("192.0.2.53:53", "ExternalIP")], &[]);
        dsr.frontends[0].forwarding = "dsr".into();
        dsr.frontends[0].protocol = "UDP".into();
        dsr.frontends[0].scope = "internal".into();
        ports.extend(ServicePort::join(vec![dsr]));
        ports.iter().filter(|port| filter.keeps(port)).map(ServicePort::label).collect()
    }

    #[test]
    fn each_filter_keeps_what_it_names() {
        let (db, web, dns) = ("shop/db", "shop/web:http", "lan/dns");
        for (flags, wanted) in [
            ("", &[db, web, dns][..]),
            ("--type LoadBalancer", &[web]),
            ("--type lb,ClusterIP", &[db, web]),
            ("--family 6", &[web]),
            ("--address 203.0.113.0/24", &[web]),
            ("--address 10.96.0.10", &[db]),
            ("--port 30080", &[web]),
            ("--protocol udp", &[dns]),
            ("--no-endpoints", &[dns]),
            ("--problems", &[dns]),
            ("--local", &[web]),
            ("--dsr", &[dns]),
            ("--scope internal", &[dns]),
            ("--dsr --family 6", &[]),
            ("--family 6 --port 80", &[web]),
            ("--address 203.0.113.9 --port 30080", &[]),
        ] {
            assert_eq!(kept(flags), wanted, "{flags}");
        }
    }
}
