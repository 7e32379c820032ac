//! Packets that the kernel drops, told by a program on the tracepoint `kfree_skb` for as long as somebody watches.

mod types;

use std::collections::BTreeMap;
use std::{fs, io};

use aya::maps::{HashMap, MapData, MapError, PerCpuArray, RingBuf};
use aya::programs::RawTracePoint;
use aya::{Ebpf, EbpfLoader};
use proxy_common::kernel_drop::{
    CAPTURED_WORDS, FUNCTION_WORDS, KernelDrop, KernelDropSettings, PLACES, Place, TOLD_ALREADY_WORD, Told,
};

use super::object::KERNEL_OBJECT;
use types::KernelTypes;

/// The reasons for a failure to watch the kernel.
#[derive(Debug, thiserror::Error)]
pub enum KernelDropsError {
    /// The description of the kernel's types can't be read.
    #[error("{path}: {error}: the kernel needs CONFIG_DEBUG_INFO_BTF", path = types::PATH)]
    Types {
        /// The file's error.
        error: io::Error,
    },
    /// The kernel does not say why it drops a packet.
    #[error("this kernel does not say why it drops a packet: Linux 5.17 or newer is needed")]
    TooOld,
    /// A field of the kernel has another name.
    #[error("this kernel's types have no {0}: please report its version")]
    NoField(String),
    /// This process lacks the rights.
    #[error("a program on a tracepoint needs root, or CAP_BPF and CAP_PERFMON")]
    Denied,
    /// The program can't be loaded or attached.
    #[error("the program on the tracepoint kfree_skb: {0}")]
    Program(String),
}

/// The packets to watch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Watched {
    /// Frontends and backends, and the number to tell for each; 0 is no number.
    pub places: BTreeMap<Place, u32>,
    /// The mark of packets that the programs pass to the stack, and the bits of it that count.
    pub mark: (u32, u32),
    /// Drops a second that each CPU tells at most.
    pub rate: u32,
}

/// A packet that the kernel dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelDropView {
    /// Monotonic nanoseconds (CLOCK_MONOTONIC).
    pub at: u64,
    /// The kernel's name of the reason, without its prefix; its number if the kernel has no name for it.
    pub reason: String,
    /// The kernel's function that dropped it; empty if the kernel does not tell.
    pub function: String,
    /// The number of its frontend or backend; 0 if only its mark is ours.
    pub place: u32,
    /// Index of its device; 0 if it has none.
    pub device: u32,
    /// Inode of the network namespace of the device; 0 if it has none.
    pub namespace: u32,
    /// The beginning of the packet, from its IP header on.
    pub packet: Vec<u8>,
}

/// The watching program. It is gone with this value, however the process ends.
pub struct KernelDrops {
    /// Holds the program's link.
    ebpf: Ebpf,
    places: HashMap<MapData, Place, u32>,
    drops: RingBuf<MapData>,
    told: PerCpuArray<MapData, Told>,
    watched: BTreeMap<Place, u32>,
    reasons: BTreeMap<u32, String>,
    /// The drops left out at the last reading.
    lost: u64,
}

impl std::fmt::Debug for KernelDrops {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KernelDrops").field("lost", &self.lost).finish_non_exhaustive()
    }
}

impl KernelDrops {
    /// Begins to watch.
    pub fn start(watched: &Watched) -> Result<Self, KernelDropsError> {
        let bytes = fs::read(types::PATH).map_err(|error| KernelDropsError::Types { error })?;
        let types = KernelTypes::parse(bytes)
            .ok_or_else(|| KernelDropsError::Types { error: io::Error::other("not understood") })?;
        let (first, reasons) = reasons(&types).ok_or(KernelDropsError::TooOld)?;
        let settings = settings(&types, watched, first)?;
        let room = (watched.places.len() * 2).max(PLACES);
        let mut ebpf = EbpfLoader::new()
            .override_global("SETTINGS", &settings, true)
            .map_max_entries("PLACES", u32::try_from(room).unwrap_or(u32::MAX))
            .load(KERNEL_OBJECT)
            .map_err(|error| refused(&error))?;
        let mut map = |name: &str| {
            ebpf.take_map(name).ok_or_else(|| KernelDropsError::Program(format!("the map {name} is absent")))
        };
        let of_map = |error: MapError| refused(&error);
        let (places, drops, told) = (map("PLACES")?, map("DROPS")?, map("TOLD")?);
        let mut drops = Self {
            places: HashMap::try_from(places).map_err(of_map)?,
            drops: RingBuf::try_from(drops).map_err(of_map)?,
            told: PerCpuArray::try_from(told).map_err(of_map)?,
            watched: BTreeMap::new(),
            reasons,
            lost: 0,
            ebpf,
        };
        drops.watch(&watched.places)?;
        let program = drops
            .ebpf
            .program_mut("kernel_drops")
            .ok_or_else(|| KernelDropsError::Program("it is absent".to_owned()))?;
        let program: &mut RawTracePoint = program.try_into().map_err(|error| refused(&error))?;
        program.load().map_err(|error| refused(&error))?;
        program.attach("kfree_skb").map_err(|error| refused(&error))?;
        Ok(drops)
    }

    /// Changes the watched frontends and backends.
    pub fn watch(&mut self, places: &BTreeMap<Place, u32>) -> Result<(), KernelDropsError> {
        for place in self.watched.keys().filter(|place| !places.contains_key(*place)) {
            self.places.remove(place).map_err(|error| refused(&error))?;
        }
        for (place, number) in places {
            if self.watched.get(place) != Some(number) {
                self.places.insert(place, number, 0).map_err(|error| refused(&error))?;
            }
        }
        self.watched.clone_from(places);
        Ok(())
    }

    /// Returns the drops since the last reading, and the number of those left out.
    pub fn read(&mut self) -> Result<(Vec<KernelDropView>, u64), KernelDropsError> {
        let mut views = Vec::new();
        while let Some(item) = self.drops.next() {
            views.extend(parse(&item).map(|drop| view(&drop, &self.reasons)));
        }
        let told = self.told.get(&0, 0).map_err(|error| refused(&error))?;
        let lost = told.iter().map(|of_cpu| of_cpu.lost).sum();
        let left_out = lost - std::mem::replace(&mut self.lost, lost);
        Ok((views, left_out))
    }
}

/// Returns the number of the first reason that is a drop, and the reasons' names.
fn reasons(types: &KernelTypes) -> Option<(u32, BTreeMap<u32, String>)> {
    const PREFIX: &str = "SKB_DROP_REASON_";
    let numbers = types.numbers("skb_drop_reason");
    // Those before it say that a packet was used.
    let (first, _) = numbers.iter().find(|(_, name)| name.strip_prefix(PREFIX) == Some("NOT_SPECIFIED"))?;
    let name =
        |(number, name): &(u32, String)| (*number, name.strip_prefix(PREFIX).unwrap_or(name).to_owned());
    Some((*first, numbers.iter().map(name).collect()))
}

fn settings(
    types: &KernelTypes,
    watched: &Watched,
    first_reason: u32,
) -> Result<KernelDropSettings, KernelDropsError> {
    let offset = |structure: &str, path: &[&str]| {
        let missing = || KernelDropsError::NoField(format!("{structure}.{}", path.join(".")));
        types.offset(structure, path).ok_or_else(missing)
    };
    let told_already = (TOLD_ALREADY_WORD * size_of::<u32>()) as u32;
    Ok(KernelDropSettings {
        head: offset("sk_buff", &["head"])?,
        network_header: offset("sk_buff", &["network_header"])?,
        tail: offset("sk_buff", &["tail"])?,
        mark: offset("sk_buff", &["mark"])?,
        arrived_by: offset("sk_buff", &["skb_iif"])?,
        device: offset("sk_buff", &["dev"])?,
        // TC programs see the words of `data` as `cb`.
        told_already: offset("sk_buff", &["cb"])? + offset("qdisc_skb_cb", &["data"])? + told_already,
        index: offset("net_device", &["ifindex"])?,
        namespace: offset("net_device", &["nd_net"])?,
        inode: offset("net", &["ns", "inum"])?,
        mark_value: watched.mark.0 & watched.mark.1,
        mark_mask: watched.mark.1,
        first_reason,
        rate: watched.rate,
    })
}

fn view(drop: &KernelDrop, reasons: &BTreeMap<u32, String>) -> KernelDropView {
    let bytes = |words: &[u64]| words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<u8>>();
    let function = bytes(&drop.function);
    let end = function.iter().position(|byte| *byte == 0).unwrap_or(function.len());
    let function = String::from_utf8_lossy(function.get(..end).unwrap_or_default()).into_owned();
    let mut packet = bytes(&drop.packet);
    packet.truncate(drop.captured as usize);
    KernelDropView {
        at: drop.at,
        reason: reasons.get(&drop.reason).cloned().unwrap_or_else(|| format!("{:#x}", drop.reason)),
        // Without the right to see the kernel's addresses there are only digits.
        function: if function.starts_with("0x") { String::new() } else { function },
        place: drop.place,
        device: drop.device,
        namespace: drop.namespace,
        packet,
    }
}

/// Reads a drop as the program wrote it.
fn parse(bytes: &[u8]) -> Option<KernelDrop> {
    let mut bytes = bytes;
    let mut next = || {
        let (word, rest) = bytes.split_first_chunk()?;
        bytes = rest;
        Some(u64::from_ne_bytes(*word))
    };
    let pair = |word: u64| (word as u32, (word >> 32) as u32);
    let at = next()?;
    let (reason, place) = pair(next()?);
    let (device, namespace) = pair(next()?);
    let (captured, reserved) = pair(next()?);
    let mut drop =
        KernelDrop { at, reason, place, device, namespace, captured, reserved, ..KernelDrop::default() };
    for word in drop.function.iter_mut().chain(&mut drop.packet) {
        *word = next()?;
    }
    const { assert!(size_of::<KernelDrop>() == (4 + FUNCTION_WORDS + CAPTURED_WORDS) * 8) };
    Some(drop)
}

/// Returns the error of a refusal, by its innermost cause.
fn refused(error: &(dyn std::error::Error + 'static)) -> KernelDropsError {
    let mut cause = error;
    loop {
        let io = cause.downcast_ref::<io::Error>();
        if io.is_some_and(|error| error.kind() == io::ErrorKind::PermissionDenied) {
            return KernelDropsError::Denied;
        }
        match cause.source() {
            Some(source) => cause = source,
            None => return KernelDropsError::Program(format!("{error}: {cause}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drop_is_read_as_the_program_wrote_it() {
        let mut drop = KernelDrop {
            at: 7,
            reason: 8,
            place: 3,
            device: 2,
            namespace: 9,
            captured: 20,
            ..KernelDrop::default()
        };
        drop.function[0] = u64::from_ne_bytes(*b"nft_do_c");
        drop.function[1] = u64::from_ne_bytes(*b"hain\0\0\0\0");
        drop.packet[0] = u64::from_ne_bytes([0x45, 1, 2, 3, 4, 5, 6, 7]);
        let words = [7, 3 << 32 | 8, 9 << 32 | 2, 20];
        let bytes: Vec<u8> = words
            .iter()
            .chain(&drop.function)
            .chain(&drop.packet)
            .flat_map(|word| word.to_ne_bytes())
            .collect();
        assert_eq!(bytes.len(), size_of::<KernelDrop>());
        assert_eq!(parse(&bytes), Some(drop));
        assert_eq!(parse(&bytes[..bytes.len() - 1]), None);

        let seen = view(&drop, &BTreeMap::from([(8, "NETFILTER_DROP".to_owned())]));
        assert_eq!((seen.reason.as_str(), seen.function.as_str()), ("NETFILTER_DROP", "nft_do_chain"));
        assert_eq!((seen.packet.len(), seen.packet[1]), (20, 1));
        assert_eq!(view(&drop, &BTreeMap::new()).reason, "0x8");
    }

    #[test]
    fn this_kernels_types_have_every_field_and_the_reasons() {
        let types = KernelTypes::parse(fs::read(types::PATH).unwrap()).unwrap();
        let (first, names) = reasons(&types).unwrap();
        assert!(names.values().any(|name| name == "NETFILTER_DROP"), "{names:?}");
        assert_eq!(names[&first], "NOT_SPECIFIED");
        let watched = Watched { mark: (0x1001, 0x1000), ..Watched::default() };
        let settings = settings(&types, &watched, first).unwrap();
        assert_eq!((settings.mark_value, settings.mark_mask), (0x1000, 0x1000));
        assert!(settings.head != 0 && settings.network_header != settings.tail, "{settings:?}");
    }
}
