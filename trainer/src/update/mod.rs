//! Step 1 of MIPU: the sampler-referenced update of the trainer policy, and the steps that share its machinery.

#[cfg(test)]
mod golden_tests;
mod prepare;
mod score;
mod supervised;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod trap_tests;

use std::num::NonZeroUsize;

use mipu_agent::Group;
use mipu_envs::seed::{Purpose, stream};
use rand::seq::SliceRandom;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use score::score;
pub use supervised::{SftReport, sft_step};

use crate::TrainerError;
use crate::advantage::AdvantageConfig;
use crate::batch::{Packed, micro_batches};
use crate::correction::CorrectionConfig;
use crate::loss::{Denominators, EpisodeInputs, LossConfig, LossStats, episode_loss};
use crate::optim::{AdamW, StepStats};
use crate::overlong::Overlong;
use crate::policy::{Gradients, TokenGradients, TokenStats, TrainerPolicy, backward};
use prepare::{Sample, prepare};

/// What an update does with the groups of one step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AlgorithmConfig {
    /// Estimator of the advantages. Default `grpo`.
    pub advantage: AdvantageConfig,
    /// Correction for the sampler-trainer gap. Default `tis` with `w_max` 2 on each token.
    pub correction: CorrectionConfig,
    /// Surrogate, aggregation, KL and entropy terms.
    pub loss: LossConfig,
    /// Episodes that were cut by a limit. Default `keep`.
    pub overlong: Overlong,
    /// Optimizer steps per pass over the groups; minibatches are cut between groups. Default 1.
    pub minibatches: NonZeroUsize,
    /// Passes over the groups. Default 1.
    pub epochs: NonZeroUsize,
    /// Tokens in one forward and backward pass; bounds memory, changes no result beyond rounding. Default 256, which suits small models;
    /// 1024 is faster above some ten million parameters.
    pub micro_batch_tokens: NonZeroUsize,
}

impl Default for AlgorithmConfig {
    fn default() -> Self {
        Self {
            advantage: AdvantageConfig::default(),
            correction: CorrectionConfig::default(),
            loss: LossConfig::default(),
            overlong: Overlong::Keep,
            minibatches: NonZeroUsize::MIN,
            epochs: NonZeroUsize::MIN,
            micro_batch_tokens: NonZeroUsize::new(256).expect("256 is above 0"),
        }
    }
}

/// What an update needs besides policy, optimizer, groups and configuration.
#[derive(Clone, Copy)]
pub struct UpdateContext<'a> {
    /// Seed of the run.
    pub seed: u64,
    /// Index of the attempted step: with `seed` it decides how groups fall into minibatches.
    pub attempt: u64,
    /// Learning rate of this step.
    pub lr: f64,
    /// Temperature the tokens were sampled at; log-probs are `log_softmax(logits / temperature)`.
    pub temperature: f64,
    /// Frozen policy of the KL term.
    pub reference: Option<&'a TrainerPolicy>,
}

/// Groups left out, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupCounts {
    /// Groups given.
    pub total: usize,
    /// Groups with a signal.
    pub informative: usize,
    /// Groups with fewer than two usable episodes.
    pub too_small: usize,
    /// Groups whose returns are all equal.
    pub no_spread: usize,
    /// Groups with a return that is not finite.
    pub non_finite: usize,
}

/// What an update did.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct UpdateReport {
    /// Groups by whether they carry a signal.
    pub groups: GroupCounts,
    /// Episodes that entered the loss.
    pub episodes: usize,
    /// Episodes left out because they hold no sampled token.
    pub empty_episodes: usize,
    /// Episodes whose tokens `overlong: mask` leaves out.
    pub masked_episodes: usize,
    /// Episodes that failed in their environment and were never scored.
    pub unscored_episodes: usize,
    /// Sampled tokens that entered the loss.
    pub tokens: usize,
    /// Optimizer steps taken.
    pub optimizer_steps: usize,
    /// Minibatches skipped because no token had both a weight and an advantage (and no other term is configured).
    pub skipped_minibatches: usize,
    /// Mean loss over minibatches.
    pub loss: f64,
    /// Largest gradient norm before clipping.
    pub grad_norm: f64,
    /// Mean norm before clipping.
    pub grad_norm_mean: f64,
    /// Mean entropy (nats) at sampled tokens.
    pub entropy: f64,
    /// Share of tokens at the lower clip.
    pub clip_low_frac: f64,
    /// Share of tokens at the upper clip.
    pub clip_high_frac: f64,
    /// Share of tokens at the dual clip.
    pub dual_clip_frac: f64,
    /// Share of tokens whose correction weight was cut.
    pub truncated_frac: f64,
    /// Mean of the raw `w = pi_k / mu` over tokens, before any truncation.
    pub w_mean: f64,
    /// Largest raw `w`.
    pub w_max: f64,
    /// Effective sample size of the raw `w`, as a share of the tokens.
    pub w_ess: f64,
    /// Mean of `w - log w - 1` (nats): the mismatch between trainer and sampler.
    pub mismatch_k3: f64,
    /// Mean of `r = pi_theta / pi_k`.
    pub ratio_mean: f64,
    /// Largest `r`.
    pub ratio_max: f64,
    /// Mean KL estimate to the reference (0 without one).
    pub kl: f64,
    /// Learning rate.
    pub lr: f64,
}

/// One sampler-referenced update: advantages, frozen `pi_k` log-probs, then `epochs x minibatches` optimizer steps.
///
/// The log-probs of `pi_k` are those of the weights given; the first minibatch takes them from its own forward pass, which runs before any
/// step, the others from a pass of their own. Without a usable episode nothing changes and the report counts why.
///
/// # Errors
/// On an episode the model cannot read or any number that is not finite; policy and optimizer are then as they were.
pub fn update(
    policy: &mut TrainerPolicy,
    optim: &mut AdamW,
    groups: &[Group],
    config: &AlgorithmConfig,
    context: &UpdateContext<'_>,
) -> Result<UpdateReport, TrainerError> {
    let mut report = UpdateReport {
        lr: context.lr,
        ..UpdateReport::default()
    };
    let mut batch = prepare(policy, groups, config, &mut report)?;
    let plan = plan(batch.len(), config, context);
    let Some(first) = plan.first() else {
        return Ok(report);
    };
    prepare::freeze(policy, &mut batch, first, config, context)?;

    // A single step is all or nothing by itself; only several need a way back.
    let before = if plan.len() > 1 {
        Some((policy.to_weights()?, optim.state()))
    } else {
        None
    };
    let result = run(policy, optim, &mut batch, &plan, config, context, &mut report);
    if let (Err(_), Some((weights, state))) = (&result, before) {
        policy.set_weights(&weights)?;
        optim.restore(&state)?;
    }
    result.map(|()| report)
}

/// Which groups make up each optimizer step, over all epochs; a function of seed and attempt.
fn plan(groups: usize, config: &AlgorithmConfig, context: &UpdateContext<'_>) -> Vec<Vec<usize>> {
    let per_step = groups.div_ceil(config.minibatches.get()).max(1);
    (0..config.epochs.get() as u64)
        .flat_map(|epoch| {
            let mut order: Vec<usize> = (0..groups).collect();
            order.shuffle(&mut stream(
                context.seed,
                Purpose::Minibatch,
                &[context.attempt, epoch],
            ));
            order.chunks(per_step).map(<[usize]>::to_vec).collect::<Vec<_>>()
        })
        .collect()
}

fn run(
    policy: &mut TrainerPolicy,
    optim: &mut AdamW,
    batch: &mut [Vec<Sample>],
    plan: &[Vec<usize>],
    config: &AlgorithmConfig,
    context: &UpdateContext<'_>,
    report: &mut UpdateReport,
) -> Result<(), TrainerError> {
    let mut totals = LossStats::default();
    let mut norms = Vec::new();
    for groups in plan {
        let minibatch = minibatch_gradients(policy, batch, groups, config, context)?;
        report.loss += minibatch.value / plan.len() as f64;
        totals.merge(&minibatch.stats);
        let only_surrogate = config.loss.kl.is_none() && config.loss.entropy_bonus.get() <= 0.0;
        if minibatch.stats.active == 0 && only_surrogate {
            report.skipped_minibatches += 1;
            continue;
        }
        let StepStats { grad_norm, .. } = optim.step(policy, &minibatch.gradients, context.lr)?;
        report.optimizer_steps += 1;
        norms.push(grad_norm);
    }
    report.grad_norm = norms.iter().copied().fold(0.0, f64::max);
    report.grad_norm_mean = norms.iter().sum::<f64>() / norms.len().max(1) as f64;
    fill(report, &totals);
    Ok(())
}

struct Minibatch {
    gradients: Gradients,
    value: f64,
    stats: LossStats,
}

/// What one micro-batch leaves besides its gradient.
struct Micro {
    value: f64,
    stats: LossStats,
    current: TokenStats,
}

/// Gradient of the loss over some groups. Samples without frozen log-probs get those of this forward pass.
fn minibatch_gradients(
    policy: &TrainerPolicy,
    batch: &mut [Vec<Sample>],
    groups: &[usize],
    config: &AlgorithmConfig,
    context: &UpdateContext<'_>,
) -> Result<Minibatch, TrainerError> {
    let samples: Vec<&Sample> = groups.iter().flat_map(|&g| &batch[g]).collect();
    let lengths: Vec<usize> = samples.iter().map(|s| s.episode.input_len()).collect();
    let denominators = Denominators {
        episodes: samples.len(),
        tokens: samples.iter().map(|s| s.episode.sampled_len()).sum(),
    };
    let ranges = micro_batches(&lengths, config.micro_batch_tokens.get());
    let packed: Vec<Packed> = ranges
        .iter()
        .map(|r| Packed::new(samples[r.clone()].iter().map(|s| &s.episode)))
        .collect();
    let (gradients, micro) = backward(policy, &packed, context.temperature, |i, stats| {
        micro_loss(
            &samples[ranges[i].clone()],
            &packed[i],
            stats,
            config,
            denominators,
        )
    })?;

    let mut out = Minibatch {
        gradients,
        value: 0.0,
        stats: LossStats::default(),
    };
    let mut current = Vec::with_capacity(samples.len());
    for (micro, packed) in micro.iter().zip(&packed) {
        out.value += micro.value;
        out.stats.merge(&micro.stats);
        current.extend(packed.split(&micro.current.logprobs).map(<[f64]>::to_vec));
    }
    let mut current = current.into_iter();
    for &group in groups {
        for (sample, current) in batch[group].iter_mut().zip(&mut current) {
            sample.frozen.get_or_insert(current);
        }
    }
    Ok(out)
}

fn micro_loss(
    samples: &[&Sample],
    packed: &Packed,
    current: TokenStats,
    config: &AlgorithmConfig,
    denominators: Denominators,
) -> Result<(TokenGradients, Micro), TrainerError> {
    let mut grads = TokenGradients::default();
    let mut micro = Micro {
        value: 0.0,
        stats: LossStats::default(),
        current,
    };
    let per_sample = packed
        .split(&micro.current.logprobs)
        .zip(packed.split(&micro.current.entropies));
    for (sample, (logprobs, entropies)) in samples.iter().zip(per_sample) {
        sample.check(logprobs, "log-prob")?;
        sample.check(entropies, "entropy")?;
        let sampler: Vec<f64> = sample
            .episode
            .sampler_logprobs()
            .iter()
            .map(|&l| f64::from(l))
            .collect();
        let inputs = EpisodeInputs {
            current: logprobs,
            frozen: sample.frozen.as_deref().unwrap_or(logprobs),
            sampler: &sampler,
            reference: sample.reference.as_deref(),
            entropies,
            advantage: sample.advantage,
        };
        let loss = episode_loss(&config.loss, &config.correction, &inputs, denominators);
        sample.check(&[loss.value], "loss")?;
        sample.check(&loss.logprobs, "derivative of the loss")?;
        micro.value += loss.value;
        micro.stats.merge(&loss.stats);
        grads.logprobs.extend(loss.logprobs);
        grads.entropies.extend(loss.entropies);
    }
    Ok((grads, micro))
}

fn fill(report: &mut UpdateReport, totals: &LossStats) {
    let n = totals.tokens.max(1) as f64;
    let frac = |count: usize| count as f64 / n;
    report.entropy = totals.entropy / n;
    report.clip_low_frac = frac(totals.clip_low);
    report.clip_high_frac = frac(totals.clip_high);
    report.dual_clip_frac = frac(totals.dual_clip);
    report.truncated_frac = frac(totals.truncated);
    report.w_mean = totals.w / n;
    report.w_max = totals.w_max;
    report.w_ess = if totals.w_squared > 0.0 {
        totals.w * totals.w / (n * totals.w_squared)
    } else {
        0.0
    };
    report.mismatch_k3 = totals.k3 / n;
    report.ratio_mean = totals.r / n;
    report.ratio_max = totals.r_max;
    report.kl = totals.kl / n;
}
