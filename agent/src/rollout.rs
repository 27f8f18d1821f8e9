//! The loop everyone reads first: an environment and a policy become a trajectory.

use std::sync::Arc;

use mipu_envs::Task;
use mipu_sandbox::Sandbox;
use tokio_util::sync::CancellationToken;

use crate::dialect::Renderer;
use crate::policy::{Policy, PolicyError, Sampling};
use crate::trajectory::Group;

/// How a batch of groups is sampled.
#[derive(Clone, Copy, Debug)]
pub struct RolloutConfig {
    /// Episodes per group.
    pub group_size: usize,
    /// Temperature.
    pub sampling: Sampling,
    /// Token budget of one turn.
    pub max_turn_tokens: usize,
    /// Model context: no episode grows past it.
    pub max_context: usize,
    /// Episodes in flight.
    pub concurrency: usize,
    /// Seed; every draw is a function of `(seed, purpose, task, sample, turn)`.
    pub seed: u64,
}

/// What a rollout needs besides the tasks.
#[derive(Clone)]
pub struct RolloutContext {
    /// Sandbox of the tools.
    pub sandbox: Sandbox,
    /// Writes the turns.
    pub policy: Arc<dyn Policy>,
    /// Template and dialect.
    pub renderer: Arc<dyn Renderer>,
}

/// Samples `group_size` episodes of each task. The order of the result is the order of `tasks`, the bytes do not depend on
/// `concurrency`. `on_episode` is told of each finished episode. Cancelling ends with [`PolicyError`].
///
/// # Errors
/// When the policy or the host failed; a failed environment is counted in its group instead.
pub async fn rollout_groups(
    _context: &RolloutContext,
    _tasks: &[Arc<Task>],
    _config: &RolloutConfig,
    _cancel: &CancellationToken,
    _on_episode: &(dyn Fn() + Sync),
) -> Result<Vec<Group>, PolicyError> {
    unimplemented!()
}
