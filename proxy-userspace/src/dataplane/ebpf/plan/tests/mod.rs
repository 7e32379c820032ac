//! Tests of the plan on a fake kernel made of a few maps.

mod access;
mod cases;
mod connections;
mod dispatch;
mod found;
mod kernel;
mod node;
mod random;
mod ranges;
mod service_changes;
mod vips;
mod world;
