//! Plays a fault on running traffic, and compares the losses with the allowed ones.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::fault::{Allowance, Fault, Loss, Right};
use super::faults::allowed_at_once;
use super::ground::Ground;
use super::ledger::{Ledger, Trouble};
use crate::patience::patience;
use crate::traffic::ANSWER_LIMIT;

/// The longest time after a repair until all is right again.
const SETTLE_LIMIT: Duration = Duration::from_secs(150);
/// The time after the begin of a fault in which a delay without any loss needs no reason.
const HICCUP: Duration = Duration::from_millis(1500);

/// The length of a drill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Each fault in seconds.
    Short,
    /// Each fault in a longer form, and pairs of faults.
    Long,
}

/// A fault as it was played: a row of the table.
#[derive(Debug)]
pub struct Row {
    /// Name of the fault, or of all that were played at once.
    pub name: String,
    /// The description of a fault that was played alone.
    pub what: Option<&'static str>,
    /// From the begin of the fault to the end of its repair.
    pub lasted: Duration,
    /// The losses.
    pub losses: BTreeMap<Loss, u64>,
    /// From the begin of the fault to the last trouble of the traffic; none if trouble does not end.
    pub right: Option<Duration>,
    /// From the end of the repair until all agents have carried out a change.
    pub follows: Option<Duration>,
    /// The reasons for the losses that are allowed.
    pub reasons: Vec<String>,
    /// Everything that is not allowed.
    pub excess: Vec<String>,
}

/// Plays faults at once: each begins after the one before it, and is mended before it.
pub(super) fn play(ground: &mut Ground, ledger: &Ledger, faults: &[&Fault], form: Form) -> Row {
    let (first, good, began) = (ledger.len(), ledger.good(), Instant::now());
    let durations = faults.iter().map(|fault| if form == Form::Short { fault.short } else { fault.long });
    let played = stage(ground, faults, durations.max().unwrap_or_default());
    let (lasted, mut excess) = (began.elapsed(), Vec::new());
    let mut follows = None;
    let repaired = match played.and_then(|repaired| {
        follows = Some(ground.wait_until_followed()?);
        Ok(repaired)
    }) {
        Ok(repaired) => repaired,
        Err(error) => {
            excess.push(format!("not played to its end: {}", first_line(&error)));
            if let Err(error) = ground.restore() {
                excess.push(first_line(&error));
            }
            Instant::now()
        }
    };
    let settled = settle(ledger);
    let troubles = ledger.troubles_from(first);
    if ledger.good() == good {
        excess.push("no traffic crossed".to_owned());
    }
    let latest = troubles.iter().max_by_key(|trouble| trouble.at);
    let last = latest.map(|trouble| trouble.at);
    let right =
        settled.is_ok().then(|| last.map_or(Duration::ZERO, |at| at.saturating_duration_since(began)));
    excess.extend(settled.err().map(|error| format!("{error:#}")));
    let rights: Vec<Right> = faults.iter().filter_map(|fault| fault.right).collect();
    if let Some((late, latest)) = lateness(&rights, began, repaired, last).zip(latest) {
        let (way, family, what) = (latest.way, latest.family, &latest.what);
        excess.push(format!("{late}: {way} {family}: {what}"));
    }
    let mut verdict = Verdict { excess, ..Verdict::default() };
    let allowed = faults.iter().flat_map(|fault| fault.allowed);
    let allowances: Vec<&Allowance> = allowed.chain(allowed_at_once(faults)).collect();
    verdict.judge(&troubles, &allowances, lasted);
    if last.is_some_and(|at| at > began + patience(HICCUP)) {
        verdict.reasons.extend(rights.iter().map(|right| format!("time: {}", right.because)));
    }
    Row {
        name: faults.iter().map(|fault| fault.name).collect::<Vec<_>>().join(" + "),
        what: if let [only] = faults { Some(only.what) } else { None },
        lasted,
        losses: verdict.losses,
        right,
        follows,
        reasons: verdict.reasons,
        excess: verdict.excess,
    }
}

/// Returns the first line of an error. All of it, which can contain an agent's log, goes to the terminal.
fn first_line(error: &anyhow::Error) -> String {
    let text = format!("{error:#}");
    eprintln!("{text}");
    text.lines().next().unwrap_or_default().to_owned()
}

/// Plays the faults and mends them in the reverse order. Returns when the repair began.
fn stage(ground: &mut Ground, faults: &[&Fault], lasting: Duration) -> Result<Instant> {
    let mut mends = Vec::new();
    let mut outcome = Ok(());
    for fault in faults {
        match (fault.play)(ground).with_context(|| fault.name) {
            Ok(mend) => mends.push(mend),
            Err(error) => outcome = outcome.and(Err(error)),
        }
    }
    if outcome.is_ok() {
        std::thread::sleep(lasting);
    }
    let repaired = Instant::now();
    for mend in mends.into_iter().rev() {
        outcome = outcome.and(mend(ground).context("the repair"));
    }
    outcome.map(|()| repaired)
}

/// Waits until the traffic has no trouble any more. A lost datagram is noticed late.
pub(crate) fn settle(ledger: &Ledger) -> Result<()> {
    let end = Instant::now() + patience(SETTLE_LIMIT);
    // Everything that is under way now must have had the time to fail.
    std::thread::sleep(patience(ANSWER_LIMIT + HICCUP));
    while !ledger.is_quiet(patience(ANSWER_LIMIT)) {
        if Instant::now() > end {
            let hanging = ledger.hanging().unwrap_or_else(|| "trouble comes again and again".to_owned());
            anyhow::bail!("not right {SETTLE_LIMIT:?} after the repair: {hanging}");
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

fn lateness(rights: &[Right], began: Instant, repaired: Instant, last: Option<Instant>) -> Option<String> {
    let after = rights.iter().map(|right| right.after_repair).max();
    let limit = after.map_or(began + patience(HICCUP), |after| repaired + patience(after));
    let last = last.filter(|last| *last > limit)?;
    Some(format!(
        "the last trouble was {:.1} s after the begin, {:.1} s too late",
        last.saturating_duration_since(began).as_secs_f32(),
        last.saturating_duration_since(limit).as_secs_f32()
    ))
}

/// The comparison of losses with the allowed ones.
#[derive(Debug, Default)]
struct Verdict {
    losses: BTreeMap<Loss, u64>,
    reasons: Vec<String>,
    excess: Vec<String>,
}

impl Verdict {
    fn judge(&mut self, troubles: &[Trouble], allowances: &[&Allowance], lasted: Duration) {
        let mut used: Vec<Vec<&Trouble>> = vec![Vec::new(); allowances.len()];
        let mut too_many: BTreeMap<String, (u64, &Trouble)> = BTreeMap::new();
        for trouble in troubles {
            let Some(loss) = trouble.loss else { continue };
            *self.losses.entry(loss).or_default() += 1;
            let place = allowances.iter().zip(&used).position(|(allowance, used)| {
                allowance.covers(loss, trouble) && (used.len() as u64) < allowance.bound.of(lasted)
            });
            if let Some(used) = place.and_then(|place| used.get_mut(place)) {
                used.push(trouble);
                continue;
            }
            let label = format!("{loss} through {} {}", trouble.way, trouble.family);
            too_many.entry(label).or_insert((0, trouble)).0 += 1;
        }
        for (allowance, used) in allowances.iter().zip(&used) {
            if !used.is_empty() {
                self.reasons.push(format!("{} {}: {}", used.len(), allowance.loss, allowance.because));
            }
        }
        self.excess.extend(too_many.into_iter().map(|(label, (number, trouble))| {
            let backend = trouble.backend.as_deref().unwrap_or("an unknown backend");
            format!("{number} {label} more than allowed, such as at {backend}: {}", trouble.what)
        }));
    }
}

impl Allowance {
    fn covers(&self, loss: Loss, trouble: &Trouble) -> bool {
        let is_of_backend = match (self.backend, trouble.backend.as_deref()) {
            (Some(only), Some(backend)) => only == backend,
            _ => true,
        };
        self.loss == loss && self.ways.contains(&trouble.way) && is_of_backend
    }
}

#[cfg(test)]
mod tests {
    use super::super::fault::Bound;
    use super::super::way::Way;
    use super::*;
    use crate::topology::Family;

    const ALLOWANCE: Allowance = Allowance {
        loss: Loss::Lost,
        ways: &[Way::Snat],
        backend: Some("pod-2a"),
        bound: Bound::PerSecond(2),
        because: "the test allows it",
    };

    fn lost(way: Way, backend: Option<&str>) -> Trouble {
        let backend = backend.map(str::to_owned);
        let (loss, at, what) = (Some(Loss::Lost), Instant::now(), "a datagram".to_owned());
        Trouble { way, family: Family::V4, loss, backend, at, what }
    }

    fn judged(troubles: &[Trouble]) -> Verdict {
        let mut verdict = Verdict::default();
        verdict.judge(troubles, &[&ALLOWANCE], Duration::from_secs(1));
        verdict
    }

    #[test]
    fn a_loss_is_allowed_up_to_the_bound() {
        let one = lost(Way::Snat, Some("pod-2a"));
        let within = judged(&[one.clone(), lost(Way::Snat, None)]);
        assert_eq!((within.losses[&Loss::Lost], within.excess.len()), (2, 0));
        assert_eq!(within.reasons, ["2 lost: the test allows it"]);
        let many = vec![one; 5];
        assert_eq!(judged(&many).excess.len(), 1, "two for each second, and for one more");
    }

    #[test]
    fn a_loss_of_another_way_or_backend_is_not_allowed() {
        assert_eq!(judged(&[lost(Way::Local, Some("pod-2a"))]).excess.len(), 1);
        assert_eq!(judged(&[lost(Way::Snat, Some("pod-3a"))]).excess.len(), 1);
    }

    #[test]
    fn trouble_after_the_time_that_a_fault_allows_is_late() {
        let began = Instant::now();
        let (repaired, second) = (began + Duration::from_secs(3), Duration::from_secs(1));
        let right = Right { after_repair: second, because: "the test allows it" };
        assert_eq!(lateness(&[right], began, repaired, Some(repaired + second)), None);
        assert!(lateness(&[right], began, repaired, Some(repaired + second * 2)).is_some());
        assert!(lateness(&[], began, repaired, Some(began + second * 2)).is_some());
        assert_eq!(lateness(&[], began, repaired, None), None);
    }
}
