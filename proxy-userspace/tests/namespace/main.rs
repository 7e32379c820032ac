//! Layer 4: namespaces, real devices, real sockets. Needs root.

mod node;
