//! Values of which each is one of a few words.

use super::Refused;
use crate::config::{LogFormat, ProxyMode};
use crate::dataplane::ebpf::{Dispatch, SocketLb, XdpMode};
use crate::dataplane::{Encapsulation, RejectUnknown};
use crate::model::{ClusterIpClients, Forwarding};
use crate::node::PodRoutes;

/// Returns the value of a word.
pub fn choice<T: Copy>(text: &str, choices: &[(&str, T)]) -> Result<T, Refused> {
    let found = choices.iter().find(|(word, _)| *word == text);
    found.map(|(_, value)| *value).ok_or_else(|| {
        let words: Vec<&str> = choices.iter().map(|(word, _)| *word).collect();
        Refused::none_of(&words, text)
    })
}

pub fn proxy_mode(text: &str) -> Result<ProxyMode, Refused> {
    choice(text, &ProxyMode::ALL.map(|mode| (mode.name(), mode)))
}

pub fn log_format(text: &str) -> Result<LogFormat, Refused> {
    choice(text, &LogFormat::ALL.map(|format| (format.name(), format)))
}

pub fn xdp(text: &str) -> Result<XdpMode, Refused> {
    let modes = [
        ("auto", XdpMode::Auto),
        ("native", XdpMode::Native),
        ("generic", XdpMode::Generic),
        ("off", XdpMode::Off),
    ];
    choice(text, &modes)
}

pub fn reject_unknown(text: &str) -> Result<RejectUnknown, Refused> {
    choice(text, &RejectUnknown::ALL.map(|kind| (kind.name(), kind)))
}

pub fn cluster_ip_clients(text: &str) -> Result<ClusterIpClients, Refused> {
    choice(text, &[("inside", ClusterIpClients::Inside), ("all", ClusterIpClients::All)])
}

pub fn forwarding(text: &str) -> Result<Forwarding, Refused> {
    choice(text, &[("snat", Forwarding::Snat), ("dsr", Forwarding::Dsr)])
}

/// The choice of a backend without the size of a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AlgorithmWord {
    /// Random.
    #[default]
    Random,
    /// A Maglev table.
    Maglev,
}

pub fn algorithm(text: &str) -> Result<AlgorithmWord, Refused> {
    choice(text, &[("random", AlgorithmWord::Random), ("maglev", AlgorithmWord::Maglev)])
}

pub fn encapsulation(text: &str) -> Result<Encapsulation, Refused> {
    choice(text, &Encapsulation::ALL.map(|one| (one.name(), one)))
}

/// Returns the encapsulation that the node sends, and the other one that it accepts.
pub fn encapsulations(
    list: &[Encapsulation],
) -> Result<Option<(Encapsulation, Option<Encapsulation>)>, Refused> {
    match list {
        [] => Ok(None),
        [sent] => Ok(Some((*sent, None))),
        [sent, taken] if sent != taken => Ok(Some((*sent, Some(*taken)))),
        _ => {
            let given = list.iter().map(|one| one.name()).collect::<Vec<_>>().join(",");
            Err(Refused::new(&given, "ipip, fou, or both once, what is sent first"))
        }
    }
}

pub fn dispatch(text: &str) -> Result<Dispatch, Refused> {
    choice(text, &Dispatch::ALL.map(|one| (one.name(), one)))
}

pub fn socket_lb(text: &str) -> Result<SocketLb, Refused> {
    choice(text, &[SocketLb::All, SocketLb::Host, SocketLb::Off].map(|lb| (lb.name(), lb)))
}

pub fn pod_routes(text: &str) -> Result<PodRoutes, Refused> {
    choice(text, &PodRoutes::ALL.map(|one| (one.name(), one)))
}

/// Reads a switch with two words.
pub fn on_off(text: &str) -> Result<bool, Refused> {
    choice(text, &[("on", true), ("off", false)])
}

/// Reads a switch. The flag alone stands for `true`; clap adds it.
pub fn switch(text: &str) -> Result<bool, Refused> {
    choice(text, &[("true", true), ("false", false)])
}
