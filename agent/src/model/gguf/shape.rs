//! From GGUF's metadata and tensor names to a [`ModelConfig`] and its canonical tensors.

use std::collections::BTreeSet;
use std::io::{Read, Seek};
use std::sync::Arc;

use super::header::{Field, Gguf};
use crate::model::weights::check_tensor;
use crate::model::{ModelConfig, ModelError, NamedTensor, Weights};

/// The shape of the model in an open file.
///
/// # Errors
/// When the architecture is another one, a size is missing or inconsistent, or the model needs what is not computed (scaled or
/// partial rotary embeddings, experts).
pub(super) fn config<R: Read + Seek>(file: &Gguf<R>) -> Result<ModelConfig, ModelError> {
    let family = file.text("general.architecture")?.to_owned();
    if !matches!(family.as_str(), "llama" | "qwen2" | "qwen3") {
        return Err(file.refuse(format!(
            "`general.architecture` must be llama, qwen2 or qwen3; got `{family}`"
        )));
    }
    let key = |name: &str| format!("{family}.{name}");
    if file.size_or(&key("expert_count"), 0)? > 0 {
        return Err(file.refuse(format!(
            "`{}` is set: a mixture of experts is not supported",
            key("expert_count")
        )));
    }
    let heads = file.size(&key("attention.head_count"))?;
    let hidden = file.size(&key("embedding_length"))?;
    let head_dim = file.size_or(
        &key("attention.key_length"),
        hidden.checked_div(heads).unwrap_or(0),
    )?;
    let rotated = file.size_or(&key("rope.dimension_count"), head_dim)?;
    if rotated != head_dim {
        return Err(file.refuse(format!(
            "`{}` must be the head's width {head_dim}; got {rotated}",
            key("rope.dimension_count")
        )));
    }
    if let Some(scaling) = file.field(&key("rope.scaling.type")).and_then(Field::as_text)
        && scaling != "none"
    {
        return Err(file.refuse(format!(
            "`{}` is `{scaling}`: only the plain rotary embedding is computed",
            key("rope.scaling.type")
        )));
    }
    let layers = file.size(&key("block_count"))?;
    if layers > file.tensors().len() {
        return Err(file.refuse(format!(
            "`{}` {layers} is more than the file's {} tensors",
            key("block_count"),
            file.tensors().len()
        )));
    }
    let embedding = file.tensors().get("token_embd.weight");
    let embedding =
        embedding.ok_or_else(|| ModelError::tensor(file.path(), "token_embd.weight", "missing"))?;
    let config = ModelConfig {
        vocab_size: embedding.shape.first().copied().unwrap_or(0),
        hidden_size: hidden,
        intermediate_size: file.size(&key("feed_forward_length"))?,
        num_hidden_layers: layers,
        num_attention_heads: heads,
        num_key_value_heads: file.size_or(&key("attention.head_count_kv"), heads)?,
        head_dim,
        rms_norm_eps: file.number(&key("attention.layer_norm_rms_epsilon"))?,
        rope_theta: match file.field(&key("rope.freq_base")) {
            None => 1e4,
            Some(_) => file.number(&key("rope.freq_base"))?,
        },
        tie_word_embeddings: !file.tensors().contains_key("output.weight"),
        max_position_embeddings: file.size(&key("context_length"))?,
        qk_norm: family == "qwen3",
        attention_bias: family == "qwen2",
        model_type: family,
    };
    config.check().map_err(|reason| file.refuse(reason))?;
    Ok(config)
}

/// Reads every tensor of `config` by its canonical name, with the rows of Llama's queries and keys in Hugging Face's order.
///
/// # Errors
/// Names the tensor, as the file calls it, that is missing, extra, mis-shaped or not finite.
pub(super) fn weights<R: Read + Seek>(
    file: &mut Gguf<R>,
    config: ModelConfig,
) -> Result<Weights, ModelError> {
    if file.tensors().contains_key("rope_freqs.weight") {
        let reason = "present: scaled rotary embeddings (Llama 3.1 and later) are not computed";
        return Err(ModelError::tensor(file.path(), "rope_freqs.weight", reason));
    }
    let mut left: BTreeSet<String> = file.tensors().keys().cloned().collect();
    let mut tensors: Vec<NamedTensor> = Vec::new();
    for (name, shape) in config.tensor_shapes() {
        let theirs = gguf_name(&name);
        left.remove(&theirs);
        let Some(entry) = file.tensors().get(&theirs) else {
            let reason = format!("missing (expected {shape:?})");
            return Err(ModelError::tensor(file.path(), &theirs, reason));
        };
        let got = entry.shape.clone();
        if got != shape {
            let reason = format!("expected shape {shape:?}; got {got:?}");
            return Err(ModelError::tensor(file.path(), &theirs, reason));
        }
        let mut values = file.read(&theirs)?;
        check_tensor(file.path(), &theirs, &shape, &got, &values)?;
        if config.model_type == "llama"
            && (name.ends_with("q_proj.weight") || name.ends_with("k_proj.weight"))
        {
            values = half_split(&values, config.head_dim, config.hidden_size);
        }
        tensors.push((name, shape, Arc::new(values)));
    }
    if let Some(extra) = left.first() {
        let reason = format!("not part of a {} model of this shape", config.model_type);
        return Err(ModelError::tensor(file.path(), extra, reason));
    }
    Ok(Weights {
        config: Arc::new(config),
        tensors,
    })
}

/// GGUF's name of a canonical tensor.
fn gguf_name(name: &str) -> String {
    let whole = match name {
        "model.embed_tokens.weight" => "token_embd.weight",
        "model.norm.weight" => "output_norm.weight",
        "lm_head.weight" => "output.weight",
        _ => "",
    };
    let mut parts = name
        .strip_prefix("model.layers.")
        .unwrap_or_default()
        .splitn(2, '.');
    let (Some(layer), Some(rest)) = (parts.next(), parts.next()) else {
        return whole.to_owned();
    };
    let (module, kind) = rest.rsplit_once('.').unwrap_or((rest, ""));
    let module = match module {
        "input_layernorm" => "attn_norm",
        "post_attention_layernorm" => "ffn_norm",
        "self_attn.q_proj" => "attn_q",
        "self_attn.k_proj" => "attn_k",
        "self_attn.v_proj" => "attn_v",
        "self_attn.o_proj" => "attn_output",
        "self_attn.q_norm" => "attn_q_norm",
        "self_attn.k_norm" => "attn_k_norm",
        "mlp.gate_proj" => "ffn_gate",
        "mlp.up_proj" => "ffn_up",
        "mlp.down_proj" => "ffn_down",
        other => other,
    };
    format!("blk.{layer}.{module}.{kind}")
}

/// llama.cpp lays the rows of a Llama head out so that neighbours rotate together; Hugging Face rotates row `i` with row
/// `i + dim / 2`. Row `2 i + p` of a head goes to row `p dim / 2 + i`.
fn half_split(values: &[f32], head_dim: usize, width: usize) -> Vec<f32> {
    let mut out = Vec::with_capacity(values.len());
    for head in values.chunks_exact(head_dim * width) {
        for parity in 0..2 {
            for pair in 0..head_dim / 2 {
                out.extend_from_slice(&head[(2 * pair + parity) * width..][..width]);
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tensor_has_a_name_of_its_own() {
        for family in ["llama", "qwen2", "qwen3"] {
            let config = ModelConfig {
                model_type: family.to_owned(),
                qk_norm: family == "qwen3",
                attention_bias: family == "qwen2",
                tie_word_embeddings: false,
                ..ModelConfig::tiny()
            };
            let shapes = config.tensor_shapes();
            let names: BTreeSet<String> = shapes.iter().map(|(name, _)| gguf_name(name)).collect();
            assert_eq!(names.len(), shapes.len());
            assert!(
                names
                    .iter()
                    .all(|n| n.ends_with(".weight") || n.ends_with(".bias")),
                "{names:?}"
            );
            assert!(
                !names
                    .iter()
                    .any(|n| n.contains("proj") || n.contains("layernorm")),
                "{names:?}"
            );
        }
    }

    #[test]
    fn interleaved_rows_become_half_split() {
        let rows: Vec<f32> = (0..8).flat_map(|r| [r as f32; 3]).collect();
        let order: Vec<f32> = half_split(&rows, 4, 3).chunks(3).map(|row| row[0]).collect();
        assert_eq!(order, [0.0, 2.0, 1.0, 3.0, 4.0, 6.0, 5.0, 7.0]);
    }
}
