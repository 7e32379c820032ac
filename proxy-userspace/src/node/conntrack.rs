//! The settings of the kernel's connection tracking that kube-proxy makes. No other program makes
//! them in its place.

use std::fs;
use std::path::PathBuf;
use std::thread::available_parallelism;
use std::time::Duration;

use tokio::time::sleep;
use tracing::{debug, info};

use super::Sysctls;

/// Time between two checks whether connection tracking is in use: its settings appear with its
/// module.
const INTERVAL: Duration = Duration::from_secs(30);
const MAX: &str = "netfilter/nf_conntrack_max";

/// Settings of the kernel's connection tracking. 0 leaves what is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conntrack {
    /// Connections to have room for, for each processor.
    pub max_per_core: u32,
    /// The least room, where `max_per_core` is not 0.
    pub min: u32,
    /// Seconds that an idle established TCP connection is kept.
    pub established: u32,
    /// Seconds that a TCP connection in CLOSE_WAIT is kept.
    pub close_wait: u32,
    /// TCP segments outside the window are not invalid.
    pub be_liberal: bool,
    /// Seconds that a UDP flow without a reply is kept.
    pub udp: u32,
    /// Seconds that a UDP flow with replies is kept.
    pub udp_stream: u32,
}

impl Default for Conntrack {
    /// Returns kube-proxy's defaults.
    fn default() -> Self {
        Self {
            max_per_core: 32_768,
            min: 131_072,
            established: 86_400,
            close_wait: 3_600,
            be_liberal: false,
            udp: 0,
            udp_stream: 0,
        }
    }
}

impl Conntrack {
    /// Returns the limit for so many processors; `None` leaves the limit as it is.
    #[must_use]
    pub fn max(&self, processors: usize) -> Option<u32> {
        let processors = u32::try_from(processors).unwrap_or(u32::MAX);
        (self.max_per_core > 0).then(|| self.max_per_core.saturating_mul(processors).max(self.min))
    }
}

/// Makes the settings once connection tracking is in use in this network namespace.
pub async fn set_up(wanted: Conntrack) {
    let tracking = Tracking::default();
    while !tracking.apply(&wanted) {
        debug!("the kernel's connection tracking is not in use: its settings are left alone");
        sleep(INTERVAL).await;
    }
}

/// Makes the settings if connection tracking is in use now.
pub fn apply(wanted: &Conntrack) {
    if !Tracking::default().apply(wanted) {
        info!("the kernel's connection tracking is not in use: its settings are left alone");
    }
}

/// The places of the settings.
struct Tracking {
    sysctls: Sysctls,
    /// The size of the hash table, for all network namespaces.
    buckets: PathBuf,
}

impl Default for Tracking {
    fn default() -> Self {
        let buckets = PathBuf::from("/sys/module/nf_conntrack/parameters/hashsize");
        Self { sysctls: Sysctls::default(), buckets }
    }
}

impl Tracking {
    /// Makes the settings. Returns whether connection tracking is in use.
    fn apply(&self, wanted: &Conntrack) -> bool {
        if !self.sysctls.has(MAX) {
            return false;
        }
        let processors = available_parallelism().map_or(1, std::num::NonZero::get);
        if let Some(max) = wanted.max(processors)
            && self.sysctls.raise(MAX, max)
        {
            self.add_buckets(max / 4);
        }
        let seconds = [
            ("netfilter/nf_conntrack_tcp_timeout_established", wanted.established),
            ("netfilter/nf_conntrack_tcp_timeout_close_wait", wanted.close_wait),
            ("netfilter/nf_conntrack_tcp_be_liberal", u32::from(wanted.be_liberal)),
            ("netfilter/nf_conntrack_udp_timeout", wanted.udp),
            ("netfilter/nf_conntrack_udp_timeout_stream", wanted.udp_stream),
        ];
        for (key, value) in seconds.into_iter().filter(|(_, value)| *value != 0) {
            self.sysctls.require(key, &value.to_string());
        }
        true
    }

    /// Enlarges the hash table, which does not grow with the limit: its chains would become long.
    fn add_buckets(&self, wanted: u32) {
        let now = fs::read_to_string(&self.buckets).ok().and_then(|text| text.trim().parse::<u32>().ok());
        let Some(now) = now.filter(|now| *now < wanted) else { return };
        match fs::write(&self.buckets, wanted.to_string()) {
            Ok(()) => info!(from = now, to = wanted, "nf_conntrack hashsize raised"),
            Err(error) => debug!(value = now, %error, "nf_conntrack hashsize can't be raised"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::sysctl::tests::fresh;
    use super::*;

    fn tracking(name: &str, max: &str) -> Tracking {
        let sysctls = fresh(
            name,
            &[
                (MAX, max),
                ("netfilter/nf_conntrack_tcp_timeout_established", "432000\n"),
                ("netfilter/nf_conntrack_tcp_timeout_close_wait", "60\n"),
                ("netfilter/nf_conntrack_tcp_be_liberal", "0\n"),
                ("netfilter/nf_conntrack_udp_timeout", "30\n"),
                ("netfilter/nf_conntrack_udp_timeout_stream", "120\n"),
            ],
        );
        let buckets = sysctls.path("hashsize");
        fs::write(&buckets, "4096\n").unwrap();
        Tracking { sysctls, buckets }
    }

    #[test]
    fn what_is_wanted_is_set_and_zero_leaves_what_is_there() {
        let tracking = tracking("conntrack", "4096\n");
        let read = |key: &str| tracking.sysctls.read(format!("netfilter/nf_conntrack_{key}")).unwrap();
        let wanted =
            Conntrack { max_per_core: 1, min: 40_000, established: 0, udp: 20, ..Conntrack::default() };
        assert!(tracking.apply(&wanted));
        assert_eq!(read("max"), "40000");
        assert_eq!(fs::read_to_string(&tracking.buckets).unwrap(), "10000");
        assert_eq!(read("tcp_timeout_established"), "432000");
        assert_eq!(read("tcp_timeout_close_wait"), "3600");
        assert_eq!(read("tcp_be_liberal"), "0");
        assert_eq!((read("udp_timeout"), read("udp_timeout_stream")), ("20".to_owned(), "120".to_owned()));
        assert!(tracking.apply(&Conntrack { be_liberal: true, min: 10_000, ..wanted }));
        assert_eq!(
            (read("max"), read("tcp_be_liberal")),
            ("40000".to_owned(), "1".to_owned()),
            "raised only"
        );
        fs::remove_dir_all(tracking.sysctls.path("")).unwrap();
    }

    #[test]
    fn without_connection_tracking_nothing_is_set() {
        let sysctls = fresh("no-conntrack", &[("ipv4/ip_forward", "0\n")]);
        let tracking = Tracking { sysctls, ..Tracking::default() };
        assert!(!tracking.apply(&Conntrack::default()));
        fs::remove_dir_all(tracking.sysctls.path("")).unwrap();
    }

    #[test]
    fn the_limit_grows_with_the_processors_and_has_a_least_one() {
        let wanted = Conntrack::default();
        assert_eq!(wanted.max(2), Some(131_072));
        assert_eq!(wanted.max(16), Some(524_288));
        assert_eq!(Conntrack { max_per_core: 0, ..wanted }.max(16), None, "min alone asks for nothing");
        assert_eq!(Conntrack { max_per_core: u32::MAX, ..wanted }.max(3), Some(u32::MAX));
    }
}
