//! What can stop a run.

use std::io;
use std::path::{Path, PathBuf};

use mipu_agent::{ModelError, PolicyError};
use mipu_envs::TaskError;

use crate::checkpoint::CheckpointError;
use crate::error::TrainerError;
use crate::gate::HashMismatch;
use crate::ledger::LedgerError;
use crate::metrics::MetricsError;
use crate::report::ReportError;
use crate::yaml::ConfigError;

/// A run (or warm start) could not go on. What was recorded before is intact.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// Ctrl-C, or a cancelled token.
    #[error("interrupted; everything recorded so far is kept")]
    Interrupted,
    /// The file system failed.
    #[error("{}: {source}", path.display())]
    Io {
        /// File or directory.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// Another process holds the run directory.
    #[error("{} is in use by another process\nhint: wait for it, or choose another directory with --out", path.display())]
    Locked {
        /// Run directory.
        path: PathBuf,
    },
    /// A run is there already.
    #[error("{} already holds a run\nhint: continue it with --resume auto, or choose another directory with --out", path.display())]
    DirectoryInUse {
        /// Run directory.
        path: PathBuf,
    },
    /// `--resume` found nothing.
    #[error(
        "there is no run to resume at {what}\nhint: start a new one without --resume, or let --resume auto decide"
    )]
    NothingToResume {
        /// Where it looked.
        what: String,
    },
    /// The run directory belongs to another configuration.
    #[error(
        "{} was made by another configuration (expected {expected}, found {found})\nhint: resume with the configuration, model, tasks and seed it was started with, or start a new run",
        path.display()
    )]
    OtherConfiguration {
        /// Run directory.
        path: PathBuf,
        /// Hash the run was started with.
        expected: String,
        /// Hash of what was given.
        found: String,
    },
    /// A split is empty.
    #[error(
        "the tasks have no rows in their {split} split\nhint: raise the task's `split.{split}` share or its number of rows"
    )]
    NoRows {
        /// The split.
        split: &'static str,
    },
    /// A curriculum that cannot be followed.
    #[error("{0}")]
    Curriculum(String),
    /// Every demonstration of a batch failed.
    #[error(
        "no demonstration could be played: {reason}\nhint: `mipu task check` tells what is wrong with the task"
    )]
    NoDemonstration {
        /// The last failure.
        reason: String,
    },
    /// The sampler's packed weights are not the ones it had before the rolled-back update.
    #[error("the rollback left another sampler: expected packed weights {expected}, found {found}")]
    SamplerNotRestored {
        /// Before the update.
        expected: String,
        /// After the rollback.
        found: String,
    },
    /// Training episodes of a step were all lost to failed environments.
    #[error(
        "no episode of step {step} could be scored: {reason}\nhint: the environment fails, not the policy; see `mipu task check`"
    )]
    NothingScored {
        /// The step.
        step: u64,
        /// The first reason.
        reason: String,
    },
    /// A configuration file is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A task file is wrong.
    #[error(transparent)]
    Task(#[from] TaskError),
    /// A model directory is wrong.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The sampler failed.
    #[error(transparent)]
    Policy(PolicyError),
    /// The trainer failed.
    #[error(transparent)]
    Trainer(#[from] TrainerError),
    /// Weights after a decision are wrong.
    #[error(transparent)]
    Hash(#[from] HashMismatch),
    /// A checkpoint failed.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The ledger failed.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// The metrics failed.
    #[error(transparent)]
    Metrics(#[from] MetricsError),
    /// The report failed.
    #[error(transparent)]
    Report(#[from] ReportError),
}

impl RunError {
    pub(crate) fn io(path: &Path) -> impl FnOnce(io::Error) -> Self + '_ {
        move |source| Self::Io {
            path: path.to_owned(),
            source,
        }
    }
}

impl From<PolicyError> for RunError {
    fn from(error: PolicyError) -> Self {
        Self::Policy(error)
    }
}
