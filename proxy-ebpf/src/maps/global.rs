//! Functions that the verifier walks once, instead of anew at every call.
//!
//! The kernel does so with what is a global symbol of the object (global functions, Linux 5.6), whose arguments and result may be
//! any numbers. Keys are left in a map's memory: before 6.2 a map can't be asked with one that came as an argument.

use crate::maps::family::{Family, KeyOf};

mod flows;
mod frames;

pub use flows::{
    EMBRYO, FROM_BACKEND, evict, is_shown, occupancy, open, open_translated, promote, renew, search_row,
};
pub use frames::{
    FIRST, FIRST_INSIDE, LATER, TOO_SHORT, cut, follow_fragment, hold_fragment, read_quoted_tc,
    read_quoted_xdp, read_unusual_tc, read_unusual_xdp, release_fragments,
};

/// Defines `NAME::<F>(ARGUMENTS)`, which calls one of two global functions; each calls `BODY` with its own family.
macro_rules! by_family {
    ($(#[$documentation:meta])* $visible:vis fn $name:ident = $four:ident | $six:ident
     ($($argument:ident: $type:ty),*) -> $result:ty, $body:ident) => {
        $(#[$documentation])*
        #[inline(always)]
        $visible fn $name<F: Family>($($argument: $type),*) -> $result {
            if <F::Address as Address>::WORDS == 1 { $four($($argument),*) } else { $six($($argument),*) }
        }

        #[unsafe(no_mangle)]
        #[inline(never)]
        extern "C" fn $four($($argument: $type),*) -> $result {
            $body::<V4>($($argument),*)
        }

        #[unsafe(no_mangle)]
        #[inline(never)]
        extern "C" fn $six($($argument: $type),*) -> $result {
            $body::<V6>($($argument),*)
        }
    };
}
use by_family;

/// Where the key of what comes next is left, by who has no room for it on the stack.
#[inline(always)]
pub fn place_of_key<F: Family>() -> Option<*mut KeyOf<F>> {
    F::key_scratch(0)
}

#[inline(always)]
fn leave<F: Family>(index: u32, key: &KeyOf<F>) {
    if let Some(place) = F::key_scratch(index) {
        // SAFETY: this CPU's own, and read before anything else of ours runs on it.
        unsafe { *place = *key };
    }
}

#[inline(always)]
fn left<F: Family>(index: u32) -> Option<&'static KeyOf<F>> {
    // SAFETY: as in `leave`.
    F::key_scratch(index).map(|place| unsafe { &*place })
}
