//! Pure parts.
#![cfg_attr(not(test), no_std)]
