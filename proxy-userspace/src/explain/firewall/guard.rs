//! Both engines at the devices of pods.

use std::collections::BTreeMap;
use std::net::IpAddr;

use proxy_common::Address;
use proxy_common::policy::{PolicyDirection, PolicyFlowKey};
use proxy_common::verdict::{Program, Reason};

use super::judge::{Place, judge, judge_closed, judge_node, key};
use super::judged::Judged;
use crate::dataplane::ebpf::firewall::{
    Crossing, PinnedFirewall, PolicyDryRun, PolicyKey, PolicyLookups, PolicyRan, PolicyTables,
};
use crate::dataplane::ebpf::read::ReadError;
use crate::explain::explainer::TRIES;
use crate::explain::packet::{Family, Packet, Parsed, family, parse};
use crate::explain::{Door, End, Engines, Pass, Past, Run};

/// A run of a program of the firewall, or the reason why there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PolicyRun {
    /// The result of the run.
    Ran(PolicyRan),
    /// The program was not run, for this reason.
    NotRun(String),
}

/// A packet at a device of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Crossed {
    /// The judgement by the tables.
    pub judged: Judged,
    /// The run.
    pub run: PolicyRun,
}

impl Crossed {
    /// Whether judgement and run come to the same end; `None` without a run.
    #[must_use]
    pub fn agrees(&self) -> Option<bool> {
        match &self.run {
            PolicyRun::Ran(ran) => Some(ran.dropped == self.judged.ruling.dropped()),
            PolicyRun::NotRun(_) => None,
        }
    }

    /// Returns the reason of a drop: the program's, else the judgement's.
    #[must_use]
    pub fn dropped(&self) -> Option<&'static str> {
        match &self.run {
            PolicyRun::Ran(ran) => ran.dropped.map(proxy_common::policy::PolicyDrop::name),
            PolicyRun::NotRun(_) => {
                let ruling = &self.judged.ruling;
                ruling.is_drop().then(|| ruling.name())
            }
        }
    }

    /// Returns the end of a packet at a device that rules of nftables close.
    fn closed(place: Place<'_>) -> Self {
        let run = PolicyRun::NotRun("nftables runs no packet for a test".to_owned());
        Self { judged: judge_closed(place), run }
    }
}

/// The firewall of a node. Its programs are loaded when one is first asked.
#[derive(Debug)]
pub struct Guard<'a> {
    firewall: &'a PinnedFirewall,
    lookups: &'a PolicyLookups,
    /// The devices that rules of nftables close, by index.
    closed: &'a BTreeMap<u32, String>,
    engines: Engines,
    past: Past,
    loaded: Option<Result<PolicyDryRun, String>>,
}

/// A packet on its way behind the proxy's programs.
struct OnWay<'a, A> {
    packet: Packet<A>,
    /// Its frame; none if no program has made one.
    frame: Option<&'a [u8]>,
    /// Whether the proxy sends it back by the device that it came in by.
    comes_back: bool,
}

impl<'a> Guard<'a> {
    /// Returns the engines over the pinned firewall.
    #[must_use]
    pub const fn new(
        firewall: &'a PinnedFirewall,
        lookups: &'a PolicyLookups,
        closed: &'a BTreeMap<u32, String>,
        engines: Engines,
        past: Past,
    ) -> Self {
        Self { firewall, lookups, closed, engines, past, loaded: None }
    }

    /// Takes a frame past the devices of pods, behind the proxy's programs. The first drop ends it.
    ///
    /// `unknown` finds the device of a pod that the firewall does not know, by an address.
    pub fn explain(
        &mut self,
        door: Door<'_>,
        frame: &[u8],
        passes: &[Pass],
        unknown: &mut dyn FnMut(IpAddr) -> Option<u32>,
    ) -> Result<Vec<Crossed>, ReadError> {
        let lookups = self.lookups;
        match family(frame) {
            Some(Family::V4) => self.explain_family(&lookups.v4(), door, frame, passes, unknown),
            Some(Family::V6) => self.explain_family(&lookups.v6(), door, frame, passes, unknown),
            None => Ok(Vec::new()),
        }
    }

    /// Returns the judgement of what a process of the node sends to an address; `None` if it is of no pod here.
    ///
    /// No program runs: a hook of sockets has no frame.
    pub fn explain_node(
        &self,
        to: IpAddr,
        unknown: &mut dyn FnMut(IpAddr) -> Option<u32>,
    ) -> Result<Option<Crossed>, ReadError> {
        let tables = self.lookups.v4();
        let (direction, known) = (PolicyDirection::Ingress, tables.device_of(to));
        self.lookups.take_failure()?;
        let Some(device) = self.target(known, || unknown(to)) else { return Ok(None) };
        let name = PolicyLookups::device_name(device);
        if self.closed.contains_key(&device) {
            let place = Place { direction, device, name: &name, came_in_by: 0 };
            return Ok(Some(Crossed::closed(place)));
        }
        let judged = judge_node(&tables, Place { direction, device, name: &name, came_in_by: 0 });
        self.lookups.take_failure()?;
        let run = PolicyRun::NotRun("a process of the node has no packet yet".to_owned());
        Ok(Some(Crossed { judged, run }))
    }

    fn explain_family<A: Address, T: PolicyTables<A>>(
        &mut self,
        tables: &T,
        door: Door<'_>,
        frame: &[u8],
        passes: &[Pass],
        unknown: &mut dyn FnMut(IpAddr) -> Option<u32>,
    ) -> Result<Vec<Crossed>, ReadError>
    where
        PolicyKey: From<PolicyFlowKey<A>>,
    {
        let mut crossed = Vec::new();
        let Some(on_way) = on_way::<A>(frame, passes) else { return Ok(crossed) };
        let is_of_pod = door.programs.contains(&Program::TcPodIn) && !on_way.comes_back;
        if is_of_pod && self.lookups.is_guarded(door.device, PolicyDirection::Egress) {
            let one = self.cross(tables, &on_way, PolicyDirection::Egress, door.device, door.device)?;
            let is_over = one.dropped().is_some();
            crossed.push(one);
            if is_over {
                return Ok(crossed);
            }
        }
        let closed = |direction: PolicyDirection, device: u32| {
            let name = self.closed.get(&device)?;
            Some(Crossed::closed(Place { direction, device, name, came_in_by: door.device }))
        };
        // The stack sees the packet behind the programs of the device that it came in by, and before those of the other one.
        if is_of_pod && let Some(one) = closed(PolicyDirection::Egress, door.device) {
            crossed.push(one);
            return Ok(crossed);
        }
        let to = on_way.packet.key.destination.to_ip();
        let target = if on_way.comes_back {
            Some(door.device)
        } else {
            let known = tables.device_of(to);
            self.lookups.take_failure()?;
            self.target(known, || unknown(to))
        };
        let Some(device) = target else { return Ok(crossed) };
        if !on_way.comes_back
            && let Some(one) = closed(PolicyDirection::Ingress, device)
        {
            crossed.push(one);
        } else if self.lookups.is_guarded(device, PolicyDirection::Ingress) {
            crossed.push(self.cross(tables, &on_way, PolicyDirection::Ingress, device, door.device)?);
        }
        Ok(crossed)
    }

    /// Returns the device of a pod that gets a packet, if something judges it there: the known one, else an unknown one.
    fn target(&self, known: Option<u32>, unknown: impl FnOnce() -> Option<u32>) -> Option<u32> {
        let judges = |device: &u32| {
            self.closed.contains_key(device) || self.lookups.is_guarded(*device, PolicyDirection::Ingress)
        };
        // While no agent runs, the address of a known pod that has ended may be that of a new one.
        known.filter(judges).or_else(unknown).filter(judges)
    }

    fn cross<A: Address, T: PolicyTables<A>>(
        &mut self,
        tables: &T,
        on_way: &OnWay<'_, A>,
        direction: PolicyDirection,
        device: u32,
        came_in_by: u32,
    ) -> Result<Crossed, ReadError>
    where
        PolicyKey: From<PolicyFlowKey<A>>,
    {
        let name = PolicyLookups::device_name(device);
        let place = Place { direction, device, name: &name, came_in_by };
        let mut tries = 0;
        loop {
            tries += 1;
            let judged = judge(tables, place, &on_way.packet, self.past);
            self.lookups.take_failure()?;
            let key = (self.past == Past::Known).then(|| key(place, &on_way.packet).into());
            let run = match on_way.frame {
                Some(frame) => self.run(&Crossing { frame, direction, device, came_in_by, key }),
                None => PolicyRun::NotRun("the programs before it were not run".to_owned()),
            };
            let crossed = Crossed { judged, run };
            if crossed.agrees() != Some(false) || tries == TRIES {
                return Ok(crossed);
            }
        }
    }

    fn run(&mut self, crossing: &Crossing<'_>) -> PolicyRun {
        if self.engines == Engines::Walk {
            return PolicyRun::NotRun("not asked".to_owned());
        }
        let open = || PolicyDryRun::open(self.firewall).map_err(|error| error.to_string());
        let ran = match self.loaded.get_or_insert_with(open) {
            Ok(dry) => dry.run(crossing).map_err(|error| error.to_string()),
            Err(error) => Err(error.clone()),
        };
        ran.map_or_else(PolicyRun::NotRun, PolicyRun::Ran)
    }
}

/// Returns the packet behind the proxy's programs; `None` if it goes past no device of a pod.
fn on_way<'a, A: Address>(frame: &[u8], passes: &'a [Pass]) -> Option<OnWay<'a, A>> {
    let last = passes.last()?;
    let comes_back = match last.reason()? {
        // The stack routes it.
        Reason::NotOurs | Reason::HandedToTc | Reason::ServedLocal | Reason::ServedPod => false,
        Reason::Hairpin => true,
        _ => return None,
    };
    let left = match &last.run {
        Run::Ran(ran) => Some(ran.frame.as_slice()),
        Run::NotRun(_) => None,
    };
    let Parsed::Packet(mut packet) = parse::<A>(left.unwrap_or(frame), Program::TcIngress) else {
        return None;
    };
    if left.is_none()
        && let End::Verdict(verdict) = &last.walk.end
        && let Some(backend) = verdict.backend
    {
        packet.key.destination = A::from_ip(backend.ip())?;
        packet.key.destination_port = backend.port().to_be();
    }
    Some(OnWay { packet, frame: left, comes_back })
}
