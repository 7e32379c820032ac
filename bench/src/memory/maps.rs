//! The maps: the kernel's count of their memory, at the default sizes and at twice those.

use anyhow::{Context, Result};
use millrace::dataplane::ebpf::Sizes;
use millrace::dataplane::ebpf::read::MapView;

use crate::control::pins::Pins;
use crate::report::{Figure, Group, MILLRACE, Unit};

/// Something of which there may be many.
struct Kind {
    name: &'static str,
    /// Doubles its room. Returns the number that was added, of both families.
    double: fn(&mut Sizes) -> u32,
}

/// A connection has two entries. Maps of both families have the same size.
const KINDS: [Kind; 5] = [
    Kind { name: "each connection", double: |sizes| doubled(&mut sizes.flows) },
    Kind { name: "each frontend", double: |sizes| 2 * doubled(&mut sizes.frontends) },
    Kind { name: "each endpoint", double: |sizes| 2 * doubled(&mut sizes.backends) },
    Kind { name: "each list of a Service port", double: |sizes| doubled(&mut sizes.services) },
    Kind { name: "each slot", double: |sizes| doubled(&mut sizes.slots) },
];

/// Opens the data plane at the default sizes, and with each kind's room doubled.
pub fn measure() -> Result<Group> {
    let mut group = Group::new("the maps", Unit::Bytes);
    eprintln!("maps ...");
    let base = total(Sizes::default())?;
    group.add(Figure::new("all, at the default sizes", MILLRACE, &[base])?);
    for Kind { name, double } in KINDS {
        let mut sizes = Sizes::default();
        let added = double(&mut sizes);
        let each = (total(sizes)? - base) / f64::from(added);
        group.add(Figure::new(name, MILLRACE, &[each])?);
    }
    Ok(group)
}

fn doubled(size: &mut u32) -> u32 {
    let before = *size;
    *size *= 2;
    before
}

/// Returns the memory of all maps, in bytes.
fn total(sizes: Sizes) -> Result<f64> {
    let pins = Pins::new();
    let dataplane = pins.open_with(sizes)?;
    let maps = pins.maps()?.status()?.maps;
    let counted = |map: MapView| map.memory_bytes.context("the kernel does not count a map's memory");
    let bytes = maps.into_iter().map(counted).sum::<Result<u64>>()?;
    drop(dataplane);
    #[allow(clippy::cast_precision_loss, reason = "exact up to 2^52")]
    Ok(bytes as f64)
}
