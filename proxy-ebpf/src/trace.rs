//! The steps of a packet, for developers. Only a trace build (feature `trace`) has more than empty functions here.
//!
//! The steps wait in a map for the end of the program: aya-log needs more of the stack than the walks have left.
//! `proxy_common::trace` describes the lines.

#[cfg(not(feature = "trace"))]
pub use off::{conclude, packet, step};
#[cfg(feature = "trace")]
pub use on::{conclude, packet, step};

#[cfg(not(feature = "trace"))]
mod off {
    use proxy_common::trace::Step;
    use proxy_common::verdict::{Program, Reason};

    use crate::maps::family::{Family, KeyOf};

    /// Remembers the packet's addresses and ports.
    #[inline(always)]
    pub const fn packet<F: Family>(_key: &KeyOf<F>) {}

    /// Remembers a step.
    #[inline(always)]
    pub const fn step(_step: Step, _value: u32) {}

    /// Logs the packet with its steps and this verdict.
    #[inline(always)]
    pub const fn conclude(_program: Program, _reason: Reason) {}
}

#[cfg(feature = "trace")]
mod on {
    use aya_ebpf::btf_maps::PerCpuArray;
    use aya_ebpf::helpers::generated::{bpf_get_smp_processor_id, bpf_ktime_get_ns};
    use aya_ebpf::macros::btf_map;
    use aya_log_ebpf::info;
    use proxy_common::trace::Step;
    use proxy_common::verdict::{Program, Reason};

    use crate::maps::family::{Family, KeyOf};

    /// The most steps that are kept of a packet.
    const STEPS: usize = 16;

    /// The steps of this CPU's packet.
    #[repr(C)]
    struct Trace {
        source: [u32; 4],
        destination: [u32; 4],
        source_port: u16,
        destination_port: u16,
        protocol: u32,
        is_parsed: u32,
        count: u32,
        steps: [[u32; 2]; STEPS],
    }

    #[btf_map]
    static TRACE: PerCpuArray<Trace, 1, 0> = PerCpuArray::new();

    #[inline(always)]
    fn trace() -> Option<&'static mut Trace> {
        // SAFETY: this CPU's own, and only one program of ours runs on it at a time.
        TRACE.get_ptr_mut(0).map(|trace| unsafe { &mut *trace })
    }

    /// Remembers the packet's addresses and ports.
    #[inline(always)]
    pub fn packet<F: Family>(key: &KeyOf<F>) {
        let Some(trace) = trace() else { return };
        (trace.source, trace.destination) = (F::map(&key.source), F::map(&key.destination));
        (trace.source_port, trace.destination_port) = (key.source_port, key.destination_port);
        (trace.protocol, trace.is_parsed) = (key.protocol.into(), 1);
    }

    /// Remembers a step.
    #[inline(always)]
    pub fn step(step: Step, value: u32) {
        trace_step(step as u32, value);
    }

    #[unsafe(no_mangle)]
    #[inline(never)]
    extern "C" fn trace_step(step: u32, value: u32) -> u32 {
        let Some(trace) = trace() else { return 0 };
        let Some(place) = trace.steps.get_mut(trace.count as usize) else { return 0 };
        *place = [step, value];
        trace.count += 1;
        0
    }

    /// Logs the packet with its steps and this verdict. A packet that ended before it was parsed is left out.
    #[inline(always)]
    pub fn conclude(program: Program, reason: Reason) {
        let Some(trace) = trace() else { return };
        if trace.is_parsed != 0 {
            let [a, b, c, _] = trace.source;
            let is_v4 = a | b == 0 && c == 0xffff_u32.to_be();
            let _ = if is_v4 { trace_packet4(program as u32) } else { trace_packet6(program as u32) };
            trace_verdict(reason as u32);
        }
        (trace.is_parsed, trace.count) = (0, 0);
    }

    /// Logs the beginning of a packet. An enum of both families would be read where it is not written.
    macro_rules! log_packet {
        ($trace:ident, $program:ident, $address:expr) => {
            info!(
                (),
                "{} packet {} {} {} {:i} {} {:i} {}",
                cpu(),
                // SAFETY: no arguments, no preconditions.
                unsafe { bpf_ktime_get_ns() },
                $program,
                $trace.protocol,
                $address(&$trace.source),
                u16::from_be($trace.source_port),
                $address(&$trace.destination),
                u16::from_be($trace.destination_port)
            )
        };
    }

    #[inline(always)]
    fn v4([.., word]: &[u32; 4]) -> u32 {
        u32::from_be(*word)
    }

    #[inline(always)]
    fn v6(words: &[u32; 4]) -> [u8; 16] {
        // SAFETY: the same size, and all bytes are valid.
        unsafe { core::mem::transmute(*words) }
    }

    #[unsafe(no_mangle)]
    #[inline(never)]
    extern "C" fn trace_packet4(program: u32) -> u32 {
        let Some(trace) = trace() else { return 0 };
        log_packet!(trace, program, v4);
        0
    }

    #[unsafe(no_mangle)]
    #[inline(never)]
    extern "C" fn trace_packet6(program: u32) -> u32 {
        let Some(trace) = trace() else { return 0 };
        log_packet!(trace, program, v6);
        0
    }

    #[unsafe(no_mangle)]
    #[inline(never)]
    extern "C" fn trace_verdict(reason: u32) -> u32 {
        let Some(trace) = trace() else { return 0 };
        for [step, value] in trace.steps.iter().take(trace.count as usize) {
            info!((), "{} step {} {}", cpu(), *step, *value);
        }
        info!((), "{} verdict {}", cpu(), reason);
        0
    }

    fn cpu() -> u32 {
        // SAFETY: no arguments, no preconditions.
        unsafe { bpf_get_smp_processor_id() }
    }
}
