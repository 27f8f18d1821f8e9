//! Configuration of a warm start.

use std::fmt;
use std::num::{NonZeroU64, NonZeroUsize};
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};

use crate::config::EvalSection;
use crate::optim::OptimConfig;
use crate::yaml::{self, ConfigError};

/// A warm start (`mipu sft FILE`).
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SftConfig {
    /// Name, for messages.
    pub name: String,
    /// Seed of initial weights, data and demonstrations. Default 0.
    #[serde(default)]
    pub seed: u64,
    /// What to start from.
    pub model: ModelSource,
    /// Task files whose `demonstration` (or `solution`) is cloned.
    pub tasks: Vec<PathBuf>,
    /// Optimizer steps.
    pub steps: NonZeroU64,
    /// Demonstrations a step. Default 64.
    #[serde(default = "default_batch")]
    pub batch: NonZeroUsize,
    /// AdamW and its learning rate.
    #[serde(default)]
    pub optimizer: OptimConfig,
    /// Evaluation of the FP8 sampler at the end, on the test split.
    #[serde(default)]
    pub eval: EvalSection,
}

fn default_batch() -> NonZeroUsize {
    NonZeroUsize::new(64).expect("64 is positive")
}

/// Where the first weights come from: `model: DIR` or `model: {init: {..}}`.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum ModelSource {
    /// A model directory.
    Path(PathBuf),
    /// A random model.
    Random(Random),
}

/// A random byte-level model of this shape, speaking the compact dialect.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Random {
    /// Its shape.
    pub init: TinyShape,
}

// Written out because an untagged enum loses the place and the cause of an error.
impl<'de> Deserialize<'de> for ModelSource {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Source;

        impl<'de> Visitor<'de> for Source {
            type Value = ModelSource;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a model directory, or `init` with the shape of a random model")
            }

            fn visit_str<E>(self, path: &str) -> Result<ModelSource, E> {
                Ok(ModelSource::Path(path.into()))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<ModelSource, A::Error> {
                Random::deserialize(MapAccessDeserializer::new(map)).map(ModelSource::Random)
            }
        }

        deserializer.deserialize_any(Source)
    }
}

/// Shape of a from-scratch Qwen3-style model.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TinyShape {
    /// Residual width.
    pub hidden_size: NonZeroUsize,
    /// Layers.
    pub layers: NonZeroUsize,
    /// Query heads.
    pub heads: NonZeroUsize,
    /// Key and value heads.
    pub kv_heads: NonZeroUsize,
    /// Width of a head.
    pub head_dim: NonZeroUsize,
    /// Feed-forward width.
    pub intermediate_size: NonZeroUsize,
    /// Longest context.
    pub context: NonZeroUsize,
}

impl SftConfig {
    /// Reads a file and applies overrides.
    ///
    /// # Errors
    /// With file, line, column, snippet and hint.
    pub fn load(path: &Path, overrides: &[String]) -> Result<Self, ConfigError> {
        let mut config: Self = yaml::load(path, overrides)?;
        if let ModelSource::Path(model) = &mut config.model {
            *model = yaml::relative_to(path, model);
        }
        for task in &mut config.tasks {
            *task = yaml::relative_to(path, task);
        }
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(model: &str) -> Result<SftConfig, String> {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("warm.yaml");
        std::fs::write(
            &file,
            format!("name: w\ntasks: [t.yaml]\nsteps: 3\nmodel: {model}\n"),
        )
        .unwrap();
        SftConfig::load(&file, &[]).map_err(|error| error.to_string())
    }

    #[test]
    fn a_model_is_a_directory_or_a_shape() {
        let config = load("base").unwrap();
        assert!(matches!(config.model, ModelSource::Path(path) if path.ends_with("base")));
        let shape = "{init: {hidden_size: 8, layers: 1, heads: 2, kv_heads: 1, head_dim: 4, intermediate_size: 16, context: 32}}";
        let config = load(shape).unwrap();
        assert!(matches!(config.model, ModelSource::Random(Random { init }) if init.layers.get() == 1));
        for (broken, says) in [
            ("{inti: {}}", "init"),
            ("{init: {hidden: 8}}", "hidden_size"),
            ("7", "a model directory"),
        ] {
            let error = load(broken).unwrap_err();
            assert!(error.contains(says) && error.contains("warm.yaml:4"), "{error}");
        }
    }
}
