//! Can this task file be trusted? Plays it the way training will and reports what is wrong with it.
//!
//! The reference solution is played turn by turn through the real environment, failures included, and must score 1; answers that do no
//! work must score 0; repeated runs must agree to the byte; the generator must give the same rows twice.

mod play;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mipu_sandbox::Sandbox;
use serde::Serialize;

use crate::env::{StopReason, Unscored};
use crate::seed::{self, Purpose};
use crate::task::{Split, Task};
use crate::taskset::TaskSet;
use play::{Baseline, Episode, play, transcript};

/// An episode may lose its turns to injected failures; this many seeds are tried before the solution is blamed.
const ATTEMPTS: u64 = 8;
/// Answers shorter than this stand in a prompt by chance.
const SHORTEST_LEAK: usize = 3;
/// Share of the rows whose prompt may hold the answer before it is reported.
const LEAK_SHARE: f64 = 0.2;

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

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// For information.
    Note,
    /// Training will work, perhaps not as meant.
    Warning,
    /// The task must not be trained on.
    Error,
}

/// One thing found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// The check: `schema`, `data`, `splits`, `solution`, `baseline`, `determinism`, `leak`.
    pub check: &'static str,
    /// What was expected and found.
    pub message: String,
    /// What to do about it.
    pub hint: Option<String>,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let severity = match self.severity {
            Severity::Note => "note",
            Severity::Warning => "warning",
            Severity::Error => "error",
        };
        write!(f, "{severity}: {}: {}", self.check, self.message)?;
        match &self.hint {
            Some(hint) => write!(f, "\nhint: {hint}"),
            None => Ok(()),
        }
    }
}

/// What the reference solution did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Reference {
    /// Rows played.
    pub episodes: usize,
    /// Rows that scored 1.
    pub solved: usize,
    /// Mean reward of the rows, each by its last episode.
    pub mean_reward: f64,
    /// Episodes lost because injected failures used up the turns; they were replayed with another seed.
    pub lost_to_failures: usize,
    /// Tool failures injected.
    pub tool_failures: usize,
    /// Mean turns of an episode.
    pub mean_turns: f64,
    /// Mean host time of an episode in milliseconds (not reproducible).
    pub episode_ms: f64,
}

/// The result of a check.
#[derive(Clone, Debug, Serialize)]
pub struct DoctorReport {
    /// The file.
    pub path: PathBuf,
    /// The task's name, if the file could be read.
    pub name: Option<String>,
    /// Rows by split: train, validation, test.
    pub rows: [usize; 3],
    /// Longest instruction and system text together, in bytes.
    pub longest_prompt_bytes: usize,
    /// blake3 of file and rows.
    pub content_hash: Option<String>,
    /// What the reference solution did.
    pub reference: Reference,
    /// Mean reward of answers that do no work.
    pub baselines: BTreeMap<&'static str, f64>,
    /// Everything found, worst first.
    pub findings: Vec<Finding>,
}

impl DoctorReport {
    /// True without errors.
    pub fn passed(&self) -> bool {
        self.findings
            .iter()
            .all(|finding| finding.severity != Severity::Error)
    }

    fn add(
        &mut self,
        severity: Severity,
        check: &'static str,
        message: impl Into<String>,
        hint: Option<&str>,
    ) {
        self.findings.push(Finding {
            severity,
            check,
            message: message.into(),
            hint: hint.map(str::to_owned),
        });
    }
}

/// Checks the task file at `path`; what is wrong with it is in the findings.
pub async fn check(path: &Path, sandbox: &Sandbox, options: &DoctorOptions) -> DoctorReport {
    let mut report = DoctorReport {
        path: path.to_owned(),
        name: None,
        rows: [0; 3],
        longest_prompt_bytes: 0,
        content_hash: None,
        reference: Reference::default(),
        baselines: BTreeMap::new(),
        findings: Vec::new(),
    };
    let set = match TaskSet::load(&[path], sandbox, options.seed).await {
        Ok(set) => set,
        Err(error) => {
            report.add(Severity::Error, "schema", error.to_string(), None);
            return report;
        }
    };
    check_rows(&set, &mut report);
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
            Some("draw from the `rng` argument alone, and do not iterate over sets"),
        );
    }
    let twins = again
        .map(|again| sample(&again, options.rows))
        .unwrap_or_default();
    let sample = sample(&set, options.rows);
    if sample
        .first()
        .is_some_and(|task| task.spec.file.solution.is_none())
    {
        let hint =
            Some("add `solution: {turns: [..]}`; without it nothing shows that the task can be solved");
        report.add(
            Severity::Error,
            "solution",
            "the task has no reference solution",
            hint,
        );
    } else {
        check_solution(&sample, sandbox, options, &mut report).await;
        check_determinism([&sample, &twins], sandbox, options, &mut report).await;
    }
    check_baselines(&sample, sandbox, options, &mut report).await;
    report
        .findings
        .sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    report
}

/// Rows of every split in turn, so that a small sample has them all.
fn sample(set: &TaskSet, count: usize) -> Vec<Arc<Task>> {
    let longest = set.train.len().max(set.validation.len()).max(set.test.len());
    let rounds = (0..longest).flat_map(|i| [set.train.get(i), set.validation.get(i), set.test.get(i)]);
    rounds.flatten().take(count).map(Arc::clone).collect()
}

fn check_rows(set: &TaskSet, report: &mut DoctorReport) {
    report.rows = [set.train.len(), set.validation.len(), set.test.len()];
    report.content_hash = Some(set.content_hash.clone());
    let tasks = || set.train.iter().chain(&set.validation).chain(&set.test);
    report.longest_prompt_bytes = tasks()
        .map(|task| task.instruction.len() + task.system.as_ref().map_or(0, String::len))
        .max()
        .unwrap_or_default();
    for warning in &set.warnings {
        report.add(Severity::Warning, "data", warning.clone(), None);
    }
    let Some(first) = tasks().next() else { return };
    report.name = Some(first.spec.name.clone());
    let shares = first.spec.file.split;
    for (split, share, rows) in [
        (
            Split::Train,
            1.0 - shares.validation.get() - shares.test.get(),
            &set.train,
        ),
        (Split::Validation, shares.validation.get(), &set.validation),
        (Split::Test, shares.test.get(), &set.test),
    ] {
        if share > 0.0 && rows.is_empty() {
            let hint = Some("rows are assigned by content; add rows or change the shares");
            report.add(
                Severity::Warning,
                "splits",
                format!("{split:?} has no row at a share of {share}"),
                hint,
            );
        }
    }
}

async fn check_solution(
    sample: &[Arc<Task>],
    sandbox: &Sandbox,
    options: &DoctorOptions,
    report: &mut DoctorReport,
) {
    let mut reference = Reference {
        episodes: sample.len(),
        ..Reference::default()
    };
    let (mut turns, mut wall, mut played, mut leaks) = (0, Duration::ZERO, 0_usize, 0_usize);
    let wanted = sample.first().and_then(|task| task.spec.file.solution.as_ref());
    let wanted = wanted.map_or(1.0, |solution| solution.min_reward.get());
    let mut earned = 0.0;
    for (index, task) in sample.iter().enumerate() {
        for attempt in 0..ATTEMPTS {
            let seed = seed::derive(options.seed, Purpose::Eval, &[index as u64, attempt]);
            let started = Instant::now();
            let episode = match play(task, task.solution(sandbox, seed).as_mut(), sandbox, seed).await {
                Ok(episode) => episode,
                Err(Unscored { reason }) => {
                    report.add(
                        Severity::Error,
                        "solution",
                        format!("{}: {reason}", task.id),
                        None,
                    );
                    break;
                }
            };
            wall += started.elapsed();
            played += 1;
            turns += episode.turns;
            reference.tool_failures += episode.tool_failures;
            if episode.reward >= episode.best - 1e-9 && episode.best > 0.0 {
                reference.solved += 1;
                earned += episode.reward;
                leaks += usize::from(leaked(task, episode.answer.as_deref()));
                break;
            }
            if episode.stop == StopReason::MaxTurns && episode.tool_failures > 0 && attempt + 1 < ATTEMPTS {
                reference.lost_to_failures += 1;
                continue;
            }
            earned += episode.reward;
            if wanted < 1.0 {
                break; // chance has a say: the mean counts
            }
            let message = format!(
                "{}: the solution scored {} and stopped at {:?}; its transcript: {}",
                task.id,
                episode.reward,
                episode.stop,
                transcript(&episode.messages)
            );
            report.add(
                Severity::Error,
                "solution",
                message,
                Some("the reference solution must score 1 on every row"),
            );
            break;
        }
    }
    reference.mean_reward = earned / sample.len().max(1) as f64;
    if wanted < 1.0 && reference.mean_reward < wanted {
        let message = format!(
            "the solution earned {:.3} on average; `min_reward` asks for {wanted}",
            reference.mean_reward
        );
        let hint = Some("improve the script, or lower `min_reward` to what the best policy earns");
        report.add(Severity::Error, "solution", message, hint);
    }
    reference.mean_turns = turns as f64 / played.max(1) as f64;
    reference.episode_ms = wall.as_secs_f64() * 1e3 / played.max(1) as f64;
    if reference.lost_to_failures > 0 {
        let message = format!(
            "{} of {played} reference episodes lost their turns to injected tool failures",
            reference.lost_to_failures
        );
        report.add(
            Severity::Note,
            "solution",
            message,
            Some("raise `max_turns` if the share is large"),
        );
    }
    if leaks as f64 > LEAK_SHARE * sample.len() as f64 {
        let message = format!(
            "the prompt holds the answer verbatim in {leaks} of {} rows",
            sample.len()
        );
        report.add(
            Severity::Warning,
            "leak",
            message,
            Some("an agent may learn to copy instead of to solve"),
        );
    }
    report.reference = reference;
}

fn leaked(task: &Task, answer: Option<&str>) -> bool {
    answer.is_some_and(|answer| answer.len() >= SHORTEST_LEAK && task.instruction.contains(answer.trim()))
}

/// Plays each row several times, by turns as it was loaded first and second.
async fn check_determinism(
    loaded: [&[Arc<Task>]; 2],
    sandbox: &Sandbox,
    options: &DoctorOptions,
    report: &mut DoctorReport,
) {
    for (index, (task, twin)) in loaded[0].iter().zip(loaded[1]).take(4).enumerate() {
        let seed = seed::derive(options.seed, Purpose::Eval, &[index as u64, 0]);
        let mut first: Option<Episode> = None;
        for task in [task, twin].into_iter().cycle().take(options.runs) {
            // A script that fails was reported with the solution.
            let Ok(episode) = play(task, task.solution(sandbox, seed).as_mut(), sandbox, seed).await else {
                return;
            };
            let same = first.as_ref().is_none_or(|first| first.same_as(&episode));
            if !same {
                let message = format!(
                    "{}: runs with one seed differ: {}",
                    task.id,
                    transcript(&episode.messages)
                );
                let hint =
                    Some("time, ids and unseeded randomness must not reach an observation or a verdict");
                report.add(Severity::Error, "determinism", message, hint);
                return;
            }
            first.get_or_insert(episode);
        }
    }
}

async fn check_baselines(
    sample: &[Arc<Task>],
    sandbox: &Sandbox,
    options: &DoctorOptions,
    report: &mut DoctorReport,
) {
    let Some(first) = sample.first() else { return };
    let submits = first.spec.tools.iter().any(|tool| tool.name == "submit");
    for baseline in [Baseline::Empty, Baseline::Echo, Baseline::Noop, Baseline::Submit] {
        if baseline == Baseline::Submit && !submits {
            continue;
        }
        let (mut sum, mut worst) = (0.0, None);
        for (index, task) in sample.iter().enumerate() {
            let seed = seed::derive(options.seed, Purpose::Eval, &[index as u64, 0]);
            let mut script = baseline.script(task);
            match play(task, &mut script, sandbox, seed).await {
                Ok(episode) => {
                    sum += episode.reward;
                    if episode.reward > 0.0 {
                        worst.get_or_insert((task.id.clone(), episode.reward));
                    }
                }
                Err(Unscored { reason }) => {
                    let message = format!(
                        "{}: the {} answer could not be scored: {reason}",
                        task.id,
                        baseline.name()
                    );
                    report.add(
                        Severity::Error,
                        "baseline",
                        message,
                        Some("no answer of an agent may break a reward"),
                    );
                    return;
                }
            }
        }
        report
            .baselines
            .insert(baseline.name(), sum / sample.len() as f64);
        if let Some((id, reward)) = worst {
            let message = format!("{id}: the {} answer scored {reward}", baseline.name());
            report.add(
                Severity::Error,
                "baseline",
                message,
                Some("an answer that does no work must score 0"),
            );
        }
    }
}
