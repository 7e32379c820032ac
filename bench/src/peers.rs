//! The real kube-proxy as a peer: whether its programs are there.

use std::env;

use millrace_lab::apiserver::Programs;

use crate::report::Section;

/// The variable that names the program.
const KUBE_PROXY: &str = "MILLRACE_KUBE_PROXY";

/// Returns whether a kube-proxy and an API server can run. Notes the reason if not.
pub fn are_there(section: &mut Section) -> bool {
    let missing = Programs::find().err().map(|error| format!("{error:#}"));
    let is_set = env::var_os(KUBE_PROXY).is_some();
    let missing = missing.or_else(|| {
        (!is_set).then(|| format!("{KUBE_PROXY} is not set: `cargo xtask setup --apiserver` says to what"))
    });
    let Some(reason) = missing else { return true };
    section.leave_out("kube-proxy", reason);
    false
}

/// Returns whether the programs of an API server are missing.
pub fn api_server_is_missing() -> bool {
    Programs::find().is_err()
}

/// Returns the sample below which `share` of all lie: a real sample, not one between two.
#[allow(
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "the number of samples is small, and a share is between 0 and 1"
)]
pub fn quantile(samples: &[f64], share: f64) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let place = (sorted.len() as f64 * share) as usize;
    sorted.get(place.min(sorted.len().saturating_sub(1))).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_one_of_the_samples() {
        let samples: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        let found = [0.0, 0.5, 0.99, 1.0].map(|share| quantile(&samples, share).to_string());
        assert_eq!(found, ["1", "51", "100", "100"]);
        assert!(quantile(&[], 0.5).is_nan());
    }
}
