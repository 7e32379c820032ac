//! The plan against a kernel that is but a few maps.

mod access;
mod cases;
mod connections;
mod dispatch;
mod found;
mod kernel;
mod node;
mod random;
mod ranges;
mod vips;
mod world;
