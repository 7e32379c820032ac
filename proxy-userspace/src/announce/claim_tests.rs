use std::collections::VecDeque;
use std::time::Duration;

use proptest::prelude::*;

use super::{Act, Claim, Heard, Mac, Place};

/// Time between two looks of the simulation.
const STEP: Duration = Duration::from_millis(10);

fn seconds(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

/// A link with nodes that compete for one address.
struct Link {
    now: Duration,
    nodes: Vec<Node>,
    /// Frames on their way: sender, receiver (none is all), and whether it is a question.
    frames: VecDeque<(usize, Option<usize>, Frame)>,
    /// Whether a frame from one node reaches another one.
    passes: Box<dyn FnMut(usize, usize) -> bool>,
    /// The steps with no and with several answering nodes.
    without: Vec<Duration>,
    several: Vec<Duration>,
    questions: usize,
    /// The node that the other hosts on the link send to.
    known: Option<usize>,
    /// A node whose programs don't answer.
    is_mute: Option<usize>,
}

#[derive(Clone, Copy)]
enum Frame {
    Question,
    Answer,
    Announcement,
}

struct Node {
    claim: Claim,
    /// Whether the programs answer.
    answers: bool,
    /// Whether the agent runs.
    agent: bool,
    /// Whether the node runs.
    runs: bool,
}

fn mac(node: usize) -> Mac {
    [2, 0, 0, 0, 0, u8::try_from(node).unwrap()]
}

impl Link {
    fn new(ranks: &[usize]) -> Self {
        let node = |rank: &usize| Node {
            claim: Claim::new(*rank, Duration::ZERO, Duration::ZERO),
            answers: false,
            agent: true,
            runs: true,
        };
        Self {
            now: Duration::ZERO,
            nodes: ranks.iter().map(node).collect(),
            frames: VecDeque::new(),
            passes: Box::new(|_, _| true),
            without: Vec::new(),
            several: Vec::new(),
            questions: 0,
            known: None,
            is_mute: None,
        }
    }

    fn run(&mut self, duration: Duration) -> &mut Self {
        let end = self.now + duration;
        while self.now < end {
            self.now += STEP;
            for index in 0..self.nodes.len() {
                let node = &mut self.nodes[index];
                if node.runs && node.agent && node.claim.due() <= self.now {
                    let acts = node.claim.tick(self.now);
                    assert!(node.claim.due() > self.now, "due again at once");
                    self.act(index, acts);
                }
            }
            for _ in 0..self.frames.len() {
                let (from, to, frame) = self.frames.pop_front().unwrap();
                let host = self.nodes.len();
                if matches!(frame, Frame::Announcement) && to.is_none() && (self.passes)(from, host) {
                    self.known = Some(from);
                }
                for receiver in 0..self.nodes.len() {
                    if receiver != from && to.is_none_or(|to| to == receiver) {
                        self.deliver(from, receiver, frame);
                    }
                }
            }
            match self.holders().len() {
                0 => self.without.push(self.now),
                1 => {}
                _ => self.several.push(self.now),
            }
        }
        self
    }

    fn act(&mut self, index: usize, acts: Vec<Act>) {
        for act in acts {
            match act {
                Act::Answer => self.nodes[index].answers = true,
                Act::Silence(_) => self.nodes[index].answers = false,
                Act::Announce(to) => {
                    let to = to.map(|mac| usize::from(mac[5]));
                    self.frames.push_back((index, to, Frame::Announcement));
                }
                Act::Ask(holder) => {
                    self.questions += 1;
                    self.frames.push_back((index, holder.map(|mac| usize::from(mac[5])), Frame::Question));
                }
            }
        }
    }

    fn deliver(&mut self, from: usize, to: usize, frame: Frame) {
        if !self.nodes[to].runs || !(self.passes)(from, to) {
            return;
        }
        let said = match frame {
            Frame::Question if self.nodes[to].answers && self.is_mute != Some(to) => {
                return self.frames.push_back((to, Some(from), Frame::Answer));
            }
            Frame::Question => return,
            Frame::Answer => Heard::Answer(mac(from)),
            Frame::Announcement => Heard::Announcement(mac(from)),
        };
        if self.nodes[to].agent {
            let acts = self.nodes[to].claim.hear(said, self.now);
            self.act(to, acts);
        }
    }

    fn holders(&self) -> Vec<usize> {
        let answers =
            |node: &usize| self.nodes[*node].runs && self.nodes[*node].answers && self.is_mute != Some(*node);
        (0..self.nodes.len()).filter(answers).collect()
    }

    /// Returns for how long nobody answered, and forgets it.
    fn gap(&mut self) -> Duration {
        STEP * u32::try_from(std::mem::take(&mut self.without).len()).unwrap()
    }

    /// Returns for how long several nodes answered, and forgets it.
    fn overlap(&mut self) -> Duration {
        STEP * u32::try_from(std::mem::take(&mut self.several).len()).unwrap()
    }
}

#[test]
fn the_first_choice_takes_an_address_soon_and_keeps_it_alone() {
    let mut link = Link::new(&[1, 0, 2]);
    link.run(seconds(60.0));
    assert_eq!((link.holders(), link.known), (vec![1], Some(1)));
    assert!(link.gap() <= seconds(0.4));
    assert_eq!(link.overlap(), Duration::ZERO);
    // Two candidates ask twice a second.
    assert!(link.questions < 250, "{}", link.questions);
}

#[test]
fn when_a_node_dies_the_next_one_answers_within_two_seconds() {
    for moment in 0..20 {
        let mut link = Link::new(&[0, 1, 2]);
        link.run(seconds(10.0) + STEP * moment * 3);
        link.gap();
        link.nodes[0].runs = false;
        link.run(seconds(10.0));
        assert_eq!((link.holders(), link.known), (vec![1], Some(1)));
        assert!(link.gap() <= seconds(2.1) && link.overlap().is_zero(), "{moment}");
        // So does the third one when the second one dies as well.
        link.nodes[1].runs = false;
        link.run(seconds(10.0));
        assert_eq!(link.holders(), [2]);
        assert!(link.gap() <= seconds(2.6), "{moment}");
    }
}

#[test]
fn many_may_die_at_once() {
    for (dead, limit) in [(3, 3.1), (6, 6.6), (20, 16.5)] {
        let mut link = Link::new(&(0..=dead).collect::<Vec<_>>());
        link.run(seconds(120.0));
        link.gap();
        for node in 0..dead {
            link.nodes[node].runs = false;
        }
        link.run(seconds(60.0));
        assert_eq!(link.holders(), [dead]);
        let gap = link.gap();
        assert!(gap <= seconds(limit), "{dead} dead: {gap:?}");
    }
}

#[test]
fn a_node_that_comes_back_takes_its_addresses_again_without_a_gap() {
    let mut link = Link::new(&[0, 1]);
    link.run(seconds(5.0));
    link.nodes[0].runs = false;
    link.run(seconds(5.0));
    link.gap();
    link.nodes[0] = Node { claim: Claim::new(0, link.now, STEP), answers: false, agent: true, runs: true };
    link.run(seconds(60.0));
    assert_eq!((link.holders(), link.known), (vec![0], Some(0)));
    assert_eq!(link.gap(), Duration::ZERO);
    assert!(link.overlap() <= STEP * 4);
}

#[test]
fn a_node_whose_agent_is_gone_keeps_its_addresses() {
    let mut link = Link::new(&[0, 1, 2]);
    link.run(seconds(5.0));
    link.gap();
    link.nodes[0].agent = false;
    link.run(seconds(600.0));
    assert_eq!(link.holders(), [0]);
    assert_eq!((link.gap(), link.overlap()), (Duration::ZERO, Duration::ZERO));
    // The next agent goes on.
    link.nodes[0] = Node { claim: Claim::adopted(0, link.now, STEP), answers: true, agent: true, runs: true };
    link.run(seconds(60.0));
    assert_eq!(link.holders(), [0]);
    assert_eq!((link.gap(), link.overlap()), (Duration::ZERO, Duration::ZERO));
}

#[test]
fn hosts_are_not_told_of_a_node_while_another_one_does_not_let_go() {
    let mut link = Link::new(&[1, 0]);
    link.nodes[1].runs = false;
    link.run(seconds(5.0));
    link.gap();
    link.nodes[0].agent = false;
    link.nodes[1] = Node { claim: Claim::new(0, link.now, STEP), answers: false, agent: true, runs: true };
    for _ in 0..3600 {
        link.run(seconds(1.0));
        assert_eq!(link.known, Some(0));
    }
    assert_eq!(link.holders(), [0]);
    assert_eq!(link.gap(), Duration::ZERO);
    // It tried for less than a second each time, and ever more seldom.
    assert!(link.overlap() <= seconds(8.0), "{:?}", link.overlap());
    link.nodes[0].runs = false;
    link.run(seconds(5.0));
    assert_eq!(link.holders(), [1]);
    assert!(link.gap() <= seconds(1.6));
}

#[test]
fn each_part_of_a_divided_link_has_a_holder_and_the_whole_has_one_again() {
    // With the first choice in one part, and without any.
    for ranks in [[0, 1, 2], [1, 2, 3]] {
        let mut link = Link::new(&ranks);
        link.run(seconds(10.0));
        link.passes = Box::new(|from, to| (from == 0) == (to == 0));
        link.run(seconds(10.0));
        assert_eq!((link.holders(), link.known), (vec![0, 1], Some(1)));
        link.passes = Box::new(|_, _| true);
        link.gap();
        link.overlap();
        link.run(seconds(10.0));
        assert_eq!(link.holders().len(), 1);
        assert!(link.overlap() <= seconds(1.1));
        assert_eq!((link.gap(), link.known), (Duration::ZERO, link.holders().first().copied()));
        assert!(ranks[0] != 0 || link.holders() == [0]);
    }
}

#[test]
fn a_lower_place_keeps_the_address_until_the_better_candidate_asks() {
    let mut link = Link::new(&[0, 1]);
    link.run(seconds(5.0));
    link.gap();
    let now = link.now;
    link.nodes[0].claim.set_place(1, now);
    link.nodes[1].claim.set_place(0, now);
    link.run(seconds(60.0));
    assert_eq!((link.holders(), link.known), (vec![1], Some(1)));
    assert_eq!(link.gap(), Duration::ZERO);
    assert!(link.overlap() <= STEP * 4);
}

#[test]
fn a_node_that_does_not_answer_leaves_the_address_to_one_that_does() {
    // Its programs are not attached: it announces, and nobody gets an answer.
    let mut link = Link::new(&[0, 1]);
    link.is_mute = Some(0);
    link.run(seconds(600.0));
    assert_eq!(link.holders(), [1]);
    link.gap();
    link.run(seconds(3600.0));
    assert_eq!((link.gap(), link.known), (Duration::ZERO, Some(1)));
}

#[test]
fn an_announcement_of_a_host_that_does_not_answer_is_answered_by_one() {
    let mut claim = Claim::new(0, Duration::ZERO, Duration::ZERO);
    assert_eq!(claim.tick(Duration::ZERO), [Act::Ask(None)]);
    assert_eq!(claim.tick(seconds(0.3)), [Act::Answer, Act::Announce(None)]);
    assert_eq!(claim.tick(seconds(0.5)), [Act::Ask(None)]);
    let other = Heard::Announcement(mac(7));
    assert_eq!(claim.hear(other, seconds(0.6)), [Act::Announce(Some(mac(7)))]);
    assert_eq!(claim.hear(other, seconds(0.61)), []);
    assert_eq!(claim.tick(seconds(1.1)), [Act::Ask(None)]);
    assert_eq!(claim.tick(seconds(1.3)), [Act::Announce(None)]);
    // A holder that is not the first choice asks whoever says so.
    let mut claim = Claim::adopted(1, Duration::ZERO, Duration::ZERO);
    assert_eq!(claim.hear(other, seconds(0.1)), [Act::Ask(Some(mac(7)))]);
    assert_eq!(claim.hear(other, seconds(0.11)), []);
    assert_eq!(claim.due(), Duration::ZERO);
    claim.tick(seconds(0.2));
    assert_eq!(claim.tick(seconds(0.3)), [Act::Announce(None)]);
    assert!(claim.is_held());
}

#[test]
fn an_answer_in_the_name_of_a_silent_holder_proves_nothing() {
    let mut claim = Claim::new(1, Duration::ZERO, Duration::ZERO);
    assert_eq!(claim.tick(Duration::ZERO), [Act::Ask(None)]);
    assert_eq!(claim.hear(Heard::Answer(mac(7)), STEP), []);
    let mut asked = Vec::new();
    let mut now = STEP;
    while !claim.is_held() {
        now = claim.due();
        assert!(now < seconds(3.0), "{asked:?}");
        for act in claim.tick(now) {
            if act == Act::Ask(None) {
                // A router answers for it from its table.
                claim.hear(Heard::Answer(mac(7)), now + STEP);
            }
            asked.push(act);
        }
    }
    assert!(asked.starts_with(&[Act::Ask(Some(mac(7))), Act::Ask(None)]), "{asked:?}");
    assert!(now <= seconds(2.1));
}

#[test]
fn candidates_that_lose_frames_do_not_fight_over_the_address_of_a_node_without_an_agent() {
    let mut link = Link::new(&[2, 0, 1]);
    (link.nodes[1].runs, link.nodes[2].runs) = (false, false);
    link.run(seconds(5.0));
    link.nodes[0].agent = false;
    for (index, rank) in [(1, 0), (2, 1)] {
        let claim = Claim::new(rank, link.now, STEP);
        link.nodes[index] = Node { claim, answers: false, agent: true, runs: true };
    }
    link.run(seconds(5.0));
    link.passes = Box::new(|from, to| from != 2 && to != 2);
    link.run(seconds(3.0));
    link.passes = Box::new(|_, _| true);
    link.run(seconds(120.0));
    link.gap();
    link.overlap();
    link.run(seconds(600.0));
    assert_eq!((link.holders(), link.gap()), (vec![0], Duration::ZERO));
    assert!(link.overlap() <= seconds(3.0));
}

#[test]
fn a_healthy_first_choice_keeps_the_address_of_one_that_took_it_in_error() {
    for moment in 0..40 {
        let mut link = Link::new(&[0, 1]);
        link.run(seconds(5.0));
        link.passes = Box::new(|_, _| false);
        link.run(seconds(1.0) + STEP * moment * 5);
        link.passes = Box::new(|_, _| true);
        link.gap();
        link.run(seconds(5.0));
        assert_eq!((link.holders(), link.gap()), (vec![0], Duration::ZERO), "{moment}");
    }
}

#[test]
fn a_node_that_was_not_running_reads_the_answers_first() {
    let mut claim = Claim::new(1, Duration::ZERO, Duration::ZERO);
    for step in 0..3 {
        assert_eq!(claim.tick(seconds(0.5) * step), [Act::Ask(None)]);
    }
    assert_eq!(claim.tick(seconds(9.0)), [Act::Ask(None)]);
    let mut late = claim.clone();
    assert_eq!(claim.hear(Heard::Answer(mac(7)), seconds(9.1)), []);
    assert_eq!(claim.tick(seconds(9.6)), [Act::Ask(Some(mac(7)))]);
    assert_eq!(late.tick(seconds(9.5)), [Act::Answer, Act::Announce(None)]);
}

#[test]
fn a_claim_that_fails_is_tried_again_later() {
    let mut claim = Claim::new(0, Duration::ZERO, Duration::ZERO);
    claim.tick(seconds(0.3));
    claim.fail(seconds(0.3));
    assert!(!claim.is_held());
    assert_eq!(claim.due(), seconds(30.3));
    assert_eq!(claim.tick(seconds(30.3)), [Act::Ask(None)]);
    assert_eq!(claim.tick(seconds(30.6)), [Act::Answer, Act::Announce(None)]);
}

#[test]
fn many_candidates_ask_seldom() {
    let ranks: Vec<usize> = (0..100).collect();
    let mut link = Link::new(&ranks);
    link.run(seconds(60.0));
    assert_eq!(link.holders(), [0]);
    assert_eq!(link.overlap(), Duration::ZERO);
    // 13 for each second, of 99 nodes.
    assert!(link.questions < 1000, "{}", link.questions);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Whatever happened to nodes, agents and frames, one node answers soon afterwards.
    #[test]
    fn one_node_answers_in_the_end(
        events in proptest::collection::vec((0_usize..4, 0_u8..5, 0_u32..300), 1..12),
        seed in any::<u64>(),
    ) {
        let mut link = Link::new(&[2, 0, 1, 3]);
        let mut state = seed | 1;
        link.passes = Box::new(move |_, _| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state >> 62 != 0
        });
        for (index, event, steps) in events {
            let rank = [2, 0, 1, 3][index];
            let now = link.now;
            let node = &mut link.nodes[index];
            match event {
                0 => (node.runs, node.answers) = (false, false),
                1 if !node.runs => {
                    *node = Node { claim: Claim::new(rank, now, STEP), answers: false, agent: true, runs: true };
                }
                2 => node.agent = false,
                3 if !node.agent && node.runs => {
                    let claim = if node.answers { Claim::adopted(rank, now, STEP) } else { Claim::new(rank, now, STEP) };
                    (node.claim, node.agent) = (claim, true);
                }
                _ => {}
            }
            link.run(STEP * steps);
        }
        link.passes = Box::new(|_, _| true);
        // Agents that are gone come back, as Kubernetes sees to it.
        let now = link.now;
        for (index, rank) in [2, 0, 1, 3].into_iter().enumerate() {
            let node = &mut link.nodes[index];
            if !node.agent {
                node.claim = if node.answers { Claim::adopted(rank, now, STEP) } else { Claim::new(rank, now, STEP) };
                node.agent = true;
            }
        }
        link.run(seconds(10.0));
        let alive = link.nodes.iter().any(|node| node.runs);
        prop_assert_eq!(link.holders().len(), usize::from(alive));
        if !alive {
            return Ok(());
        }
        link.gap();
        link.overlap();
        link.run(seconds(700.0));
        prop_assert_eq!(link.gap(), Duration::ZERO);
        prop_assert!(link.overlap() <= seconds(1.0));
        prop_assert_eq!(link.known, link.holders().first().copied());
    }
}

/// The time until a candidate takes an address that nobody answers for.
fn silence_of(place: Place) -> Duration {
    let mut claim = Claim::new(place, Duration::ZERO, Duration::ZERO);
    let mut now = Duration::ZERO;
    while !claim.is_held() {
        now = claim.due();
        claim.tick(now);
    }
    now
}

#[test]
fn nodes_that_are_not_ready_are_in_nobodys_way_when_an_address_has_no_holder() {
    assert_eq!(silence_of(Place { rank: 5, turn: 0 }), Duration::from_secs(1));
    assert_eq!(silence_of(5.into()), Duration::from_millis(3500));
}

#[test]
fn a_change_of_readiness_takes_an_address_from_nobody() {
    let mut claim = Claim::new(1, Duration::ZERO, Duration::ZERO);
    let holder = [2, 0, 0, 0, 0, 9];
    for second in 0..120 {
        let now = Duration::from_secs(second);
        if second == 10 {
            claim.set_place(Place { rank: 1, turn: 0 }, now);
        }
        while claim.due() <= now {
            claim.tick(claim.due());
            claim.hear(Heard::Answer(holder), now);
        }
        assert!(!claim.is_held(), "after {second} s");
    }
}
