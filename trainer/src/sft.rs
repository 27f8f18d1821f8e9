//! Supervised fine-tuning: clones a task's demonstrations, the warm start of a policy.
//!
//! Demonstrations are played through the real environment, tool by tool, and rendered by the same renderer as rollouts, so a
//! cloned turn has exactly the ids that the policy would have sampled. Loss is on the demonstrator's tokens alone.

mod config;

use std::sync::Arc;

use candle_core::Device;
use mipu_agent::{
    Engine, EngineConfig, LoadedModel, ModelConfig, PROMPT_TURN, Renderer, RolloutConfig, RolloutContext,
    Sampling, Tokens,
};
use mipu_envs::seed::{self, Purpose};
use mipu_envs::{Demonstrator, Message, Role, StopReason, Task, TaskSet, Unscored};
use mipu_sandbox::Sandbox;
use serde::Serialize;
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

use crate::eval::{self, EvalReport};
use crate::optim::AdamW;
use crate::policy::TrainerPolicy;
use crate::run::RunError;
use crate::update::sft_step;
pub use config::{ModelSource, Random, SftConfig, TinyShape};

/// Demonstrations in play at once.
const CONCURRENCY: usize = 16;
/// Batches made ahead of the trainer.
const PREFETCH: usize = 2;

/// Progress of a warm start.
#[derive(Clone, Copy, Debug)]
pub struct SftProgress {
    /// Steps done.
    pub step: u64,
    /// Steps in all.
    pub steps: u64,
    /// Mean negative log-likelihood of the demonstrator's tokens, nats.
    pub loss: f64,
    /// Global gradient norm before clipping.
    pub grad_norm: f64,
    /// Tokens seen so far.
    pub tokens: u64,
}

/// What a warm start came to.
#[derive(Clone, Debug, Serialize)]
pub struct SftReport {
    /// Loss of the last step, nats a token.
    pub loss: f64,
    /// Tokens seen.
    pub tokens: u64,
    /// Mean return of the demonstrations themselves.
    pub demonstration_return: f64,
    /// Held-out success of the clone, sampled in FP8.
    pub eval: EvalReport,
    /// blake3 of the weights.
    pub weights_hash: String,
}

/// A scripted episode, played through the real environment and rendered as the policy would have written it.
#[derive(Clone, Debug, Serialize)]
pub struct Played {
    /// Ids and mask; the script's tokens are true in the mask.
    pub tokens: Tokens,
    /// The same as messages.
    pub messages: Vec<Message>,
    /// What it earned.
    #[serde(rename = "return")]
    pub ret: f64,
}

/// Plays a script (a solution or a demonstration) of a task.
///
/// # Errors
/// When the environment or the script failed, or a turn cannot be rendered in the model's dialect.
pub async fn play(
    task: &Arc<Task>,
    mut script: Box<dyn Demonstrator>,
    sandbox: &Sandbox,
    renderer: &dyn Renderer,
    seed: u64,
) -> Result<Played, Unscored> {
    let unscored = |e: mipu_agent::ModelError| Unscored {
        reason: e.to_string(),
    };
    let mut env = task.env(sandbox, seed);
    let mut messages = env.start().await?;
    let mut tokens = Tokens::default();
    tokens.push_context(
        &renderer.prompt(&messages, env.tools()).map_err(unscored)?,
        PROMPT_TURN,
    );
    let (mut observations, mut ret) = (Vec::new(), 0.0);
    for turn in 0..=task.spec.max_turns as u16 {
        let ids = renderer
            .render_reply(&script.next(&observations).await?)
            .map_err(unscored)?;
        tokens.push_sampled(&ids, &vec![0.0; ids.len()], turn);
        // What the environment sees is what it would have parsed from a model.
        let reply = renderer.parse(&ids, false, env.tools());
        messages.push(Message {
            tool_calls: reply.tool_calls.clone(),
            ..Message::new(Role::Assistant, reply.content.clone())
        });
        let step = env.step(&reply).await?;
        ret += step.reward;
        if step.stop.is_some() {
            return Ok(Played {
                tokens,
                messages,
                ret,
            });
        }
        let glue = renderer
            .observation(&messages, env.tools(), &ids, &step.observations)
            .map_err(unscored)?;
        tokens.push_context(&glue, turn);
        messages.extend(step.observations.iter().cloned());
        observations = step.observations;
        if tokens.len() >= task.spec.max_tokens {
            break;
        }
    }
    ret += env.finish(StopReason::MaxTokens).await?.reward;
    Ok(Played {
        tokens,
        messages,
        ret,
    })
}

/// Runs a warm start; the result still has to be saved.
///
/// # Errors
/// On a bad task or model, a failed sandbox, or a non-finite loss.
pub async fn sft(
    config: &SftConfig,
    sandbox: &Sandbox,
    cancel: &CancellationToken,
    on_step: &(dyn Fn(SftProgress) + Sync),
) -> Result<(LoadedModel, SftReport), RunError> {
    let base = match &config.model {
        ModelSource::Path(path) => LoadedModel::load(path)?,
        ModelSource::Random(Random { init }) => LoadedModel::init_compact(tiny_config(init), config.seed)?,
    };
    let renderer: Arc<dyn Renderer> = mipu_agent::dialect::renderer(&base)?;
    let tasks = Arc::new(TaskSet::load(&config.tasks, sandbox, config.seed).await?);
    let device = Device::Cpu;
    let mut policy = TrainerPolicy::from_weights(&base.weights, &device)?;
    let mut optim = AdamW::new(&policy, config.optimizer);

    let context = base.weights.config.max_position_embeddings;
    let mut batches = spawn_demonstrations(config, &tasks, sandbox, &renderer, context, cancel);
    let (mut seen, mut loss, mut returns, mut n) = (0, f64::NAN, 0.0, 0u64);
    for step in 0..config.steps.get() {
        let Some(batch) = batches.recv().await else {
            return Err(RunError::Interrupted);
        };
        let (tokens, batch_returns): (Vec<Tokens>, Vec<f64>) = batch?.into_iter().unzip();
        returns += batch_returns.iter().sum::<f64>();
        n += batch_returns.len() as u64;
        let lr = config.optimizer.lr.get() * config.optimizer.schedule.factor(step, config.steps.get());
        let done = tokio::task::block_in_place(|| sft_step(&mut policy, &mut optim, &tokens, lr))?;
        loss = done.nll;
        seen += tokens.iter().map(|t| t.len() as u64).sum::<u64>();
        let progress = SftProgress {
            step: step + 1,
            steps: config.steps.get(),
            loss,
            grad_norm: done.grad_norm,
            tokens: seen,
        };
        on_step(progress);
    }

    let model = base.with_weights(policy.to_weights()?);
    let weights_hash = model.weights.hash();
    let engine = Engine::start(
        EngineConfig::default(),
        model.weights.clone(),
        0,
        renderer.stop_ids().to_vec(),
    )?;
    let rollouts = RolloutContext {
        sandbox: sandbox.clone(),
        policy: Arc::new(engine),
        renderer,
    };
    let plan = RolloutConfig {
        group_size: config.eval.samples.get(),
        sampling: Sampling::at(config.eval.temperature.get()),
        max_turn_tokens: context,
        max_context: context,
        concurrency: 64,
        seed: seed::derive(config.seed, Purpose::Eval, &[0]),
    };
    let held_out = eval::draw(
        &tasks.test,
        config.eval.prompts.get(),
        Purpose::Eval,
        config.seed,
        0,
    );
    let (eval, _) = eval::evaluate(&rollouts, &held_out, &plan, cancel, &|| ()).await?;
    let demonstration_return = if n == 0 { 0.0 } else { returns / n as f64 };
    Ok((
        model,
        SftReport {
            loss,
            tokens: seen,
            demonstration_return,
            eval,
            weights_hash,
        },
    ))
}

type DemonstrationBatch = Result<Vec<(Tokens, f64)>, RunError>;

/// Makes batches ahead of the trainer on a background task that ends when the receiver is dropped.
fn spawn_demonstrations(
    config: &SftConfig,
    tasks: &Arc<TaskSet>,
    sandbox: &Sandbox,
    renderer: &Arc<dyn Renderer>,
    context: usize,
    cancel: &CancellationToken,
) -> mpsc::Receiver<DemonstrationBatch> {
    let (sender, receiver) = mpsc::channel(PREFETCH);
    let (steps, batch, run_seed) = (config.steps.get(), config.batch.get(), config.seed);
    let (tasks, sandbox, renderer, cancel) =
        (tasks.clone(), sandbox.clone(), renderer.clone(), cancel.clone());
    tokio::spawn(async move {
        for step in 0..steps {
            let made = tokio::select! {
                () = cancel.cancelled() => return,
                made = demonstration_batch(&tasks.train, &sandbox, &renderer, run_seed, step, batch, context) => made,
            };
            let failed = made.is_err();
            if sender.send(made).await.is_err() || failed {
                return;
            }
        }
    });
    receiver
}

async fn demonstration_batch(
    tasks: &[Arc<Task>],
    sandbox: &Sandbox,
    renderer: &Arc<dyn Renderer>,
    run_seed: u64,
    step: u64,
    batch: usize,
    context: usize,
) -> DemonstrationBatch {
    if tasks.is_empty() {
        return Err(RunError::NoRows { split: "train" });
    }
    let permits = Arc::new(Semaphore::new(CONCURRENCY));
    let mut handles = Vec::new();
    for (sample, index) in batch_indices(tasks.len(), run_seed, step, batch)
        .into_iter()
        .enumerate()
    {
        let (task, sandbox, renderer, permits) = (
            tasks[index].clone(),
            sandbox.clone(),
            renderer.clone(),
            permits.clone(),
        );
        let seed = seed::derive(run_seed, Purpose::Demonstration, &[step, sample as u64]);
        handles.push(tokio::spawn(async move {
            let _permit = permits
                .acquire_owned()
                .await
                .expect("the semaphore is never closed");
            let script = task.demonstration(&sandbox, seed);
            let played = play(&task, script, &sandbox, &*renderer, seed).await;
            played
                .map(|p| (p.tokens, p.ret))
                .map_err(|e| (task.id.clone(), e))
        }));
    }
    let mut out = Vec::new();
    let mut failure = None;
    for handle in handles {
        match handle.await {
            Ok(Ok((tokens, ret))) if tokens.len() <= context => out.push((tokens, ret)),
            Ok(Ok((tokens, _))) => tracing::debug!("left out a demonstration of {} tokens", tokens.len()),
            Ok(Err((id, error))) => failure = Some(format!("{id}: {error}")),
            Err(error) => failure = Some(error.to_string()),
        }
    }
    match (out.is_empty(), failure) {
        (true, reason) => {
            let reason =
                reason.unwrap_or_else(|| format!("none fits the model's context of {context} tokens"));
            Err(RunError::NoDemonstration { reason })
        }
        (false, reason) => {
            if let Some(reason) = reason {
                tracing::warn!("a demonstration failed: {reason}");
            }
            Ok(out)
        }
    }
}

/// Rows of a step: consecutive places of a shuffled order that is drawn anew each epoch. A function of `(seed, step)` alone.
pub(crate) fn batch_indices(rows: usize, seed: u64, step: u64, batch: usize) -> Vec<usize> {
    epoch_indices(rows, seed, step * batch as u64, batch)
}

/// Places `first..first + count` of an endless row of shuffled epochs.
pub(crate) fn epoch_indices(rows: usize, seed: u64, first: u64, count: usize) -> Vec<usize> {
    use rand::seq::SliceRandom;
    let order = |epoch: u64| {
        let mut order: Vec<usize> = (0..rows).collect();
        order.shuffle(&mut seed::stream(seed, Purpose::Order, &[epoch]));
        order
    };
    let mut epoch = first / rows as u64;
    let mut shuffled = order(epoch);
    (first..first + count as u64)
        .map(|place| {
            if place / rows as u64 != epoch {
                epoch = place / rows as u64;
                shuffled = order(epoch);
            }
            shuffled[(place % rows as u64) as usize]
        })
        .collect()
}

fn tiny_config(shape: &TinyShape) -> ModelConfig {
    ModelConfig {
        model_type: "qwen3".to_owned(),
        vocab_size: 272,
        hidden_size: shape.hidden_size.get(),
        intermediate_size: shape.intermediate_size.get(),
        num_hidden_layers: shape.layers.get(),
        num_attention_heads: shape.heads.get(),
        num_key_value_heads: shape.kv_heads.get(),
        head_dim: shape.head_dim.get(),
        rms_norm_eps: 1e-6,
        rope_theta: 1e4,
        tie_word_embeddings: true,
        max_position_embeddings: shape.context.get(),
        qk_norm: true,
        attention_bias: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_visits_every_row_once() {
        let mut seen: Vec<usize> = (0..5).flat_map(|step| batch_indices(20, 7, step, 4)).collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..20).collect::<Vec<_>>());
    }

    #[test]
    fn a_batch_larger_than_the_rows_wraps_into_the_next_epoch() {
        let batch = batch_indices(3, 1, 0, 7);
        assert_eq!(batch.len(), 7);
        assert!((0..3).all(|row| batch.contains(&row)));
        assert_eq!(batch, batch_indices(3, 1, 0, 7));
    }
}
