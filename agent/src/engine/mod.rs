//! The engine: a named thread that owns mu (quantised weights, KV caches) and serves turns with continuous batching.

use std::sync::Arc;

use crate::model::Weights;
use crate::policy::{Policy, PolicyError, SampledTurn, TurnRequest};

/// Number format of a set of values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
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

/// What the sampler quantises (MIPU.md, FP8 conventions).
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct EngineConfig {
    /// Linear weights (per output channel for FP8). Default fp8.
    pub weights: Precision,
    /// Inputs of linear layers (dynamic per token for FP8). Default fp8.
    pub activations: Precision,
    /// Key and value cache (per head and token for FP8). Default fp8.
    pub kv_cache: Precision,
    /// Head. Default f32.
    pub lm_head: Precision,
    /// Threads of the engine; 0 is every core.
    pub threads: usize,
    /// Most tokens kept in KV caches.
    pub max_cached_tokens: usize,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            weights: Precision::Fp8,
            activations: Precision::Fp8,
            kv_cache: Precision::Fp8,
            lm_head: Precision::F32,
            threads: 0,
            max_cached_tokens: 1 << 20,
        }
    }
}

/// Handle of a running engine; cheap to clone. The thread ends when the last handle is dropped.
#[derive(Clone)]
pub struct Engine {}

impl Engine {
    /// Quantises `weights` and starts the engine's thread. `stop_ids` end a turn.
    pub fn start(_config: EngineConfig, _weights: Weights, _version: u64, _stop_ids: Vec<u32>) -> Result<Self, PolicyError> {
        unimplemented!()
    }

    /// Swaps in new weights, flushes every cache, and returns their hash; no turn is sampled meanwhile.
    pub async fn sync(&self, _weights: Weights, _version: u64) -> Result<String, PolicyError> {
        unimplemented!()
    }

    /// Teacher-forced log-probs of `ids[1..]` at `temperature` (re-scoring; bit-equal to sampling).
    pub async fn score(&self, _ids: Arc<Vec<u32>>, _temperature: f32) -> Result<Vec<f32>, PolicyError> {
        unimplemented!()
    }

    /// blake3 of the quantised weights and scales as packed (the sampler's own state).
    pub async fn packed_hash(&self) -> Result<String, PolicyError> {
        unimplemented!()
    }
}

#[async_trait::async_trait]
impl Policy for Engine {
    async fn sample(&self, _request: TurnRequest) -> Result<SampledTurn, PolicyError> {
        unimplemented!()
    }

    fn release(&self, _episode: u64) {
        unimplemented!()
    }
}
