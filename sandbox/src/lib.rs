//! Runs untrusted Python in process, in a booted CPython component under wasmtime.
//!
//! [`Sandbox::open`] loads the guest (compiled on first use), [`Sandbox::run`] executes code in a fresh copy of the booted
//! interpreter, [`Sandbox::session`] keeps one copy over the turns of an episode. Whatever the code does comes back as a typed
//! [`Outcome`]; an `Err` means that the host failed.
//!
//! ```text
//! guest.wasm.zst -> compile, cache -> InstancePre -> Instance (store, limits, clock, files, RNG)
//!                                                       | JSON request      ^ JSON claim, checked
//!                                                       v                   |
//!                                                    handle() in __main__, calls the host only through WASI and `host.call`
//! ```
//!
//! # Invariants
//! - Default deny: no network, no environment, no host directory, no host clock. Nothing to grant them either.
//! - Every limit of [`Policy`] ends in a typed status or a Python exception, with the host unharmed.
//! - Output, files, time and randomness are functions of the code, its input and the seed.
//! - An exit code is never a verdict: values leave as [`Plain`] data and the host compares.
//! - Dropping a future or a [`Session`] leaves nothing running and nothing on disk.
//!
//! Not covered: side channels of the CPU, and other users who may write to the cache directory of compiled guests.

mod against;
pub mod bench;
mod clock;
mod engine;
mod error;
mod fs;
mod guest;
mod host;
mod instance;
mod outcome;
mod plain;
mod policy;
mod sandbox;
mod session;
mod stdio;

pub use error::SandboxError;
pub use fs::{FileEntry, FileError, Files};
pub use outcome::{Outcome, Status};
pub use plain::{NotPlain, Plain};
pub use policy::Policy;
pub use sandbox::{Progress, Sandbox, SandboxOptions};
pub use session::Session;
