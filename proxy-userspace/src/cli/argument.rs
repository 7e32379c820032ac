//! Values that the arguments of several commands take.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::config::Refused;

/// Parses a prefix. An address stands for itself.
pub fn prefix(text: &str) -> Result<IpNet, Refused> {
    let address = || text.parse().ok().map(|address: IpAddr| address.into());
    text.parse()
        .ok()
        .or_else(address)
        .ok_or_else(|| Refused::new(text, "a prefix such as 192.0.2.0/24, or an address"))
}

/// Returns the arguments that a command line has, without the name of its command.
#[cfg(test)]
pub fn parsed<T: clap::Args>(line: &str) -> T {
    let command = T::augment_args(clap::Command::new("command").no_binary_name(true));
    T::from_arg_matches(&command.try_get_matches_from(line.split_whitespace()).unwrap()).unwrap()
}
