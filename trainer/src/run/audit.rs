//! What T_hat only estimates, measured: J(mu) - J(pi), by sampling the same validation rows from both.

use std::sync::Arc;

use mipu_agent::{Engine, EngineConfig, Group, RolloutContext, Trajectory, rollout_groups};
use mipu_envs::Task;
use mipu_envs::seed::Purpose;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use super::setup::Run;
use super::step::interrupted;
use super::{Observer, RunError};
use crate::eval::mean;
use crate::statistics::spearman;

/// One audited candidate.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Audit {
    /// The estimate that the gate judged by.
    pub t_hat: Option<f64>,
    /// J(mu_{k+1}) - J(pi_{k+1}) on the validation rows.
    pub gap: f64,
    /// Standard error of `gap`, rows being the independent units.
    pub se: Option<f64>,
}

/// Whether the candidate of this attempt (0-based) is audited.
pub(super) fn due(run: &Run, attempted: u64) -> bool {
    let every = run.config.validation.audit_every;
    every > 0 && attempted.is_multiple_of(every) && run.config.algorithm.gate.due(attempted)
}

/// Plays the rows of `validation`, which mu played, with pi itself: the candidate's weights in f32 throughout, same seeds.
pub(super) async fn audit(
    run: &Run,
    tasks: &[Arc<Task>],
    validation: &[Group],
    t_hat: Option<f64>,
    observer: &dyn Observer,
    cancel: &CancellationToken,
) -> Result<Audit, RunError> {
    let config = EngineConfig {
        threads: run.config.sampler.threads,
        ..EngineConfig::f32()
    };
    let renderer = run.context.renderer.clone();
    let version = run.state.policy_version + 1;
    let engine = Engine::start(
        config,
        run.policy.to_weights()?,
        version,
        renderer.stop_ids().to_vec(),
    )?;
    let context = RolloutContext {
        sandbox: run.context.sandbox.clone(),
        policy: Arc::new(engine),
        renderer,
    };
    let size = run.config.validation.group_size.get();
    let rollout = run.rollout(size, Purpose::Gate, &[run.state.step + 1, 0]);
    let trained = rollout_groups(&context, tasks, &rollout, cancel, &|| observer.episode())
        .await
        .map_err(|error| interrupted(error, cancel))?;
    let returns = |group: &Group| mean(group.trajectories.iter().map(Trajectory::ret));
    let gaps: Vec<f64> = validation
        .iter()
        .zip(&trained)
        .filter(|(mu, pi)| !mu.trajectories.is_empty() && !pi.trajectories.is_empty())
        .map(|(mu, pi)| returns(mu) - returns(pi))
        .collect();
    let (gap, n) = (mean(gaps.iter().copied()), gaps.len() as f64);
    let squares = gaps.iter().map(|g| (g - gap).powi(2)).sum::<f64>();
    Ok(Audit {
        t_hat,
        gap,
        se: (n > 1.0).then(|| (squares / (n - 1.0) / n).sqrt()),
    })
}

/// Spearman's correlation of T_hat with the measured gap over all audits; `None` with fewer than three.
pub(super) fn rank_correlation(audits: &[Audit]) -> Option<f64> {
    let (estimates, gaps): (Vec<f64>, Vec<f64>) =
        audits.iter().filter_map(|a| Some((a.t_hat?, a.gap))).unzip();
    spearman(&estimates, &gaps)
}
