//! Socket load balancing: the hooks turn calls of this node's pods and processes to a backend, once for each
//! connection.
//!
//! The hooks see every such call of the cgroup. Calls to other addresses go on unchanged.

mod bind;
mod call;
mod form;
mod outcome;
mod release;
mod restore;
mod translate;

pub use bind::bind;
pub use call::{Call, fail_with};
pub use form::Plain4;
pub use outcome::Outcome;
pub use release::{Closing, forget};
pub use restore::restore;
pub use translate::{connect, send};

use self::form::{Mapped4, Plain6, is_mapped};

/// `connect` of an IPv6 socket, which may speak IPv4.
#[inline(always)]
pub fn connect_either(call: &Call) -> Outcome {
    if is_mapped(call) { connect::<Mapped4>(call) } else { connect::<Plain6>(call) }
}

/// `sendmsg` of an IPv6 socket. The kernel turns a v4-mapped call into IPv4's before it runs the hook, but
/// not on every path.
#[inline(always)]
pub fn send_either(call: &Call) -> Outcome {
    if is_mapped(call) { send::<Mapped4>(call) } else { send::<Plain6>(call) }
}

/// Restores the peer that an IPv6 socket sees, which may be an IPv4 one.
#[inline(always)]
pub fn restore_either(call: &Call) {
    if is_mapped(call) {
        restore::<Mapped4>(call);
    } else {
        restore::<Plain6>(call);
    }
}

/// `bind` of an IPv6 socket. A socket at the unspecified address takes IPv4's port as well.
#[inline(always)]
pub fn bind_either(call: &Call) -> Result<(), i32> {
    if is_mapped(call) {
        return bind::<Mapped4>(call);
    }
    bind::<Plain6>(call)?;
    bind::bind_beside(call)
}
