//! f32 master weights by canonical name.

use std::path::Path;
use std::sync::Arc;

use super::ModelConfig;

/// A model could not be read or written.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ModelError(pub String);

/// f32 tensors in the order of [`ModelConfig::tensor_shapes`]; immutable, shared between trainer, sampler and checkpoints.
#[derive(Clone, Debug)]
pub struct Weights {
    /// Shape of the model.
    pub config: Arc<ModelConfig>,
    /// `(name, shape, row-major values)`.
    pub tensors: Vec<(String, Vec<usize>, Arc<Vec<f32>>)>,
}

impl Weights {
    /// blake3 over names, shapes and little-endian values: the identity of a policy.
    pub fn hash(&self) -> String {
        unimplemented!()
    }

    /// Random initial weights, a function of the seed (normal, std `hidden^-0.5`, output projections scaled by `1/sqrt(2 layers)`,
    /// embedding std 0.05, norms 1, biases 0).
    pub fn init(_config: Arc<ModelConfig>, _seed: u64) -> Self {
        unimplemented!()
    }

    /// A tensor's values.
    pub fn get(&self, name: &str) -> Option<&(String, Vec<usize>, Arc<Vec<f32>>)> {
        self.tensors.iter().find(|t| t.0 == name)
    }
}

/// A HF-style directory in memory.
pub struct LoadedModel {
    /// Weights and shape.
    pub weights: Weights,
    /// Tokenizer of the directory.
    pub tokenizer: crate::tokenizer::Tokenizer,
    /// `chat_template.jinja` or the template of `tokenizer_config.json`, if any.
    pub chat_template: Option<String>,
}

impl LoadedModel {
    /// Reads `config.json`, `model.safetensors` (or the sharded index), `tokenizer.json`, chat template.
    ///
    /// # Errors
    /// Names the file and the tensor: missing, extra, mis-shaped, truncated, non-finite.
    pub fn load(_dir: &Path) -> Result<Self, ModelError> {
        unimplemented!()
    }

    /// Writes the same files (f32 safetensors).
    ///
    /// # Errors
    /// On a file-system failure.
    pub fn save(&self, _dir: &Path) -> Result<(), ModelError> {
        unimplemented!()
    }
}
