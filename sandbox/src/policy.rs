//! Limits and grants of one sandboxed instance. The default denies everything but CPU, memory and a small directory.

use std::time::Duration;

use crate::error::SandboxError;

/// What an instance may use. There is no network, no environment and no host directory to grant.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// Wall-clock limit of each execution (one `run`, one session `exec` or `call`). Default 5 s.
    pub deadline: Duration,
    /// Linear memory of the instance in bytes. Default 256 MiB.
    pub memory_bytes: usize,
    /// Cap on each of stdout and stderr per execution in bytes. Default 64 KiB.
    pub output_bytes: usize,
    /// Total bytes of the episode's files, which live in host memory. Default 16 MiB.
    pub disk_bytes: u64,
    /// Bytes of one file. Default 16 MiB.
    pub file_bytes: u64,
    /// Number of files and directories in the episode directory. Default 256.
    pub disk_files: usize,
    /// Fuel per execution, for reproducible CPU limits; `None` (default) meters by deadline alone.
    pub fuel: Option<u64>,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            deadline: Duration::from_secs(5),
            memory_bytes: 256 << 20,
            output_bytes: 64 << 10,
            disk_bytes: 16 << 20,
            file_bytes: 16 << 20,
            disk_files: 256,
            fuel: None,
        }
    }
}

/// Linear memory of the booted interpreter before it runs anything, rounded up.
const LEAST_MEMORY_BYTES: usize = 48 << 20;

impl Policy {
    /// Refuses limits under which the interpreter itself could not run.
    pub(crate) fn check(&self) -> Result<(), SandboxError> {
        let least = |key, least: u64, got: u64| match got < least {
            true => Err(SandboxError::Policy { key, least, got }),
            false => Ok(()),
        };
        least(
            "memory_bytes",
            LEAST_MEMORY_BYTES as u64,
            self.memory_bytes as u64,
        )
    }
}
