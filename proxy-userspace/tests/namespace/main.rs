//! Layer 4: namespaces, real devices, real sockets. Needs root.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that can't go on shall fail")]

mod node;
