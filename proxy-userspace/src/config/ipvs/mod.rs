//! The settings that IPVS alone uses: flags, fields of the file, and their meaning.

mod args;
mod file;

pub use args::IpvsArgs;
pub use file::FileIpvs;

use super::error::Refused;
use super::{ConfigError, IpvsSettings, ProxyMode, Settings, given, parse};
use crate::dataplane::ipvs::{Arp, Masquerade, Rules};
use crate::model::Scheduler;

/// Returns the settings of IPVS. `settings` has the ones of both data planes.
pub(super) fn resolve(
    args: &IpvsArgs,
    file: &FileIpvs,
    settings: &Settings,
) -> Result<IpvsSettings, ConfigError> {
    if settings.proxy_mode == ProxyMode::Ipvs && settings.mark.mask == 0 {
        let message =
            "0/0 is not accepted with --proxy-mode ipvs; takes a mark, which says what is masqueraded";
        return Err(ConfigError { origin: "--fwmark".to_owned(), message: message.to_owned() });
    }
    let rules = Rules {
        scheduler: args.scheduler.or(file.scheduler).unwrap_or_default(),
        excluded: given(&args.exclude_cidrs).unwrap_or_else(|| file.excluded.clone()),
        reject_unknown: settings.reject_unknown,
        masquerade: if args.masquerade_all.unwrap_or(file.masquerade_all) {
            Masquerade::All
        } else {
            Masquerade::Outside(settings.model.cluster_ranges.clone())
        },
        encapsulation: settings.dsr.encapsulation,
        also_taken: settings.dsr.also_taken,
    };
    Ok(IpvsSettings {
        rules,
        mark: settings.mark,
        arp: if args.strict_arp.unwrap_or(file.strict_arp) { Arp::Strict } else { Arp::AsIs },
        timeouts: file.timeouts,
        kept_ports: settings.snat_ports.clone(),
    })
}

fn scheduler(text: &str) -> Result<Scheduler, Refused> {
    parse::choice(text, &Scheduler::words())
}

#[cfg(test)]
mod tests;
