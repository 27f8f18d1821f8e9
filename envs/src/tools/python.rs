//! The `python` tool: what an execution looks like to the agent.

use mipu_sandbox::{Outcome, Status};

/// The observation of one execution: standard output without its last line break, then the last line of a traceback.
pub(crate) fn observation(outcome: &Outcome, timeout_sec: f64) -> String {
    let mut text = outcome
        .stdout
        .strip_suffix('\n')
        .unwrap_or(&outcome.stdout)
        .to_owned();
    let note = match &outcome.status {
        Status::Exited { code: 0 } => None,
        Status::Exited { code } | Status::Aborted { code } => Some(format!("exit code {code}")),
        Status::Raised { kind, message } if message.is_empty() => Some(kind.clone()),
        Status::Raised { kind, message } => Some(format!("{kind}: {message}")),
        Status::TimedOut => Some(format!("error: timed out after {timeout_sec} s")),
        Status::OutOfFuel => Some("error: out of CPU budget".to_owned()),
        Status::OutOfMemory => Some("error: out of memory".to_owned()),
        Status::StackOverflow => Some("error: stack overflow".to_owned()),
        Status::Trapped { message } => Some(format!("error: the interpreter crashed: {message}")),
    };
    if let Some(note) = note {
        if !text.is_empty() {
            text.push('\n');
        }
        text.push_str(&note);
    }
    text
}
