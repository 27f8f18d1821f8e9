//! The differentiable forward: packed ids in, log-prob and entropy of each sampled token out.

use candle_core::{Tensor, Var};

use super::TrainerPolicy;
use super::ops::{self, Exec};
use crate::TrainerError;
use crate::batch::Packed;

/// Weights of one forward pass by role, tracked for gradients or not.
pub(crate) struct Params {
    embedding: Tensor,
    layers: Vec<Layer>,
    norm: Tensor,
    head: Tensor,
}

struct Layer {
    input_norm: Tensor,
    q: Linear,
    k: Linear,
    v: Linear,
    q_norm: Option<Tensor>,
    k_norm: Option<Tensor>,
    o: Tensor,
    post_norm: Tensor,
    gate: Tensor,
    up: Tensor,
    down: Tensor,
}

struct Linear {
    weight: Tensor,
    bias: Option<Tensor>,
}

impl Linear {
    fn forward(&self, x: &Tensor, exec: Exec) -> candle_core::Result<Tensor> {
        let y = ops::linear(x, &self.weight, exec)?;
        match &self.bias {
            Some(bias) => y.broadcast_add(bias),
            None => Ok(y),
        }
    }
}

impl TrainerPolicy {
    /// The weights as tensors whose operations are recorded (`tracked`) or not.
    pub(crate) fn params(&self, tracked: bool) -> Params {
        let take = |var: &Var| {
            if tracked {
                var.as_tensor().clone()
            } else {
                var.as_detached_tensor()
            }
        };
        // The order of `ModelConfig::tensor_shapes`, which `from_weights` followed.
        let mut vars = self.vars.iter().map(|(_, var)| take(var));
        let mut next = || {
            vars.next()
                .expect("from_weights made one variable per canonical tensor")
        };
        let embedding = next();
        let config = &self.config;
        let layers = (0..config.num_hidden_layers)
            .map(|_| {
                let input_norm = next();
                let (q, k, v) = (next(), next(), next());
                let mut optional = |present: bool| present.then(&mut next);
                let (q_bias, k_bias, v_bias) = (
                    optional(config.attention_bias),
                    optional(config.attention_bias),
                    optional(config.attention_bias),
                );
                let (q_norm, k_norm) = (optional(config.qk_norm), optional(config.qk_norm));
                Layer {
                    input_norm,
                    q: Linear {
                        weight: q,
                        bias: q_bias,
                    },
                    k: Linear {
                        weight: k,
                        bias: k_bias,
                    },
                    v: Linear {
                        weight: v,
                        bias: v_bias,
                    },
                    q_norm,
                    k_norm,
                    o: next(),
                    post_norm: next(),
                    gate: next(),
                    up: next(),
                    down: next(),
                }
            })
            .collect();
        let norm = next();
        let head = if config.tie_word_embeddings {
            embedding.clone()
        } else {
            next()
        };
        Params {
            embedding,
            layers,
            norm,
            head,
        }
    }

    /// `[targets, 2]`: log-prob of each sampled token under `log_softmax(logits / temperature)` and the entropy of that distribution.
    ///
    /// # Errors
    /// When a tensor operation fails.
    pub(crate) fn forward(
        &self,
        params: &Params,
        batch: &Packed,
        temperature: f64,
        exec: Exec,
    ) -> Result<Tensor, TrainerError> {
        let config = &self.config;
        let heads = ops::Heads {
            heads: config.num_attention_heads,
            kv_heads: config.num_key_value_heads,
            head_dim: config.head_dim,
        };
        let longest = batch.offsets.windows(2).map(|w| w[1] - w[0]).max().unwrap_or(0);
        let rope = self.rope_table(longest);
        let ids = Tensor::new(batch.ids.as_slice(), &self.device)?;
        let rows = Tensor::new(batch.rows.as_slice(), &self.device)?;
        let norm = |x: &Tensor, w: &Tensor| ops::rms_norm(x, w, config.rms_norm_eps, exec);
        let head_norm = |x: Tensor, w: &Option<Tensor>| -> candle_core::Result<Tensor> {
            let Some(w) = w else { return Ok(x) };
            let (tokens, width) = x.dims2()?;
            norm(&x.reshape((tokens * width / heads.head_dim, heads.head_dim))?, w)?.reshape((tokens, width))
        };

        let mut x = params.embedding.index_select(&ids, 0)?;
        for (index, layer) in params.layers.iter().enumerate() {
            let h = norm(&x, &layer.input_norm)?;
            let q = head_norm(layer.q.forward(&h, exec)?, &layer.q_norm)?;
            let k = head_norm(layer.k.forward(&h, exec)?, &layer.k_norm)?;
            let v = layer.v.forward(&h, exec)?;
            let q = ops::rope(&q, &rope, &batch.positions, exec)?;
            let k = ops::rope(&k, &rope, &batch.positions, exec)?;
            let mut mixed = ops::attention(&q, &k, &v, &batch.offsets, heads, exec)?;
            if index + 1 == params.layers.len() {
                // After the last attention only the rows that predict a sampled token matter.
                mixed = mixed.index_select(&rows, 0)?;
                x = x.index_select(&rows, 0)?;
            }
            x = (x + ops::linear(&mixed, &layer.o, exec)?)?;
            let h = norm(&x, &layer.post_norm)?;
            let (gate, up) = (
                ops::linear(&h, &layer.gate, exec)?,
                ops::linear(&h, &layer.up, exec)?,
            );
            x = (x + ops::linear(&ops::swiglu(&gate, &up, exec)?, &layer.down, exec)?)?;
        }
        let x = norm(&x, &params.norm)?;
        Ok(ops::token_stats(
            &x,
            &params.head,
            &batch.targets,
            1.0 / temperature,
            exec,
        )?)
    }
}
