//! What a run tells whoever watches it.

use super::plan::Plan;
use crate::eval::EvalReport;
use crate::gate::Decision;

/// The part of a step in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// mu samples training episodes.
    Rollout,
    /// pi is updated (Step 1).
    Update,
    /// The candidate sampler is validated (Step 2).
    Gate,
    /// Held-out evaluation.
    Eval,
    /// State goes to disk.
    Checkpoint,
}

/// A finished step.
#[derive(Clone, Debug)]
pub struct StepSummary {
    /// This step, from 1.
    pub step: u64,
    /// Steps in all.
    pub steps: u64,
    /// Mean return of the training episodes (mu_k).
    pub reward: f64,
    /// Mean return of the validation episodes (candidate mu), when the gate ran.
    pub validation_reward: Option<f64>,
    /// What the gate decided.
    pub decision: Decision,
    /// Accepted steps so far.
    pub accepted: u64,
    /// Rejected steps so far.
    pub rejected: u64,
    /// Mean k3 of the step.
    pub k3: f64,
    /// Tokens (context and sampled) a second over the whole step.
    pub tokens_per_second: f64,
    /// Seconds the step took.
    pub seconds: f64,
}

/// Watches a run. Every method has an empty default.
pub trait Observer: Sync {
    /// Before anything runs: the arithmetic of the run.
    fn planned(&self, _plan: &Plan) {}
    /// The run goes on after this step.
    fn resumed(&self, _step: u64) {}
    /// A part of a step begins; `episodes` is how many it will sample (0 for none).
    fn phase(&self, _step: u64, _phase: Phase, _episodes: usize) {}
    /// An episode ended.
    fn episode(&self) {}
    /// A step ended.
    fn step(&self, _summary: &StepSummary) {}
    /// An evaluation ended; step 0 is before training.
    fn evaluated(&self, _step: u64, _report: &EvalReport) {}
    /// Something a person should know.
    fn warn(&self, _message: &str) {}
}

/// Watches nothing.
pub struct Silent;

impl Observer for Silent {}
