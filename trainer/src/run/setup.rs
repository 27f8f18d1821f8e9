//! Brings a run to life: model, tasks, sampler, optimizer, from the configuration or from a checkpoint.

use std::sync::Arc;

use candle_core::Device;
use mipu_agent::{Engine, LoadedModel, Renderer, RolloutConfig, RolloutContext, Sampling, dialect};
use mipu_envs::seed::{self, Purpose};
use mipu_envs::{Task, TaskSet};
use mipu_sandbox::Sandbox;

use super::RunError;
use super::plan::Plan;
use crate::checkpoint::{Checkpoint, RunState};
use crate::config::RunConfig;
use crate::mixture::Mixture;
use crate::optim::{AdamW, AdamWState};
use crate::policy::TrainerPolicy;

/// Everything a step works on.
pub(super) struct Run {
    pub(super) config: RunConfig,
    pub(super) plan: Plan,
    /// Tokenizer, template and shape; the weights in it are those the run started from.
    pub(super) base: LoadedModel,
    pub(super) tasks: TaskSet,
    /// Buckets of weighted or scheduled tasks; `None` draws from one pool.
    pub(super) mixture: Option<Mixture>,
    /// Held-out rows that every evaluation of the run uses.
    pub(super) held_out: Vec<Arc<Task>>,
    /// mu with its renderer and sandbox.
    pub(super) context: RolloutContext,
    pub(super) engine: Engine,
    /// pi.
    pub(super) policy: TrainerPolicy,
    pub(super) optim: AdamW,
    /// The starting weights, for a KL term.
    pub(super) reference: Option<TrainerPolicy>,
    pub(super) state: RunState,
}

impl Run {
    /// Starts fresh or from a checkpoint.
    pub(super) async fn start(
        config: &RunConfig,
        sandbox: &Sandbox,
        resumed: Option<&Checkpoint>,
    ) -> Result<Self, RunError> {
        let base = LoadedModel::load(&config.model)?;
        let tasks = load_tasks(config, sandbox).await?;
        let renderer: Arc<dyn Renderer> = dialect::renderer(&base)?;
        let device = Device::Cpu;
        let weights = resumed.map_or(&base.weights, |c| &c.model.weights);
        let policy = TrainerPolicy::from_weights(weights, &device)?;
        let mut optim = AdamW::new(&policy, config.optimizer);
        let mut state = RunState::default();
        if let Some(checkpoint) = resumed {
            optim.restore(&AdamWState::from_tensors(
                checkpoint.state.optimizer_step,
                checkpoint.optimizer.clone(),
            )?)?;
            state = checkpoint.state.clone();
        }
        state.weights_hash = weights.hash();
        state.config_hash = config_hash(config, &base, &tasks);
        let engine = Engine::start(
            config.sampler,
            weights.clone(),
            state.policy_version,
            renderer.stop_ids().to_vec(),
        )?;
        let reference = match &config.algorithm.loss.kl {
            Some(_) => Some(TrainerPolicy::from_weights(&base.weights, &device)?),
            None => None,
        };
        let mixture = Mixture::new(&config.tasks, config.curriculum.as_ref(), &tasks.train)
            .map_err(RunError::Curriculum)?;
        let plan = Plan::new(config, &base.weights.config, &tasks);
        let held_out = crate::eval::draw(
            &tasks.test,
            config.eval.prompts.get(),
            Purpose::Eval,
            config.seed,
            0,
        );
        let context = RolloutContext {
            sandbox: sandbox.clone(),
            policy: Arc::new(engine.clone()),
            renderer,
        };
        Ok(Self {
            config: config.clone(),
            plan,
            base,
            tasks,
            mixture,
            held_out,
            context,
            engine,
            policy,
            optim,
            reference,
            state,
        })
    }

    /// How `group_size` episodes of each task are sampled; `seed` names the occasion.
    pub(super) fn rollout(&self, group_size: usize, purpose: Purpose, indices: &[u64]) -> RolloutConfig {
        RolloutConfig {
            group_size,
            sampling: Sampling {
                temperature: self.config.rollout.temperature.get(),
            },
            max_turn_tokens: self.config.rollout.max_turn_tokens.get(),
            max_context: self.base.weights.config.max_position_embeddings,
            concurrency: self.config.rollout.concurrency.get(),
            seed: seed::derive(self.config.seed, purpose, indices),
        }
    }

    /// Learning rate of the next step.
    pub(super) fn lr(&self) -> f64 {
        let optimizer = &self.config.optimizer;
        optimizer.lr.get()
            * optimizer
                .schedule
                .factor(self.state.schedule_step, self.config.steps.get())
    }

    /// Temperature of sampling and of every log-prob.
    pub(super) fn temperature(&self) -> f64 {
        f64::from(self.config.rollout.temperature.get())
    }

    /// Takes note of a held-out result of the current weights.
    pub(super) fn note_eval(&mut self, mean_return: f64) {
        self.state.eval_last = Some(mean_return);
        if self.state.best.is_none_or(|(best, _)| mean_return > best) {
            self.state.best = Some((mean_return, self.state.step));
        }
    }
}

/// The arithmetic of a run.
pub(super) async fn plan(config: &RunConfig, sandbox: &Sandbox) -> Result<Plan, RunError> {
    let base = LoadedModel::load(&config.model)?;
    let tasks = load_tasks(config, sandbox).await?;
    Ok(Plan::new(config, &base.weights.config, &tasks))
}

async fn load_tasks(config: &RunConfig, sandbox: &Sandbox) -> Result<TaskSet, RunError> {
    let tasks = TaskSet::load(&config.tasks, sandbox, config.seed).await?;
    let gated = config.algorithm.gate.every().is_some();
    for (split, rows, needed) in [
        ("train", &tasks.train, true),
        ("validation", &tasks.validation, gated),
        ("test", &tasks.test, true),
    ] {
        if needed && rows.is_empty() {
            return Err(RunError::NoRows { split });
        }
    }
    Ok(tasks)
}

/// blake3 of what rules a run: the configuration with paths replaced by the hashes of what they hold.
fn config_hash(config: &RunConfig, base: &LoadedModel, tasks: &TaskSet) -> String {
    let mut value = serde_json::to_value(config).expect("a configuration serialises");
    value["model"] = base.weights.hash().into();
    let weights: Vec<_> = config.tasks.iter().map(|task| task.weight).collect();
    value["tasks"] = serde_json::json!([tasks.content_hash, weights]);
    // Neither changes a byte of the result.
    value["rollout"]["concurrency"] = serde_json::Value::Null;
    value["sampler"]["threads"] = serde_json::Value::Null;
    blake3::hash(value.to_string().as_bytes()).to_hex().to_string()
}
