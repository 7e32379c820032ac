//! The settings of the IPVS data plane alone.

use ipnet::IpNet;

use super::{AgentArgs, ConfigError, IpvsSettings, ProxyMode, parse};
use crate::dataplane::ipvs::{Arp, Masquerade, Rules, Timeouts};
use crate::model::{ModelSettings, Scheduler};

/// The settings that a file has for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileIpvs {
    pub scheduler: Option<Scheduler>,
    pub excluded: Vec<IpNet>,
    pub strict_arp: bool,
    pub masquerade_all: bool,
    pub timeouts: Timeouts,
}

pub(super) fn settings(
    args: &AgentArgs,
    file: &FileIpvs,
    mode: ProxyMode,
    model: &ModelSettings,
) -> Result<IpvsSettings, ConfigError> {
    let mark = parse::mark(args.fwmark.as_deref())?;
    if mode == ProxyMode::Ipvs && mark.mask == 0 {
        let message =
            "0/0 is not accepted with --proxy-mode ipvs; takes a mark, which says what is masqueraded";
        return Err(ConfigError { origin: "--fwmark".to_owned(), message: message.to_owned() });
    }
    let switch =
        |flag, text: &Option<String>, file| Ok(parse::switch(flag, text.as_deref())?.unwrap_or(file));
    let strict_arp = switch("--ipvs-strict-arp", &args.ipvs_strict_arp, file.strict_arp)?;
    let masquerade_all = switch("--masquerade-all", &args.masquerade_all, file.masquerade_all)?;
    let (encapsulation, also_taken) = parse::encapsulations(&args.dsr_encap)?;
    let rules = Rules {
        scheduler: match file.scheduler {
            Some(scheduler) if args.ipvs_scheduler.is_none() => scheduler,
            _ => parse::scheduler("--ipvs-scheduler", args.ipvs_scheduler.as_deref())?,
        },
        excluded: if args.ipvs_exclude_cidrs.is_empty() {
            file.excluded.clone()
        } else {
            parse::ranges("--ipvs-exclude-cidrs", &args.ipvs_exclude_cidrs)?
        },
        reject_unknown: parse::reject_unknown(args.reject_unknown_ports.as_deref())?,
        masquerade: if masquerade_all {
            Masquerade::All
        } else {
            Masquerade::Outside(model.cluster_ranges.clone())
        },
        encapsulation,
        also_taken,
    };
    let arp = if strict_arp { Arp::Strict } else { Arp::AsIs };
    let kept_ports = parse::snat_ports(args.snat_ports.as_deref())?;
    Ok(IpvsSettings { rules, mark, arp, timeouts: file.timeouts, kept_ports })
}
