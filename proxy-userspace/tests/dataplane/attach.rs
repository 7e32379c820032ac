//! Attaching to devices.
