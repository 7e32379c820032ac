//! The decision of a socket hook about a call.

use proxy_common::verdict::Reason;

/// The decision about a call.
#[derive(Clone, Copy)]
pub enum Outcome {
    /// The call goes on, to a backend or as it was.
    Proceed(Reason),
    /// The call fails at once with this error number.
    Fail(Reason, i32),
}

impl Outcome {
    /// The counter this call belongs to.
    #[inline(always)]
    pub const fn reason(self) -> Reason {
        match self {
            Self::Proceed(reason) | Self::Fail(reason, _) => reason,
        }
    }
}

pub const UNTOUCHED: Outcome = Outcome::Proceed(Reason::NotOurs);

pub const EADDRINUSE: i32 = 98;

pub const EADDRNOTAVAIL: i32 = 99;

pub const ECONNREFUSED: i32 = 111;

pub const EHOSTUNREACH: i32 = 113;
