//! The plan against a kernel that is but a few maps.

mod access;
mod cases;
mod found;
mod kernel;
mod random;
mod ranges;
mod vips;
mod world;
