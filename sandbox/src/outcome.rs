//! What an execution in the sandbox came to.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::plain::Plain;

/// Why an execution ended. Everything a guest can do is one of these; `Err` is kept for host failures.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// The code ran to its end, or raised `SystemExit` with this code. **Never a verdict.**
    Exited {
        /// Process-style exit code; 0 is a normal end.
        code: i32,
    },
    /// An exception left the code.
    Raised {
        /// Exception class, `ZeroDivisionError`.
        kind: String,
        /// `str(exception)`, cut to a few hundred characters.
        message: String,
    },
    /// The code ended the process itself (`os._exit`, an abort with an exit code); the session is dead. **Never a verdict.**
    Aborted {
        /// Process-style exit code.
        code: i32,
    },
    /// The deadline passed (in the guest or inside a host call).
    TimedOut,
    /// The fuel budget ran out.
    OutOfFuel,
    /// The guest asked for more memory than the policy grants and did not recover.
    OutOfMemory,
    /// The WebAssembly stack overflowed.
    StackOverflow,
    /// Any other trap; the session is dead.
    Trapped {
        /// Root cause, one line.
        message: String,
    },
}

impl Status {
    /// True for `Exited { code: 0 }`.
    pub fn is_success(&self) -> bool {
        matches!(self, Self::Exited { code: 0 })
    }

    /// True when the session cannot run anything any more.
    pub fn is_fatal(&self) -> bool {
        !matches!(self, Self::Exited { .. } | Self::Raised { .. })
    }
}

/// The typed result of one execution.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Why it ended.
    pub status: Status,
    /// Captured standard output, lossy UTF-8, at most `Policy::output_bytes`.
    pub stdout: String,
    /// Captured standard error (tracebacks), same cap.
    pub stderr: String,
    /// Output went past its cap and was cut.
    pub truncated: bool,
    /// Plain value returned by [`crate::Session::call`] and [`crate::Session::eval`].
    pub value: Option<Plain>,
    /// Builtin exception classes that a raised one is or derives from, nearest first; empty otherwise. As the guest claims.
    pub bases: Vec<String>,
    /// Host wall time of the execution (not part of any reproducible record).
    pub wall: Duration,
    /// Fuel used, when the policy meters fuel.
    pub fuel: Option<u64>,
}
