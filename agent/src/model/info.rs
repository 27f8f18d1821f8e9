//! What `mipu model info` reports.

use serde::Serialize;
use serde_json::{Map, Value};

use super::{LoadedModel, ModelConfig};
use crate::dialect::renderer;
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
    /// Bytes of the packed sampler by precision of its linear layers (`lm_head` f32).
    pub memory: Map<String, Value>,
    /// KV-cache bytes of one token by precision.
    pub kv_bytes_per_token: Map<String, Value>,
    /// Bytes of the f32 weights with gradient and the two moments of Adam: what training them all takes, activations aside.
    pub training_bytes: usize,
    /// Entries of the tokenizer, added tokens included.
    pub tokenizer_size: usize,
    /// Name and id of every added token.
    pub added_tokens: Map<String, Value>,
    /// The chat template, if there is one.
    pub chat_template: Option<TemplateInfo>,
    /// Name of the dialect.
    pub dialect: String,
    /// Texts of the tokens that end a turn.
    pub stops: Vec<String>,
    /// Why the dialect does not work with this directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// Shape of every tensor by name.
    pub tensors: Map<String, Value>,
}

/// Facts about a chat template.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct TemplateInfo {
    /// Length of its source.
    pub bytes: usize,
    /// It has a place for tools; without one they are told in the system message.
    pub takes_tools: bool,
}

const PRECISIONS: [(&str, Precision); 4] = [
    ("f32", Precision::F32),
    ("bf16", Precision::Bf16),
    ("f16", Precision::F16),
    ("fp8", Precision::Fp8),
];

impl ModelInfo {
    /// Collects the facts of a loaded model.
    pub fn of(model: &LoadedModel) -> Self {
        let config = model.weights.config.as_ref().clone();
        let at = |bytes: &dyn Fn(EngineConfig) -> usize| -> Map<String, Value> {
            let each = PRECISIONS.iter().map(|(name, precision)| {
                let engine = EngineConfig {
                    weights: *precision,
                    kv_cache: *precision,
                    ..EngineConfig::default()
                };
                ((*name).to_owned(), bytes(engine).into())
            });
            each.collect()
        };
        let shapes = config.tensor_shapes().into_iter();
        let (stops, problem) = match renderer(model) {
            Ok(renderer) => {
                let texts = renderer.stop_ids().iter().map(|id| renderer.decode(&[*id]));
                (texts.collect(), None)
            }
            Err(e) => (Vec::new(), Some(e.to_string())),
        };
        Self {
            parameters: config.parameters(),
            weights_hash: model.weights.hash(),
            memory: at(&|engine| engine.weight_bytes(&config)),
            kv_bytes_per_token: at(&|engine| engine.kv_bytes_per_token(&config)),
            training_bytes: 4 * 4 * config.parameters(),
            tokenizer_size: model.tokenizer.size(),
            added_tokens: model
                .tokenizer
                .added()
                .map(|(text, id)| (text.to_owned(), id.into()))
                .collect(),
            chat_template: model.chat_template.as_ref().map(|source| TemplateInfo {
                bytes: source.len(),
                takes_tools: source.contains("tools"),
            }),
            dialect: model.dialect_name().to_owned(),
            stops,
            problem,
            tensors: shapes
                .map(|(name, shape)| (name, format!("{shape:?}").into()))
                .collect(),
            config,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_the_formats() {
        let model = LoadedModel::init_compact(ModelConfig::tiny(), 1).unwrap();
        let info = ModelInfo::of(&model);
        let bytes = |map: &Map<String, Value>, name: &str| map[name].as_u64().unwrap();
        // 331,056 parameters less embedding (272 x 96) and norms (7 x 96 + 6 x 24) are linear layers; two f32 tables beside them.
        let linear = 331_056 - 272 * 96 - 7 * 96 - 6 * 24;
        let tables = 2 * 4 * 272 * 96;
        assert_eq!(bytes(&info.memory, "f32"), 4 * linear + tables);
        assert_eq!(bytes(&info.memory, "fp8"), linear + tables);
        // 3 layers, 2 heads: keys of 24 values, values padded to 32, two scales.
        assert_eq!(
            bytes(&info.kv_bytes_per_token, "f16"),
            3 * 2 * ((24 + 32) * 2 + 8)
        );
        assert_eq!(
            (info.stops, info.problem),
            (vec!["<end_call>".to_owned(), "<end>".to_owned()], None)
        );
        assert_eq!(info.added_tokens["<bos>"], 257);
        assert_eq!(info.tensors["model.norm.weight"], "[96]");
        assert_eq!(info.training_bytes, 16 * 331_056);
    }
}
