//! Conversions between the plan's types, for both families, and the maps' types, for one each.

use std::net::{IpAddr, SocketAddr};

use proxy_common::backend::Backend;
use proxy_common::frontend::FrontendKey;
use proxy_common::vip::filter_place;
use proxy_common::{Addr4, Addr6, Address};

use super::plan::{BackendEntry, FrontendAt};

/// Returns the value for BACKENDS4/6; `None` for an address of the other family.
pub fn backend<A: Address>(entry: &BackendEntry) -> Option<Backend<A>> {
    Some(Backend {
        address: A::from_ip(entry.address.ip())?,
        port: entry.address.port().to_be(),
        generation: entry.generation,
        flags: entry.flags,
        way: entry.way,
        hint: entry.hint,
    })
}

/// Returns the inverse of [`backend`].
pub fn backend_entry<A: Address>(backend: &Backend<A>) -> BackendEntry {
    BackendEntry {
        address: socket(backend.address, backend.port),
        generation: backend.generation,
        flags: backend.flags,
        way: backend.way,
        hint: backend.hint,
    }
}

/// Returns the place of an address in ADDRESS_FILTER: index of the word, and position of the bits.
pub fn address_filter_place(address: IpAddr) -> (u32, u32) {
    match address {
        IpAddr::V4(address) => filter_place(&Addr4::from(address)),
        IpAddr::V6(address) => filter_place(&Addr6::from(address)),
    }
}

/// Returns the key of FRONTENDS4/6; `None` for an address of the other family.
pub fn frontend_key<A: Address>(at: &FrontendAt) -> Option<FrontendKey<A>> {
    Some(FrontendKey {
        address: A::from_ip(at.address.ip())?,
        port: at.address.port().to_be(),
        protocol: at.protocol,
        scope: at.scope,
    })
}

/// Returns the inverse of [`frontend_key`].
pub fn frontend_at<A: Address>(key: &FrontendKey<A>) -> FrontendAt {
    FrontendAt { address: socket(key.address, key.port), protocol: key.protocol, scope: key.scope }
}

/// Returns the socket address of an address and a port in network byte order.
pub fn socket<A: Address>(address: A, port: u16) -> SocketAddr {
    SocketAddr::new(address.to_ip(), u16::from_be(port))
}

#[cfg(test)]
mod tests {
    use proxy_common::{Addr4, Addr6};

    use super::*;

    #[test]
    fn entries_survive_the_round_trip_and_the_other_family_is_refused() {
        let entry = BackendEntry {
            address: "10.0.0.1:8080".parse().unwrap(),
            generation: 3,
            flags: 5,
            way: 7,
            hint: 9,
        };
        let value: Backend<Addr4> = backend(&entry).unwrap();
        assert_eq!(value.port.to_ne_bytes(), 8080_u16.to_be_bytes());
        assert_eq!(backend_entry(&value), entry);
        assert!(backend::<Addr6>(&entry).is_none());

        let at = FrontendAt { address: "[2001:db8::1]:443".parse().unwrap(), protocol: 6, scope: 1 };
        assert_eq!(frontend_at::<Addr6>(&frontend_key(&at).unwrap()), at);
        assert!(frontend_key::<Addr4>(&at).is_none());
    }
}
