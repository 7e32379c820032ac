//! The remedies that `--fix` carries out: sysctls, and data planes that an agent has left.

use std::path::PathBuf;

use crate::dataplane::ebpf;
use crate::node::Sysctls;

/// A remedy.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fix {
    /// Sets a sysctl below `net/`.
    Sysctl {
        /// Its name with slashes, such as `ipv4/ip_forward`.
        key: String,
        /// The value.
        value: String,
    },
    /// Removes the programs, maps and links below this `--bpffs-path`, where no agent runs.
    Root(PathBuf),
}

impl Fix {
    /// Sets a sysctl.
    #[expect(clippy::needless_pass_by_value, reason = "callers have a number or a text")]
    pub fn sysctl(key: &str, value: impl ToString) -> Self {
        Self::Sysctl { key: key.to_owned(), value: value.to_string() }
    }

    /// Returns the command that does the same.
    #[must_use]
    pub fn command(&self) -> String {
        match self {
            Self::Sysctl { key, value } if value.contains(char::is_whitespace) => {
                format!("sysctl -w {}=\"{value}\"", name(key))
            }
            Self::Sysctl { key, value } => format!("sysctl -w {}={value}", name(key)),
            Self::Root(path) => format!("millrace cleanup --bpffs-path {}", path.display()),
        }
    }

    /// Carries the remedy out.
    pub fn carry_out(&self) -> Result<(), String> {
        match self {
            Self::Sysctl { key, value } => {
                Sysctls::default().write(key, value).map_err(|error| format!("{}: {error}", name(key)))
            }
            // The settings of the host stay: the agent that runs needs the same ones.
            Self::Root(path) => ebpf::cleanup(path).map(drop).map_err(|error| error.to_string()),
        }
    }
}

/// Returns the usual spelling of a sysctl: `net.ipv4.ip_forward`. A device with a dot in its name needs slashes.
pub fn name(key: &str) -> String {
    if key.contains('.') { format!("net/{key}") } else { format!("net.{}", key.replace('/', ".")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_remedy_is_shown_as_the_command_that_does_the_same() {
        for (fix, command) in [
            (Fix::sysctl("ipv4/ip_forward", 1), "sysctl -w net.ipv4.ip_forward=1"),
            (Fix::sysctl("ipv4/conf/eth0.7/rp_filter", 2), "sysctl -w net/ipv4/conf/eth0.7/rp_filter=2"),
            (
                Fix::sysctl("ipv4/ip_local_port_range", "1 2"),
                "sysctl -w net.ipv4.ip_local_port_range=\"1 2\"",
            ),
            (Fix::Root("/sys/fs/bpf/a".into()), "millrace cleanup --bpffs-path /sys/fs/bpf/a"),
        ] {
            assert_eq!(fix.command(), command);
        }
        let refused = Fix::sysctl("ipv4/no_such_thing", 1).carry_out().unwrap_err();
        assert!(refused.starts_with("net.ipv4.no_such_thing: "), "{refused}");
    }
}
