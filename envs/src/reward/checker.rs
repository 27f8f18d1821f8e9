//! The `python` rule: the task author's `reward(row, answer, files)`, run in a fresh, trusted session.
//!
//! The checker is trusted, the answer is not: it arrives as a value. A checker that executes the answer gives up that safety; use
//! `unit_tests` for code. Anything but a number in [0, 1] is the checker's failure: the episode is unscored. The exception is a checker
//! that runs out of time or memory over an answer: an agent could make it do that at will and leave the group, so the answer scores 0.

use mipu_sandbox::{Plain, Status};

use super::Judge;
use crate::env::Unscored;
use crate::python;
use crate::seed::{self, Purpose};
use crate::spec::Checker;
use crate::tools::python::observation;

/// The number the checker returned; 0 and the metric `checker/exhausted` when the answer used up its limits.
pub(super) async fn score(
    judge: &Judge,
    checker: &Checker,
    metrics: &mut Vec<(String, f64)>,
) -> Result<f64, Unscored> {
    let policy = judge.policy();
    let failed = |what: &str| Unscored {
        reason: format!("the checker failed: {what}"),
    };
    let mut session = judge
        .sandbox
        .session(&policy, seed::derive(judge.seed, Purpose::Sandbox, &[2]))
        .await?;
    let timeout_sec = policy.deadline.as_secs_f64();
    let defined = session.exec(&checker.0, b"").await?;
    if !defined.status.is_success() {
        return Err(failed(&observation(&defined, timeout_sec)));
    }
    let files = judge.files.iter().map(|(path, content)| {
        let content = match std::str::from_utf8(content) {
            Ok(text) => Plain::Str(text.to_owned()),
            Err(_) => Plain::Bytes(content.clone()),
        };
        (Plain::Str(path.clone()), content)
    });
    let row = judge
        .task
        .row
        .iter()
        .map(|(name, value)| (Plain::Str(name.clone()), python::to_plain(value)));
    let arguments = [
        Plain::Dict(row.collect()),
        Plain::Str(judge.answer.clone()),
        Plain::Dict(files.collect()),
    ];
    let returned = session.call("reward", &arguments).await?;
    if exhausted(&returned.status) {
        metrics.push(("checker/exhausted".to_owned(), 1.0));
        return Ok(0.0);
    }
    if !returned.status.is_success() {
        return Err(failed(&observation(&returned, timeout_sec)));
    }
    let value = match &returned.value {
        Some(Plain::Float(x)) => Some(*x),
        Some(Plain::Int(digits)) => digits.parse().ok(),
        Some(Plain::Bool(b)) => Some(f64::from(u8::from(*b))),
        _ => None,
    };
    match value {
        Some(score) if (0.0..=1.0).contains(&score) => Ok(score),
        _ => {
            let got = returned
                .value
                .as_ref()
                .map_or_else(|| "nothing".to_owned(), python::show);
            Err(failed(&format!("expected a number in [0, 1]; got {got}")))
        }
    }
}

/// Whether a limit of the interpreter ended the checker.
fn exhausted(status: &Status) -> bool {
    match status {
        Status::TimedOut | Status::OutOfFuel | Status::OutOfMemory | Status::StackOverflow => true,
        Status::Raised { kind, .. } => matches!(kind.as_str(), "MemoryError" | "RecursionError"),
        Status::Exited { .. } | Status::Aborted { .. } | Status::Trapped { .. } => false,
    }
}
