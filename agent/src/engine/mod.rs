//! The engine: a named thread that owns mu (quantised weights, KV caches) and serves turns with continuous batching.
//!
//! Requests join and leave the batch at any token. An episode's cache is kept between its turns, an equal prefix is computed once
//! and shared, long prompts are run in pieces beside running turns.
//!
//! Invariant: what a request yields is a function of the weights, the config, its context and its seed. Batch, position in it,
//! sharing, eviction, threads and instruction set change no bit; [`Engine::score`] gives the log-probs recorded at sampling.

mod attention;
mod batch;
mod forward;
mod kv;
pub(crate) mod math;
mod sampling;
mod worker;

use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};

use crate::model::{ModelConfig, Weights};
use crate::policy::{Policy, PolicyError, SampledTurn, TurnRequest};
use crate::quant::Rounding;
use worker::{Command, Worker};

/// Number format of a set of values.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Precision {
    /// 32-bit floats.
    F32,
    /// bfloat16 (rounded to nearest even), accumulated in f32.
    Bf16,
    /// IEEE half, accumulated in f32.
    F16,
    /// FP8 E4M3 with scales.
    #[default]
    Fp8,
}

impl Precision {
    /// Bytes of one value, scales not counted.
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 | Self::F16 => 2,
            Self::Fp8 => 1,
        }
    }
}

/// What the sampler quantises, and how.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct EngineConfig {
    /// Linear weights (per output channel for FP8). Default fp8.
    pub weights: Precision,
    /// Inputs of linear layers (dynamic per token for FP8). Default fp8.
    pub activations: Precision,
    /// Key and value cache (per head and token for FP8). Default fp8.
    pub kv_cache: Precision,
    /// Head, and its input. Default f32.
    pub lm_head: Precision,
    /// Round linear weights to this format first and keep them as f32; needs `weights: f32`. Default none.
    pub weight_rounding: Rounding,
    /// Threads of the engine; 0 is every core.
    pub threads: usize,
    /// Most tokens kept in KV caches, in pages of 32. Requests that do not fit wait; one that can never fit is refused.
    pub max_cached_tokens: usize,
    /// Compute an equal prefix of several episodes once. It changes no result. Default true.
    pub share_prefixes: bool,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            weights: Precision::Fp8,
            activations: Precision::Fp8,
            kv_cache: Precision::Fp8,
            lm_head: Precision::F32,
            weight_rounding: Rounding::None,
            threads: 0,
            max_cached_tokens: 1 << 20,
            share_prefixes: true,
        }
    }
}

impl EngineConfig {
    /// The reference sampler: f32 everywhere.
    pub fn f32() -> Self {
        Self {
            weights: Precision::F32,
            activations: Precision::F32,
            kv_cache: Precision::F32,
            lm_head: Precision::F32,
            ..Self::default()
        }
    }

    /// Threads the engine runs on.
    pub fn thread_count(&self) -> usize {
        match self.threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            n => n,
        }
    }

    /// Bytes of the packed weights: linear layers, head, embedding.
    pub fn weight_bytes(&self, config: &ModelConfig) -> usize {
        let (h, d) = (config.hidden_size, config.head_dim);
        let attention = h * d * (2 * config.num_attention_heads + 2 * config.num_key_value_heads);
        let linear = config.num_hidden_layers * (attention + 3 * h * config.intermediate_size);
        let table = config.vocab_size * h;
        linear * self.weights.bytes() + table * (self.lm_head.bytes() + 4)
    }

    /// Bytes a cached token takes.
    pub fn kv_bytes_per_token(&self, config: &ModelConfig) -> usize {
        kv::KvShape::new(config, self.kv_cache).bytes_per_token()
    }
}

/// What the engine did since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct EngineStats {
    /// Tokens drawn.
    pub sampled_tokens: u64,
    /// Tokens run through the layers (contexts, drawn tokens, scored tokens).
    pub computed_tokens: u64,
    /// Context tokens whose keys and values were taken from another episode's cache.
    pub shared_tokens: u64,
    /// Caches nobody ran on that were dropped to keep the bound.
    pub evictions: u64,
    /// Caches of running requests that were dropped for older ones to go on, and computed again later.
    pub preemptions: u64,
    /// Tokens the caches have room for now, in whole pages.
    pub cached_tokens: usize,
}

/// Handle of a running engine; cheap to clone. The thread ends when the last handle is dropped.
#[derive(Clone)]
pub struct Engine {
    /// Unbounded, since a caller waits for its reply before it asks again: callers bound it.
    commands: mpsc::UnboundedSender<Command>,
}

impl Engine {
    /// Quantises `weights` and starts the engine's thread. `stop_ids` end a turn.
    ///
    /// # Errors
    /// When the weights are not those of their config or not finite, or the system gives no thread.
    pub fn start(
        config: EngineConfig,
        weights: Weights,
        version: u64,
        stop_ids: Vec<u32>,
    ) -> Result<Self, PolicyError> {
        weights
            .check()
            .map_err(|e| PolicyError(format!("the weights are refused: {e}")))?;
        if config.weight_rounding != Rounding::None && config.weights != Precision::F32 {
            let got = config.weights;
            return Err(PolicyError(format!(
                "`weight_rounding` needs `weights: f32`, which holds the rounded values; got {got:?}"
            )));
        }
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(config.thread_count())
            .thread_name(|i| format!("mipu-engine-{i}"))
            .build()
            .map_err(|e| PolicyError(format!("no threads for the engine: {e}")))?;
        let (commands, receiver) = mpsc::unbounded_channel();
        std::thread::Builder::new()
            .name("mipu-engine".to_owned())
            .spawn(move || {
                pool.install(|| Worker::new(config, &weights, version, stop_ids).serve(receiver));
            })
            .map_err(|e| PolicyError(format!("no thread for the engine: {e}")))?;
        Ok(Self { commands })
    }

    async fn ask<T>(&self, command: impl FnOnce(oneshot::Sender<T>) -> Command) -> Result<T, PolicyError> {
        let (reply, answer) = oneshot::channel();
        let gone = || PolicyError("the engine's thread has ended".to_owned());
        self.commands.send(command(reply)).map_err(|_| gone())?;
        answer.await.map_err(|_| gone())
    }

    /// Swaps in new weights, flushes every cache, and returns their hash; no turn is sampled meanwhile (running ones end first).
    ///
    /// # Errors
    /// When the weights are refused (the old ones stay), or the engine has ended.
    pub async fn sync(&self, weights: Weights, version: u64) -> Result<String, PolicyError> {
        self.ask(|reply| Command::Sync(Box::new(weights), version, reply))
            .await?
    }

    /// Teacher-forced log-probs of `ids[1..]` at `temperature` (re-scoring; bit-equal to sampling).
    ///
    /// # Errors
    /// When an id is outside the vocabulary, the sequence is shorter than 2 or longer than the model's positions, or a logit is
    /// not finite.
    pub async fn score(&self, ids: Arc<Vec<u32>>, temperature: f32) -> Result<Vec<f32>, PolicyError> {
        self.ask(|reply| Command::Score(ids, temperature, reply)).await?
    }

    /// blake3 of the quantised weights and scales as packed (the sampler's own state).
    ///
    /// # Errors
    /// When the engine has ended.
    pub async fn packed_hash(&self) -> Result<String, PolicyError> {
        self.ask(Command::Hash).await
    }

    /// What the engine did since it started.
    ///
    /// # Errors
    /// When the engine has ended.
    pub async fn stats(&self) -> Result<EngineStats, PolicyError> {
        self.ask(Command::Stats).await
    }
}

#[async_trait::async_trait]
impl Policy for Engine {
    async fn sample(&self, request: TurnRequest) -> Result<SampledTurn, PolicyError> {
        self.ask(|reply| Command::Sample(request, reply)).await?
    }

    fn release(&self, episode: u64) {
        // An engine that has ended holds no cache.
        let _ = self.commands.send(Command::Release(episode));
    }
}
