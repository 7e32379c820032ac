//! EndpointSlices that change while the agent runs.

use anyhow::{Context, Result};
use millrace::model::{Desired, Model};

use super::listing;
use super::objects::{Scale, Slice};

/// The present state of every EndpointSlice.
pub struct Cluster {
    scale: Scale,
    slices: Vec<Slice>,
    changes: u32,
    next_pod: u32,
}

impl Cluster {
    /// Returns the cluster as the API server lists it.
    pub fn new(scale: Scale) -> Self {
        let slices = (0..scale.slices()).map(|number| scale.slice(number)).collect();
        Self { scale, slices, changes: 0, next_pod: scale.services * scale.endpoints }
    }

    /// Returns the size of the cluster.
    pub const fn scale(&self) -> Scale {
        self.scale
    }

    /// Changes a slice, another one each time, and returns its text.
    ///
    /// Every second change replaces a pod. The others make a pod unready, or ready again.
    pub fn change(&mut self) -> Result<String> {
        // The step has no divisor in common with round numbers, so it visits all slices.
        const STEP: usize = 7_919;
        let number = self.changes as usize;
        self.changes += 1;
        let index = number.wrapping_mul(STEP) % self.slices.len();
        let slice = self.slices.get_mut(index).context("there are no slices")?;
        let pod = number / 2 % slice.len();
        if number.is_multiple_of(2) {
            slice.replace(pod, self.next_pod);
            self.next_pod += 1;
        } else {
            slice.flip(pod);
        }
        Ok(slice.text())
    }

    /// Returns a model of the present state.
    pub fn model(&self) -> Result<Model> {
        listing::model(self.scale, self.slices.iter().map(Slice::text))
    }

    /// Returns the desired state of that model.
    pub fn desired(&self) -> Result<Desired> {
        Ok(self.model()?.desired().clone())
    }
}
