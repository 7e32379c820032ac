//! The steps of a packet, as a trace build of the programs logs them.
//!
//! A line of the log begins with the number of the CPU. `packet TIME PROGRAM PROTOCOL SOURCE PORT DESTINATION PORT`
//! begins a packet, `step NUMBER VALUE` follows for each [`Step`], and `verdict REASON` ends it. TIME is the end of the
//! program in nanoseconds since the boot. PROGRAM and REASON are the numbers of
//! [`Program`](crate::verdict::Program) and [`Reason`](crate::verdict::Reason).

/// The maps that only a trace build has: the steps of each CPU's packet, and aya-log's lines.
pub const TRACE_MAPS: [&str; 2] = ["TRACE", "AYA_LOGS"];

macro_rules! steps {
    ($($(#[doc = $line:literal])+ $variant:ident = $number:literal, $name:literal;)+) => {
        /// A step that a program took with a packet. Its value is a number.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u32)]
        pub enum Step { $($(#[doc = $line])+ $variant = $number,)+ }

        impl Step {
            /// All steps.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            /// Returns the name in a line.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }
        }
    };
}

steps! {
    /// The packet has a frontend; the id of its Service.
    Service = 0, "service";
    /// The connection has an entry; its `FLOW_*` bits, and bit 8 if it is in FLOWS_NEW.
    Flow = 1, "flow";
    /// The slot of the packet; the id of its first owner.
    Slot = 2, "slot";
    /// The backend was chosen; its id.
    Backend = 3, "backend";
    /// The backend knows the client by this port of the node.
    Port = 4, "port";
    /// The packet is encapsulated; the id of the way.
    Way = 5, "way";
    /// The program goes on in this [`Part`](crate::part::Part).
    Part = 6, "part";
}
