//! The self-test: the programs are attached, and let a foreign frame pass unchanged.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use super::attach::Attachments;
use super::link::LinkKey;
use super::load::Programs;
use super::program::Program;
use super::{link, parts, sys};
use crate::node::{Hook, device_name};

/// A datagram from and to 192.0.0.8, the dummy address (RFC 7600), with correct checksums.
///
/// The frame belongs to no frontend, flow or peer, so it must come out unchanged.
const FRAME: [u8; 46] = [
    2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x08, 0x00, // Ethernet
    0x45, 0, 0, 32, 0, 0, 0, 0, 1, 17, 0x39, 0xbd, 192, 0, 0, 8, 192, 0, 0, 8, // IPv4
    0, 9, 0, 9, 0, 12, 0, 0, // UDP without a checksum
    0, 0, 0, 0,
];
const XDP_PASS: u32 = 2;
const TC_ACT_UNSPEC: u32 = u32::MAX;
const PROG_TEST_RUN: libc::c_long = 10;

/// `BPF_PROG_TEST_RUN`'s part of `union bpf_attr`.
#[repr(C)]
#[derive(Default)]
struct TestRunAttr {
    program: RawFd,
    result: u32,
    size_in: u32,
    size_out: u32,
    data_in: u64,
    data_out: u64,
    repeat: u32,
    duration: u32,
}

/// Returns the first fault. The kernel can't name the programs of TC filters before 6.6; the next
/// sync replaces them anyway.
pub(super) fn run(attachments: &Attachments, programs: &Programs) -> Result<(), String> {
    are_attached(attachments.linked(), attachments, programs)?;
    let xdp = programs.xdp_ingress.iter().map(|program| (program, XDP_PASS));
    let framed = [&programs.tc_ingress, &programs.tc_egress, &programs.tc_pod_in, &programs.tc_pod_out];
    let bare = programs.bare.iter().flat_map(|bare| [&bare.tc_ingress_l3, &bare.tc_egress_l3]);
    let tc = framed.into_iter().chain(bare).map(|program| (program, TC_ACT_UNSPEC));
    xdp.chain(tc).try_for_each(|(program, action)| {
        parts::check(&programs.directory, program.name)?;
        passes_untouched(program, action)
    })
}

/// Returns the first fault of the links of uplinks. These are few, so this may be asked often.
pub(super) fn of_uplinks(attachments: &Attachments, programs: &Programs) -> Result<(), String> {
    let uplinks =
        attachments.linked().filter(|key| !matches!(key.kind.hook(), Hook::TcPodIn | Hook::TcPodOut));
    are_attached(uplinks, attachments, programs)
}

fn are_attached(
    links: impl Iterator<Item = LinkKey>,
    attachments: &Attachments,
    programs: &Programs,
) -> Result<(), String> {
    for key in links {
        let program = programs.of(key.kind.hook());
        match link::program_id(key, attachments.directory()) {
            // The device is gone; a new topology without it will follow.
            Ok(None) if device_name(key.device).is_none() => {}
            Ok(None) => return Err(format!("{} is detached", key.name())),
            Ok(Some(id)) if program.is_some_and(|program| program.id == id) => {}
            Ok(Some(_)) => return Err(format!("{} runs another program", key.name())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(format!("{} is detached: its pin is gone", key.name()));
            }
            Err(error) => return Err(format!("{} can't be read: {error}", key.name())),
        }
    }
    Ok(())
}

fn passes_untouched(program: &Program, action: u32) -> Result<(), String> {
    let mut out = [0; 2 * FRAME.len()];
    let (result, length) = test_run(program.as_fd(), &FRAME, &mut out)
        .map_err(|error| format!("{} can't be tested: {error}", program.name))?;
    if result != action {
        return Err(format!("{} does not let a frame pass that is not ours: {result}", program.name));
    }
    if out.get(..length) != Some(FRAME.as_slice()) {
        return Err(format!("{} changes a frame that is not ours", program.name));
    }
    Ok(())
}

/// Runs a program on a frame and returns its result and the new length of the frame. The run counts
/// as a packet.
fn test_run(program: BorrowedFd<'_>, frame: &[u8], out: &mut [u8]) -> io::Result<(u32, usize)> {
    let size = |bytes: usize| u32::try_from(bytes).map_err(io::Error::other);
    let mut attr = TestRunAttr {
        program: program.as_raw_fd(),
        size_in: size(frame.len())?,
        size_out: size(out.len())?,
        data_in: frame.as_ptr() as u64,
        data_out: out.as_mut_ptr() as u64,
        ..TestRunAttr::default()
    };
    sys::bpf_mut(PROG_TEST_RUN, &mut attr)?;
    Ok((attr.result, usize::try_from(attr.size_out).map_err(io::Error::other)?))
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::thread;

    use nix::sched::{CloneFlags, unshare};

    use super::*;
    use crate::dataplane::Dataplane;
    use crate::dataplane::ebpf::scratch::Scratch;
    use crate::node::{AttachTarget, Hook, Topology};

    #[test]
    fn programs_let_the_frame_pass_and_a_wrong_result_is_a_fault() {
        let scratch = Scratch::new("self-test");
        let mut dataplane = scratch.open();
        assert_eq!(dataplane.check().fault, None);
        let wrong = passes_untouched(&dataplane.programs.tc_egress, XDP_PASS).unwrap_err();
        assert_eq!(wrong, "tc_egress does not let a frame pass that is not ours: 4294967295");
    }

    #[test]
    fn a_detached_program_is_a_fault_until_it_is_attached_again() {
        let in_namespace = || {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            let scratch = Scratch::new("self-test-links");
            let mut dataplane = scratch.open();
            let hooks = BTreeSet::from([Hook::TcIngress, Hook::TcEgress]);
            let devices = BTreeMap::from([(
                1,
                AttachTarget { name: "lo".to_owned(), hooks, mac: None, source_v4: None, source_v6: None },
            )]);
            let topology = Topology { devices, ..Topology::default() };
            assert!(dataplane.set_topology(&topology).is_complete());
            assert_eq!(dataplane.check().fault, None);
            let pin = |name: &str| dataplane.attachments.directory().join(name);
            let (ingress, egress) = (pin("tc_ingress-1"), pin("tc_egress-1"));

            sys::link_detach(sys::obj_get(&egress).unwrap().as_fd()).unwrap();
            assert_eq!(dataplane.check().fault.unwrap(), "tc_egress-1 is detached");
            assert!(dataplane.set_topology(&topology).is_complete());
            assert_eq!(dataplane.check().fault, None);

            std::fs::remove_file(&egress).unwrap();
            assert_eq!(dataplane.check().fault, None);
            assert!(egress.exists(), "the pin was made again");

            let other = dataplane.programs.tc_egress.as_fd();
            sys::link_update(sys::obj_get(&ingress).unwrap().as_fd(), other).unwrap();
            assert_eq!(dataplane.check().fault.unwrap(), "tc_ingress-1 runs another program");
            assert!(dataplane.set_topology(&topology).is_complete());
            assert_eq!(dataplane.check().fault, None);
        };
        thread::spawn(in_namespace).join().unwrap();
    }

    #[test]
    fn the_frame_has_a_right_header() {
        let header = FRAME[14..34].chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
        let sum: u32 = header.sum();
        assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff);
    }
}
