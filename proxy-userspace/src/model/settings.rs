//! The model's settings, fixed at start.

use ipnet::IpNet;

use super::Forwarding;

/// The settings that decide which Services are served, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelSettings {
    /// This node's name.
    pub node_name: String,
    /// The addresses that serve NodePorts.
    pub node_ports: NodePortAddresses,
    /// Prefixes of sources that are inside the cluster.
    pub cluster_ranges: Vec<IpNet>,
    /// The sources that may reach cluster IPs over an uplink.
    pub cluster_ip_clients: ClusterIpClients,
    /// Prefixes that external IPs must be in.
    pub external_ip_ranges: Vec<IpNet>,
    /// The value of the label `service.kubernetes.io/service-proxy-name` of the Services to serve.
    /// `None` = Services without that label.
    pub service_proxy_name: Option<String>,
    /// The way to other nodes for Services without an annotation.
    pub forwarding: Forwarding,
    /// Whether Services without an annotation get a Maglev table. With DSR all do.
    pub maglev: bool,
    /// Slots of a Maglev table, a prime.
    pub maglev_size: u32,
    /// Prefixes of the addresses that nodes announce on their links.
    pub announced_ranges: Vec<IpNet>,
}

/// The sources that may reach cluster IPs over an uplink.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClusterIpClients {
    /// Sources inside the cluster.
    #[default]
    Inside,
    /// All sources: routers know the range.
    All,
}

/// The addresses of this node that serve NodePorts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodePortAddresses {
    /// The Node object's first InternalIP of each family.
    Primary,
    /// Every address on a device of this node within one of these prefixes.
    Within(Vec<IpNet>),
}

/// Slots of a Maglev table by default.
pub const DEFAULT_MAGLEV_SIZE: u32 = 4093;
/// The smallest and largest size of a Maglev table, in slots.
pub const MAGLEV_SIZES: std::ops::RangeInclusive<u32> = 3..=65_537;

/// The reasons why a number can't be the size of a Maglev table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MaglevSizeError {
    /// Too small or too large.
    #[error("takes a prime from {} to {}", MAGLEV_SIZES.start(), MAGLEV_SIZES.end())]
    OutOfRange,
    /// Not a prime.
    #[error("takes a prime from {} to {}; the nearest is {nearest}", MAGLEV_SIZES.start(), MAGLEV_SIZES.end())]
    NotPrime {
        /// The nearest accepted size, the lower one of two.
        nearest: u32,
    },
}

/// Checks the size of a Maglev table. With a size that is no prime, a backend's permutation would
/// miss slots.
pub fn check_maglev_size(size: u32) -> Result<u32, MaglevSizeError> {
    if !MAGLEV_SIZES.contains(&size) {
        return Err(MaglevSizeError::OutOfRange);
    }
    if is_prime(size) {
        return Ok(size);
    }
    let nearest = (1..size)
        .flat_map(|distance| [size - distance, size + distance])
        .find(|candidate| MAGLEV_SIZES.contains(candidate) && is_prime(*candidate));
    Err(nearest.map_or(MaglevSizeError::OutOfRange, |nearest| MaglevSizeError::NotPrime { nearest }))
}

fn is_prime(number: u32) -> bool {
    number > 1
        && (2..number).take_while(|divisor| divisor * divisor <= number).all(|d| !number.is_multiple_of(d))
}

impl Default for ModelSettings {
    fn default() -> Self {
        Self {
            node_name: String::new(),
            node_ports: NodePortAddresses::Primary,
            cluster_ranges: Vec::new(),
            cluster_ip_clients: ClusterIpClients::default(),
            external_ip_ranges: Vec::new(),
            service_proxy_name: None,
            forwarding: Forwarding::Snat,
            maglev: false,
            maglev_size: DEFAULT_MAGLEV_SIZE,
            announced_ranges: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_maglev_size_is_a_prime_in_range_and_the_nearest_one_is_named() {
        assert_eq!(check_maglev_size(4093), Ok(4093));
        assert_eq!(check_maglev_size(3), Ok(3));
        assert_eq!(check_maglev_size(65_537), Ok(65_537));
        assert_eq!(check_maglev_size(2), Err(MaglevSizeError::OutOfRange));
        assert_eq!(check_maglev_size(65_538), Err(MaglevSizeError::OutOfRange));
        assert_eq!(check_maglev_size(4096), Err(MaglevSizeError::NotPrime { nearest: 4093 }));
        assert_eq!(check_maglev_size(65_536), Err(MaglevSizeError::NotPrime { nearest: 65_537 }));
        assert_eq!(check_maglev_size(4), Err(MaglevSizeError::NotPrime { nearest: 3 }));
    }
}
