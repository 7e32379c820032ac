//! The clean-up of IPVS mode.

use super::netlink::{Device, Ipvs, Kind};
use super::state::State;
use super::tunnel::tunnels;
use super::{DEVICE, OpenError, lock, nft};

/// The things that [`cleanup`] removed, in words.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cleaned {
    /// One entry for each kind of thing.
    pub removed: Vec<String>,
}

/// Fails while an agent runs, as [`cleanup`] does.
pub fn check_unused() -> Result<(), OpenError> {
    lock().map(drop)
}

/// Removes our virtual services, our devices and our table, and nothing else. Fails while an agent runs.
///
/// A missing kernel module is no error, because nothing of its kind can exist then.
pub fn cleanup() -> Result<Cleaned, OpenError> {
    let _lock = lock()?;
    let mut cleaned = Cleaned::default();
    let Some((state, mut dummy)) = found()? else { return Ok(cleaned) };
    match Ipvs::open().map_err(OpenError::ipvs) {
        Ok(mut ipvs) => {
            let services = ipvs.services().map_err(OpenError::ipvs)?;
            let ours = services.iter().map(|(service, _)| service).filter(|service| state.owns(service));
            let mut count = 0_usize;
            for service in ours {
                ipvs.delete_service(service).map_err(OpenError::ipvs)?;
                count += 1;
            }
            if count > 0 {
                cleaned.removed.push(format!("{count} virtual services"));
            }
        }
        Err(OpenError::NoIpvs) => {}
        Err(error) => return Err(error),
    }
    if dummy.remove().map_err(OpenError::dummy)? {
        cleaned.removed.push(format!("device {DEVICE}"));
    }
    for tunnel in &mut tunnels()? {
        if tunnel.remove().map_err(OpenError::dummy)? {
            cleaned.removed.push(format!("device {}", tunnel.name()));
        }
    }
    // The table is last, because it records which virtual services are ours.
    if nft::remove()? {
        cleaned.removed.push(format!("table {}", nft::TABLE));
    }
    Ok(cleaned)
}

/// Returns our members and addresses, and the device.
///
/// The agent makes the table first. Without the table, or without nft, everything belongs to other software.
pub(super) fn found() -> Result<Option<(State, Device)>, OpenError> {
    let members = match nft::read() {
        Ok(Some(found)) => found.members,
        Ok(None) | Err(nft::NftError::Missing) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let mut dummy = Device::open(Kind::Dummy).map_err(OpenError::dummy)?;
    let addresses = dummy.addresses().map_err(OpenError::dummy)?;
    Ok(Some((State { addresses, members, ..State::default() }, dummy)))
}
