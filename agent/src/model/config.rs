//! Shape of a decoder-only transformer (Llama, Qwen2, Qwen3 families), read from and written as a HF `config.json`.

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::ModelError;

/// Shape of the model; every size is positive and consistent by construction (checked on load).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "RawConfig")]
pub struct ModelConfig {
    /// `llama`, `qwen2` or `qwen3`.
    pub model_type: String,
    /// Vocabulary size.
    pub vocab_size: usize,
    /// Residual width.
    pub hidden_size: usize,
    /// Feed-forward width.
    pub intermediate_size: usize,
    /// Layers.
    pub num_hidden_layers: usize,
    /// Query heads.
    pub num_attention_heads: usize,
    /// Key and value heads.
    pub num_key_value_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// RMSNorm epsilon.
    pub rms_norm_eps: f64,
    /// Base of the rotary embedding.
    pub rope_theta: f64,
    /// The head shares the embedding's weights.
    pub tie_word_embeddings: bool,
    /// Longest context.
    pub max_position_embeddings: usize,
    /// RMSNorm on each query and key head (Qwen3); implied by `model_type`, never read from a file.
    #[serde(skip_serializing)]
    pub qk_norm: bool,
    /// Bias on q, k, v (Qwen2); implied by `model_type`, never read from a file.
    #[serde(skip_serializing)]
    pub attention_bias: bool,
}

/// The fields of a HF `config.json` that can change what the model computes. Others are ignored.
#[derive(Deserialize)]
struct RawConfig {
    model_type: String,
    vocab_size: usize,
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    rms_norm_eps: Option<f64>,
    rope_theta: Option<f64>,
    rope_parameters: Option<Value>,
    rope_scaling: Option<Value>,
    tie_word_embeddings: Option<bool>,
    max_position_embeddings: Option<usize>,
    hidden_act: Option<String>,
    attention_bias: Option<bool>,
    mlp_bias: Option<bool>,
    use_sliding_window: Option<bool>,
    quantization_config: Option<Value>,
}

impl TryFrom<RawConfig> for ModelConfig {
    type Error = String;

    fn try_from(raw: RawConfig) -> Result<Self, String> {
        let family = raw.model_type.as_str();
        if !matches!(family, "llama" | "qwen2" | "qwen3") {
            return Err(format!(
                "`model_type` must be llama, qwen2 or qwen3; got `{family}`"
            ));
        }
        refuse(&raw)?;
        let rope = raw
            .rope_parameters
            .as_ref()
            .and_then(|p| p.get("rope_theta"))
            .and_then(Value::as_f64);
        let kv_heads = match (raw.num_key_value_heads, family) {
            (Some(n), _) => n,
            (None, "llama") => raw.num_attention_heads,
            (None, _) => {
                return Err(format!(
                    "`num_key_value_heads` is missing ({family} has no safe default)"
                ));
            }
        };
        let head_dim = match raw.head_dim {
            Some(d) => d,
            None if family == "qwen3" => 128,
            None => raw.hidden_size.checked_div(raw.num_attention_heads).unwrap_or(0),
        };
        let config = Self {
            qk_norm: family == "qwen3",
            attention_bias: family == "qwen2",
            vocab_size: raw.vocab_size,
            hidden_size: raw.hidden_size,
            intermediate_size: raw.intermediate_size,
            num_hidden_layers: raw.num_hidden_layers,
            num_attention_heads: raw.num_attention_heads,
            num_key_value_heads: kv_heads,
            head_dim,
            rms_norm_eps: raw.rms_norm_eps.unwrap_or(1e-6),
            rope_theta: raw.rope_theta.or(rope).unwrap_or(1e4),
            tie_word_embeddings: raw.tie_word_embeddings.unwrap_or(false),
            max_position_embeddings: raw.max_position_embeddings.unwrap_or(if family == "llama" {
                2048
            } else {
                32768
            }),
            model_type: raw.model_type,
        };
        config.check()?;
        Ok(config)
    }
}

/// Refuses what the forward pass does not compute, instead of computing something else.
fn refuse(raw: &RawConfig) -> Result<(), String> {
    let set = |value: &Option<Value>| value.as_ref().is_some_and(|v| !v.is_null());
    if set(&raw.rope_scaling) {
        return Err(format!(
            "`rope_scaling` must be null; got {}\nhint: only the plain rotary embedding is computed; a context within \
             the original `max_position_embeddings` may work after setting it to null",
            raw.rope_scaling.as_ref().unwrap_or(&Value::Null)
        ));
    }
    if let Some(kind) = raw
        .rope_parameters
        .as_ref()
        .and_then(|p| p.get("rope_type"))
        .and_then(Value::as_str)
        && kind != "default"
    {
        return Err(format!(
            "`rope_parameters.rope_type` must be `default`; got `{kind}`"
        ));
    }
    if let Some(act) = &raw.hidden_act
        && act != "silu"
    {
        return Err(format!("`hidden_act` must be `silu`; got `{act}`"));
    }
    if raw.model_type != "qwen2" && raw.attention_bias == Some(true) {
        return Err(format!(
            "`attention_bias: true` is not supported for {}",
            raw.model_type
        ));
    }
    if raw.mlp_bias == Some(true) {
        return Err("`mlp_bias: true` is not supported".to_owned());
    }
    if raw.use_sliding_window == Some(true) {
        return Err("`use_sliding_window: true` is not supported".to_owned());
    }
    super::format::check_quantization(raw.quantization_config.as_ref().unwrap_or(&Value::Null))
}

impl ModelConfig {
    /// Shape of the quick-start policy: Qwen3, 3 layers, hidden 96, 4 query and 2 key heads of 24, byte vocabulary, tied
    /// (331 k parameters).
    pub fn tiny() -> Self {
        Self {
            model_type: "qwen3".to_owned(),
            vocab_size: crate::tokenizer::COMPACT_VOCAB,
            hidden_size: 96,
            intermediate_size: 256,
            num_hidden_layers: 3,
            num_attention_heads: 4,
            num_key_value_heads: 2,
            head_dim: 24,
            rms_norm_eps: 1e-6,
            rope_theta: 1e4,
            tie_word_embeddings: true,
            max_position_embeddings: 160,
            qk_norm: true,
            attention_bias: false,
        }
    }

    /// Reads a HF `config.json`.
    ///
    /// # Errors
    /// When the file is unreadable, inconsistent, or asks for something that is not computed (scaled rotary embeddings,
    /// sliding windows, other activations).
    pub fn read(path: &Path) -> Result<Self, ModelError> {
        let text = std::fs::read_to_string(path).map_err(ModelError::io(path))?;
        serde_json::from_str(&text).map_err(|e| ModelError::file(path, e))
    }

    /// The HF `config.json` of this shape.
    pub fn to_json(&self) -> Value {
        let architecture = match self.model_type.as_str() {
            "llama" => "LlamaForCausalLM",
            "qwen2" => "Qwen2ForCausalLM",
            _ => "Qwen3ForCausalLM",
        };
        let mut value = serde_json::to_value(self).unwrap_or(Value::Null);
        if let Some(map) = value.as_object_mut() {
            map.insert("architectures".to_owned(), json!([architecture]));
            map.insert("hidden_act".to_owned(), json!("silu"));
            map.insert("attention_bias".to_owned(), json!(self.attention_bias));
            map.insert("rope_scaling".to_owned(), Value::Null);
            map.insert("torch_dtype".to_owned(), json!("float32"));
        }
        value
    }

    /// Checks that sizes are positive and consistent.
    ///
    /// # Errors
    /// Names the field, what was expected and what was found.
    pub fn check(&self) -> Result<(), String> {
        for (name, size) in [
            ("vocab_size", self.vocab_size),
            ("hidden_size", self.hidden_size),
            ("intermediate_size", self.intermediate_size),
            ("num_hidden_layers", self.num_hidden_layers),
            ("num_attention_heads", self.num_attention_heads),
            ("num_key_value_heads", self.num_key_value_heads),
            ("head_dim", self.head_dim),
            ("max_position_embeddings", self.max_position_embeddings),
        ] {
            if size == 0 {
                return Err(format!("`{name}` must be positive; got 0"));
            }
        }
        if !self.num_attention_heads.is_multiple_of(self.num_key_value_heads) {
            return Err(format!(
                "`num_attention_heads` must be a multiple of `num_key_value_heads`; got {} and {}",
                self.num_attention_heads, self.num_key_value_heads
            ));
        }
        if !self.head_dim.is_multiple_of(2) {
            return Err(format!(
                "`head_dim` must be even for rotary embeddings; got {}",
                self.head_dim
            ));
        }
        if !(self.rms_norm_eps > 0.0 && self.rms_norm_eps < 1.0) {
            return Err(format!(
                "`rms_norm_eps` must lie in (0, 1); got {}",
                self.rms_norm_eps
            ));
        }
        if !(self.rope_theta > 1.0 && self.rope_theta.is_finite()) {
            return Err(format!(
                "`rope_theta` must be finite and above 1; got {}",
                self.rope_theta
            ));
        }
        Ok(())
    }

    /// Canonical (HF) names and shapes of every tensor, in a fixed order: `model.embed_tokens.weight`,
    /// `model.layers.{l}.input_layernorm.weight`, `.self_attn.{q,k,v,o}_proj.weight` (and `.bias`), `.self_attn.{q,k}_norm.weight`,
    /// `.post_attention_layernorm.weight`, `.mlp.{gate,up,down}_proj.weight`, `model.norm.weight`, `lm_head.weight` unless tied.
    /// Linear weights are `[out, in]`.
    pub fn tensor_shapes(&self) -> Vec<(String, Vec<usize>)> {
        let (h, d) = (self.hidden_size, self.head_dim);
        let (q, kv) = (self.num_attention_heads * d, self.num_key_value_heads * d);
        let mut out = vec![("model.embed_tokens.weight".to_owned(), vec![self.vocab_size, h])];
        for l in 0..self.num_hidden_layers {
            let mut push =
                |name: &str, shape: &[usize]| out.push((format!("model.layers.{l}.{name}"), shape.to_vec()));
            push("input_layernorm.weight", &[h]);
            push("self_attn.q_proj.weight", &[q, h]);
            push("self_attn.k_proj.weight", &[kv, h]);
            push("self_attn.v_proj.weight", &[kv, h]);
            if self.attention_bias {
                push("self_attn.q_proj.bias", &[q]);
                push("self_attn.k_proj.bias", &[kv]);
                push("self_attn.v_proj.bias", &[kv]);
            }
            if self.qk_norm {
                push("self_attn.q_norm.weight", &[d]);
                push("self_attn.k_norm.weight", &[d]);
            }
            push("self_attn.o_proj.weight", &[h, q]);
            push("post_attention_layernorm.weight", &[h]);
            push("mlp.gate_proj.weight", &[self.intermediate_size, h]);
            push("mlp.up_proj.weight", &[self.intermediate_size, h]);
            push("mlp.down_proj.weight", &[h, self.intermediate_size]);
        }
        out.push(("model.norm.weight".to_owned(), vec![h]));
        if !self.tie_word_embeddings {
            out.push(("lm_head.weight".to_owned(), vec![self.vocab_size, h]));
        }
        out
    }

    /// Parameters, tied weights counted once.
    pub fn parameters(&self) -> usize {
        self.tensor_shapes()
            .iter()
            .map(|(_, shape)| shape.iter().product::<usize>())
            .sum()
    }

    /// Cosines and sines of the rotary embedding, each `[positions, head_dim / 2]` row-major: position `p`, pair `i` has the angle
    /// `p * theta^(-2i / head_dim)`, rounded to f32 as transformers does. Sampler and trainer share this table.
    pub fn rope_table(&self, positions: usize) -> (Vec<f32>, Vec<f32>) {
        let half = self.head_dim / 2;
        let frequencies: Vec<f32> = (0..half)
            .map(|i| (1.0 / self.rope_theta.powf(2.0 * i as f64 / self.head_dim as f64)) as f32)
            .collect();
        let angle = |p: usize, f: f32| f64::from(p as f32 * f);
        let table = |of: fn(f64) -> f64| {
            (0..positions)
                .flat_map(|p| frequencies.iter().map(move |&f| of(angle(p, f)) as f32))
                .collect()
        };
        (table(f64::cos), table(f64::sin))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn base(model_type: &str) -> Value {
        json!({"model_type": model_type, "vocab_size": 100, "hidden_size": 64, "intermediate_size": 128,
               "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2})
    }

    fn parse(value: Value) -> Result<ModelConfig, String> {
        serde_json::from_value(value).map_err(|e| e.to_string())
    }

    fn with(model_type: &str, key: &str, value: Value) -> Value {
        let mut config = base(model_type);
        config[key] = value;
        config
    }

    #[test]
    fn families_imply_their_own_defaults() {
        let llama = parse(base("llama")).unwrap();
        assert_eq!(
            (llama.head_dim, llama.qk_norm, llama.attention_bias),
            (16, false, false)
        );
        let qwen2 = parse(base("qwen2")).unwrap();
        assert_eq!(
            (qwen2.head_dim, qwen2.qk_norm, qwen2.attention_bias),
            (16, false, true)
        );
        let qwen3 = parse(with("qwen3", "attention_bias", json!(false))).unwrap();
        assert_eq!(
            (qwen3.head_dim, qwen3.qk_norm, qwen3.attention_bias),
            (128, true, false)
        );
    }

    #[test]
    fn rope_theta_is_read_from_either_place() {
        let theta = |v| parse(v).unwrap().rope_theta;
        assert_eq!(
            theta(with("llama", "rope_theta", json!(1e5))).to_bits(),
            1e5f64.to_bits()
        );
        let nested = with(
            "llama",
            "rope_parameters",
            json!({"rope_theta": 5e5, "rope_type": "default"}),
        );
        assert_eq!(theta(nested).to_bits(), 5e5f64.to_bits());
    }

    #[test]
    fn what_is_not_computed_is_refused() {
        for (key, value, expected) in [
            (
                "rope_scaling",
                json!({"rope_type": "llama3", "factor": 8.0}),
                "`rope_scaling` must be null",
            ),
            (
                "rope_parameters",
                json!({"rope_type": "yarn"}),
                "must be `default`; got `yarn`",
            ),
            ("hidden_act", json!("gelu"), "must be `silu`; got `gelu`"),
            (
                "attention_bias",
                json!(true),
                "`attention_bias: true` is not supported",
            ),
            ("use_sliding_window", json!(true), "`use_sliding_window: true`"),
            (
                "num_key_value_heads",
                json!(3),
                "multiple of `num_key_value_heads`; got 4 and 3",
            ),
            ("model_type", json!("gpt2"), "llama, qwen2 or qwen3; got `gpt2`"),
            ("vocab_size", json!(0), "`vocab_size` must be positive"),
            (
                "quantization_config",
                json!({"quant_method": "gptq"}),
                "quantised by `gptq` are not read",
            ),
            (
                "quantization_config",
                json!({"quant_method": "compressed-tensors", "format": "pack-quantized"}),
                "must be `float-quantized`; got \"pack-quantized\"",
            ),
        ] {
            let error = parse(with("llama", key, value)).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn json_round_trip() {
        let config = ModelConfig::tiny();
        assert_eq!(parse(config.to_json()).unwrap(), config);
        assert_eq!(config.parameters(), 331_056);
    }
}
