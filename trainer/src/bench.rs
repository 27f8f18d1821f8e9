//! Speed of the trainer on synthetic episodes, measured the same way by `mipu bench trainer` and the criterion bench.

use std::time::Instant;

use candle_core::Device;
use mipu_agent::{Group, Tokens, Trajectory, Weights};
use mipu_envs::StopReason;
use mipu_envs::seed::{Purpose, stream};
use rand::RngExt;
use serde::Serialize;

use crate::optim::OptimConfig;
use crate::update::{AlgorithmConfig, UpdateContext, score, sft_step, update};
use crate::{AdamW, TrainerError, TrainerPolicy};

/// Size of the synthetic batch.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct BenchSize {
    /// Groups.
    pub groups: usize,
    /// Episodes in a group.
    pub group: usize,
    /// Tokens of an episode.
    pub tokens: usize,
    /// Sampled tokens of an episode, in two turns.
    pub sampled: usize,
    /// Measured repetitions; the median is reported.
    pub repetitions: usize,
}

impl Default for BenchSize {
    /// The quick start's update: 24 groups of 8 episodes of about 70 tokens, 25 of them sampled.
    fn default() -> Self {
        Self {
            groups: 24,
            group: 8,
            tokens: 70,
            sampled: 25,
            repetitions: 5,
        }
    }
}

/// Medians of one run. Tokens are those the model reads.
#[derive(Clone, Debug, Serialize)]
pub struct BenchReport {
    /// What was measured.
    pub size: BenchSize,
    /// Values of the model.
    pub parameters: usize,
    /// Threads of the pool.
    pub threads: usize,
    /// Seconds to score all episodes (forward only).
    pub score_s: f64,
    /// Seconds of a supervised step (forward, backward, AdamW).
    pub sft_step_s: f64,
    /// Seconds of an update: scoring of the second minibatch, forward, backward and AdamW of both.
    pub update_s: f64,
    /// Tokens per second, forward only.
    pub score_tokens_per_s: f64,
    /// Tokens per second, forward, backward and step.
    pub sft_tokens_per_s: f64,
    /// Tokens per second of the whole update.
    pub update_tokens_per_s: f64,
}

/// Groups of random episodes over the model's vocabulary, with random sampler log-probs near those of the uniform policy.
pub fn synthetic_groups(vocab: usize, size: &BenchSize, seed: u64) -> Vec<Group> {
    let episode = |g: usize, i: usize| {
        let mut rng = stream(seed, Purpose::Sampling, &[g as u64, i as u64]);
        let mut draw = |n: usize| -> Vec<u32> { (0..n).map(|_| rng.random_range(0..vocab as u32)).collect() };
        let (context, half) = (size.tokens - size.sampled, size.sampled / 2);
        let logprob = -(vocab as f32).ln();
        let mut tokens = Tokens::default();
        tokens.push_context(&draw(context.div_ceil(2)), mipu_agent::PROMPT_TURN);
        tokens.push_sampled(&draw(half), &vec![logprob; half], 0);
        tokens.push_context(&draw(context / 2), 0);
        let rest = size.sampled - half;
        tokens.push_sampled(&draw(rest), &vec![logprob; rest], 1);
        Trajectory {
            task_id: format!("bench-{g}"),
            sample: i,
            seed,
            policy_version: 0,
            weights_hash: String::new(),
            tokens,
            messages: Vec::new(),
            turn_rewards: vec![f64::from(u8::from(i.is_multiple_of(2)))],
            stop: StopReason::Answered,
            metrics: Vec::new(),
            malformed_turns: 0,
            latency_ms: 0.0,
        }
    };
    (0..size.groups)
        .map(|g| Group {
            task_id: format!("bench-{g}"),
            trajectories: (0..size.group).map(|i| episode(g, i)).collect(),
            unscored: Vec::new(),
        })
        .collect()
}

/// Measures scoring, a supervised step and an update of a model on synthetic episodes.
///
/// # Errors
/// When the trainer fails.
pub fn bench_trainer(weights: &Weights, size: BenchSize) -> Result<BenchReport, TrainerError> {
    let mut policy = TrainerPolicy::from_weights(weights, &Device::Cpu)?;
    let mut optim = AdamW::new(&policy, OptimConfig::default());
    let groups = synthetic_groups(weights.config.vocab_size, &size, 1);
    let episodes: Vec<Tokens> = groups
        .iter()
        .flat_map(|g| &g.trajectories)
        .map(|t| t.tokens.clone())
        .collect();
    let config = AlgorithmConfig {
        minibatches: std::num::NonZeroUsize::MIN.saturating_add(1),
        ..Default::default()
    };
    let (mut score_s, mut sft_s, mut update_s) = (Vec::new(), Vec::new(), Vec::new());
    // The first round warms caches and the allocator and is not counted.
    for round in 0..=size.repetitions {
        let timed = |times: &mut Vec<f64>, start: Instant| {
            if round > 0 {
                times.push(start.elapsed().as_secs_f64());
            }
        };
        let start = Instant::now();
        score(&policy, &episodes.iter().collect::<Vec<_>>(), 1.0)?;
        timed(&mut score_s, start);
        let start = Instant::now();
        sft_step(&mut policy, &mut optim, &episodes, 1e-6)?;
        timed(&mut sft_s, start);
        let start = Instant::now();
        let context = UpdateContext {
            seed: 1,
            attempt: round as u64,
            lr: 1e-6,
            temperature: 1.0,
            reference: None,
        };
        update(&mut policy, &mut optim, &groups, &config, &context)?;
        timed(&mut update_s, start);
    }
    let tokens = (size.groups * size.group * size.tokens) as f64;
    let (score_s, sft_step_s, update_s) = (median(score_s), median(sft_s), median(update_s));
    Ok(BenchReport {
        size,
        parameters: policy.parameters(),
        threads: rayon::current_num_threads(),
        score_s,
        sft_step_s,
        update_s,
        score_tokens_per_s: tokens / score_s,
        sft_tokens_per_s: tokens / sft_step_s,
        update_tokens_per_s: tokens / update_s,
    })
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{quick_start_config, tiny_weights};

    #[test]
    fn the_report_is_consistent() {
        let size = BenchSize {
            groups: 2,
            group: 2,
            tokens: 12,
            sampled: 5,
            repetitions: 1,
        };
        let report = bench_trainer(&tiny_weights(&quick_start_config(), 1), size).unwrap();
        assert_eq!(report.parameters, 331_056);
        let tokens = 48.0;
        assert!((report.update_tokens_per_s * report.update_s - tokens).abs() < 1e-6);
        assert!(report.score_s > 0.0 && report.sft_step_s > 0.0 && report.update_s > 0.0);
    }
}
