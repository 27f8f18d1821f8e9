//! The same forward as a graph of candle operations that all record a gradient: it runs on any device, and is the independent reference that
//! the CPU path is tested against.
//!
//! Candle's fused CPU ops (`rms_norm`, `rope`, `softmax_last_dim`, flash attention) record nothing for `backward`, which then succeeds
//! without a gradient; none of them is used.

use candle_core::{D, Result, Tensor};

use super::TrainerPolicy;
use super::kernels::RopeTable;
use crate::TrainerError;
use crate::batch::Packed;

impl TrainerPolicy {
    /// `[targets, 2]`: log-prob of each sampled token under `log_softmax(logits / temperature)` and the entropy of that distribution.
    ///
    /// # Errors
    /// When a tensor operation fails.
    pub(crate) fn graph(
        &self,
        batch: &Packed,
        temperature: f64,
        tracked: bool,
    ) -> std::result::Result<Tensor, TrainerError> {
        let weights: Vec<Tensor> = self
            .vars
            .iter()
            .map(|(_, var)| {
                if tracked {
                    var.as_tensor().clone()
                } else {
                    var.as_detached_tensor()
                }
            })
            .collect();
        let w = |i: usize| &weights[i];
        let config = &self.config;
        let eps = config.rms_norm_eps;
        let ids = Tensor::new(batch.ids.as_slice(), &self.device)?;
        let rows = Tensor::new(batch.rows.as_slice(), &self.device)?;
        let rotation = self.rotation(batch)?;
        let mut x = w(self.layout.embedding).index_select(&ids, 0)?;
        for (index, layer) in self.layout.layers.iter().enumerate() {
            let h = rms_norm(&x, w(layer.input_norm), eps)?;
            let project = |i: usize| -> Result<Tensor> {
                let y = h.matmul(&w(layer.qkv[i]).t()?)?;
                layer
                    .qkv_bias
                    .map_or(Ok(y.clone()), |bias| y.broadcast_add(w(bias[i])))
            };
            let turned = |i: usize| -> Result<Tensor> {
                let y = project(i)?;
                let y = y.reshape((batch.ids.len(), y.dim(1)? / config.head_dim, config.head_dim))?;
                let y = layer
                    .qk_norm
                    .map_or(Ok(y.clone()), |norms| rms_norm(&y, w(norms[i]), eps))?;
                rope(&y, &rotation)
            };
            let v = project(2)?.reshape((batch.ids.len(), config.num_key_value_heads, config.head_dim))?;
            let mut mixed = attention(&turned(0)?, &turned(1)?, &v, &batch.offsets)?;
            if index + 1 == self.layout.layers.len() {
                mixed = mixed.index_select(&rows, 0)?;
                x = x.index_select(&rows, 0)?;
            }
            x = (x + mixed.matmul(&w(layer.o).t()?)?)?;
            let h = rms_norm(&x, w(layer.post_norm), eps)?;
            let act = (h.matmul(&w(layer.gate).t()?)?.silu()? * h.matmul(&w(layer.up).t()?)?)?;
            x = (x + act.matmul(&w(layer.down).t()?)?)?;
        }
        let x = rms_norm(&x, w(self.layout.norm), eps)?;
        Ok(token_stats(
            &x,
            w(self.layout.head),
            &batch.targets,
            1.0 / temperature,
        )?)
    }

    /// Cosines and sines of every input: `[tokens, 1, head_dim / 2]` each.
    fn rotation(&self, batch: &Packed) -> Result<(Tensor, Tensor)> {
        let half = self.config.head_dim / 2;
        let table = RopeTable::<f64>::new(self.config.head_dim, self.config.rope_theta, batch.longest());
        let pick = |values: &[f64]| -> Result<Tensor> {
            let picked = batch
                .positions
                .iter()
                .flat_map(|&p| values[p as usize * half..][..half].iter().copied());
            let shape = (batch.positions.len(), 1, half);
            Tensor::from_vec(picked.collect::<Vec<f64>>(), shape, &self.device)?.to_dtype(self.dtype)
        };
        Ok((pick(&table.cos)?, pick(&table.sin)?))
    }
}

fn rms_norm(x: &Tensor, w: &Tensor, eps: f64) -> Result<Tensor> {
    let inverse = (x.sqr()?.mean_keepdim(D::Minus1)? + eps)?.sqrt()?.recip()?;
    x.broadcast_mul(&inverse)?.broadcast_mul(w)
}

/// Half-rotation of `x: [tokens, heads, head_dim]`.
fn rope(x: &Tensor, (cos, sin): &(Tensor, Tensor)) -> Result<Tensor> {
    let half = x.dim(D::Minus1)? / 2;
    let (a, b) = (x.narrow(D::Minus1, 0, half)?, x.narrow(D::Minus1, half, half)?);
    let out_a = (a.broadcast_mul(cos)? - b.broadcast_mul(sin)?)?;
    let out_b = (b.broadcast_mul(cos)? + a.broadcast_mul(sin)?)?;
    Tensor::cat(&[out_a, out_b], D::Minus1)
}

/// Causal attention of `[tokens, heads, head_dim]` inside each sequence; returns `[tokens, heads * head_dim]`.
fn attention(q: &Tensor, k: &Tensor, v: &Tensor, offsets: &[usize]) -> Result<Tensor> {
    let (_, heads, head_dim) = q.dims3()?;
    let kv_heads = k.dim(1)?;
    let mut out = Vec::new();
    for pair in offsets.windows(2).filter(|w| w[1] > w[0]) {
        let (start, len) = (pair[0], pair[1] - pair[0]);
        let split = |x: &Tensor| x.narrow(0, start, len)?.transpose(0, 1)?.contiguous();
        let repeat = |x: Tensor| -> Result<Tensor> {
            let shape = (kv_heads, heads / kv_heads, len, head_dim);
            x.unsqueeze(1)?
                .broadcast_as(shape)?
                .reshape((heads, len, head_dim))
        };
        let (q, k, v) = (split(q)?, repeat(split(k)?)?, repeat(split(v)?)?);
        let unseen: Vec<f64> = (0..len * len)
            .map(|i| if i % len > i / len { f64::NEG_INFINITY } else { 0.0 })
            .collect();
        let unseen = Tensor::from_vec(unseen, (1, len, len), q.device())?.to_dtype(q.dtype())?;
        let scores = (q.matmul(&k.t()?)? * (1.0 / (head_dim as f64).sqrt()))?.broadcast_add(&unseen)?;
        let exp = scores
            .broadcast_sub(&scores.max_keepdim(D::Minus1)?.detach())?
            .exp()?;
        let p = exp.broadcast_div(&exp.sum_keepdim(D::Minus1)?)?;
        out.push(p.matmul(&v)?.transpose(0, 1)?.reshape((len, heads * head_dim))?);
    }
    Tensor::cat(&out, 0)
}

fn token_stats(hidden: &Tensor, head: &Tensor, targets: &[u32], inv_temperature: f64) -> Result<Tensor> {
    let z = (hidden.matmul(&head.t()?)? * inv_temperature)?;
    let shifted = z.broadcast_sub(&z.detach().max_keepdim(D::Minus1)?)?;
    let log_p = shifted.broadcast_sub(&shifted.exp()?.sum_keepdim(D::Minus1)?.log()?)?;
    let targets = Tensor::new(targets, hidden.device())?.unsqueeze(1)?;
    let chosen = log_p.gather(&targets, 1)?;
    let entropy = (log_p.exp()? * &log_p)?.sum_keepdim(D::Minus1)?.neg()?;
    Tensor::cat(&[chosen, entropy], 1)
}
