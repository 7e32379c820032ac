//! The spread of samples: five numbers, and the noise of the median.

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

/// Samples in short: the median, the quartiles and the ends.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// The number of samples. 1 = a count that does not vary, or a single measurement.
    pub samples: usize,
    /// The least sample.
    pub min: f64,
    /// A quarter of the samples are below.
    pub q1: f64,
    /// The figure.
    pub median: f64,
    /// A quarter of the samples are above.
    pub q3: f64,
    /// The greatest sample.
    pub max: f64,
}

impl Spread {
    /// Returns the spread of samples in any order.
    pub fn of(samples: &[f64]) -> Result<Self> {
        ensure!(samples.iter().all(|sample| sample.is_finite()), "a sample is no number: {samples:?}");
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let at = |share| quantile(&sorted, share).context("no samples");
        Ok(Self {
            samples: sorted.len(),
            min: at(0.0)?,
            q1: at(0.25)?,
            median: at(0.5)?,
            q3: at(0.75)?,
            max: at(1.0)?,
        })
    }

    /// Returns the distance of the quartiles.
    pub fn width(&self) -> f64 {
        self.q3 - self.q1
    }

    /// Returns half the width of the median's 95 % interval: McGill, Tukey and Larsen, "Variations
    /// of Box Plots", 1978.
    #[allow(clippy::cast_precision_loss, reason = "exact up to 2^52")]
    pub fn notch(&self) -> f64 {
        1.57 * self.width() / (self.samples.max(1) as f64).sqrt()
    }
}

/// Returns a quantile of sorted samples, between two samples by their distance.
#[allow(
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "the number of samples is small, and a share is between 0 and 1"
)]
fn quantile(sorted: &[f64], share: f64) -> Option<f64> {
    let place = share * sorted.len().checked_sub(1)? as f64;
    let (below, above) = (sorted.get(place.floor() as usize)?, sorted.get(place.ceil() as usize)?);
    Some(below + (above - below) * place.fract())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quartiles_lie_between_samples() {
        let spread = Spread::of(&[4.0, 1.0, 3.0, 2.0]).unwrap();
        let Spread { samples, min, q1, median, q3, max } = spread;
        assert_eq!((samples, min, q1, median, q3, max), (4, 1.0, 1.75, 2.5, 3.25, 4.0));
        assert!((spread.width() - 1.5).abs() < f64::EPSILON);
    }

    #[test]
    fn one_sample_has_no_spread_and_none_is_an_error() {
        let spread = Spread::of(&[7.0]).unwrap();
        assert_eq!((spread.median, spread.width(), spread.notch()), (7.0, 0.0, 0.0));
        assert!(Spread::of(&[]).is_err());
        assert!(Spread::of(&[1.0, f64::NAN]).is_err());
    }
}
