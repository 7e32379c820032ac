//! The check for flags that name the same addresses.

use ipnet::IpNet;

use super::ConfigError;
use crate::dataplane::ebpf::OuterSource;

/// Refuses outer sources that overlap with addresses of pods or Services.
///
/// Other nodes would take their packets for packets of a pod or a Service. Each of `ranges` has its flag or
/// its file.
pub(super) fn check_outer_source(
    outer: &OuterSource,
    ranges: &[(String, &[IpNet])],
) -> Result<(), ConfigError> {
    let overlaps = |one: &IpNet, other: &IpNet| one.contains(other) || other.contains(one);
    for prefix in outer.prefixes() {
        for (origin, ranges) in ranges {
            if let Some(range) = ranges.iter().find(|range| overlaps(&prefix, range)) {
                let range = range.trunc();
                return Err(ConfigError {
                    origin: "--dsr-outer-source".to_owned(),
                    message: format!("{prefix} overlaps {range} of {origin}; takes unused addresses"),
                });
            }
        }
    }
    Ok(())
}
