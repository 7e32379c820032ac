//! Random and mutated frames through the real programs, against an oracle that shares no code with
//! them.
//!
//! It needs root and the BPF object. Each program gets a million frames, with `MILLRACE_LONG=1` ten
//! million. `MILLRACE_SEED` repeats a failed run. The failure's message has the seed.
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "a test that finds something else than it put there must fail at once"
)]

mod agreement;
mod answers;
mod cut;
mod fragment;
mod generate;
mod oracle;
mod packet;
mod random;
mod tally;
mod translated;
mod tunnel;
mod world;

use std::time::{SystemTime, UNIX_EPOCH};

use millrace_lab::net::Netlink;
use millrace_lab::program::{Counts, Hook, Ingress, Verdict};
use nix::sched::{CloneFlags, unshare};
use proxy_common::verdict::Reason;

use generate::Generator;
use oracle::Oracle;
use random::Random;
use tally::Tally;
use world::World;

const FRAMES: u64 = 1_000_000;
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
    let frames =
        if std::env::var_os("MILLRACE_LONG").is_some_and(|value| value == "1") { 10 } else { 1 } * FRAMES;
    let seed = std::env::var("MILLRACE_SEED").map_or_else(|_| seed_of_now(), |text| text.parse().unwrap());
    let threads = std::thread::available_parallelism().map_or(1, |count| count.get() as u64);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            scope.spawn(move || {
                isolate();
                judge_share(hook, frames.div_ceil(threads), Random::new(seed, thread));
            });
        }
    });
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

fn seed_of_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64
}

fn judge_share(hook: Hook, frames: u64, random: Random) {
    let seed = random.seed();
    let world = World::new(hook);
    let mut generator = Generator::new(&world, hook, random);
    let oracle = Oracle::new(&world, hook);
    let first = world.bed.counters();
    let mut done = 0;
    while done < frames {
        // On a busy machine, all batches together take longer than an agent may be silent.
        world.bed.beat();
        let before = world.bed.counters();
        let mut tally = Tally::default();
        for _ in 0..BATCH {
            let frame = generator.next_frame();
            if !hook.takes(frame) {
                continue;
            }
            let run = world.bed.run_raw(hook, frame, Ingress::default());
            match oracle.judge(frame, &run) {
                Ok(reasons) => tally.note(frame.len(), reasons),
                Err(fault) => panic!(
                    "MILLRACE_SEED={seed}: {fault}\n{} returned {} ({:?})\ngiven:\n{}left:\n{}",
                    hook.program(),
                    run.action,
                    Verdict::new(hook, run.action),
                    millrace_lab::frame::describe(frame),
                    millrace_lab::frame::describe(&run.frame),
                ),
            }
        }
        tally
            .check(hook, &before, &world.bed.counters())
            .unwrap_or_else(|fault| panic!("MILLRACE_SEED={seed}: {fault}"));
        done += BATCH;
    }
    let counts = Counts::between(hook, &first, &world.bed.counters());
    for reason in expected_reasons(hook) {
        assert!(counts.of(reason).packets > 0, "no frame came to {}: {counts}", reason.name());
    }
}
