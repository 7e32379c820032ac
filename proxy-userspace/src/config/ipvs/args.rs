//! The flags of IPVS.

use ipnet::IpNet;

use super::scheduler;
use crate::config::parse;
use crate::model::Scheduler;

const HEADING: &str = "IPVS";

/// The flags that IPVS alone uses.
#[derive(clap::Args, Clone, Debug, Default, PartialEq, Eq)]
pub struct IpvsArgs {
    /// Scheduler of new connections: rr, wrr, lc, wlc, lblc, lblcr, sh, dh, sed, nq, fo, ovf or mh [default:
    /// rr]
    ///
    /// The annotation kube-router.io/service.scheduler decides for one Service.
    #[arg(long = "ipvs-scheduler", help_heading = HEADING, value_name = "NAME", value_parser = scheduler)]
    pub scheduler: Option<Scheduler>,
    /// Ranges whose virtual services belong to others [default: none]
    ///
    /// The agent leaves these virtual services alone.
    #[arg(
        long = "ipvs-exclude-cidrs", help_heading = HEADING, value_name = "CIDR,...",
        value_parser = parse::range, value_delimiter = ','
    )]
    pub exclude_cidrs: Vec<IpNet>,
    /// ARP answers for an address by its own device only (`arp_ignore` 1, `arp_announce` 2) [default: false]
    #[arg(
        long = "ipvs-strict-arp", help_heading = HEADING, value_name = "true|false",
        value_parser = parse::switch, num_args = 0..=1, require_equals = true,
        default_missing_value = "true"
    )]
    pub strict_arp: Option<bool>,
    /// SNAT of every packet to a backend on another node [default: false]
    #[arg(
        long, help_heading = HEADING, value_name = "true|false", value_parser = parse::switch,
        num_args = 0..=1, require_equals = true, default_missing_value = "true"
    )]
    pub masquerade_all: Option<bool>,
}
