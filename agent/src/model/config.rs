//! Shape of a decoder-only transformer (Llama, Qwen2, Qwen3 families), read from and written as a HF `config.json`.

use serde::{Deserialize, Serialize};

/// Shape of the model; every size is positive and consistent by construction (checked on load).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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
    /// RMSNorm on each query and key head (Qwen3).
    #[serde(default)]
    pub qk_norm: bool,
    /// Bias on q, k, v (Qwen2).
    #[serde(default)]
    pub attention_bias: bool,
}

impl ModelConfig {
    /// Canonical (HF) names and shapes of every tensor, in a fixed order: `model.embed_tokens.weight`,
    /// `model.layers.{l}.input_layernorm.weight`, `.self_attn.{q,k,v,o}_proj.weight` (and `.bias`), `.self_attn.{q,k}_norm.weight`,
    /// `.post_attention_layernorm.weight`, `.mlp.{gate,up,down}_proj.weight`, `model.norm.weight`, `lm_head.weight` unless tied.
    /// Linear weights are `[out, in]`.
    pub fn tensor_shapes(&self) -> Vec<(String, Vec<usize>)> {
        let (h, d) = (self.hidden_size, self.head_dim);
        let (q, kv) = (self.num_attention_heads * d, self.num_key_value_heads * d);
        let mut out = vec![("model.embed_tokens.weight".to_owned(), vec![self.vocab_size, h])];
        for l in 0..self.num_hidden_layers {
            let mut push = |name: &str, shape: &[usize]| out.push((format!("model.layers.{l}.{name}"), shape.to_vec()));
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
}
