//! The answer for people and for programs.

use std::fmt::Write;
use std::net::SocketAddr;

use proxy_common::verdict::Reason;
use serde::Serialize;

use super::advice;
use super::asked::Asked;
use super::firewall::{self, GuardRow};
use crate::cli::monitor::headers;
use crate::explain::{Crossed, End, Pass, Run, Step, Verdict};

/// The way of one packet, or of one call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Explanation {
    #[serde(flatten)]
    asked: Asked,
    /// The programs that see it, in order. The last one decides.
    programs: Vec<Seen>,
    /// The devices of pods where the pod firewall judges it, in order. Absent where it goes past none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    firewall: Vec<GuardRow>,
    /// The reason under which the last program of these counts it, or that of the firewall's drop; none if neither engine
    /// knows.
    reason: Option<&'static str>,
    drop: bool,
    /// The backend that gets it.
    backend: Option<SocketAddr>,
    /// The cause in a clause.
    why: String,
    /// Whether walk and run of all programs come to the same reason; none if one of both is missing.
    agree: Option<bool>,
    /// A command that shows the cause.
    next: Option<String>,
}

/// The way of the packet through a program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Seen {
    program: &'static str,
    steps: Vec<Step>,
    /// The walk's reason.
    walk: Option<&'static str>,
    /// Reasons that may come out instead, as the kernel's routes decide.
    or: Vec<&'static str>,
    /// The kind of packet that the walk does not follow.
    not_walked: Option<&'static str>,
    /// The reason of the run.
    run: Option<&'static str>,
    /// Why there is no run.
    not_run: Option<String>,
    /// Time of the run.
    nanoseconds: Option<u128>,
    /// The packet as the program left it.
    left: Option<Left>,
}

/// A packet in a frame; that inside, if it is a tunnel packet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Left {
    source: Option<SocketAddr>,
    destination: Option<SocketAddr>,
    bytes: usize,
}

impl Seen {
    fn of(pass: &Pass) -> Self {
        let (walk, or, not_walked) = match &pass.walk.end {
            End::Verdict(verdict) => {
                (Some(verdict.reason.name()), verdict.or.iter().map(|reason| reason.name()).collect(), None)
            }
            End::NotWalked(kind) => (None, Vec::new(), Some(*kind)),
        };
        let (ran, not_run) = match &pass.run {
            Run::Ran(ran) => (Some(ran), None),
            Run::NotRun(why) => (None, Some(why.clone())),
        };
        Self {
            program: pass.program.name(),
            steps: pass.walk.steps.clone(),
            walk,
            or,
            not_walked,
            run: ran.map(|ran| ran.reason.name()),
            not_run,
            nanoseconds: ran.map(|ran| ran.duration.as_nanos()),
            left: ran.map(|ran| {
                let headers = headers(&ran.frame, false);
                Left { source: headers.source, destination: headers.destination, bytes: ran.frame.len() }
            }),
        }
    }
}

impl Explanation {
    /// Returns the explanation of a packet or call. `service` is the name of its Service port.
    pub fn of(asked: Asked, passes: &[Pass], service: Option<&str>) -> Self {
        let verdict = passes.last().and_then(|pass| match &pass.walk.end {
            End::Verdict(verdict) => Some(verdict),
            End::NotWalked(_) => None,
        });
        let reason = passes.last().and_then(Pass::reason);
        let why = verdict.zip(reason).map(|(verdict, reason)| why(verdict, reason)).unwrap_or_default();
        let verdict = verdict.filter(|verdict| Some(verdict.reason) == reason);
        let agree: Option<Vec<bool>> = passes.iter().map(Pass::agrees).collect();
        Self {
            asked,
            programs: passes.iter().map(Seen::of).collect(),
            firewall: Vec::new(),
            reason: reason.map(Reason::name),
            drop: reason.is_some_and(Reason::is_drop),
            backend: verdict.and_then(|verdict| verdict.backend),
            agree: agree.map(|agree| agree.into_iter().all(|agrees| agrees)),
            next: reason.and_then(|reason| advice::next(reason, &why, service)),
            why,
        }
    }

    /// Adds the judgements of the pod firewall. A drop is the end of the packet.
    pub fn with_firewall(mut self, crossed: &[Crossed]) -> Self {
        self.firewall = crossed.iter().map(GuardRow::of).collect();
        let mut all = [self.agree].into_iter().chain(crossed.iter().map(Crossed::agrees));
        let has_difference = all.clone().any(|agrees| agrees == Some(false));
        self.agree =
            if has_difference { Some(false) } else { all.all(|agrees| agrees.is_some()).then_some(true) };
        let Some((last, dropped)) = crossed.last().and_then(|last| Some((last, last.dropped()?))) else {
            return self;
        };
        let judged = &last.judged;
        let is_same = judged.ruling.name() == dropped;
        self.why =
            if is_same { judged.why.clone() } else { format!("the walk comes to {}", judged.ruling.name()) };
        self.next = firewall::next(judged);
        (self.reason, self.drop, self.backend) = (Some(dropped), true, None);
        self
    }

    /// Returns the difference of both engines in one line.
    pub fn difference(&self) -> Option<String> {
        self.differing_program().or_else(|| self.differing_guard())
    }

    fn differing_guard(&self) -> Option<String> {
        let guard = self.firewall.iter().find(|row| row.run.is_some_and(|run| run != row.walk))?;
        let (program, walk, run) = (guard.program, guard.walk, guard.run?);
        Some(format!("{program} gives {run} to {}, the walk {walk}", self.asked.ends()))
    }

    fn differing_program(&self) -> Option<String> {
        let differs = |seen: &&Seen| {
            let run = seen.run.filter(|run| seen.walk != Some(run) && !seen.or.contains(run));
            run.is_some() && seen.walk.is_some()
        };
        let seen = self.programs.iter().find(differs)?;
        let (program, walk, run) = (seen.program, seen.walk?, seen.run?);
        Some(format!("{program} gives {run} to {}, the walk {walk}", self.asked.ends()))
    }

    /// Returns the text for people. `without_steps` leaves the walk out.
    pub fn text(&self, shown: Shown) -> String {
        let programs: Vec<&str> = self.programs.iter().map(|seen| seen.program).collect();
        let mut text = format!("{}\n", self.asked.line(&programs));
        let mut before: &[Step] = &[];
        for (index, seen) in self.programs.iter().enumerate() {
            if shown == Shown::Steps {
                seen.write_steps(&mut text, before);
                before = &seen.steps;
            }
            if index + 1 < self.programs.len() || !self.firewall.is_empty() {
                let reason = seen.run.or(seen.walk).unwrap_or_default();
                let _ = writeln!(text, "then        {reason} by {}", seen.program);
            }
        }
        if shown == Shown::Steps {
            let steps = self.firewall.iter().flat_map(|row| &row.steps);
            write_steps(&mut text, (before.len() + 1..).zip(steps));
        }
        self.write_verdict(&mut text);
        text
    }

    fn write_verdict(&self, text: &mut String) {
        let last = self.programs.last();
        let mut verdict = self.reason.unwrap_or("unknown").to_owned();
        if self.drop {
            verdict = format!("DROP {verdict}");
        }
        if let Some(backend) = self.backend {
            let _ = write!(verdict, " -> {backend}");
        }
        if !self.why.is_empty() {
            let _ = write!(verdict, ": {}", self.why);
        }
        let _ = writeln!(text, "verdict     {verdict}");
        if let Some(left) = last.and_then(|seen| seen.left.as_ref()).filter(|_| self.backend.is_some())
            && let (Some(source), Some(destination)) = (left.source, left.destination)
        {
            let around = if self.reason == Some(Reason::SentDsr.name()) { ", in a tunnel" } else { "" };
            let _ = writeln!(text, "leaves as   {source} > {destination}{around}");
        }
        let guards = self.firewall.iter().map(|row| row.program);
        let names: Vec<&str> = self.programs.iter().map(|seen| seen.program).chain(guards).collect();
        let not_judged = self.firewall.iter().find_map(|row| row.not_run.as_ref());
        let unchecked = |seen: &Seen| match (seen.unchecked(), not_judged) {
            (text, Some(why)) if text.is_empty() => format!("the firewall by the maps alone: {why}"),
            (text, _) => text,
        };
        let _ = match (self.agree, last) {
            (Some(true), _) => writeln!(text, "checked     programs agree ({})", names.join(", ")),
            (Some(false), _) => writeln!(text, "checked     the walk and the programs differ"),
            (None, Some(seen)) => writeln!(text, "checked     {}", unchecked(seen)),
            (None, None) => Ok(()),
        };
        if let Some(next) = &self.next {
            let _ = writeln!(text, "try         {next}");
        }
    }
}

/// Returns the cause of a reason that the walk or the run came to.
fn why(walk: &Verdict, reason: Reason) -> String {
    if walk.reason == reason {
        walk.why.clone()
    } else if walk.allows(reason) {
        // The walk does not ask the kernel's routes.
        "the kernel's route to the backend decides".to_owned()
    } else {
        format!("the walk comes to {}", walk.reason.name())
    }
}

/// The parts of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shown {
    /// The steps and the verdict.
    Steps,
    /// The verdict alone.
    Verdict,
}

impl Seen {
    /// Writes the steps, without those that the program before took as well.
    fn write_steps(&self, text: &mut String, before: &[Step]) {
        let same = self.steps.iter().zip(before).take_while(|(one, other)| one == other).count();
        write_steps(text, (1..).zip(&self.steps).skip(same));
    }

    /// Returns why the two engines were not compared.
    fn unchecked(&self) -> String {
        match (&self.not_walked, &self.not_run) {
            (Some(kind), None) => format!("by {} alone; not walked: {kind}", self.program),
            (Some(kind), Some(why)) => format!("not at all; not walked: {kind}; not run: {why}"),
            (None, Some(why)) => {
                let or = if self.or.is_empty() {
                    String::new()
                } else {
                    format!("; the kernel's routes may make it {}", self.or.join(", "))
                };
                format!("by the maps alone: {why}{or}")
            }
            // Both are there.
            (None, None) => String::new(),
        }
    }
}

fn write_steps<'a>(text: &mut String, steps: impl Iterator<Item = (usize, &'a Step)>) {
    for (number, step) in steps {
        let maps = if step.maps.is_empty() { String::new() } else { format!("  [{}]", step.maps) };
        let _ = writeln!(text, "{number:>2} {:<8} {}{maps}", step.step, step.found);
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};
    use std::time::Duration;

    use proxy_common::policy::{PolicyDirection, PolicyDrop};
    use proxy_common::verdict::Program;

    use super::*;
    use crate::cli::explain::frame::Protocol;
    use crate::dataplane::ebpf::dry_run::{Concern, Ran};
    use crate::dataplane::ebpf::firewall::PolicyRan;
    use crate::explain::{Call, Caller, Judged, PolicyRun, Ruling, Verdict, Walk};

    fn explanation(walk: Verdict, run: Reason) -> Explanation {
        let step = Step { step: "vip", found: "it is one".to_owned(), maps: "VIPS".to_owned() };
        let walk = Walk { steps: vec![step], end: walk.into(), concern: Concern::default() };
        let frame = Vec::new();
        let duration = Duration::from_micros(2);
        let run = Run::Ran(Ran { reason: run, action: 2, frame, is_handed_over: false, mark: 0, duration });
        let to = SocketAddr::from((Ipv4Addr::new(192, 0, 2, 1), 80));
        let asked = Asked::call(Call { caller: Caller::Pod, to, protocol: 6 }, Protocol::Tcp);
        Explanation::of(asked, &[Pass { program: Program::TcIngress, walk, run }], Some("shop/web:http"))
    }

    #[test]
    fn a_difference_names_both_reasons_and_an_allowed_reason_is_none() {
        let differs = explanation(Verdict::new(Reason::NoEndpoint, ""), Reason::NoBackend);
        assert_eq!(
            differs.difference().unwrap(),
            "tc_ingress gives no_backend to a connect of the pod to 192.0.2.1:80, the walk no_endpoint"
        );
        assert_eq!(differs.agree, Some(false));
        let text = differs.text(Shown::Steps);
        assert!(text.contains("checked     the walk and the programs differ\n"), "{text}");
        assert!(text.contains("verdict     DROP no_backend: the walk comes to no_endpoint\n"), "{text}");

        let routed = Verdict { or: vec![Reason::NoWay], ..Verdict::new(Reason::SentSnat, "") };
        let routed = explanation(routed, Reason::NoWay);
        assert_eq!((routed.difference(), routed.agree), (None, Some(true)));
        let text = routed.text(Shown::Verdict);
        assert!(
            text.contains("verdict     DROP no_way: the kernel's route to the backend decides\n"),
            "{text}"
        );
        assert!(!text.contains("vip"), "{text}");
    }
    fn crossed(ruling: Ruling, run: PolicyRun) -> Crossed {
        let step = Step { step: "rule", found: "none allows it".to_owned(), maps: String::new() };
        let judged = Judged {
            direction: PolicyDirection::Ingress,
            device: u32::MAX,
            pod: Some("shop/web".to_owned()),
            steps: vec![step],
            ruling,
            isolated_by: vec!["shop/closed".to_owned()],
            why: "shop/closed isolates it".to_owned(),
        };
        Crossed { judged, run }
    }

    fn ran(dropped: Option<PolicyDrop>) -> PolicyRun {
        PolicyRun::Ran(PolicyRan { dropped, duration: Duration::from_micros(1) })
    }

    fn served() -> Explanation {
        let backend = Some(SocketAddr::from((Ipv4Addr::new(10, 1, 0, 1), 8080)));
        explanation(Verdict { backend, ..Verdict::new(Reason::ServedLocal, "") }, Reason::ServedLocal)
    }

    #[test]
    fn a_drop_of_the_firewall_is_the_end_of_the_packet() {
        let denied = served().with_firewall(&[crossed(Ruling::Denied, ran(Some(PolicyDrop::Denied)))]);
        assert_eq!((denied.reason, denied.drop, denied.backend), (Some("denied"), true, None));
        assert_eq!((denied.agree, denied.difference()), (Some(true), None));
        let text = denied.text(Shown::Steps);
        for line in [
            " 1 vip      it is one  [VIPS]\nthen        served_local by tc_ingress\n 2 rule     none allows it\n",
            "verdict     DROP denied: shop/closed isolates it\n",
            "checked     programs agree (tc_ingress, policy_to_pod)\n",
            "try         kubectl -n shop get networkpolicy closed -o yaml\n",
        ] {
            assert!(text.contains(line), "{text}");
        }
        let json = serde_json::to_value(&denied).unwrap();
        assert_eq!((&json["reason"], &json["drop"]), (&"denied".into(), &true.into()));
        assert_eq!(json["firewall"][0]["isolated_by"][0], "shop/closed");
    }

    #[test]
    fn a_packet_that_the_firewall_lets_pass_keeps_its_end() {
        let allowed = Ruling::Allowed(vec!["shop/open".to_owned()]);
        let passed = served().with_firewall(&[crossed(allowed, ran(None))]);
        assert_eq!((passed.reason, passed.drop, passed.agree), (Some("served_local"), false, Some(true)));
        assert!(passed.text(Shown::Steps).contains("verdict     served_local -> 10.1.0.1:8080\n"));
        assert!(serde_json::to_value(served()).unwrap().get("firewall").is_none(), "the firewall is off");
    }

    #[test]
    fn a_device_that_nftables_closes_is_the_end_of_the_packet() {
        let run = PolicyRun::NotRun("nftables runs no packet for a test".to_owned());
        let closed = served().with_firewall(&[crossed(Ruling::ClosedByNftables, run)]);
        assert_eq!((closed.reason, closed.drop, closed.backend), (Some("closed_by_nftables"), true, None));
        assert_eq!((closed.agree, closed.difference()), (None, None));
        let text = closed.text(Shown::Steps);
        for line in [
            "verdict     DROP closed_by_nftables: shop/closed isolates it\n",
            "checked     the firewall by the maps alone: nftables runs no packet for a test\n",
            "try         millrace policies\n",
        ] {
            assert!(text.contains(line), "{text}");
        }
        let json = serde_json::to_value(&closed).unwrap();
        assert_eq!(json["firewall"][0]["program"], "nftables");
    }

    #[test]
    fn engines_that_differ_about_the_firewall_are_told() {
        let differs = served().with_firewall(&[crossed(Ruling::Denied, ran(None))]);
        assert_eq!((differs.agree, differs.drop), (Some(false), false));
        assert_eq!(
            differs.difference().unwrap(),
            "policy_to_pod gives passed to a connect of the pod to 192.0.2.1:80, the walk denied"
        );
        let not_run = PolicyRun::NotRun("not asked".to_owned());
        let alone = served().with_firewall(&[crossed(Ruling::Denied, not_run)]);
        assert_eq!((alone.agree, alone.drop), (None, true));
        let text = alone.text(Shown::Steps);
        assert!(text.contains("checked     the firewall by the maps alone: not asked\n"), "{text}");
    }
}
