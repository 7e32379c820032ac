//! The wishes of commands that watch.

use anyhow::Result;
use aya::maps::{Array, Map, MapData};
use millrace::dataplane::ebpf::read::{PinnedMaps, Recorder};
use proxy_common::event::{EventKind, Monitor, services_bit};

use crate::support::Scratch;

fn wish(scratch: &Scratch) -> Result<Monitor> {
    let pin = MapData::from_pin(scratch.root().join("maps/MONITOR"))?;
    let map: Array<_, Monitor> = Map::from_map_data(pin)?.try_into()?;
    Ok(map.get(&0, 0)?)
}

#[test]
fn a_command_that_watches_alone_does_not_keep_what_another_one_wanted() -> Result<()> {
    let scratch = Scratch::new();
    let _dataplane = scratch.open();
    let maps = PinnedMaps::open(&scratch.path)?;
    let open = || Recorder::open(&maps, false);
    let (mut all, mut one) = (open()?, open()?);
    let opened = Monitor { kinds: EventKind::Opened.bit(), rate: 1000, until: 103, ..Monitor::USUAL };
    let service = Monitor { services: services_bit(7), rate: 50, until: 103, ..Monitor::USUAL };
    all.want(opened, 100)?;
    one.want(service, 100)?;
    let both = wish(&scratch)?;
    assert_eq!((both.services, both.rate), (0, 1000), "the first one watches all Services");
    assert_eq!(both.kinds, EventKind::Opened.bit() | EventKind::Drop.bit());

    let later = |wanted: Monitor| Monitor { until: wanted.until + 1, ..wanted };
    all.want(later(opened), 101)?;
    assert_eq!(wish(&scratch)?.kinds, both.kinds, "both still watch");
    one.want(later(service), 101)?;
    drop(all);
    one.want(later(later(service)), 102)?;
    assert_eq!(wish(&scratch)?, later(later(service)));
    Ok(())
}
