//! From groups to samples: what is left out, advantages, and log-probs that stay fixed during the update.

use mipu_agent::Group;

use super::score::logprobs;
use super::{AlgorithmConfig, UpdateContext, UpdateReport};
use crate::TrainerError;
use crate::advantage::{AdvantageConfig, Uninformative, group_advantages, whiten};
use crate::batch::Episode;
use crate::loss::UninformativeGroups;
use crate::policy::TrainerPolicy;

/// An episode with what the loss needs of it.
pub(super) struct Sample {
    pub(super) episode: Episode,
    pub(super) advantage: f64,
    /// Log-probs under `pi_k`; filled before the first optimizer step that could change them.
    pub(super) frozen: Option<Vec<f64>>,
    /// Log-probs under the reference of the KL term.
    pub(super) reference: Option<Vec<f64>>,
    label: String,
}

impl Sample {
    /// # Errors
    /// When a value is not finite, naming it and the episode.
    pub(super) fn check(&self, values: &[f64], what: &str) -> Result<(), TrainerError> {
        match values.iter().position(|v| !v.is_finite()) {
            None => Ok(()),
            Some(t) => {
                let what = format!("{what} of sampled token {t} of {}", self.label);
                Err(TrainerError::NonFinite {
                    what,
                    value: values[t],
                })
            }
        }
    }
}

/// The groups that enter the loss, with advantages; counts the others in the report.
pub(super) fn prepare(
    policy: &TrainerPolicy,
    groups: &[Group],
    config: &AlgorithmConfig,
    report: &mut UpdateReport,
) -> Result<Vec<Vec<Sample>>, TrainerError> {
    let mut kept = Vec::new();
    for group in groups {
        report.groups.total += 1;
        report.unscored_episodes += group.unscored.len();
        let usable: Vec<_> = group
            .trajectories
            .iter()
            .filter(|t| t.tokens.sampled_len() > 0)
            .collect();
        report.empty_episodes += group.trajectories.len() - usable.len();
        let returns: Vec<f64> = usable.iter().map(|t| config.overlong.ret(t)).collect();
        let advantages = group_advantages(config.advantage, &returns);
        match advantages.uninformative {
            None => report.groups.informative += 1,
            Some(Uninformative::TooSmall) => report.groups.too_small += 1,
            Some(Uninformative::NoSpread) => report.groups.no_spread += 1,
            Some(Uninformative::NonFinite) => report.groups.non_finite += 1,
        }
        if advantages.uninformative.is_some() && config.loss.uninformative_groups == UninformativeGroups::Drop
        {
            continue;
        }
        let mut samples = Vec::with_capacity(usable.len());
        for (trajectory, advantage) in usable.into_iter().zip(advantages.values) {
            if config.overlong.masks(trajectory.stop) {
                report.masked_episodes += 1;
                continue;
            }
            let episode = Episode::new(report.episodes, &trajectory.tokens, policy.config())?;
            report.episodes += 1;
            report.tokens += episode.sampled_len();
            let label = format!("{}/{}", trajectory.task_id, trajectory.sample);
            samples.push(Sample {
                episode,
                advantage,
                frozen: None,
                reference: None,
                label,
            });
        }
        if !samples.is_empty() {
            kept.push(samples);
        }
    }
    if config.advantage == AdvantageConfig::ReinforcePp {
        let mut values: Vec<f64> = kept.iter().flatten().map(|s| s.advantage).collect();
        let tokens: Vec<usize> = kept.iter().flatten().map(|s| s.episode.sampled_len()).collect();
        whiten(&mut values, &tokens);
        kept.iter_mut()
            .flatten()
            .zip(values)
            .for_each(|(sample, value)| sample.advantage = value);
    }
    Ok(kept)
}

/// Computes the log-probs of `pi_k` for every group outside the first minibatch (which takes them from its own forward), and those of the
/// reference for all.
pub(super) fn freeze(
    policy: &TrainerPolicy,
    batch: &mut [Vec<Sample>],
    first: &[usize],
    config: &AlgorithmConfig,
    context: &UpdateContext<'_>,
) -> Result<(), TrainerError> {
    let fill = |policy: &TrainerPolicy, samples: Vec<&mut Sample>, set: fn(&mut Sample, Vec<f64>)| {
        let episodes: Vec<&Episode> = samples.iter().map(|s| &s.episode).collect();
        let values = logprobs(
            policy,
            &episodes,
            context.temperature,
            config.micro_batch_tokens.get(),
        )?;
        for (sample, values) in samples.into_iter().zip(values) {
            sample.check(&values, "log-prob")?;
            set(sample, values);
        }
        Ok::<_, TrainerError>(())
    };
    let later = batch
        .iter_mut()
        .enumerate()
        .filter(|(g, _)| !first.contains(g))
        .flat_map(|(_, samples)| samples);
    fill(policy, later.collect(), |sample, values| {
        sample.frozen = Some(values)
    })?;
    if config.loss.kl.is_some() {
        let reference = context.reference.ok_or(TrainerError::MissingReference)?;
        fill(
            reference,
            batch.iter_mut().flatten().collect(),
            |sample, values| sample.reference = Some(values),
        )?;
    }
    Ok(())
}
