//! The measured cases: a walk in a family, over a number of flows and Services.

use millrace_lab::program::Hook;

use super::walk::Walk;
use super::wrapper::Repetition;

/// A case to measure.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// The walk.
    pub walk: Walk,
    /// The program.
    pub hook: Hook,
    /// IPv6 instead of IPv4.
    pub is_v6: bool,
    /// The number of flows that the rounds rotate over.
    pub flows: u32,
    /// The number of Services that the rounds rotate over, unless the walk is of packets that are
    /// not ours.
    pub services: u32,
    /// The slots of a Maglev table.
    pub slots: u32,
}

/// More flows than any run has rounds, so each round is another flow.
const EVER_NEW: u32 = u32::MAX;
/// As many connections as there are SNAT ports for, with room to find one.
const SNAT_FLOWS: u32 = 2_000;
const TEN_THOUSAND: u32 = 10_000;
const HUNDRED_THOUSAND: u32 = 100_000;
const MILLION: u32 = 1_000_000;
/// The slots of the first figures.
const FEW_SLOTS: u32 = 251;
/// The default of `--maglev-table-size`.
const DEFAULT_SLOTS: u32 = 4093;

/// Returns all cases, in the order of the output.
pub fn all() -> Vec<Case> {
    let walks = [&NOT_OURS[..], &LOCAL, &DSR, &SNAT, &OTHERS].concat();
    let case = |is_v6| {
        move |(walk, hook, flows, services)| Case { walk, hook, is_v6, flows, services, slots: FEW_SLOTS }
    };
    let mut cases: Vec<Case> =
        walks.into_iter().flat_map(|walk| [case(false)(walk), case(true)(walk)]).collect();
    let many = (Walk::DsrEstablished, Hook::XdpIngress, TEN_THOUSAND, TEN_THOUSAND);
    for is_v6 in [false, true] {
        cases.push(Case { slots: DEFAULT_SLOTS, ..case(is_v6)(many) });
    }
    cases
}

type Row = (Walk, Hook, u32, u32);

const NOT_OURS: [Row; 12] = [
    (Walk::NotOurs, Hook::XdpIngress, 1, 1),
    (Walk::NotOurs, Hook::TcIngress, 1, 1),
    (Walk::NotOurs, Hook::TcEgress, 1, 1),
    (Walk::NotOurs, Hook::TcPodIn, 1, 1),
    (Walk::NotOurs, Hook::TcPodOut, 1, 1),
    (Walk::NotOursServed, Hook::TcEgress, 1, 1),
    (Walk::NotOursServed, Hook::TcPodOut, 1, 1),
    (Walk::NotOurs, Hook::XdpIngress, 1, TEN_THOUSAND),
    (Walk::NotOurs, Hook::TcIngress, 1, TEN_THOUSAND),
    (Walk::NotOurs, Hook::TcEgress, 1, TEN_THOUSAND),
    (Walk::NotOurs, Hook::TcPodIn, 1, TEN_THOUSAND),
    (Walk::NotOurs, Hook::TcPodOut, 1, TEN_THOUSAND),
];

const LOCAL: [Row; 15] = [
    (Walk::LocalNew, Hook::XdpIngress, EVER_NEW, 1),
    (Walk::LocalNew, Hook::TcIngress, EVER_NEW, 1),
    (Walk::LocalEstablished, Hook::XdpIngress, 1, 1),
    (Walk::LocalEstablished, Hook::XdpIngress, TEN_THOUSAND, 1),
    (Walk::LocalEstablished, Hook::XdpIngress, TEN_THOUSAND, TEN_THOUSAND),
    (Walk::LocalEstablished, Hook::XdpIngress, HUNDRED_THOUSAND, 1),
    (Walk::LocalEstablished, Hook::XdpIngress, MILLION, 1),
    (Walk::LocalEstablished, Hook::TcIngress, 1, 1),
    (Walk::LocalEstablished, Hook::TcPodIn, 1, 1),
    (Walk::LocalUdp, Hook::XdpIngress, 1, 1),
    (Walk::LocalUdp, Hook::XdpIngress, TEN_THOUSAND, 1),
    (Walk::LocalUdp, Hook::TcIngress, 1, 1),
    (Walk::LocalAffinity, Hook::XdpIngress, 1, 1),
    (Walk::LocalSourceRanges, Hook::XdpIngress, 1, 1),
    (Walk::LocalNodePort, Hook::XdpIngress, 1, 1),
];

const DSR: [Row; 15] = [
    (Walk::DsrNew, Hook::XdpIngress, EVER_NEW, 1),
    (Walk::DsrEstablished, Hook::XdpIngress, 1, 1),
    (Walk::DsrEstablished, Hook::XdpIngress, TEN_THOUSAND, 1),
    (Walk::DsrEstablished, Hook::XdpIngress, TEN_THOUSAND, TEN_THOUSAND),
    (Walk::DsrEstablished, Hook::XdpIngress, HUNDRED_THOUSAND, 1),
    (Walk::DsrEstablished, Hook::XdpIngress, MILLION, 1),
    (Walk::DsrNew, Hook::TcIngress, EVER_NEW, 1),
    (Walk::DsrEstablished, Hook::TcIngress, 1, 1),
    (Walk::DsrUdp, Hook::XdpIngress, 1, 1),
    (Walk::DsrUdp, Hook::XdpIngress, HUNDRED_THOUSAND, 1),
    (Walk::DsrUnsettled, Hook::XdpIngress, 1, 1),
    (Walk::DsrUnsettled, Hook::XdpIngress, TEN_THOUSAND, 1),
    (Walk::DsrAffinity, Hook::XdpIngress, 1, 1),
    (Walk::DsrSourceRanges, Hook::XdpIngress, 1, 1),
    (Walk::DsrNodePort, Hook::XdpIngress, 1, 1),
];

const SNAT: [Row; 6] = [
    (Walk::SnatNew, Hook::XdpIngress, EVER_NEW, 1),
    (Walk::SnatEstablished, Hook::XdpIngress, 1, 1),
    (Walk::SnatEstablished, Hook::XdpIngress, SNAT_FLOWS, 1),
    (Walk::SnatEstablished, Hook::TcIngress, 1, 1),
    (Walk::SnatUdp, Hook::XdpIngress, 1, 1),
    (Walk::SnatUdp, Hook::TcIngress, 1, 1),
];

const OTHERS: [Row; 16] = [
    (Walk::Reply, Hook::TcEgress, 1, 1),
    (Walk::Reply, Hook::TcPodOut, 1, 1),
    (Walk::SnatReply, Hook::XdpIngress, 1, 1),
    (Walk::SnatReply, Hook::TcIngress, 1, 1),
    (Walk::DecapIpip, Hook::XdpIngress, 1, 1),
    (Walk::DecapIpip, Hook::XdpIngress, TEN_THOUSAND, 1),
    (Walk::DecapIpip, Hook::TcIngress, 1, 1),
    (Walk::DecapFou, Hook::XdpIngress, 1, 1),
    (Walk::DecapFou, Hook::XdpIngress, TEN_THOUSAND, 1),
    (Walk::DecapFou, Hook::TcIngress, 1, 1),
    (Walk::Echo, Hook::XdpIngress, 1, 1),
    (Walk::Echo, Hook::TcIngress, 1, 1),
    (Walk::Error, Hook::XdpIngress, 1, 1),
    (Walk::Error, Hook::TcIngress, 1, 1),
    (Walk::Dropped, Hook::XdpIngress, 1, 1),
    (Walk::Dropped, Hook::TcIngress, 1, 1),
];

impl Case {
    /// Returns the case in one line. It stays the same between versions.
    pub fn name(&self) -> String {
        let (walk, family, program, services) =
            (self.walk.name(), self.family(), self.hook.program(), self.services);
        let flows = if self.has_flows() { self.flows.to_string() } else { "ever new".into() };
        let slots = if self.slots == FEW_SLOTS { String::new() } else { format!(", slots: {}", self.slots) };
        format!("{program}: {walk}, {family}, flows: {flows}, services: {services}{slots}")
    }

    /// Returns "IPv4" or "IPv6".
    pub const fn family(&self) -> &'static str {
        if self.is_v6 { "IPv6" } else { "IPv4" }
    }

    /// Returns whether the rounds return to earlier flows. Otherwise each round is another flow.
    pub const fn has_flows(&self) -> bool {
        self.flows != EVER_NEW
    }

    /// Returns the number of frontends that the rounds rotate over.
    pub const fn frontends(&self) -> u32 {
        match self.walk {
            Walk::NotOurs | Walk::NotOursServed => 1,
            _ => self.services,
        }
    }

    /// Returns the nanoseconds to reach, if there is a goal.
    pub fn goal(&self) -> Option<f64> {
        use Hook::{TcEgress, TcIngress, TcPodIn, TcPodOut, XdpIngress};
        let (v4, v6) = match (self.walk, self.hook, self.flows) {
            (Walk::NotOurs, XdpIngress | TcIngress | TcPodIn, _) => (6.0, 6.0),
            (Walk::NotOurs, TcEgress | TcPodOut, _) => (10.0, 10.0),
            (Walk::LocalNew, XdpIngress, _) => (600.0, 600.0),
            (Walk::LocalEstablished, XdpIngress, 1) => (85.0, 100.0),
            (Walk::LocalEstablished, XdpIngress, MILLION) => (250.0, 300.0),
            (Walk::LocalEstablished, TcIngress, 1) => (130.0, 150.0),
            (Walk::DsrEstablished, TcIngress, 1) => (150.0, 165.0),
            (Walk::SnatEstablished, XdpIngress, 1) => (110.0, 130.0),
            (Walk::Reply, TcEgress, 1) => (90.0, 115.0),
            _ => return None,
        };
        Some(if self.is_v6 { v6 } else { v4 })
    }

    /// Returns whether another case is the same but for the number of Services, and with one.
    pub fn is_many_of(&self, other: &Self) -> bool {
        let same = |case: &Self| (case.walk, case.hook.program(), case.is_v6, case.flows);
        same(self) == same(other) && self.frontends() > 1 && other.services == 1
    }

    /// Returns how rounds can be repeated. TC can change the room of an skb only once.
    pub const fn repetition(&self) -> Repetition {
        match (self.walk, self.hook) {
            (Walk::DsrNew | Walk::DsrEstablished | Walk::DecapIpip | Walk::DecapFou, Hook::TcIngress) => {
                Repetition::Single
            }
            _ => Repetition::InKernel,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_case_has_a_name_of_its_own() {
        let cases = all();
        let names: BTreeSet<String> = cases.iter().map(Case::name).collect();
        assert_eq!(names.len(), cases.len());
        assert!(names.contains("xdp_ingress: DSR, established, IPv4, flows: 10000, services: 10000"));
    }
}
