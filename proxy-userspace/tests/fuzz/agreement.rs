//! `millrace explain`: the walk, the dry run and the live program come to the same end.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use millrace::dataplane::ebpf::dry_run::{Concern, DryRun, Ran};
use millrace::dataplane::ebpf::read::{Lookups, PinnedMaps};
use millrace::explain::{End, Past, walk};
use millrace_lab::frame::describe;
use millrace_lab::program::{Bed, Counts, DEVICE, Hook, Ingress, RawRun};
use proxy_common::LAYOUT_VERSION;
use proxy_common::config::HANDOVER_MAGIC;
use proxy_common::icmp::KINDS;
use proxy_common::verdict::Reason;

use crate::folder::Folder;
use crate::generate::Generator;
use crate::isolate;
use crate::packet::needs_more_than_itself;
use crate::random::Random;
use crate::rounds::{derived, given_seed, seed_of_now, times_if_long};
use crate::world::World;

/// Frames of a usual run.
const FRAMES: u64 = 1000;

#[test]
fn walk_dry_run_and_xdp_ingress_agree() {
    agree(Hook::XdpIngress, &[Reason::ServedLocal, Reason::SentDsr, Reason::SentSnat, Reason::NoEndpoint]);
}

#[test]
fn walk_dry_run_and_tc_ingress_agree() {
    agree(Hook::TcIngress, &[Reason::ServedLocal, Reason::SentDsr, Reason::SentSnat, Reason::NoEndpoint]);
}

#[test]
fn walk_dry_run_and_tc_pod_in_agree() {
    agree(Hook::TcPodIn, &[Reason::ServedPod, Reason::Hairpin, Reason::Reply, Reason::NoEndpoint]);
}

/// Pins a bed, as an agent does.
fn pinned(bed: &Bed, hook: Hook) -> Folder {
    let folder = Folder::new(Path::new("/sys/fs/bpf"), hook.program());
    let root = folder.path.join(format!("millrace/v{LAYOUT_VERSION}"));
    let (maps, programs) = (root.join("maps"), root.join("programs/bed"));
    fs::create_dir_all(&maps).unwrap();
    fs::create_dir_all(&programs).unwrap();
    bed.pin(&[hook], &maps, &programs);
    folder
}

/// Runs the three engines on each frame.
fn agree(hook: Hook, expected: &'static [Reason]) {
    let frames = times_if_long(FRAMES);
    let seed = given_seed().unwrap_or_else(seed_of_now);
    let run = move || {
        isolate();
        let world = World::new(hook);
        let pins = pinned(&world.bed, hook);
        let maps = PinnedMaps::open(&pins.path).unwrap();
        let mut engines = Engines {
            world: &world,
            hook,
            lookups: maps.lookups().unwrap().unwrap(),
            dry: DryRun::open(&pins.path, hook.counted_as()).unwrap(),
        };
        let mut generators = [
            Generator::of_clients(&world, hook, Random::new(seed)),
            Generator::new(&world, hook, Random::new(derived(seed, 1))),
        ];
        let (mut done, mut reasons) = (0, BTreeSet::new());
        while done < frames {
            // Every fourth frame is one of all kinds.
            let frame = generators[usize::from(done % 4 == 3)].next_frame().to_vec();
            // Fragments depend on earlier frames, and the walk leaves ICMP and tunnels to the programs.
            if !hook.takes(&frame) || needs_more_than_itself(&frame) {
                continue;
            }
            let outcome = engines.compare(&frame).unwrap_or_else(|fault| {
                panic!("MILLRACE_SEED={seed}, frame {done}: {fault}\ngiven:\n{}", describe(&frame))
            });
            done += u64::from(outcome.is_some());
            reasons.extend(outcome);
        }
        for reason in expected {
            assert!(reasons.contains(reason), "no frame came to {}", reason.name());
        }
    };
    std::thread::spawn(run).join().unwrap();
}

struct Engines<'a> {
    world: &'a World,
    hook: Hook,
    lookups: Lookups<'a>,
    dry: DryRun,
}

impl Engines<'_> {
    /// Returns the reason of all three; `None` for a frame that the walk does not follow.
    fn compare(&mut self, frame: &[u8]) -> Result<Option<Reason>, String> {
        self.fill_buckets();
        self.world.bed.beat();
        let walk = walk(&self.lookups, self.hook.counted_as(), DEVICE, frame, Past::Known);
        self.lookups.take_failure().map_err(|error| error.to_string())?;
        let End::Verdict(verdict) = &walk.end else { return Ok(None) };
        let dry = if walk.may_cut() { None } else { Some(self.run_dry(frame, &walk.concern)?) };
        let before = self.world.bed.counters();
        let live = self.world.bed.run_raw(self.hook, frame, Ingress::default());
        let counts = Counts::between(self.hook, &before, &self.world.bed.counters());
        let counted: Vec<Reason> =
            Reason::ALL.iter().copied().filter(|reason| counts.of(*reason).packets > 0).collect();
        let [reason] = counted.as_slice() else { return Err(format!("the live program: {counts}")) };
        if let Some(dry) = dry {
            same(&dry, *reason, &live).map_err(|fault| format!("{fault}; {walk:#?}"))?;
        }
        // All hops and ways are known, so no route is left to decide.
        if verdict.reason != *reason || !verdict.or.is_empty() {
            return Err(format!("the live program: {}; the walk: {walk:#?}", reason.name()));
        }
        Ok(Some(*reason))
    }

    fn run_dry(&mut self, frame: &[u8], concern: &Concern) -> Result<Ran, String> {
        self.dry.run(frame, DEVICE, concern).map_err(|error| error.to_string())
    }

    /// Fills the buckets of ICMP messages: the time between two runs would otherwise decide about an answer.
    fn fill_buckets(&self) {
        for (prefix, _) in self.world.bed.icmp_buckets() {
            self.world.bed.remove::<_, u64>("ICMP_SOURCES", &prefix);
        }
        (0..KINDS).for_each(|kind| self.world.bed.set_per_cpu::<u64>("ICMP_TOTAL", kind, 0));
    }
}

/// Compares the dry run with the live one.
fn same(dry: &Ran, reason: Reason, live: &RawRun) -> Result<(), String> {
    let is_handed_over = live.metadata[..] == HANDOVER_MAGIC.to_ne_bytes();
    if (dry.reason, dry.action, dry.mark, dry.is_handed_over)
        != (reason, live.action, live.mark, is_handed_over)
    {
        return Err(format!("the dry run: {dry:?}; the live program: {}, {live:?}", reason.name()));
    }
    if dry.frame != live.frame[..] {
        return Err(format!(
            "the dry run left:\n{}the live one:\n{}",
            describe(&dry.frame),
            describe(&live.frame)
        ));
    }
    Ok(())
}
