//! Who answers for an address on a link: one node's part in it. Pure: times come in, acts come out.
//!
//! Nobody keeps a list of owners. A candidate asks the link, as any host does: who has this address? While somebody
//! answers, it waits. If nobody does, it answers itself. Questions are answered by the programs, so a holder whose
//! agent is gone keeps its addresses, and a node that is gone loses them (decision 189).

use std::time::Duration;

/// A MAC address.
pub type Mac = [u8; 6];

/// Time between two questions of the candidates that are next, and of all while a question has no answer.
const ASK: Duration = Duration::from_millis(500);
/// Time between two questions of the others at most.
const ASK_SELDOM: Duration = Duration::from_mins(1);
/// Candidates that ask often.
const NEXT: usize = 3;
/// Questions without an answer after which the first candidate takes an address. One lost frame does not matter. For each
/// better candidate it is one more, so that they take addresses one after the other.
const UNANSWERED: u32 = 2;
/// The better candidates that count for that.
const STEPS: u32 = 10;
/// A node that looks so late was not running. The answers may wait to be read.
const LATE: Duration = Duration::from_millis(250);
/// Questions to the holder alone without an answer, after which all hosts are asked, too: another one may have it.
const MISSED: u32 = 1;
/// Time for an answer to the first question of the first choice.
const FIRST_LOOK: Duration = Duration::from_millis(300);
/// Time between the announcements of a node that has just taken an address.
const ANNOUNCE: Duration = Duration::from_secs(1);
/// Announcements when an address is taken.
const ANNOUNCEMENTS: u32 = 3;
/// Time between two announcements of an address that is held, and between two questions of the first choice.
const REPEAT: Duration = Duration::from_secs(30);
/// Time for the former holder to let an address go.
const YIELD: Duration = Duration::from_millis(500);
/// Time for an answer on the link.
const ANSWERED: Duration = Duration::from_millis(200);
/// Time between two questions of a holder that is not the first choice.
const ASK_BETTER: Duration = Duration::from_secs(1);
/// Time until the first choice asks again for an address that its holder did not let go. It doubles each time.
const RETREAT: Duration = Duration::from_secs(30);
const LONGEST_RETREAT: Duration = Duration::from_mins(10);

/// A node's place among the candidates for an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// In the order of all candidates, from zero. The first choice takes the address from others.
    pub rank: usize,
    /// In the order of those that are likely to answer. It says how long a node waits when nobody answers.
    pub turn: usize,
}

impl From<usize> for Place {
    fn from(rank: usize) -> Self {
        Self { rank, turn: rank }
    }
}

/// What a node is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Answer questions for the address from now on.
    Answer,
    /// Answer no more.
    Silence(Why),
    /// Tell the host with this MAC address, or all on the link, that this node has the address.
    Announce(Option<Mac>),
    /// Ask for the address: the host with this MAC address, or all.
    Ask(Option<Mac>),
}

/// Why a node answers no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Another candidate has it.
    Yielded,
    /// The former holder goes on answering.
    StillHeld(Mac),
}

/// A frame of another host about the address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// An answer to a question of this node.
    Answer(Mac),
    /// The other host told that it has the address.
    Announcement(Mac),
}

impl Heard {
    /// Returns the MAC address of the host that says so.
    #[must_use]
    pub const fn mac(self) -> Mac {
        let (Self::Answer(mac) | Self::Announcement(mac)) = self;
        mac
    }
}

/// One node's part in one address on one link. All times are since the same moment.
#[derive(Clone, Debug)]
pub struct Claim {
    place: Place,
    state: State,
    /// Time until the next attempt, if the holder does not let go.
    retreat: Duration,
}

#[derive(Clone, Debug)]
enum State {
    Waiting(Waiting),
    Holding(Holding),
}

#[derive(Clone, Debug)]
struct Waiting {
    /// Who has the address, as far as this node knows.
    holder: Option<Mac>,
    /// Whether the holder did not answer when it alone was asked. What others say in its name proves nothing then: a
    /// switch or router may answer for it (ARP suppression, proxy ARP).
    is_suspect: bool,
    ask_at: Duration,
    /// The number of questions that have no answer yet.
    unanswered: u32,
    /// When the first choice claims the address although it may be held.
    claim_at: Option<Duration>,
}

#[derive(Clone, Debug)]
struct Holding {
    /// When the former holder has let go at the latest. Answers until then prove nothing.
    settled_at: Duration,
    announcements: u32,
    announce_at: Duration,
    ask_at: Duration,
}

impl Claim {
    /// Returns a claim of a node that has not asked yet. `phase`, up to half a second, keeps the questions for many
    /// addresses apart.
    #[must_use]
    pub fn new(place: impl Into<Place>, now: Duration, phase: Duration) -> Self {
        let (place, ask_at) = (place.into(), now + phase);
        let claim_at = (place.rank == 0).then_some(ask_at + FIRST_LOOK);
        Self { place, state: State::Waiting(Waiting::new(ask_at, None, claim_at)), retreat: RETREAT }
    }

    /// Returns the claim of a node whose programs answer already: an earlier agent made them.
    #[must_use]
    pub fn adopted(place: impl Into<Place>, now: Duration, phase: Duration) -> Self {
        let state = Holding {
            settled_at: now,
            announcements: ANNOUNCEMENTS,
            announce_at: now + REPEAT,
            ask_at: now + phase,
        };
        Self { place: place.into(), state: State::Holding(state), retreat: RETREAT }
    }

    /// Returns whether this node answers.
    #[must_use]
    pub fn is_held(&self) -> bool {
        matches!(self.state, State::Holding(_))
    }

    /// Returns the time of the next [`tick`](Self::tick).
    #[must_use]
    pub fn due(&self) -> Duration {
        match &self.state {
            State::Waiting(waiting) => waiting.claim_at.map_or(waiting.ask_at, |at| at.min(waiting.ask_at)),
            State::Holding(holding) => holding.announce_at.min(holding.ask_at),
        }
    }

    /// Changes the place among the candidates. A holder keeps the address until a better one asks for it.
    pub fn set_place(&mut self, place: impl Into<Place>, now: Duration) {
        let place = place.into();
        if place == self.place {
            return;
        }
        let former = std::mem::replace(&mut self.place, place);
        match &mut self.state {
            State::Waiting(waiting) => {
                waiting.ask_at = waiting.ask_at.min(now + pause(place.turn));
                if place.rank != former.rank {
                    waiting.claim_at = (place.rank == 0).then_some(waiting.ask_at + FIRST_LOOK);
                }
            }
            State::Holding(holding) => holding.ask_at = holding.ask_at.min(now + ASK_BETTER),
        }
    }

    /// Takes back a claim that this node can't keep: its programs were not told. Another node takes the address.
    pub fn fail(&mut self, now: Duration) {
        let again = now + self.retreat;
        let claim_at = (self.place.rank == 0).then_some(again + FIRST_LOOK);
        self.state = State::Waiting(Waiting::new(again, None, claim_at));
    }

    /// Does what is due.
    pub fn tick(&mut self, now: Duration) -> Vec<Act> {
        let Place { rank, turn } = self.place;
        match &mut self.state {
            State::Waiting(waiting) => {
                let is_silent = waiting.unanswered >= patience(turn) && waiting.ask_at <= now;
                let is_late = waiting.ask_at + LATE < now;
                if is_silent && is_late {
                    waiting.unanswered -= 1;
                    return vec![Act::Ask(waiting.ask(turn, now))];
                }
                if is_silent || waiting.claim_at.is_some_and(|at| at <= now) {
                    // A holder that may let go is asked to, and nobody else is told before it has.
                    let holder = waiting.holder.filter(|_| !is_silent);
                    self.state = State::Holding(Holding::claimed(now, holder.is_some()));
                    return vec![Act::Answer, Act::Announce(holder)];
                }
                if now < waiting.ask_at {
                    return Vec::new();
                }
                vec![Act::Ask(waiting.ask(turn, now))]
            }
            State::Holding(holding) => {
                let mut acts = Vec::new();
                if holding.announce_at <= now {
                    holding.announcements += 1;
                    let is_new = holding.announcements < ANNOUNCEMENTS;
                    holding.announce_at = now + if is_new { ANNOUNCE } else { REPEAT };
                    if holding.announcements > ANNOUNCEMENTS {
                        self.retreat = RETREAT;
                    }
                    acts.push(Act::Announce(None));
                }
                if holding.ask_at <= now {
                    let is_settled = rank == 0 && holding.announcements >= ANNOUNCEMENTS;
                    holding.ask_at = now + if is_settled { REPEAT } else { ASK_BETTER };
                    acts.push(Act::Ask(None));
                }
                acts
            }
        }
    }

    /// Takes what another host said about the address.
    pub fn hear(&mut self, said: Heard, now: Duration) -> Vec<Act> {
        match (&mut self.state, said) {
            (State::Waiting(waiting), Heard::Answer(mac) | Heard::Announcement(mac)) => {
                waiting.hear(self.place.turn, mac, matches!(said, Heard::Announcement(_)), now);
                Vec::new()
            }
            // The first choice asks for it, as if it had just taken it.
            (State::Holding(holding), Heard::Announcement(mac)) if self.place.rank == 0 => {
                if now < holding.settled_at + ANSWERED {
                    return Vec::new();
                }
                *holding = Holding::claimed(now, true);
                vec![Act::Announce(Some(mac))]
            }
            // Whoever answers has it. An announcement alone may be forged, or from a node that answers no more.
            (State::Holding(holding), Heard::Announcement(mac)) => {
                let answered_at = now + ANSWERED;
                if holding.announce_at <= answered_at {
                    return Vec::new();
                }
                // If nobody answers, all hosts are told who does.
                holding.announce_at = answered_at;
                vec![Act::Ask(Some(mac))]
            }
            (State::Holding(holding), Heard::Answer(_)) if now < holding.settled_at => Vec::new(),
            (State::Holding(_), Heard::Answer(mac)) if self.place.rank > 0 => {
                self.state = State::Waiting(Waiting::new(now + pause(self.place.turn), Some(mac), None));
                // The other holder may not know that hosts send here. It hears this, and announces itself.
                vec![Act::Announce(None), Act::Silence(Why::Yielded)]
            }
            // Its agent is gone, or it is a host of its own: it lets nobody take the address.
            (State::Holding(_), Heard::Answer(mac)) => {
                let again = now + self.retreat;
                self.retreat = (self.retreat * 2).min(LONGEST_RETREAT);
                self.state = State::Waiting(Waiting::new(now + ASK, Some(mac), Some(again)));
                vec![Act::Silence(Why::StillHeld(mac))]
            }
        }
    }
}

impl Waiting {
    fn new(ask_at: Duration, holder: Option<Mac>, claim_at: Option<Duration>) -> Self {
        Self { holder, is_suspect: false, ask_at, unanswered: 0, claim_at }
    }

    /// Asks the holder alone, or all hosts after it did not answer. Returns whom.
    fn ask(&mut self, turn: usize, now: Duration) -> Option<Mac> {
        self.is_suspect |= self.holder.is_some() && self.unanswered >= MISSED;
        // In turn, because an answer in the name of the holder is to be confirmed by itself.
        let to = self.holder.filter(|_| !self.is_suspect || self.unanswered.is_multiple_of(2));
        self.unanswered += 1;
        self.ask_at = now + ASK.min(pause(turn));
        to
    }

    fn hear(&mut self, turn: usize, mac: Mac, is_announcement: bool, now: Duration) {
        let is_of_suspect = self.is_suspect && self.holder == Some(mac);
        // The last question went to all if the number of those before it is odd.
        let asked_all = self.unanswered.is_multiple_of(2);
        if is_of_suspect && asked_all && !is_announcement {
            return;
        }
        *self = Self { claim_at: self.claim_at, ..Self::new(now + pause(turn), Some(mac), None) };
    }
}

impl Holding {
    /// Returns the state after an address was taken, from nobody or from a holder that is to let it go.
    fn claimed(now: Duration, is_taken: bool) -> Self {
        let settled_at = if is_taken { now + YIELD } else { now };
        // From a holder: others are told once it had time to answer a last time.
        let (announcements, announce_at) =
            if is_taken { (0, settled_at + ANSWERED) } else { (1, now + ANNOUNCE) };
        Self { settled_at, announcements, announce_at, ask_at: settled_at.max(now + ANSWERED) }
    }
}

/// Returns the number of questions without an answer after which a candidate takes an address.
fn patience(turn: usize) -> u32 {
    UNANSWERED + u32::try_from(turn).unwrap_or(STEPS).min(STEPS)
}

/// Returns the time between two questions while they are answered.
fn pause(turn: usize) -> Duration {
    if turn <= NEXT {
        ASK
    } else {
        (ASK * u32::try_from(turn).unwrap_or(u32::MAX).min(1 << 10)).min(ASK_SELDOM)
    }
}

#[cfg(test)]
#[path = "claim_tests.rs"]
mod tests;
