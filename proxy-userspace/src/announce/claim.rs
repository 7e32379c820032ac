//! Who answers for an address on a link: one node's part in it. Pure: times come in, acts come out.
//!
//! Nobody keeps a list of owners. A candidate asks the link, as any host does: who has this address? While somebody
//! answers, it waits. If nobody does, it answers itself. Questions are answered by the programs, so a holder whose
//! agent is gone keeps its addresses, and a node that is gone loses them (decision 189).

use std::time::Duration;

/// A MAC address.
pub type Mac = [u8; 6];

/// Time between two questions of the candidates that are next.
const ASK: Duration = Duration::from_millis(500);
/// Time between two questions of the others at most.
const ASK_SELDOM: Duration = Duration::from_mins(1);
/// Candidates that ask often.
const NEXT: usize = 3;
/// Silence after which the first candidate takes an address. Three answers are missing then, so one lost frame does
/// not matter.
const SILENCE: Duration = Duration::from_millis(1000);
/// More silence for each better candidate. They take addresses one after the other.
const STEP: Duration = Duration::from_millis(500);
/// Time between the announcements of a node that has just taken an address.
const ANNOUNCE: Duration = Duration::from_secs(1);
/// Announcements when an address is taken.
const ANNOUNCEMENTS: u32 = 3;
/// Time between two announcements of an address that is held.
const REPEAT: Duration = Duration::from_secs(30);
/// Time after which a node asks whether the former holder has let an address go.
const VERIFY: Duration = Duration::from_millis(700);
/// Time between two questions of a holder that is not the first choice.
const ASK_BETTER: Duration = Duration::from_secs(1);
/// Time until the first choice claims an address again that its holder did not let go. It doubles each time.
const RETREAT: Duration = Duration::from_secs(30);
const LONGEST_RETREAT: Duration = Duration::from_mins(10);
/// Shortest time between two defences of an address (RFC 5227 section 2.4).
const DEFEND: Duration = Duration::from_secs(1);

/// What a node is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Answer questions for the address from now on.
    Answer,
    /// Answer no more.
    Silence(Why),
    /// Tell all hosts on the link that this node has the address.
    Announce,
    /// Ask for the address: the host with this MAC address, or all.
    Ask(Option<Mac>),
}

/// Why a node answers no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// A better candidate has it.
    Yielded,
    /// The former holder goes on answering.
    StillHeld(Mac),
}

/// A frame of another host about the address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// An answer to a question of this node.
    Answer(Mac),
    /// The other host told all that it has the address.
    Announcement(Mac),
}

/// One node's part in one address on one link. All times are since the same moment.
#[derive(Clone, Debug)]
pub struct Claim {
    rank: usize,
    state: State,
    /// Time until the next attempt, if the holder does not let go.
    retreat: Duration,
}

#[derive(Clone, Debug)]
enum State {
    Waiting {
        /// When another host last said that it has the address.
        heard: Duration,
        /// Who, unless its last answers are missing.
        holder: Option<Mac>,
        ask_at: Duration,
        unanswered: u32,
        /// When the first choice claims the address although it is held.
        claim_at: Option<Duration>,
    },
    Holding {
        since: Duration,
        announcements: u32,
        announce_at: Duration,
        /// When to ask whether another host has the address, too.
        ask_at: Option<Duration>,
        defended: Duration,
    },
}

impl Claim {
    /// Returns a claim of a node that has not asked yet. The first choice takes the address at once.
    #[must_use]
    pub fn new(rank: usize, now: Duration) -> Self {
        Self { rank, state: waiting(now, None, (rank == 0).then_some(now)), retreat: RETREAT }
    }

    /// Returns the claim of a node whose programs answer already: an earlier agent made them.
    #[must_use]
    pub fn adopted(rank: usize, now: Duration) -> Self {
        let state = State::Holding {
            since: now,
            announcements: 0,
            announce_at: now + REPEAT,
            ask_at: Some(now + VERIFY),
            defended: now,
        };
        Self { rank, state, retreat: RETREAT }
    }

    /// Returns whether this node answers.
    #[must_use]
    pub fn is_held(&self) -> bool {
        matches!(self.state, State::Holding { .. })
    }

    /// Returns the time of the next [`tick`](Self::tick).
    #[must_use]
    pub fn due(&self) -> Duration {
        match &self.state {
            State::Waiting { heard, ask_at, claim_at, .. } => {
                let silence = *heard + patience(self.rank);
                claim_at.iter().chain([ask_at, &silence]).min().copied().unwrap_or(silence)
            }
            State::Holding { announce_at, ask_at, .. } => ask_at.unwrap_or(*announce_at).min(*announce_at),
        }
    }

    /// Changes the place among the candidates. A holder keeps the address until a better one asks for it.
    pub fn set_rank(&mut self, rank: usize, now: Duration) {
        if rank == self.rank {
            return;
        }
        self.rank = rank;
        match &mut self.state {
            State::Waiting { ask_at, claim_at, .. } => {
                *ask_at = now;
                *claim_at = (rank == 0).then_some(now);
            }
            State::Holding { ask_at, .. } => *ask_at = Some(now + ASK_BETTER),
        }
    }

    /// Does what is due.
    pub fn tick(&mut self, now: Duration) -> Vec<Act> {
        let rank = self.rank;
        match &mut self.state {
            State::Waiting { heard, holder, ask_at, unanswered, claim_at } => {
                let is_silent = *heard + patience(rank) <= now;
                if is_silent || claim_at.is_some_and(|at| at <= now) {
                    self.state = claimed(now);
                    return vec![Act::Answer, Act::Announce];
                }
                if now < *ask_at {
                    return Vec::new();
                }
                *ask_at = now + pause(rank);
                *unanswered += 1;
                // Another host may have taken the address over.
                if *unanswered > 2 {
                    *holder = None;
                }
                vec![Act::Ask(*holder)]
            }
            State::Holding { announcements, announce_at, ask_at, .. } => {
                let mut acts = Vec::new();
                if *announce_at <= now {
                    *announcements += 1;
                    if *announcements > ANNOUNCEMENTS {
                        self.retreat = RETREAT;
                    }
                    *announce_at = now + if *announcements < ANNOUNCEMENTS { ANNOUNCE } else { REPEAT };
                    acts.push(Act::Announce);
                }
                if ask_at.is_some_and(|at| at <= now) {
                    *ask_at = (rank > 0).then_some(now + ASK_BETTER);
                    acts.push(Act::Ask(None));
                }
                acts
            }
        }
    }

    /// Takes what another host said about the address.
    pub fn hear(&mut self, said: Heard, now: Duration) -> Vec<Act> {
        let (Heard::Answer(mac) | Heard::Announcement(mac)) = said;
        let is_answer = matches!(said, Heard::Answer(_));
        let rank = self.rank;
        match &mut self.state {
            State::Waiting { heard, holder, unanswered, .. } => {
                (*heard, *holder, *unanswered) = (now, Some(mac), 0);
                Vec::new()
            }
            State::Holding { .. } if rank > 0 => {
                self.state = waiting(now, Some(mac), None);
                let silence = Act::Silence(Why::Yielded);
                // The other holder does not know that hosts send here. It hears the announcement, and announces itself.
                if is_answer { vec![Act::Announce, silence] } else { vec![silence] }
            }
            // An answer to a question from before this node took the address.
            State::Holding { since, .. } if is_answer && now < *since + VERIFY => Vec::new(),
            // A holder whose agent is alive has let it go by the time of the question.
            State::Holding { .. } if is_answer => {
                self.state = waiting(now, Some(mac), Some(now + self.retreat));
                self.retreat = (self.retreat * 2).min(LONGEST_RETREAT);
                vec![Act::Silence(Why::StillHeld(mac))]
            }
            State::Holding { defended, .. } if *defended + DEFEND <= now => {
                *defended = now;
                vec![Act::Announce]
            }
            State::Holding { .. } => Vec::new(),
        }
    }
}

fn waiting(now: Duration, holder: Option<Mac>, claim_at: Option<Duration>) -> State {
    State::Waiting { heard: now, holder, ask_at: now, unanswered: 0, claim_at }
}

fn claimed(now: Duration) -> State {
    State::Holding {
        since: now,
        announcements: 1,
        announce_at: now + ANNOUNCE,
        ask_at: Some(now + VERIFY),
        defended: now,
    }
}

/// Returns the silence after which a candidate takes an address.
fn patience(rank: usize) -> Duration {
    let better = u32::try_from(rank).unwrap_or(u32::MAX).min(1 << 10);
    // A candidate that asks seldom must have missed some answers, too.
    let seldom = if rank > NEXT { pause(rank) * 2 } else { Duration::ZERO };
    SILENCE + STEP * better + seldom
}

/// Returns the time between two questions.
fn pause(rank: usize) -> Duration {
    if rank <= NEXT {
        ASK
    } else {
        (ASK * u32::try_from(rank).unwrap_or(u32::MAX).min(1 << 10)).min(ASK_SELDOM)
    }
}

#[cfg(test)]
#[path = "claim_tests.rs"]
mod tests;
