//! The real BPF object on the bench. It is loaded without pins, filled by a fixture, and run by
//! `BPF_PROG_TEST_RUN`.
//!
//! ```no_run
//! use millrace_lab::frame::{Frame, flag};
//! use millrace_lab::program::{Bed, Hook};
//!
//! let bed = Bed::new();
//! bed.service().external("203.0.113.1:80").backend_local("10.1.0.5:8080").install();
//! let syn = Frame::ip("192.0.2.9".parse().unwrap(), "203.0.113.1".parse().unwrap()).tcp(40000, 80, flag::SYN);
//! bed.run(Hook::XdpIngress, &syn.build()).assert_passed(&syn.with_destination("10.1.0.5:8080".parse().unwrap()));
//! ```
#![expect(
    clippy::indexing_slicing,
    clippy::expect_used,
    clippy::cast_possible_truncation,
    clippy::missing_panics_doc,
    clippy::must_use_candidate,
    reason = "test support: a fixture that cannot be set up must stop the test at once"
)]

mod builder;
mod clear;
mod context;
mod counters;
mod coverage;
mod figures;
mod fixture;
mod flows;
mod frontend_index;
mod load;
mod maps;
mod outcome;
mod policy;
mod pool;
mod run;
mod service;
mod slots;
mod verified;

pub use builder::{BedBuilder, Sizes, object_path};
pub use context::TestContext;
pub use fixture::{NEXT_HOP_MAC, known_hop, resolved_way};
pub use flows::{FlowEntry, FlowTable};
pub use load::{Bed, monotonic_seconds};
pub use maps::FamilyMaps;
pub use outcome::{Counts, Outcome, Verdict};
pub use policy::{Passage, PolicyBed};
pub use run::{DEVICE, Hook, Ingress, RawRun};
pub use service::{Endpoint, IntoSocketAddr, Service, ServiceBuilder, hash_of, hint_of};
pub use verified::{Load, LoadedProgram};
