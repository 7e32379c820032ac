//! The real programs, run on single frames by `BPF_PROG_TEST_RUN`. Whole frames are compared.
//!
//! The tests need root and the BPF object. `MILLRACE_VERBOSE=1` with `--nocapture` shows every
//! frame before and after its run.
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test that finds something else than it put there must fail at once"
)]

mod announced;
mod another_mac;
mod answers;
mod backend_node;
mod case;
mod clients;
#[path = "../clusters/mod.rs"]
#[expect(dead_code, reason = "other tests need the rest")]
mod clusters;
mod cut;
mod director;
mod dispatch;
mod errors;
mod figures;
mod flood;
mod flows;
mod former_table;
mod fou;
mod fragment_sides;
mod fragments;
mod frontend_index;
mod full;
mod held_fragments;
mod jumbo;
mod kernel_drops;
mod local;
mod network;
mod node_flows;
mod node_ports;
mod outer_source;
mod path_mtu;
mod pod_tunnels;
mod pods;
mod policy;
mod quoted_headers;
mod sctp;
mod shapes;
mod shared;
mod snat;
mod snat_ports;
mod trust;
mod tunnelled_fragments;
mod unserved;
mod unsettled;
mod untouched;
mod vips;
