//! Random and mutated input: frames through the real programs, against an oracle that shares no code
//! with them, and manifests, settings and requests through the control plane.
//!
//! It needs root and the BPF object. Each program gets 500,000 frames, with `MILLRACE_LONG=1` ten
//! million, with `MILLRACE_FRAMES` any number. They come in rounds. A failure's message has the seed of
//! its round, and `MILLRACE_SEED` repeats that round alone.
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test that finds something else than it put there must fail at once"
)]

mod agreement;
mod answers;
mod control;
mod cut;
mod folder;
mod fragment;
mod generate;
mod memory;
mod oracle;
mod packet;
mod random;
mod rounds;
mod tally;
mod translated;
mod tunnel;
mod world;

use millrace_lab::net::Netlink;
use millrace_lab::program::{Counts, Hook, Ingress, Verdict};
use nix::sched::{CloneFlags, unshare};
use proxy_common::verdict::Reason;

use generate::Generator;
use oracle::Oracle;
use random::Random;
use rounds::{Round, Rounds};
use tally::Tally;
use world::World;

/// The number of frames between two readings of the counters.
const BATCH: u64 = 10_000;

#[test]
fn xdp_ingress_judges_every_frame_rightly() {
    judge(Hook::XdpIngress);
}

#[test]
fn tc_ingress_judges_every_frame_rightly() {
    judge(Hook::TcIngress);
}

#[test]
fn tc_egress_judges_every_frame_rightly() {
    judge(Hook::TcEgress);
}

#[test]
fn tc_pod_in_judges_every_frame_rightly() {
    judge(Hook::TcPodIn);
}

#[test]
fn tc_pod_out_judges_every_frame_rightly() {
    judge(Hook::TcPodOut);
}

/// Runs the program on all frames, on as many threads as there are CPUs.
fn judge(hook: Hook) {
    let rounds = Rounds::new(hook.program());
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let _stop = rounds.stop_on_panic();
                isolate();
                while let Some(round) = rounds.next() {
                    rounds.add_counts(&judge_round(hook, &rounds, &round));
                }
            });
        }
    });
    rounds.report();
    let expected = expected_reasons(hook);
    let unmet: Vec<_> = rounds.unmet(&expected).into_iter().map(Reason::name).collect();
    assert!(unmet.is_empty(), "no frame came to {}", unmet.join(", "));
}

/// Moves the thread into a network namespace of its own. The parts of a cut packet come in again at
/// its loopback device, and go nowhere.
fn isolate() {
    unshare(CloneFlags::CLONE_NEWNET).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { Netlink::open().unwrap().set_up("lo").await.unwrap() });
}

/// Returns the reasons that must occur at least once. Otherwise the frames test less than they seem
/// to.
fn expected_reasons(hook: Hook) -> Vec<Reason> {
    const INGRESS: [Reason; 16] = [
        Reason::NotOurs,
        Reason::ServedLocal,
        Reason::SentDsr,
        Reason::ServedDsr,
        Reason::SentOnward,
        Reason::Echo,
        Reason::IcmpError,
        Reason::IcmpUnknown,
        Reason::NoEndpoint,
        Reason::NoLocalEndpoint,
        Reason::NotPeer,
        Reason::NoBackendHere,
        Reason::SentSnat,
        Reason::HopLimit,
        Reason::TooBig,
        Reason::UnknownPort,
    ];
    match hook {
        Hook::TcEgress | Hook::TcPodOut => vec![Reason::NotOurs, Reason::Reply, Reason::IcmpError],
        Hook::TcPodIn => vec![
            Reason::NotOurs,
            Reason::ServedPod,
            Reason::Hairpin,
            Reason::Reply,
            Reason::Echo,
            Reason::IcmpError,
            Reason::IcmpUnknown,
            Reason::NoEndpoint,
            Reason::UnknownPort,
            Reason::FragmentHeld,
        ],
        Hook::XdpIngress => [&INGRESS[..], &[Reason::HandedToTc]].concat(),
        Hook::TcIngress => [&INGRESS[..], &[Reason::Fragmented, Reason::FragmentHeld]].concat(),
    }
}

/// Plays a round in a world of its own. Returns the counts of the program.
fn judge_round(hook: Hook, rounds: &Rounds, round: &Round) -> Counts {
    let world = World::new(hook);
    let mut generator = Generator::new(&world, hook, Random::new(round.seed));
    let oracle = Oracle::new(&world, hook);
    let first = world.bed.counters();
    let mut done = 0;
    while done < round.frames {
        // On a busy machine, all batches together take longer than an agent may be silent.
        world.bed.beat();
        let before = world.bed.counters();
        let mut tally = Tally::default();
        let batch = BATCH.min(round.frames - done);
        for _ in 0..batch {
            let frame = generator.next_frame();
            if !hook.takes(frame) {
                continue;
            }
            let run = world.bed.run_raw(hook, frame, Ingress::default());
            match oracle.judge(frame, &run) {
                Ok(reasons) => tally.note(frame.len(), reasons),
                Err(fault) => panic!(
                    "{round}: {fault}\n{} returned {} ({:?})\ngiven:\n{}left:\n{}",
                    hook.program(),
                    run.action,
                    Verdict::new(hook, run.action),
                    millrace_lab::frame::describe(frame),
                    millrace_lab::frame::describe(&run.frame),
                ),
            }
        }
        tally.check(hook, &before, &world.bed.counters()).unwrap_or_else(|fault| panic!("{round}: {fault}"));
        done += batch;
        rounds.played(batch);
    }
    Counts::between(hook, &first, &world.bed.counters())
}
