//! The macro `shared!`, which declares every shared type and checks it.

/// Declares shared structs: `repr(C)`, copyable, comparable, readable by aya, and without padding.
///
/// `struct Name<A>` is generic over the address family. The macro checks it for
/// [`Addr4`](crate::Addr4) and [`Addr6`](crate::Addr6). The size must also be a multiple of four,
/// so that stores on the BPF stack stay aligned.
macro_rules! shared {
    ($($(#[$meta:meta])* pub struct $name:ident<A> { $($(#[$field_meta:meta])* pub $field:ident: $type:ty,)+ })+) => {$(
        $(#[$meta])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name<A> { $($(#[$field_meta])* pub $field: $type,)+ }

        impl<A> $name<A> {
            const FIELD_BYTES: usize = 0 $(+ size_of::<$type>())+;

            #[cfg(test)]
            pub(crate) const SHAPE: &'static [(&'static str, usize, usize)] =
                &[$((stringify!($field), core::mem::offset_of!(Self, $field), size_of::<$type>()),)+];
        }
        $crate::layout::shared!(@check $name<$crate::Addr4>);
        $crate::layout::shared!(@check $name<$crate::Addr6>);
        // SAFETY: repr(C). All fields are integers, arrays of them, or an address. `Address` is
        // sealed, and the assertions above show for both address types that there is no padding.
        #[cfg(feature = "user")]
        unsafe impl<A: $crate::Address> aya::Pod for $name<A> {}
    )+};
    ($($(#[$meta:meta])* pub struct $name:ident { $($(#[$field_meta:meta])* pub $field:ident: $type:ty,)+ })+) => {$(
        $(#[$meta])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name { $($(#[$field_meta])* pub $field: $type,)+ }

        impl $name {
            const FIELD_BYTES: usize = 0 $(+ size_of::<$type>())+;

            #[cfg(test)]
            pub(crate) const SHAPE: &'static [(&'static str, usize, usize)] =
                &[$((stringify!($field), core::mem::offset_of!(Self, $field), size_of::<$type>()),)+];
        }
        $crate::layout::shared!(@check $name);
        // SAFETY: repr(C), no padding (asserted above). All fields are integers or arrays of them.
        #[cfg(feature = "user")]
        unsafe impl aya::Pod for $name {}
    )+};
    (@check $type:ty) => {
        const _: () = assert!(
            size_of::<$type>() == <$type>::FIELD_BYTES && size_of::<$type>() % 4 == 0 && align_of::<$type>() <= 8,
            concat!(stringify!($type), ": a shared type must have no padding; add an explicit reserved field"),
        );
    };
}
pub(crate) use shared;

#[cfg(test)]
mod tests {
    use crate::affinity::{Affinity, AffinityKey};
    use crate::announced::AnnouncedKey;
    use crate::backend::Backend;
    use crate::event::{Event, Monitor, Recording};
    use crate::figures::{BackendConnections, Connections, DropKey, Handshakes};
    use crate::flow::{Flow, FlowKey};
    use crate::fragment::{FragmentKey, Held, HeldKey};
    use crate::frontend::{Frontend, FrontendKey};
    use crate::hop::{Device, Hop};
    use crate::icmp::SourcePrefix;
    use crate::kernel_drop::{KernelDrop, KernelDropSettings, Place, Told};
    use crate::name::ServiceName;
    use crate::policy::{
        POLICY_LAYOUT_VERSION, PolicyEvent, PolicyFlow, PolicyFlowKey, PolicyFragmentKey, PolicyName,
        PolicyOwner, PolicyPod, PolicyRule,
    };
    use crate::selection::HintKey;
    use crate::socket::{SocketFrontend, SocketKey};
    use crate::source_range::SourceRange;
    use crate::verdict::Counter;
    use crate::vip::VipKey;
    use crate::way::{PeerKey, Way};
    use crate::{Addr4, Addr6, LAYOUT_VERSION};

    /// Names, offsets and sizes of the fields of all shared types. The compiler warns about the
    /// unused `SHAPE` of a type that is not in the list.
    const SHAPES: [&[(&str, usize, usize)]; 40] = [
        Affinity::SHAPE,
        AffinityKey::<Addr4>::SHAPE,
        AffinityKey::<Addr6>::SHAPE,
        AnnouncedKey::SHAPE,
        Backend::<Addr4>::SHAPE,
        Backend::<Addr6>::SHAPE,
        BackendConnections::SHAPE,
        Connections::SHAPE,
        Counter::SHAPE,
        Device::SHAPE,
        DropKey::SHAPE,
        Event::SHAPE,
        Flow::<Addr4>::SHAPE,
        Flow::<Addr6>::SHAPE,
        FlowKey::<Addr4>::SHAPE,
        FlowKey::<Addr6>::SHAPE,
        FragmentKey::<Addr4>::SHAPE,
        FragmentKey::<Addr6>::SHAPE,
        Frontend::SHAPE,
        FrontendKey::<Addr4>::SHAPE,
        FrontendKey::<Addr6>::SHAPE,
        Handshakes::SHAPE,
        Held::SHAPE,
        HeldKey::SHAPE,
        HintKey::SHAPE,
        Hop::<Addr4>::SHAPE,
        Hop::<Addr6>::SHAPE,
        Monitor::SHAPE,
        PeerKey::SHAPE,
        Recording::SHAPE,
        ServiceName::SHAPE,
        SocketFrontend::<Addr4>::SHAPE,
        SocketFrontend::<Addr6>::SHAPE,
        SocketKey::<Addr4>::SHAPE,
        SocketKey::<Addr6>::SHAPE,
        SourcePrefix::SHAPE,
        SourceRange::<Addr4>::SHAPE,
        SourceRange::<Addr6>::SHAPE,
        VipKey::SHAPE,
        Way::SHAPE,
    ];

    /// Those of types that lie in no pinned map. The program and the command that loads it are of one build, so
    /// they may change.
    const UNPINNED: [&[(&str, usize, usize)]; 4] =
        [KernelDrop::SHAPE, KernelDropSettings::SHAPE, Place::SHAPE, Told::SHAPE];

    /// Those of the pod firewall, whose maps have a layout of their own.
    const POLICY: [&[(&str, usize, usize)]; 10] = [
        PolicyPod::SHAPE,
        PolicyName::SHAPE,
        PolicyOwner::SHAPE,
        PolicyRule::SHAPE,
        PolicyFlow::SHAPE,
        PolicyFlowKey::<Addr4>::SHAPE,
        PolicyFlowKey::<Addr6>::SHAPE,
        PolicyFragmentKey::<Addr4>::SHAPE,
        PolicyFragmentKey::<Addr6>::SHAPE,
        PolicyEvent::SHAPE,
    ];

    #[test]
    fn each_field_begins_where_the_one_before_it_ends() {
        for shape in SHAPES.iter().chain(&UNPINNED).chain(&POLICY) {
            let mut end = 0;
            for (field, offset, size) in *shape {
                assert_eq!(*offset, end, "{field} in {shape:?}");
                end += size;
            }
        }
    }

    #[test]
    fn a_shared_type_that_changes_changes_the_layout_version() {
        let hash = hash(&SHAPES);
        let message = "a shared type has changed: raise LAYOUT_VERSION unless it is only a new one, then put the new pair here";
        assert_eq!((LAYOUT_VERSION, hash), (9, 0x8a08_c6e2_7149_faaf), "{message}");
    }

    #[test]
    fn a_shared_type_of_the_firewall_that_changes_changes_its_layout_version() {
        let message = "a shared type has changed: raise POLICY_LAYOUT_VERSION unless it is only a new one, then put the new pair here";
        assert_eq!((POLICY_LAYOUT_VERSION, hash(&POLICY)), (1, 0x7679_d79d_1999_10a6), "{message}");
    }

    /// FNV-1a.
    fn hash(shapes: &[&[(&str, usize, usize)]]) -> u64 {
        format!("{shapes:?}").bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        })
    }
}
