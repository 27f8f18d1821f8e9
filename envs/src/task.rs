//! A task file and its rows.

use std::path::Path;
use std::sync::Arc;

use mipu_sandbox::Sandbox;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::env::Env;
use crate::message::Reply;

/// Which part of a task's rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Split {
    /// Rows the policy is trained on.
    Train,
    /// Rows the gate validates on.
    Validation,
    /// Rows for the final evaluation.
    Test,
}

/// A task file could not be read or is not valid; the message has file, line, column, snippet and hint.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct TaskError(pub String);

/// One problem: a row of a task file, rendered. Valid by construction.
#[derive(Clone, Debug)]
pub struct Task {
    /// `name/<content hash of the row>`.
    pub id: String,
    /// The row's fields.
    pub row: Map<String, Value>,
    /// The rendered instruction.
    pub instruction: String,
    /// The split it belongs to.
    pub split: Split,
    /// Everything the rows share.
    pub spec: Arc<TaskSpec>,
}

/// What the rows of one file share.
#[derive(Debug)]
pub struct TaskSpec {
    /// Name of the task file.
    pub name: String,
    /// Turn limit.
    pub max_turns: usize,
    /// Token limit of an episode (prompt and observations included).
    pub max_tokens: usize,
}

/// The rows of one or several task files, by split.
#[derive(Clone, Debug)]
pub struct TaskSet {
    /// Rows for training.
    pub train: Vec<Arc<Task>>,
    /// Rows for the gate.
    pub validation: Vec<Arc<Task>>,
    /// Rows for evaluation.
    pub test: Vec<Arc<Task>>,
    /// blake3 over the content of every file and row.
    pub content_hash: String,
}

impl TaskSet {
    /// Loads task files; generators run in the sandbox.
    ///
    /// # Errors
    /// On an invalid file or overlapping splits.
    pub async fn load(_paths: &[impl AsRef<Path>], _sandbox: &Sandbox, _seed: u64) -> Result<Self, TaskError> {
        unimplemented!()
    }

    /// The rows of one split.
    pub fn split(&self, split: Split) -> &[Arc<Task>] {
        match split {
            Split::Train => &self.train,
            Split::Validation => &self.validation,
            Split::Test => &self.test,
        }
    }
}

impl Task {
    /// Builds a fresh environment for one episode; `seed` rules its randomness.
    pub fn env(self: &Arc<Self>, _sandbox: &Sandbox, _seed: u64) -> Box<dyn Env> {
        unimplemented!()
    }

    /// Plays the reference `solution`.
    pub fn solution(self: &Arc<Self>, _sandbox: &Sandbox, _seed: u64) -> Box<dyn Demonstrator> {
        unimplemented!()
    }

    /// Plays the (possibly imperfect) `demonstration` used for the warm start; the `solution` where the task has none.
    pub fn demonstration(self: &Arc<Self>, _sandbox: &Sandbox, _seed: u64) -> Box<dyn Demonstrator> {
        unimplemented!()
    }
}

/// Writes turns that react to observations (a `busy` tool is retried), as a scripted agent.
#[async_trait::async_trait]
pub trait Demonstrator: Send {
    /// The next turn, given the observations of the last one (empty at first).
    ///
    /// # Errors
    /// When the script itself failed.
    async fn next(&mut self, observations: &[crate::message::Message]) -> Result<Reply, crate::env::Unscored>;
}
