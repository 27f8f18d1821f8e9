//! What several commands need: the sandbox with its progress line, Ctrl-C, a sampler over a model directory.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use mipu_agent::{
    Engine, EngineConfig, LoadedModel, Precision, Renderer, RolloutConfig, RolloutContext, Sampling, dialect,
};
use mipu_envs::{Split, Task, TaskSet};
use mipu_sandbox::{Sandbox, SandboxOptions};
use tokio_util::sync::CancellationToken;

use crate::cli::{PrecisionArg, Sampled, SplitArg};
use crate::output;

/// Opens the sandbox; the first time on a machine takes some seconds and says so.
pub(crate) fn open_sandbox() -> anyhow::Result<Sandbox> {
    let options = SandboxOptions {
        on_progress: Some(Box::new(output::say)),
        ..SandboxOptions::default()
    };
    Sandbox::open(options).context("cannot open the sandbox")
}

/// A token that the first Ctrl-C cancels; the second one ends the process at once.
pub(crate) fn cancel_on_ctrl_c() -> CancellationToken {
    let token = CancellationToken::new();
    let cancelled = token.clone();
    tokio::spawn(async move {
        if tokio::signal::ctrl_c().await.is_ok() {
            output::say("interrupted: abandoning the step in progress (press Ctrl-C again to stop at once)");
            cancelled.cancel();
            if tokio::signal::ctrl_c().await.is_ok() {
                std::process::exit(130);
            }
        }
    });
    token
}

/// One format for weights, activations and KV cache; the head stays f32.
pub(crate) fn engine_config(precision: PrecisionArg) -> EngineConfig {
    let p = match precision {
        PrecisionArg::F32 => Precision::F32,
        PrecisionArg::Bf16 => Precision::Bf16,
        PrecisionArg::F16 => Precision::F16,
        PrecisionArg::Fp8 => Precision::Fp8,
    };
    EngineConfig {
        weights: p,
        activations: p,
        kv_cache: p,
        ..EngineConfig::default()
    }
}

/// A running sampler over a model directory and the rows it is asked about.
pub(crate) struct Stage {
    pub(crate) model: LoadedModel,
    pub(crate) renderer: Arc<dyn Renderer>,
    pub(crate) context: RolloutContext,
    pub(crate) tasks: Vec<Arc<Task>>,
    pub(crate) rollout: RolloutConfig,
}

/// Starts what `eval`, `rollout` and `bench mismatch` sample with.
pub(crate) async fn stage(args: &Sampled) -> anyhow::Result<Stage> {
    anyhow::ensure!(
        args.temperature.is_finite() && args.temperature >= 0.0,
        "--temperature must be a number of at least 0; got {}",
        args.temperature
    );
    anyhow::ensure!(
        args.prompts > 0 && args.samples > 0,
        "--prompts and --samples must be positive"
    );
    let model = load_model(&args.model)?;
    let renderer: Arc<dyn Renderer> = dialect::renderer(&model)?;
    let sandbox = open_sandbox()?;
    let set = TaskSet::load(&args.task, &sandbox, args.seed).await?;
    let split = match args.split {
        SplitArg::Train => Split::Train,
        SplitArg::Validation => Split::Validation,
        SplitArg::Test => Split::Test,
    };
    let rows = set.split(split);
    anyhow::ensure!(
        !rows.is_empty(),
        "the split {split:?} has no rows\nhint: choose another with --split"
    );
    let tasks = mipu_trainer::eval::draw(rows, args.prompts, mipu_envs::seed::Purpose::Eval, args.seed, 0);
    let engine = Engine::start(
        engine_config(args.precision),
        model.weights.clone(),
        0,
        renderer.stop_ids().to_vec(),
    )?;
    let context = RolloutContext {
        sandbox,
        policy: Arc::new(engine),
        renderer: renderer.clone(),
    };
    let rollout = RolloutConfig {
        group_size: args.samples,
        sampling: Sampling {
            temperature: args.temperature,
        },
        max_turn_tokens: args.max_turn_tokens,
        max_context: model.weights.config.max_position_embeddings,
        concurrency: 64,
        seed: args.seed,
    };
    Ok(Stage {
        model,
        renderer,
        context,
        tasks,
        rollout,
    })
}

/// Row `row` of a task file, counted over train, validation and test.
pub(crate) async fn row_of(
    path: &Path,
    row: usize,
    sandbox: &Sandbox,
    seed: u64,
) -> anyhow::Result<Arc<Task>> {
    let set = TaskSet::load(&[path], sandbox, seed).await?;
    let mut all = set.train.iter().chain(&set.validation).chain(&set.test);
    let rows = set.train.len() + set.validation.len() + set.test.len();
    all.nth(row)
        .cloned()
        .with_context(|| format!("row {row} does not exist\nhint: the task has {rows} rows, counted from 0"))
}

/// Reads a model directory with a hint where there is none.
pub(crate) fn load_model(path: &Path) -> anyhow::Result<LoadedModel> {
    anyhow::ensure!(
        path.is_dir(),
        "{} is not a directory\nhint: a model directory holds config.json, model.safetensors and tokenizer.json; \
         a checkpoint of a run (runs/<run>/checkpoints/step-<n>) is one",
        path.display()
    );
    LoadedModel::load(path).with_context(|| format!("cannot load the model in {}", path.display()))
}
