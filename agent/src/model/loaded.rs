//! A HF-style directory in memory.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};

use super::{ModelConfig, ModelError, WeightFormat, Weights};
use crate::tokenizer::Tokenizer;

/// A HF-style directory in memory.
#[derive(Clone, Debug)]
pub struct LoadedModel {
    /// Weights and shape.
    pub weights: Weights,
    /// Tokenizer of the directory.
    pub tokenizer: Tokenizer,
    /// `chat_template.jinja` or the template of `tokenizer_config.json`, if any.
    pub chat_template: Option<String>,
    /// `tokenizer_config.json` (special tokens by role), `null` without one.
    pub tokenizer_config: Value,
    /// `generation_config.json` (stop ids), `null` without one.
    pub generation_config: Value,
    /// Dialect named by `mipu.json`, if any.
    pub dialect: Option<String>,
}

impl LoadedModel {
    /// Reads `config.json`, `model.safetensors` (or the sharded index), `tokenizer.json`, chat template.
    ///
    /// # Errors
    /// Names the file and the tensor: missing, extra, mis-shaped, truncated, non-finite.
    pub fn load(dir: &Path) -> Result<Self, ModelError> {
        if !dir.is_dir() {
            let missing = std::io::Error::new(std::io::ErrorKind::NotFound, "no such model directory");
            return Err(ModelError::io(dir)(missing));
        }
        let config = Arc::new(ModelConfig::read(&dir.join("config.json"))?);
        let tokenizer = Tokenizer::read(&dir.join("tokenizer.json"))?;
        if tokenizer.max_id() as usize >= config.vocab_size {
            return Err(ModelError::file(
                &dir.join("tokenizer.json"),
                format!(
                    "id {} does not fit `vocab_size` {}",
                    tokenizer.max_id(),
                    config.vocab_size
                ),
            ));
        }
        let tokenizer_config = optional_json(&dir.join("tokenizer_config.json"))?;
        let jinja = dir.join("chat_template.jinja");
        let chat_template = if jinja.exists() {
            Some(std::fs::read_to_string(&jinja).map_err(ModelError::io(&jinja))?)
        } else {
            template_of(&tokenizer_config)
        };
        let mipu = dir.join("mipu.json");
        let dialect = match optional_json(&mipu)? {
            Value::Null => None,
            value => match value.get("dialect").and_then(Value::as_str) {
                Some(name) => Some(name.to_owned()),
                None => return Err(ModelError::file(&mipu, "`dialect` must be a string")),
            },
        };
        Ok(Self {
            weights: Weights::read_dir(config, dir)?,
            tokenizer,
            chat_template,
            tokenizer_config,
            generation_config: optional_json(&dir.join("generation_config.json"))?,
            dialect,
        })
    }

    /// Writes the same files (f32 safetensors, one file).
    ///
    /// # Errors
    /// On a file-system failure.
    pub fn save(&self, dir: &Path) -> Result<(), ModelError> {
        self.save_as(dir, WeightFormat::F32)
    }

    /// [`LoadedModel::save`] with the weights in another format, which `config.json` names for other engines.
    ///
    /// # Errors
    /// On a file-system failure.
    pub fn save_as(&self, dir: &Path, format: WeightFormat) -> Result<(), ModelError> {
        std::fs::create_dir_all(dir).map_err(ModelError::io(dir))?;
        let write = |name: &str, text: &str| {
            let path = dir.join(name);
            std::fs::write(&path, text).map_err(ModelError::io(&path))
        };
        write("config.json", &pretty(&self.config_json(format)))?;
        write("tokenizer.json", self.tokenizer.json())?;
        if !self.tokenizer_config.is_null() {
            write("tokenizer_config.json", &pretty(&self.tokenizer_config))?;
        }
        if !self.generation_config.is_null() {
            write("generation_config.json", &pretty(&self.generation_config))?;
        }
        if let Some(template) = &self.chat_template {
            write("chat_template.jinja", template)?;
        }
        if let Some(dialect) = &self.dialect {
            write("mipu.json", &pretty(&json!({ "dialect": dialect })))?;
        }
        self.weights.write_as(&dir.join("model.safetensors"), format)
    }

    /// `config.json`: the shape, special ids (some engines look for them here), and how the weights are stored.
    fn config_json(&self, format: WeightFormat) -> Value {
        let config = &self.weights.config;
        let mut json = config.to_json();
        json["torch_dtype"] = format.torch_dtype().into();
        for role in ["bos_token_id", "eos_token_id", "pad_token_id"] {
            if let Some(id) = self.generation_config.get(role).filter(|id| !id.is_null()) {
                json[role] = id.clone();
            }
        }
        if let Some(quantization) = format.quantization(config) {
            json["quantization_config"] = quantization;
        }
        json
    }

    /// A random byte-level policy that speaks the compact dialect.
    ///
    /// # Errors
    /// When `config` is inconsistent or its vocabulary is smaller than the compact tokenizer's.
    pub fn init_compact(config: ModelConfig, seed: u64) -> Result<Self, ModelError> {
        config.check().map_err(ModelError::Config)?;
        let tokenizer = Tokenizer::compact()?;
        if config.vocab_size <= tokenizer.max_id() as usize {
            let need = tokenizer.max_id() + 1;
            let got = config.vocab_size;
            return Err(ModelError::Config(format!(
                "`vocab_size` must be at least {need}; got {got}"
            )));
        }
        Ok(Self {
            weights: Weights::init(Arc::new(config), seed),
            tokenizer,
            chat_template: None,
            tokenizer_config: Value::Null,
            generation_config: Value::Null,
            dialect: Some("compact".to_owned()),
        })
    }

    /// The same directory around other weights.
    #[must_use]
    pub fn with_weights(&self, weights: Weights) -> Self {
        Self {
            weights,
            ..self.clone()
        }
    }

    /// Name of the dialect: `mipu.json`'s, else `hermes`.
    pub fn dialect_name(&self) -> &str {
        self.dialect.as_deref().unwrap_or("hermes")
    }
}

fn pretty(value: &Value) -> String {
    let mut text = serde_json::to_string_pretty(value).unwrap_or_default();
    text.push('\n');
    text
}

fn optional_json(path: &Path) -> Result<Value, ModelError> {
    match std::fs::read_to_string(path) {
        Ok(text) => serde_json::from_str(&text).map_err(|e| ModelError::file(path, e)),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Value::Null),
        Err(e) => Err(ModelError::io(path)(e)),
    }
}

/// The template of `tokenizer_config.json`: a string, or a list of named ones of which `tool_use` is preferred.
fn template_of(config: &Value) -> Option<String> {
    match config.get("chat_template")? {
        Value::String(text) => Some(text.clone()),
        Value::Array(list) => {
            let named = |name: &str| {
                list.iter()
                    .find(|t| t["name"] == name)
                    .and_then(|t| t["template"].as_str())
                    .map(str::to_owned)
            };
            named("tool_use").or_else(|| named("default"))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_saved_directory_loads_as_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let model = LoadedModel::init_compact(ModelConfig::tiny(), 1).unwrap();
        model.save(dir.path()).unwrap();
        let again = LoadedModel::load(dir.path()).unwrap();
        assert_eq!(again.weights.hash(), model.weights.hash());
        assert_eq!(again.weights.config, model.weights.config);
        assert_eq!(again.dialect_name(), "compact");
        assert_eq!(
            again.tokenizer.encode("a<end>é").unwrap(),
            model.tokenizer.encode("a<end>é").unwrap()
        );
    }

    #[test]
    fn a_missing_directory_says_so() {
        let error = LoadedModel::load(Path::new("no/such/model"))
            .unwrap_err()
            .to_string();
        assert_eq!(error, "no/such/model: no such model directory");
    }
}
