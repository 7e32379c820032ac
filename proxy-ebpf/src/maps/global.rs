//! Global functions: the verifier walks each once, instead of anew at every call.
//!
//! The kernel does so with each global symbol of the object (Linux 5.6). Arguments and result may be any
//! numbers. Before 6.2 a program can't ask a map with a key that came as an argument, so callers store keys
//! in a map's memory (KEYS).
//!
//! Each global function is in the file of its body. By convention `name` stores the keys and calls
//! `global_name`, which calls `name_body` with its own family.

use crate::maps::family::{Family, KeyOf};

/// Defines `NAME::<F>(ARGUMENTS)`, which calls one of two global functions. Each calls `BODY` with its own
/// family.
macro_rules! global_by_family {
    (fn $name:ident = $four:ident | $six:ident
     ($($argument:ident: $type:ty),*) -> $result:ty, $body:ident) => {
        #[inline(always)]
        fn $name<F: $crate::maps::family::Family>($($argument: $type),*) -> $result {
            if <F::Address as ::proxy_common::addr::Address>::WORDS == 1 {
                $four($($argument),*)
            } else {
                $six($($argument),*)
            }
        }

        #[unsafe(no_mangle)]
        #[inline(never)]
        extern "C" fn $four($($argument: $type),*) -> $result {
            $body::<$crate::maps::v4::V4>($($argument),*)
        }

        #[unsafe(no_mangle)]
        #[inline(never)]
        extern "C" fn $six($($argument: $type),*) -> $result {
            $body::<$crate::maps::v6::V6>($($argument),*)
        }
    };
}
pub(crate) use global_by_family;

/// Index of the packet's key.
pub const KEY: u32 = 0;
/// Index of the key of replies to it.
pub const REPLY_KEY: u32 = 1;

/// Room for a key, which the caller writes there because its stack has none.
#[inline(always)]
pub fn key_room<F: Family>(index: u32) -> Option<*mut KeyOf<F>> {
    F::key_scratch(index)
}

/// Stores a key for the global function that is called next.
#[inline(always)]
pub fn store_key<F: Family>(index: u32, key: &KeyOf<F>) {
    if let Some(room) = key_room::<F>(index) {
        // SAFETY: this CPU's own, and read before anything else of ours runs on it.
        unsafe { *room = *key };
    }
}

/// The key that the caller stored.
#[inline(always)]
pub fn stored_key<F: Family>(index: u32) -> Option<&'static KeyOf<F>> {
    // SAFETY: as in `store_key`.
    key_room::<F>(index).map(|room| unsafe { &*room })
}
