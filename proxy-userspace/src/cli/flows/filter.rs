//! The filters of `millrace flows`.

use std::net::SocketAddr;
use std::time::Duration;

use clap::{Args, ValueEnum};
use ipnet::IpNet;

use super::connection::{Ends, ends, path};
use crate::cli::argument::prefix;
use crate::cli::output::duration;
use crate::dataplane::ebpf::read::FlowView;
use crate::dataplane::ipvs;

/// The filters; an entry has to pass all that are given.
#[derive(Args, Clone, Debug, Default)]
pub struct FilterArgs {
    /// Connections of clients in this prefix
    #[arg(long, value_name = "PREFIX", value_parser = prefix)]
    client: Option<IpNet>,
    /// Connections to backends in this prefix
    #[arg(long, value_name = "PREFIX", value_parser = prefix)]
    backend: Option<IpNet>,
    /// Connections in one of these states, such as syn, established, closing or datagram
    #[arg(long, value_name = "STATE", value_delimiter = ',')]
    state: Vec<String>,
    /// Connections without a packet for this time
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    older: Option<Duration>,
    /// Connections that take this path to their backend
    #[arg(long, value_name = "PATH", value_enum)]
    via: Option<Via>,
}

/// The path to a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Via {
    /// Direct Server Return, on the director or on the backend's node
    Dsr,
    /// Source translation
    Snat,
    /// To a backend of this node
    Direct,
}

impl FilterArgs {
    /// Whether an entry passes all filters but that of its age, which a connection's entries share.
    pub fn keeps(&self, flow: &FlowView) -> bool {
        let via = match path(flow) {
            "snat" => Via::Snat,
            "direct" => Via::Direct,
            _ => Via::Dsr,
        };
        self.keeps_ends(ends(flow))
            && self.keeps_state(&flow.state)
            && self.via.is_none_or(|wanted| wanted == via)
    }

    /// Whether an entry is old enough.
    pub fn keeps_age(&self, flow: &FlowView) -> bool {
        self.older.is_none_or(|older| u64::from(flow.idle_seconds) >= older.as_secs())
    }

    /// Whether a connection is old enough: both entries are. `twin` returns the other one.
    pub fn keeps_age_of_both(&self, flow: &FlowView, twin: impl FnOnce() -> Option<FlowView>) -> bool {
        // To look for the other entry takes time.
        self.older.is_none() || self.keeps_age(flow) && twin().is_none_or(|twin| self.keeps_age(&twin))
    }

    /// Whether a connection of IPVS passes. IPVS counts down, so it has no age.
    pub fn keeps_ipvs(&self, flow: &ipvs::FlowView) -> bool {
        let frontend = flow.destination.unwrap_or(flow.backend);
        self.keeps_ends((flow.source, frontend, flow.backend))
            && self.keeps_state(&flow.state)
            && self.older.is_none()
            && self.via.is_none()
    }

    fn keeps_ends(&self, (client, _, backend): Ends) -> bool {
        let is_in = |prefix: Option<IpNet>, address: SocketAddr| {
            prefix.is_none_or(|prefix| prefix.contains(&address.ip()))
        };
        is_in(self.client, client) && is_in(self.backend, backend)
    }

    fn keeps_state(&self, state: &str) -> bool {
        self.state.is_empty() || self.state.iter().any(|wanted| wanted.eq_ignore_ascii_case(state))
    }
}

#[cfg(test)]
mod tests {
    use super::super::connection::tests::{request, translated_reply};
    use super::*;
    use crate::cli::argument::parsed;

    #[test]
    fn each_filter_keeps_what_it_names() {
        let (request, reply) = (request(), translated_reply());
        for (flags, wanted) in [
            ("", (true, true)),
            ("--client 198.51.100.7", (true, true)),
            ("--client 198.51.100.0/29", (true, true)),
            ("--client 10.1.0.5", (false, false)),
            ("--backend 10.1.0.0/24", (true, true)),
            ("--backend 192.0.2.1", (false, false)),
            ("--state syn,closing", (false, true)),
            ("--via snat", (false, true)),
            ("--via dsr", (false, false)),
            ("--via direct", (true, false)),
        ] {
            let filter: FilterArgs = parsed(flags);
            assert_eq!((filter.keeps(&request), filter.keeps(&reply)), wanted, "{flags}");
        }
        let older: FilterArgs = parsed("--older 10m");
        let idle = |idle_seconds| FlowView { idle_seconds, ..request.clone() };
        assert!(older.keeps_age(&idle(600)) && !older.keeps_age(&idle(599)));
        let both = |one, other| older.keeps_age_of_both(&idle(one), || Some(idle(other)));
        assert!(both(600, 600) && !both(600, 599) && !both(599, 600));
        assert!(older.keeps_age_of_both(&idle(600), || None));
    }
}
