//! What the ledger records, as typed entries.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::gate::Decision;

/// One entry. Entries hold no wall-clock time, path or machine fact, so that a replay writes the same bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Entry {
    /// The first entry of a run.
    RunStart(RunStart),
    /// An attempted step, accepted or rolled back.
    Step(Box<Step>),
    /// A checkpoint that is durable.
    Checkpoint(Checkpoint),
    /// The run reached its end.
    RunEnd(RunEnd),
}

impl Entry {
    /// The entry's name on the line.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::RunStart(_) => "run_start",
            Self::Step(_) => "step",
            Self::Checkpoint(_) => "checkpoint",
            Self::RunEnd(_) => "run_end",
        }
    }
}

/// What a run was started from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunStart {
    /// blake3 of the resolved configuration.
    pub config_hash: String,
    /// Content hash of the tasks.
    pub task_hash: String,
    /// Weights before the first step.
    pub weights_hash: String,
    /// Run seed.
    pub seed: u64,
}

/// One attempted step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// Attempted step, 0-based.
    pub attempt: u64,
    /// The gate's decision with the weight hashes around it.
    pub decision: Decision,
    /// Hashes of the other state a rollback restores, measured after the decision (`optimizer`, `sampler`, `schedule`, ...).
    pub hashes: BTreeMap<String, String>,
    /// The step's replayable metrics ([`crate::metrics::StepMetrics::replayable`]).
    pub metrics: BTreeMap<String, f64>,
}

/// A durable checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Checkpoint {
    /// Attempted steps it contains.
    pub attempt: u64,
    /// Its directory name inside the run directory.
    pub name: String,
    /// blake3 of its manifest.
    pub manifest_hash: String,
}

/// The end of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunEnd {
    /// Attempted steps.
    pub steps: u64,
    /// Updates kept.
    pub accepted: u64,
    /// Updates rolled back.
    pub rejected: u64,
    /// Held-out J(mu) before the first step.
    pub mu_before: Option<f64>,
    /// Held-out J(mu) of the final weights.
    pub mu_after: Option<f64>,
    /// Final weights.
    pub weights_hash: String,
}
