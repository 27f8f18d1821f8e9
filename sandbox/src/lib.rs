//! Runs untrusted Python in process, in a booted CPython component under wasmtime.

mod outcome;
mod plain;
mod policy;

pub use outcome::{Outcome, Status};
pub use plain::Plain;
pub use policy::Policy;

use std::path::PathBuf;

/// A failure of the host (not of the guest's code).
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// The engine, guest or file system failed.
    #[error("{0}")]
    Host(String),
}

/// Where the compiled guest is cached and how progress is told.
#[derive(Default)]
pub struct SandboxOptions {
    /// Directory of compiled guests; `None` is the user's cache directory.
    pub cache_dir: Option<PathBuf>,
    /// Called with one line when something slow starts (the first compilation takes 11-19 s).
    pub on_progress: Option<Box<dyn Fn(&str) + Send + Sync>>,
}

/// A compiled guest and the engine it runs on; cheap to clone, shared by every episode of the process.
#[derive(Clone)]
pub struct Sandbox {}

impl Sandbox {
    /// Loads the embedded guest, compiling it on first use.
    pub fn open(_options: SandboxOptions) -> Result<Self, SandboxError> {
        unimplemented!()
    }

    /// Runs `code` once in a fresh instance and drops it.
    pub async fn run(&self, _code: &str, _stdin: &[u8], _policy: &Policy, _seed: u64) -> Result<Outcome, SandboxError> {
        unimplemented!()
    }

    /// Opens an instance whose interpreter state and files survive between calls.
    pub async fn session(&self, _policy: &Policy, _seed: u64) -> Result<Session, SandboxError> {
        unimplemented!()
    }
}

/// One live instance: interpreter state, files, virtual clock and RNG of one episode. Dropping it leaves nothing running.
pub struct Session {}

impl Session {
    /// Executes `code` in the session's `__main__`; the value of a last bare expression is *not* echoed.
    pub async fn exec(&mut self, _code: &str, _stdin: &[u8]) -> Result<Outcome, SandboxError> {
        unimplemented!()
    }

    /// Evaluates an expression in `__main__`; `Outcome::value` is its plain value (`Raised { kind: "NotPlain" }` otherwise).
    pub async fn eval(&mut self, _expression: &str) -> Result<Outcome, SandboxError> {
        unimplemented!()
    }

    /// Calls the global `function` with plain arguments; `Outcome::value` is the plain result.
    pub async fn call(&mut self, _function: &str, _args: &[Plain]) -> Result<Outcome, SandboxError> {
        unimplemented!()
    }

    /// Runs assert-style test code in *this* (trusted) session against `candidate` (untrusted): inside the test code the
    /// global `name` is a proxy whose calls cross through the host as plain data.
    pub async fn exec_against(
        &mut self,
        _tests: &str,
        _name: &str,
        _candidate: &mut Session,
    ) -> Result<Outcome, SandboxError> {
        unimplemented!()
    }

    /// Host path of the episode directory (`/work` in the guest). Removed on drop.
    pub fn directory(&self) -> &std::path::Path {
        unimplemented!()
    }

    /// False once a fatal status was returned.
    pub fn is_alive(&self) -> bool {
        unimplemented!()
    }
}
