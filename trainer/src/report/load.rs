//! A run directory as far as it can be read: whatever is missing or torn becomes a note on the page, never an error.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use mipu_agent::Tokens;
use serde::Deserialize;
use serde_json::Value;

use crate::ledger::{self, Entry, Line, RunEnd, Step};
use crate::metrics::{self, RecordedStep, keys};

/// Trajectory files searched for examples, newest name first: the last steps are the ones a reader asks about.
const TRAJECTORY_FILES: usize = 4;

/// Longest trajectory file read (bytes): a report must not need the memory of a run.
const TRAJECTORY_BYTES: u64 = 64 << 20;

/// What the page is made of.
#[derive(Default)]
pub(super) struct RunData {
    pub(super) name: String,
    pub(super) config: Option<String>,
    pub(super) steps: Vec<RecordedStep>,
    pub(super) ledger: Vec<Line>,
    /// The chain breaks after [`Self::ledger`].
    pub(super) fault: Option<String>,
    /// Held-out J(mu) by the number of attempted steps behind the evaluated weights, from `eval/`.
    pub(super) held_out: BTreeMap<u64, f64>,
    pub(super) success: Option<Episode>,
    pub(super) failure: Option<Episode>,
    pub(super) notes: Vec<String>,
}

/// The parts of a recorded trajectory the page shows. Read leniently, so that pages of older runs can still be made.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Episode {
    #[serde(default)]
    pub(super) task_id: String,
    #[serde(default)]
    pub(super) sample: usize,
    #[serde(default)]
    pub(super) policy_version: u64,
    pub(super) tokens: Tokens,
    #[serde(default)]
    pub(super) turn_rewards: Vec<f64>,
    #[serde(default)]
    pub(super) stop: Value,
}

impl Episode {
    pub(super) fn ret(&self) -> f64 {
        self.turn_rewards.iter().sum()
    }

    /// Turns the policy took.
    pub(super) fn turns(&self) -> usize {
        let sampled = self
            .tokens
            .loss_mask()
            .iter()
            .zip(self.tokens.turn())
            .filter(|(mask, _)| **mask);
        sampled.map(|(_, turn)| usize::from(*turn) + 1).max().unwrap_or(0)
    }
}

impl RunData {
    pub(super) fn read(dir: &Path) -> Self {
        let mut data = Self {
            name: run_name(dir),
            ..Self::default()
        };
        match std::fs::read_to_string(dir.join("config.yaml")) {
            Ok(text) => data.config = Some(text),
            Err(e) => data.notes.push(format!("config.yaml: {e}")),
        }
        data.read_metrics(&dir.join("metrics.jsonl"));
        data.read_ledger(&dir.join("ledger.jsonl"));
        data.read_evaluations(&dir.join("eval"));
        data.read_examples(&dir.join("trajectories"));
        data
    }

    fn read_metrics(&mut self, path: &Path) {
        match metrics::read(path) {
            Ok((steps, unreadable)) => {
                self.steps = steps;
                if unreadable > 0 {
                    self.notes.push(format!(
                        "metrics.jsonl: {unreadable} lines could not be read and are left out"
                    ));
                }
                if self.steps.is_empty() {
                    self.notes.push("metrics.jsonl: no step is recorded yet".into());
                }
            }
            Err(_) => self.notes.push("metrics.jsonl: not there yet".into()),
        }
    }

    fn read_ledger(&mut self, path: &Path) {
        match ledger::read(path) {
            Ok((lines, fault)) => {
                self.ledger = lines;
                self.fault = fault.map(|f| format!("line {}: {f}", self.ledger.len() + 1));
                if let Some(fault) = &self.fault {
                    self.notes.push(format!("ledger.jsonl: {fault}"));
                }
            }
            Err(_) => self.notes.push("ledger.jsonl: not there yet".into()),
        }
        if !self.ledger.is_empty() && self.end().is_none() {
            self.notes.push("The run has not ended: it is in progress, or was interrupted (`--resume auto` continues it).".into());
        }
    }

    /// Evaluations of the run itself, and whatever the records say besides.
    fn read_evaluations(&mut self, dir: &Path) {
        #[derive(Deserialize)]
        struct Evaluation {
            mean_return: f64,
        }
        for path in files(dir, "json") {
            let found = std::fs::read(&path)
                .ok()
                .and_then(|bytes| serde_json::from_slice::<Evaluation>(&bytes).ok());
            if let (Some(step), Some(evaluation)) = (step_of(&path), found) {
                self.held_out.insert(step, evaluation.mean_return);
            }
        }
        for step in &self.steps {
            if let Some(value) = step.get(&keys::REWARD_HELD_OUT) {
                self.held_out.insert(step.step + 1, value);
            }
        }
        if let Some(end) = self.end().cloned() {
            self.held_out.extend(end.mu_before.map(|value| (0, value)));
            self.held_out.extend(end.mu_after.map(|value| (end.steps, value)));
        }
    }

    /// Picks the best and the worst episode of the newest files, longer ones first among equals: they show the tools at work.
    fn read_examples(&mut self, dir: &Path) {
        let mut files = files(dir, "jsonl");
        files.retain(|path| std::fs::metadata(path).is_ok_and(|m| m.len() <= TRAJECTORY_BYTES));
        // The newest step last, and of one step the training episodes after those that validated a candidate.
        files.sort_by_cached_key(|path| (step_of(path), Reverse(path.clone())));
        for path in files.iter().rev().take(TRAJECTORY_FILES) {
            let text = String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned();
            let episodes: Vec<Episode> = text
                .lines()
                .filter_map(|line| serde_json::from_str(line).ok())
                .collect();
            let rank = |e: &Episode| (e.ret(), e.turns().min(4));
            let by =
                |a: &&Episode, b: &&Episode| rank(a).0.total_cmp(&rank(b).0).then(rank(a).1.cmp(&rank(b).1));
            let best = episodes.iter().rev().max_by(by).filter(|e| e.ret() > 0.0);
            if self.success.is_none() {
                self.success = best.cloned();
            }
            let high = self.success.as_ref().map_or(f64::INFINITY, Episode::ret);
            let low = episodes.iter().map(Episode::ret).fold(f64::INFINITY, f64::min);
            if self.failure.is_none() && low < high {
                let worst = episodes.iter().rev().filter(|e| e.ret() <= low);
                self.failure = worst.max_by_key(|e| e.turns().min(4)).cloned();
            }
            if self.success.is_some() && self.failure.is_some() {
                break;
            }
        }
        if self.success.is_none() && self.failure.is_none() {
            self.notes.push("trajectories/: no recorded episode".into());
        }
    }

    pub(super) fn end(&self) -> Option<&RunEnd> {
        self.ledger.iter().rev().find_map(|line| match &line.entry {
            Entry::RunEnd(end) => Some(end),
            _ => None,
        })
    }

    /// Attempted steps in the ledger.
    pub(super) fn decided(&self) -> impl Iterator<Item = &Step> {
        self.ledger.iter().filter_map(|line| match &line.entry {
            Entry::Step(step) => Some(&**step),
            _ => None,
        })
    }
}

/// Files of a directory with this extension, by name; none when there is no directory.
fn files(dir: &Path, extension: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten();
    let mut files: Vec<PathBuf> = entries.filter_map(|entry| entry.ok().map(|e| e.path())).collect();
    files.retain(|path| path.extension().is_some_and(|e| e == extension));
    files.sort();
    files
}

/// The number at the end of a file's stem: `train-000040.jsonl` is of step 40.
fn step_of(path: &Path) -> Option<u64> {
    let stem = path.file_stem()?.to_str()?;
    stem.rsplit('-').next()?.parse().ok()
}

fn run_name(dir: &Path) -> String {
    let dir = std::fs::canonicalize(dir).unwrap_or_else(|_| dir.to_owned());
    dir.file_name()
        .map_or_else(|| "run".into(), |name| name.to_string_lossy().into_owned())
}
