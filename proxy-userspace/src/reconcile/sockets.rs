//! Asks for the sockets of this node, if a Service requests an address of the node.

use std::time::Duration;

use tokio::time::Instant;

use crate::model::Model;
use crate::node::listeners;

/// Age at which the known sockets are too old for a change of Services.
const OLD: Duration = Duration::from_secs(1);

/// The last look at the sockets.
#[derive(Debug, Default)]
pub(super) struct Sockets {
    looked: Option<Instant>,
}

impl Sockets {
    /// Tells the model of the sockets that there are now.
    pub fn look(&mut self, model: &mut Model) {
        if model.has_own_addresses() {
            self.looked = Some(Instant::now());
            model.set_listeners(listeners());
        }
    }

    /// Does the same if the last look was long ago.
    pub fn look_if_old(&mut self, model: &mut Model, now: Instant) {
        if self.looked.is_none_or(|looked| looked + OLD <= now) {
            self.look(model);
        }
    }
}
