//! What `mipu model info` reports.

use serde::Serialize;

use super::{LoadedModel, ModelConfig};
use crate::engine::{EngineConfig, Precision};

/// Facts about a model directory.
#[derive(Clone, Debug, Serialize)]
pub struct ModelInfo {
    /// The model's shape.
    pub config: ModelConfig,
    /// Parameters, tied weights counted once.
    pub parameters: usize,
    /// blake3 of the f32 master weights.
    pub weights_hash: String,
    /// Memory of the packed sampler by precision of its linear layers (`lm_head` f32).
    pub memory: Vec<MemoryAt>,
    /// KV-cache bytes of one token, by precision.
    pub kv_bytes_per_token: Vec<MemoryAt>,
    /// Entries of the tokenizer, added tokens included.
    pub tokenizer_size: usize,
    /// The directory has a chat template.
    pub chat_template: bool,
    /// Name of the dialect.
    pub dialect: String,
    /// `(name, shape)` of every tensor.
    pub tensors: Vec<(String, Vec<usize>)>,
}

/// Bytes at one precision.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct MemoryAt {
    /// The precision.
    pub precision: Precision,
    /// Bytes.
    pub bytes: usize,
}

const PRECISIONS: [Precision; 4] = [Precision::F32, Precision::Bf16, Precision::F16, Precision::Fp8];

impl ModelInfo {
    /// Collects the facts of a loaded model.
    pub fn of(model: &LoadedModel) -> Self {
        let config = model.weights.config.as_ref().clone();
        let at = |bytes: &dyn Fn(Precision) -> usize| {
            PRECISIONS
                .map(|precision| MemoryAt {
                    precision,
                    bytes: bytes(precision),
                })
                .to_vec()
        };
        Self {
            parameters: config.parameters(),
            weights_hash: model.weights.hash(),
            memory: at(&|weights| {
                EngineConfig {
                    weights,
                    ..EngineConfig::default()
                }
                .weight_bytes(&config)
            }),
            kv_bytes_per_token: at(&|kv_cache| {
                EngineConfig {
                    kv_cache,
                    ..EngineConfig::default()
                }
                .kv_bytes_per_token(&config)
            }),
            tokenizer_size: model.tokenizer.size(),
            chat_template: model.chat_template.is_some(),
            dialect: model.dialect_name().to_owned(),
            tensors: config.tensor_shapes(),
            config,
        }
    }
}
