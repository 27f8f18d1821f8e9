//! One step: roll out, update, sync, validate, accept or roll back.

use std::sync::Arc;
use std::time::{Duration, Instant};

use mipu_agent::{Group, PolicyError, Tokens, Trajectory, rollout_groups};
use mipu_envs::Task;
use mipu_envs::seed::{self, Purpose};
use tokio_util::sync::CancellationToken;

use super::audit::{self, Audit};
use super::resample::replace_uninformative;
use super::setup::Run;
use super::{Observer, Phase, RunError, StepSummary};
use crate::advantage;
use crate::eval::{self, EvalReport, mean};
use crate::gate::{self, Decision, Hashes, Occasion, Statistic, ValidationEpisode, Verdict};
use crate::mismatch::{self, Diagnostics};
use crate::mixture::{BucketState, Drawn};
use crate::optim::AdamWState;
use crate::sampled::{sampled_logprobs, sampled_turns};
use crate::sft::batch_indices;
use crate::update::{self, UpdateContext, UpdateReport};

/// What a step did, in plain values.
pub(super) struct Attempt {
    pub(super) groups: Vec<Group>,
    pub(super) validation: Vec<Group>,
    pub(super) update: UpdateReport,
    pub(super) mismatch: Diagnostics,
    pub(super) sampler_hash: String,
    pub(super) lr: f64,
    pub(super) statistic: Statistic,
    pub(super) decision: Decision,
    pub(super) audit: Option<Audit>,
    /// Groups sampled in addition, to replace uninformative ones.
    pub(super) resampled: usize,
    pub(super) times: Times,
}

/// Seconds of each part.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Times {
    pub(super) rollout: f64,
    pub(super) score: f64,
    pub(super) update: f64,
    pub(super) sync: f64,
    pub(super) gate: f64,
    pub(super) audit: f64,
}

/// Runs the next step and leaves `run` in the state after it. On an error the step did not happen as far as the records go.
pub(super) async fn attempt(
    run: &mut Run,
    observer: &dyn Observer,
    cancel: &CancellationToken,
) -> Result<Attempt, RunError> {
    let (attempted, step) = (run.state.step, run.state.step + 1);
    let mut times = Times::default();

    // Episodes of mu_k.
    let clock = Instant::now();
    let group_size = run.config.rollout.group_size.get();
    let mut buckets = run.state.buckets.clone();
    let (tasks, drawn) = training_tasks(run, &mut buckets, attempted);
    observer.phase(step, Phase::Rollout, tasks.len() * group_size);
    let mut groups = sample(
        run,
        &tasks,
        group_size,
        Purpose::Sampling,
        &[step],
        observer,
        cancel,
    )
    .await?;
    if groups.iter().all(|g| g.trajectories.is_empty()) {
        let reason = groups
            .iter()
            .flat_map(|g| g.unscored.first())
            .next()
            .cloned()
            .unwrap_or_default();
        return Err(RunError::NothingScored { step, reason });
    }
    let resampled = replace_uninformative(run, &mut groups, observer, cancel).await?;
    times.rollout = clock.elapsed().as_secs_f64();

    // The raw mismatch between pi_k and mu_k, before anything is truncated.
    let clock = Instant::now();
    observer.phase(step, Phase::Update, 0);
    let mismatch = diagnose(run, &groups)?;
    times.score = clock.elapsed().as_secs_f64();

    // Step 1: pi_k -> pi_k+1.
    let clock = Instant::now();
    let before = Before::of(run).await?;
    let lr = run.lr();
    let algorithm = run.config.algorithm.update();
    let update = tokio::task::block_in_place(|| {
        let context = UpdateContext {
            seed: run.config.seed,
            attempt: attempted,
            lr,
            temperature: run.temperature(),
            reference: run.reference.as_ref(),
        };
        update::update(&mut run.policy, &mut run.optim, &groups, &algorithm, &context)
    })?;
    times.update = clock.elapsed().as_secs_f64();

    // mu_k+1 = Sync(pi_k+1).
    let clock = Instant::now();
    let candidate = run
        .engine
        .sync(run.policy.to_weights()?, run.state.policy_version + 1)
        .await?;
    times.sync = clock.elapsed().as_secs_f64();

    // Step 2: validate, then keep or restore.
    let clock = Instant::now();
    let mut occasion = Occasion {
        seed: run.config.seed,
        attempt: attempted,
        round: 0,
        reward_before: run.state.reward_before,
    };
    let mut validation = Vec::new();
    let (statistic, verdict) = loop {
        if run.config.algorithm.gate.due(attempted) {
            let size = run.config.validation.group_size.get();
            let tasks = validation_tasks(run, attempted, u64::from(occasion.round));
            observer.phase(step, Phase::Gate, tasks.len() * size);
            let indices = [step, u64::from(occasion.round)];
            validation.extend(sample(run, &tasks, size, Purpose::Gate, &indices, observer, cancel).await?);
        }
        let statistic = measure(run, &validation, attempted)?;
        match gate::judge(&run.config.algorithm.gate, &statistic, &occasion) {
            Verdict::Extend => occasion.round += 1,
            verdict => break (statistic, verdict),
        }
    };
    times.gate = clock.elapsed().as_secs_f64();

    // What T_hat estimates, measured while both policies are the candidate's.
    let clock = Instant::now();
    let audit = if audit::due(run, attempted) {
        let tasks = validation_tasks(run, attempted, 0);
        Some(audit::audit(run, &tasks, &validation, statistic.t_hat, observer, cancel).await?)
    } else {
        None
    };
    times.audit = clock.elapsed().as_secs_f64();

    let clock = Instant::now();
    let accepted = matches!(verdict, Verdict::Accept(_));
    let after = if accepted {
        run.policy.to_weights()?.hash()
    } else {
        before.restore(run).await?
    };
    let hashes = Hashes {
        before: before.hash,
        candidate,
        after,
    };
    let decision = Decision::new(&run.config.algorithm.gate, &statistic, verdict, &occasion, hashes)?;
    times.gate += clock.elapsed().as_secs_f64();

    // The data order goes on after a rollback; weights, optimizer and schedule do not.
    let state = &mut run.state;
    if let Some(mixture) = &run.mixture {
        mixture.learn(&mut buckets, &drawn, &groups);
    }
    state.buckets = buckets;
    state.audits.extend(audit);
    state.step = step;
    state.weights_hash.clone_from(&decision.hash_after);
    if accepted {
        state.accepted += 1;
        state.schedule_step += 1;
        state.policy_version += 1;
        state.optimizer_step = run.optim.state().step;
        state.reward_before = statistic.reward.or(state.reward_before);
    } else {
        state.rejected += 1;
    }
    let sampler_hash = run.engine.packed_hash().await?;
    Ok(Attempt {
        groups,
        validation,
        update,
        mismatch,
        sampler_hash,
        lr,
        statistic,
        decision,
        audit,
        resampled,
        times,
    })
}

/// J(mu) of the deployed sampler on the run's held-out rows.
pub(super) async fn evaluate(
    run: &Run,
    step: u64,
    observer: &dyn Observer,
    cancel: &CancellationToken,
) -> Result<EvalReport, RunError> {
    let samples = run.config.eval.samples.get();
    observer.phase(step, Phase::Eval, run.held_out.len() * samples);
    let mut config = run.rollout(samples, Purpose::Eval, &[]);
    config.sampling.temperature = run.config.eval.temperature.get();
    let (report, _) = eval::evaluate(&run.context, &run.held_out, &config, cancel, &|| {
        observer.episode()
    })
    .await
    .map_err(|e| interrupted(e, cancel))?;
    observer.evaluated(step, &report);
    Ok(report)
}

/// What a rollback restores.
struct Before {
    weights: mipu_agent::Weights,
    optim: AdamWState,
    hash: String,
    packed: String,
    version: u64,
}

impl Before {
    async fn of(run: &Run) -> Result<Self, RunError> {
        let weights = run.policy.to_weights()?;
        Ok(Self {
            hash: weights.hash(),
            weights,
            optim: run.optim.state(),
            packed: run.engine.packed_hash().await?,
            version: run.state.policy_version,
        })
    }

    /// Restores pi, the optimizer and mu (which flushes its caches); returns the hash measured on the restored trainer.
    async fn restore(&self, run: &mut Run) -> Result<String, RunError> {
        run.policy.set_weights(&self.weights)?;
        run.optim.restore(&self.optim)?;
        run.engine.sync(run.policy.to_weights()?, self.version).await?;
        let found = run.engine.packed_hash().await?;
        if found != self.packed {
            return Err(RunError::SamplerNotRestored {
                expected: self.packed.clone(),
                found,
            });
        }
        Ok(run.policy.to_weights()?.hash())
    }
}

/// The prompts of a step, and the buckets they come from where there are any.
fn training_tasks(run: &Run, buckets: &mut Vec<BucketState>, attempted: u64) -> (Vec<Arc<Task>>, Vec<Drawn>) {
    let rows = &run.tasks.train;
    let (seed, prompts) = (run.config.seed, run.config.rollout.prompts.get());
    let Some(mixture) = &run.mixture else {
        let places = batch_indices(rows.len(), seed, attempted, prompts);
        return (places.into_iter().map(|i| rows[i].clone()).collect(), Vec::new());
    };
    let drawn = mixture.draw(buckets, seed, attempted, prompts);
    (drawn.iter().map(|d| rows[d.row].clone()).collect(), drawn)
}

fn validation_tasks(run: &Run, attempted: u64, round: u64) -> Vec<Arc<Task>> {
    let seed = seed::derive(run.config.seed, Purpose::Gate, &[attempted]);
    eval::draw(
        &run.tasks.validation,
        run.config.validation.prompts.get(),
        Purpose::Gate,
        seed,
        round,
    )
}

pub(super) async fn sample(
    run: &Run,
    tasks: &[Arc<Task>],
    group_size: usize,
    purpose: Purpose,
    indices: &[u64],
    observer: &dyn Observer,
    cancel: &CancellationToken,
) -> Result<Vec<Group>, RunError> {
    let config = run.rollout(group_size, purpose, indices);
    rollout_groups(&run.context, tasks, &config, cancel, &|| observer.episode())
        .await
        .map_err(|e| interrupted(e, cancel))
}

pub(super) fn interrupted(error: PolicyError, cancel: &CancellationToken) -> RunError {
    if cancel.is_cancelled() {
        RunError::Interrupted
    } else {
        error.into()
    }
}

/// T_hat of the candidate on the validation groups; the empty statistic when there are none.
fn measure(run: &Run, groups: &[Group], attempted: u64) -> Result<Statistic, RunError> {
    if groups.is_empty() {
        return Ok(Statistic::default());
    }
    let (trainer, sampler) = score(run, groups)?;
    let mut scored = trainer.iter().zip(&sampler);
    let episodes: Vec<Vec<ValidationEpisode<'_>>> = groups
        .iter()
        .map(|group| {
            let paired = group.trajectories.iter().zip(scored.by_ref());
            paired
                .map(|(t, (trainer, sampler))| ValidationEpisode {
                    sampler_logprobs: sampler,
                    trainer_logprobs: trainer,
                    ret: t.ret(),
                })
                .collect()
        })
        .collect();
    let kind = run.config.algorithm.advantage;
    let advantages = |returns: &[f64]| advantage::group_advantages(kind, returns).values;
    Ok(gate::measure(&episodes, &advantages, run.config.seed, attempted))
}

/// Raw diagnostics of the episodes of mu under pi.
fn diagnose(run: &Run, groups: &[Group]) -> Result<Diagnostics, RunError> {
    let (trainer, sampler) = score(run, groups)?;
    let turns: Vec<Vec<u16>> = groups
        .iter()
        .flat_map(|g| &g.trajectories)
        .map(|t| sampled_turns(&t.tokens))
        .collect();
    let episodes: Vec<mismatch::Scored<'_>> = trainer
        .iter()
        .zip(&sampler)
        .zip(&turns)
        .map(|((trainer, sampler), turn)| mismatch::Scored {
            sampler_logprobs: sampler,
            trainer_logprobs: trainer,
            turn,
        })
        .collect();
    Ok(mismatch::diagnose(&episodes))
}

/// Log-probs of every sampled token, by episode: under pi and as mu recorded them.
type Scores = (Vec<Vec<f32>>, Vec<Vec<f32>>);

fn score(run: &Run, groups: &[Group]) -> Result<Scores, RunError> {
    let tokens: Vec<&Tokens> = groups
        .iter()
        .flat_map(|g| &g.trajectories)
        .map(|t| &t.tokens)
        .collect();
    let trainer = tokio::task::block_in_place(|| update::score(&run.policy, &tokens, run.temperature()))?;
    Ok((trainer, tokens.into_iter().map(sampled_logprobs).collect()))
}

impl Attempt {
    /// Training episodes that were scored.
    pub(super) fn trajectories(&self) -> impl Iterator<Item = &Trajectory> {
        self.groups.iter().flat_map(|g| &g.trajectories)
    }

    /// Mean return of the training episodes.
    pub(super) fn reward(&self) -> f64 {
        mean(self.trajectories().map(Trajectory::ret))
    }

    /// Tokens of all episodes of the step.
    pub(super) fn tokens(&self) -> usize {
        self.trajectories()
            .chain(self.validation.iter().flat_map(|g| &g.trajectories))
            .map(|t| t.tokens.len())
            .sum()
    }

    /// What a person is told.
    pub(super) fn summary(&self, run: &Run, elapsed: Duration) -> StepSummary {
        StepSummary {
            step: run.state.step,
            steps: run.config.steps.get(),
            reward: self.reward(),
            validation_reward: self.statistic.reward.map(|r| r.mean),
            decision: self.decision.clone(),
            accepted: run.state.accepted,
            rejected: run.state.rejected,
            k3: self.mismatch.totals.as_ref().map_or(0.0, |t| t.k3),
            tokens_per_second: self.tokens() as f64 / elapsed.as_secs_f64(),
            seconds: elapsed.as_secs_f64(),
        }
    }
}
