//! The pod of a packet, and the direction.

use proxy_common::policy::{
    NOT_ISOLATED, POLICY_FLAGS, POLICY_GENERATION, POLICY_OPEN_UNKNOWN, PolicyDirection, PolicyPod,
    UNKNOWN_PROFILE,
};

use crate::policy::{clock, maps};

/// The parameter of a program for packets to a pod.
pub const TO_POD: bool = false;
/// The parameter of a program for packets from a pod.
pub const FROM_POD: bool = true;

/// The pod that a packet is judged for.
#[derive(Clone, Copy)]
pub struct Scene {
    /// The entry of a known pod.
    pub pod: Option<&'static PolicyPod>,
    /// Profile for connections to it.
    pub ingress: u32,
    /// Profile for connections from it.
    pub egress: u32,
    /// Number of the pod.
    pub epoch: u32,
    /// Index of its device.
    pub device: u32,
    /// Number of the tables. It is read before them: a judgement by older tables than it says would stay.
    pub generation: u32,
    /// Whether a packet without an entry may be a reply.
    pub is_lenient: bool,
    /// The monotonic second.
    pub now: u32,
}

impl Scene {
    /// Returns the scene on a device; `None` if everything passes there.
    #[inline(always)]
    pub fn of<const FROM_POD: bool>(device: u32) -> Option<Self> {
        // In this order: the agent writes pods before the number.
        let (generation, flags) = (config(POLICY_GENERATION), config(POLICY_FLAGS));
        // SAFETY: the numbers are copied at once. An update gives the entry new memory, and its old one to another
        // pod at the earliest: the addresses are compared with a packet's, which then is dropped once.
        let pod = unsafe { maps::POLICY_PODS.get(&device) };
        let (ingress, egress, epoch) =
            pod.map_or((UNKNOWN_PROFILE, UNKNOWN_PROFILE, 0), |pod| (pod.ingress, pod.egress, pod.epoch));
        // What comes from a pod must have its source, isolated or not.
        if !FROM_POD && ingress | egress == NOT_ISOLATED {
            return None;
        }
        if pod.is_none() && flags & POLICY_OPEN_UNKNOWN != 0 {
            return None;
        }
        let now = clock::now();
        // The sign of the difference: the clock's low bits go round.
        let is_lenient = pod.is_some_and(|pod| {
            pod.lenient_until != 0 && now.wrapping_sub(pod.lenient_until).cast_signed() < 0
        });
        Some(Self { pod, ingress, egress, epoch, device, generation, is_lenient, now })
    }

    /// Whether a policy isolates the pod in a direction.
    #[inline(always)]
    pub const fn is_isolated(&self) -> bool {
        self.ingress | self.egress != NOT_ISOLATED
    }

    /// Whether an entry that was written at this second is at most so old. Another CPU may be a second ahead.
    #[inline(always)]
    pub const fn is_recent(&self, second: u32, seconds: u32) -> bool {
        self.now.wrapping_sub(second).wrapping_add(1) <= seconds + 1
    }
}

/// The direction of a program.
#[inline(always)]
pub const fn direction(from_pod: bool) -> PolicyDirection {
    if from_pod { PolicyDirection::Egress } else { PolicyDirection::Ingress }
}

/// A word of the settings.
#[inline(always)]
pub fn config(word: u32) -> u32 {
    maps::POLICY_CONFIG.get(word).copied().unwrap_or(0)
}
