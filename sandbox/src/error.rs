//! Failures of the host. What a guest does wrong is data ([`crate::Status`]), never one of these.

use std::path::PathBuf;

/// A failure of the host (not of the guest's code).
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// The WebAssembly engine refused its configuration.
    #[error("cannot configure the WebAssembly engine: {0}")]
    Engine(String),
    /// The embedded guest is not what this crate was built with.
    #[error("embedded guest is damaged: expected blake3 {expected}, found {found}")]
    Guest {
        /// Hash recorded beside the guest.
        expected: String,
        /// Hash of what was unpacked.
        found: String,
    },
    /// The guest could not be unpacked, compiled or linked.
    #[error("cannot {action} the guest: {reason}")]
    Prepare {
        /// `unpack`, `compile` or `link`.
        action: &'static str,
        /// Root cause.
        reason: String,
    },
    /// A fresh instance could not be made.
    #[error("cannot open a sandbox instance: {0}")]
    Instantiate(String),
    /// The background work of the host ended early (a panic, or a runtime that is shutting down).
    #[error("host task ended early: {0}")]
    Task(String),
    /// A policy that cannot be honoured.
    #[error("policy: {key} must be at least {least}, got {got}")]
    Policy {
        /// Field of [`crate::Policy`].
        key: &'static str,
        /// Smallest value that works.
        least: u64,
        /// Value found.
        got: u64,
    },
    /// A file system failure of the host, outside any instance.
    #[error("cannot {action} {path}: {source}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// Path it was tried on.
        path: PathBuf,
        /// Cause.
        source: std::io::Error,
    },
}
