//! What happens to the cluster, second by second.

use std::collections::BTreeMap;

use super::endpoints::{Endpoint, Node};
use super::random::Random;

/// Seconds from the start of an endpoint's end until its pod is gone.
pub const GRACE: u32 = 30;
/// The first second of a change. All connections of the start are open then.
const BEGIN: u32 = 10;
/// Endpoints before the first change.
const ENDPOINTS: u32 = 30;
/// One director in this many is lost, added or drained.
const SHARE: usize = 20;
/// Seconds until a drained node returns.
const AWAY: u32 = 60;

/// A course of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Scenario {
    /// Nothing changes.
    Nothing,
    /// 3 endpoints become 30, and 3 again.
    Scale,
    /// Each of 30 endpoints is replaced, one a second.
    Rolling,
    /// One director in twenty is lost, one a second.
    Lost,
    /// One director in twenty is new, one a second.
    Added,
    /// One node in twenty is drained, the nodes of a third of the endpoints among them. It returns
    /// with empty maps.
    Drained,
    /// All of this at the same time.
    All,
}

/// One event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A pod is ready.
    Ready(Endpoint, Node),
    /// A pod begins to end.
    Terminate(Endpoint),
    /// A node is gone, with its maps. The router takes it out at once.
    Lose(Node),
    /// The router sends no more packets to a node, which still works.
    Withdraw(Node),
    /// A node without maps joins the directors.
    Join(Node),
}

/// The start and the events.
#[derive(Clone, Debug)]
pub struct Course {
    /// Endpoints of the start, and their nodes.
    pub endpoints: Vec<(Endpoint, Node)>,
    /// Directors of the start.
    pub directors: Vec<Node>,
    /// Events by second.
    pub events: BTreeMap<u32, Vec<Event>>,
    /// The last second.
    pub end: u32,
}

impl Scenario {
    /// All scenarios that are measured, in the order of the table.
    pub const MEASURED: [Self; 6] =
        [Self::Scale, Self::Rolling, Self::Lost, Self::Added, Self::Drained, Self::All];

    /// Returns the name in the table.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing changes",
            Self::Scale => "scale 3 -> 30 -> 3",
            Self::Rolling => "rolling update of 30",
            Self::Lost => "5 % of directors lost",
            Self::Added => "5 % of directors added",
            Self::Drained => "5 % of nodes drained",
            Self::All => "all at once",
        }
    }

    /// Returns its course in a cluster of `nodes` nodes.
    pub fn course(self, nodes: usize, random: &mut Random) -> Course {
        let mut course = Builder::new(self, nodes, random);
        match self {
            Self::Nothing => {}
            Self::Scale => course.scale(),
            Self::Rolling => course.rolling(),
            Self::Lost => course.lose(),
            Self::Added => course.add(),
            Self::Drained => course.drain(),
            Self::All => {
                course.scale();
                course.rolling();
                course.lose();
                course.add();
                course.drain();
            }
        }
        course.course.end = course.last() + GRACE;
        course.course
    }
}

struct Builder<'a> {
    course: Course,
    random: &'a mut Random,
    /// Nodes without an endpoint and without an event.
    free: Vec<Node>,
    next: Endpoint,
    /// A director in twenty.
    portion: usize,
}

impl<'a> Builder<'a> {
    fn new(scenario: Scenario, nodes: usize, random: &'a mut Random) -> Self {
        let portion = (nodes / SHARE).max(1);
        let later = if matches!(scenario, Scenario::Added | Scenario::All) { portion } else { 0 };
        let course = Course {
            endpoints: Vec::new(),
            directors: (0..nodes - later).collect(),
            events: BTreeMap::new(),
            end: 0,
        };
        let mut builder = Self { course, random, free: (0..nodes - later).collect(), next: 0, portion };
        let count = if scenario == Scenario::Scale { 3 } else { ENDPOINTS };
        for _ in 0..count {
            let pod = builder.pod();
            builder.course.endpoints.push(pod);
        }
        builder
    }

    /// Returns a new pod on a node of its own.
    fn pod(&mut self) -> (Endpoint, Node) {
        let node = self.random.take(&mut self.free).unwrap_or(0);
        self.next += 1;
        (self.next - 1, node)
    }

    fn at(&mut self, second: u32, event: Event) {
        self.course.events.entry(second).or_default().push(event);
    }

    fn last(&self) -> u32 {
        self.course.events.last_key_value().map_or(BEGIN, |(second, _)| *second)
    }

    /// 27 pods come, one a second. Thirty seconds later they go, the newest first.
    fn scale(&mut self) {
        for number in 0..27 {
            let (endpoint, node) = self.pod();
            self.at(BEGIN + number, Event::Ready(endpoint, node));
            self.at(BEGIN + 30 + 27 * 2 - number, Event::Terminate(endpoint));
        }
    }

    /// The pods of the start are replaced, one a second.
    fn rolling(&mut self) {
        for (number, (old, _)) in (0..).zip(self.course.endpoints.clone()) {
            let (endpoint, node) = self.pod();
            self.at(BEGIN + number, Event::Ready(endpoint, node));
            self.at(BEGIN + number + 1, Event::Terminate(old));
        }
    }

    fn lose(&mut self) {
        for number in 0..self.portion {
            let Some(node) = self.random.take(&mut self.free) else { return };
            self.at(BEGIN + number as u32, Event::Lose(node));
        }
    }

    fn add(&mut self) {
        let first = self.course.directors.len();
        for number in 0..self.portion {
            self.at(BEGIN + number as u32, Event::Join(first + number));
        }
    }

    /// Nodes are withdrawn, and their pods replaced. Each node is gone once its pods are, and
    /// returns later.
    fn drain(&mut self) {
        let mut hosts = self.course.endpoints.clone();
        for number in 0..self.portion {
            let second = BEGIN + number as u32;
            let pod = if number % 3 == 0 { self.random.take(&mut hosts) } else { None };
            let Some(node) = pod.map(|(_, node)| node).or_else(|| self.random.take(&mut self.free)) else {
                return;
            };
            self.at(second, Event::Withdraw(node));
            if let Some((old, _)) = pod {
                let (endpoint, home) = self.pod();
                self.at(second + 1, Event::Ready(endpoint, home));
                self.at(second + 2, Event::Terminate(old));
            }
            self.at(second + 2 + GRACE, Event::Lose(node));
            self.at(second + 2 + GRACE + AWAY, Event::Join(node));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_course_follows_from_its_seed() {
        for scenario in Scenario::MEASURED {
            let course = || scenario.course(1000, &mut Random::new(7));
            assert_eq!(course().events, course().events, "{scenario:?}");
            assert!(!course().events.is_empty() && course().end > BEGIN);
        }
    }

    #[test]
    fn scaling_ends_with_the_endpoints_of_the_start() {
        let course = Scenario::Scale.course(100, &mut Random::new(1));
        let events = || course.events.values().flatten();
        assert_eq!(course.endpoints.len(), 3);
        assert_eq!(events().filter(|event| matches!(event, Event::Ready(..))).count(), 27);
        assert_eq!(events().filter(|event| matches!(event, Event::Terminate(_))).count(), 27);
    }
}
