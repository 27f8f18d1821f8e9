//! The environment interface: single use, asynchronous, honest about its own failures.

use serde::{Deserialize, Serialize};

use crate::message::{Message, Reply, ToolSpec};

/// Why an episode ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// The agent gave a final answer (or called `submit`).
    Answered,
    /// The environment reached a terminal state.
    Terminal,
    /// The task's turn limit.
    MaxTurns,
    /// The episode's token limit or the model's context.
    MaxTokens,
    /// The rollout was cancelled.
    Cancelled,
}

/// What the environment answered to one turn.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepResult {
    /// Messages to append to the episode (tool output, feedback). Empty when the episode ended.
    pub observations: Vec<Message>,
    /// Reward of this turn; terminal rewards come with the last turn.
    pub reward: f64,
    /// Set when the episode is over.
    pub stop: Option<StopReason>,
    /// Named facts for the metrics (`reward/exact`, `tool/failures`).
    pub metrics: Vec<(String, f64)>,
    /// Virtual latency of this step in milliseconds (stochastic knob; no real waiting).
    pub latency_ms: f64,
}

/// The environment itself failed: the episode is *unscored*, left out of its group and counted. Never a zero reward.
#[derive(Debug, thiserror::Error)]
#[error("unscored: {reason}")]
pub struct Unscored {
    /// What failed.
    pub reason: String,
}

/// A live, single-use instance of a task (there is no reset; build another).
#[async_trait::async_trait]
pub trait Env: Send {
    /// Tools the agent may call in this episode.
    fn tools(&self) -> &[ToolSpec];

    /// The first messages (system and instruction).
    ///
    /// # Errors
    /// When the environment could not be set up.
    async fn start(&mut self) -> Result<Vec<Message>, Unscored>;

    /// Applies one turn of the agent.
    ///
    /// # Errors
    /// When the environment (not the agent) failed.
    async fn step(&mut self, reply: &Reply) -> Result<StepResult, Unscored>;

    /// Called instead of `step` when the rollout ends the episode early (token budget); returns the terminal reward terms.
    ///
    /// # Errors
    /// When the environment failed.
    async fn finish(&mut self, stop: StopReason) -> Result<StepResult, Unscored>;
}
