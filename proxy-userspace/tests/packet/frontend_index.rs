//! Frontends are found in the index, and without it.

use millrace_lab::frame::flag;
use millrace_lab::program::Bed;

use crate::case::{Case, each_client};

each_client! {
    a_frontend_is_found_by_its_copy_alone
    a_frontend_without_a_copy_is_found
}

fn bed(case: Case) -> Bed {
    let bed = Bed::new();
    bed.service().external(case.vip()).backend_local(case.pod(1)).install();
    bed
}

#[track_caller]
fn is_served(case: Case, bed: &Bed) {
    let syn = case.tcp(flag::SYN);
    let delivered = syn.clone().with_destination(case.pod(1));
    case.is_delivered(bed, &syn, &delivered, case.served());
}

fn a_frontend_is_found_by_its_copy_alone(case: Case) {
    let bed = bed(case);
    bed.without_frontends(|| is_served(case, &bed));
}

fn a_frontend_without_a_copy_is_found(case: Case) {
    let bed = bed(case);
    bed.clear_frontend_index();
    is_served(case, &bed);
}
