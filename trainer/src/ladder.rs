//! The mismatch benchmark: the same weights sampled in several number formats, each scored by the f32 trainer.
//!
//! For every rung a fresh engine mu samples episodes of the same tasks with the same seeds; pi scores the sampled tokens teacher-forced; the gaps
//! `d_t = log pi - log mu` are accumulated over the episode. The f32 rung is the null: what differs there is kernels and rounding alone.

use std::sync::Arc;

use mipu_agent::{
    Engine, EngineConfig, LoadedModel, Precision, RolloutConfig, RolloutContext, Tokens, Trajectory,
    rollout_groups,
};
use mipu_envs::Task;
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use crate::eval::mean;
use crate::mismatch::{self, AccumulationReport, Diagnostics, Scored};
use crate::policy::TrainerPolicy;
use crate::run::RunError;
use crate::sampled::{sampled_logprobs, sampled_turns};
use crate::update;

/// One engine of the ladder.
#[derive(Clone, Debug)]
pub struct Rung {
    /// Short name.
    pub name: &'static str,
    /// Number formats.
    pub engine: EngineConfig,
}

/// The default ladder: f32, 16-bit formats, then FP8 in one more place at each rung.
pub fn rungs(base: &EngineConfig) -> Vec<Rung> {
    use Precision::{Bf16, F16, F32, Fp8};
    let rung = |name, weights, activations, kv_cache, lm_head| Rung {
        name,
        engine: EngineConfig {
            weights,
            activations,
            kv_cache,
            lm_head,
            ..*base
        },
    };
    vec![
        rung("f32", F32, F32, F32, F32),
        rung("f16", F16, F16, F16, F32),
        rung("bf16", Bf16, Bf16, Bf16, F32),
        rung("fp8 weights", Fp8, F32, F32, F32),
        rung("+ activations", Fp8, Fp8, F32, F32),
        rung("+ KV cache", Fp8, Fp8, Fp8, F32),
        rung("+ head", Fp8, Fp8, Fp8, Fp8),
    ]
}

/// What one rung showed.
#[derive(Clone, Debug, Serialize)]
pub struct RungReport {
    /// Name of the rung.
    pub name: String,
    /// Mean return of its episodes: J(mu) of this engine.
    pub mean_return: f64,
    /// Raw diagnostics over all sampled tokens.
    pub diagnostics: Diagnostics,
    /// `S_n` against tokens and turns.
    pub accumulation: AccumulationReport,
}

/// Climbs the ladder.
///
/// # Errors
/// When an engine, the trainer or the host failed, or on cancellation.
pub async fn climb(
    model: &LoadedModel,
    context: &RolloutContext,
    tasks: &[Arc<Task>],
    rollout: &RolloutConfig,
    rungs: &[Rung],
    cancel: &CancellationToken,
    on_rung: &(dyn Fn(&RungReport) + Sync),
) -> Result<Vec<RungReport>, RunError> {
    let policy = TrainerPolicy::from_weights(&model.weights, &candle_core::Device::Cpu)?;
    let mut reports = Vec::new();
    for rung in rungs {
        let stop_ids = context.renderer.stop_ids().to_vec();
        let engine = Engine::start(rung.engine, model.weights.clone(), 0, stop_ids)?;
        let context = RolloutContext {
            policy: Arc::new(engine),
            ..context.clone()
        };
        let groups = rollout_groups(&context, tasks, rollout, cancel, &|| ())
            .await
            .map_err(|e| {
                if cancel.is_cancelled() {
                    RunError::Interrupted
                } else {
                    e.into()
                }
            })?;
        let trajectories: Vec<&Trajectory> = groups.iter().flat_map(|g| &g.trajectories).collect();
        let tokens: Vec<&Tokens> = trajectories.iter().map(|t| &t.tokens).collect();
        let temperature = f64::from(rollout.sampling.temperature);
        let trainer = tokio::task::block_in_place(|| update::score(&policy, &tokens, temperature))?;
        let sampler: Vec<Vec<f32>> = tokens.iter().map(|t| sampled_logprobs(t)).collect();
        let turns: Vec<Vec<u16>> = tokens.iter().map(|t| sampled_turns(t)).collect();
        let episodes: Vec<Scored<'_>> = (0..tokens.len())
            .map(|i| Scored {
                sampler_logprobs: &sampler[i],
                trainer_logprobs: &trainer[i],
                turn: &turns[i],
            })
            .collect();
        let report = RungReport {
            name: rung.name.to_owned(),
            mean_return: mean(trajectories.iter().map(|t| t.ret())),
            diagnostics: mismatch::diagnose(&episodes),
            accumulation: mismatch::accumulate(rung.name, &episodes),
        };
        on_rung(&report);
        reports.push(report);
    }
    Ok(reports)
}
