//! Can this task file be trusted? Plays it the way training will and reports what is wrong with it.
//!
//! The reference solution is played turn by turn through the real environment, failures included, and must score 1 (or its `min_reward`
//! on average where chance has a say); answers that do no work, answers of other types and, where answers are code, a suite of
//! [`attacks`] must score 0; repeated runs must agree to the byte; the generator must give the same rows twice.

mod attack;
mod baseline;
mod play;
mod report;
mod rows;
mod solution;

use std::path::Path;
use std::sync::Arc;

use mipu_sandbox::Sandbox;

use crate::env::Unscored;
use crate::task::Task;
use crate::taskset::TaskSet;
pub use attack::{Attack, attacks};
pub use report::{DoctorReport, Finding, Reference, Severity};

/// How thorough a check is.
#[derive(Clone, Copy, Debug)]
pub struct DoctorOptions {
    /// Seed of rows and episodes. Default 0.
    pub seed: u64,
    /// Rows played. Default 16.
    pub rows: usize,
    /// Runs that must agree. Default 3.
    pub runs: usize,
}

impl Default for DoctorOptions {
    fn default() -> Self {
        Self {
            seed: 0,
            rows: 16,
            runs: 3,
        }
    }
}

/// Checks the task file at `path`; what is wrong with it is in the findings.
pub async fn check(path: &Path, sandbox: &Sandbox, options: &DoctorOptions) -> DoctorReport {
    let mut report = DoctorReport::new(path.to_owned());
    let set = match TaskSet::load(&[path], sandbox, options.seed).await {
        Ok(set) => set,
        Err(error) => {
            report.add(Severity::Error, "schema", error.to_string(), "");
            return report;
        }
    };
    rows::check_rows(&set, &mut report);
    // Loaded again, nothing is remembered: what agrees then agrees between processes.
    let again = TaskSet::load(&[path], sandbox, options.seed).await.ok();
    if again
        .as_ref()
        .is_none_or(|again| again.content_hash != set.content_hash)
    {
        report.add(
            Severity::Error,
            "determinism",
            "the data differ when they are loaded twice",
            "draw from the `rng` argument alone, and do not iterate over sets",
        );
    }
    let twins = again
        .map(|again| sample(&again, options.rows))
        .unwrap_or_default();
    let sample = sample(&set, options.rows);
    let Some(first) = sample.first() else {
        return report;
    };
    let mut rewards = Vec::new();
    if first.spec.file.solution.is_none() {
        report.add(
            Severity::Error,
            "solution",
            "the task has no reference solution",
            "add `solution: {turns: [..]}`; without it nothing shows that the task can be solved",
        );
    } else {
        let (answers, earned) = solution::check_solution(&sample, sandbox, options, &mut report).await;
        rewards.extend(earned);
        solution::check_determinism([&sample, &twins], sandbox, options, &mut report).await;
        let leaks = rows::check_leaks(&sample, &answers, sandbox, &mut report);
        unscored("leak", leaks, &mut report);
    }
    rewards.extend(baseline::check_baselines(&sample, sandbox, options, &mut report).await);
    let attacked = baseline::check_attacks(first, sandbox, &mut report).await;
    rewards.extend(unscored("attack", attacked, &mut report).unwrap_or_default());
    check_rewards(&rewards, first, &mut report);
    report
        .findings
        .sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    report
}

/// What was checked, or a finding that it could not be.
fn unscored<T>(check: &'static str, result: Result<T, Unscored>, report: &mut DoctorReport) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(Unscored { reason }) => {
            report.add(Severity::Error, check, format!("cannot be checked: {reason}"), "");
            None
        }
    }
}

/// A reward that is the same whatever is answered teaches nothing.
fn check_rewards(rewards: &[f64], first: &Task, report: &mut DoctorReport) {
    let (Some(least), Some(most)) = (
        rewards.iter().copied().reduce(f64::min),
        rewards.iter().copied().reduce(f64::max),
    ) else {
        return;
    };
    if most - least < 1e-9 && first.spec.file.solution.is_some() {
        report.add(
            Severity::Error,
            "reward",
            format!("every answer that was tried scored {most}, the solution included"),
            "a reward must tell good answers from bad ones",
        );
    }
}

/// Rows of every split in turn, so that a small sample has them all.
fn sample(set: &TaskSet, count: usize) -> Vec<Arc<Task>> {
    let longest = set.train.len().max(set.validation.len()).max(set.test.len());
    let rounds = (0..longest).flat_map(|i| [set.train.get(i), set.validation.get(i), set.test.get(i)]);
    rounds.flatten().take(count).map(Arc::clone).collect()
}
