//! Head, log-prob of the target and entropy in one op, so that `[tokens, vocab]` logits never exist as a whole.

use std::sync::Arc;

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CustomOp2, D, Layout, Result, Shape, Tensor};

use super::super::kernels::{Mat, MatMut, Real, matmul, rows};
use super::{Exec, for_float, operand, with_values};

/// Rows of logits alive at a time.
const CHUNK: usize = 128;

/// For each row of `hidden: [rows, hidden]`, with `z = hidden W^T * inv_temperature` and `p = softmax(z)`:
/// column 0 is `log p[target]`, column 1 the entropy `-sum p log p`, in nats. Returns `[rows, 2]`.
///
/// # Errors
/// On a shape or dtype mismatch, or a target outside the vocabulary.
pub(crate) fn token_stats(
    hidden: &Tensor,
    head: &Tensor,
    targets: &Arc<Vec<u32>>,
    inv_temperature: f64,
    exec: Exec,
) -> Result<Tensor> {
    let vocab = head.dim(0)?;
    if targets.len() != hidden.dim(0)? {
        candle_core::bail!("token-stats: {} targets for {:?}", targets.len(), hidden.shape())
    }
    if let Some(target) = targets.iter().find(|&&t| t as usize >= vocab) {
        candle_core::bail!("token-stats: target {target} is outside the vocabulary of {vocab}")
    }
    if hidden.device().is_cpu() {
        hidden.apply_op2(
            head,
            TokenStats {
                targets: Arc::clone(targets),
                inv_temperature,
                exec,
            },
        )
    } else {
        composed(hidden, head, targets, inv_temperature)
    }
}

fn composed(hidden: &Tensor, head: &Tensor, targets: &[u32], inv_temperature: f64) -> Result<Tensor> {
    let z = (hidden.matmul(&head.t()?)? * inv_temperature)?;
    let shifted = z.broadcast_sub(&z.detach().max_keepdim(D::Minus1)?)?;
    let log_p = shifted.broadcast_sub(&shifted.exp()?.sum_keepdim(D::Minus1)?.log()?)?;
    let targets = Tensor::new(targets, hidden.device())?.unsqueeze(1)?;
    let chosen = log_p.gather(&targets, 1)?;
    let entropy = (log_p.exp()? * &log_p)?.sum_keepdim(D::Minus1)?.neg()?;
    Tensor::cat(&[chosen, entropy], 1)
}

struct TokenStats {
    targets: Arc<Vec<u32>>,
    inv_temperature: f64,
    exec: Exec,
}

impl TokenStats {
    fn logits<T: Real>(&self, hidden: &[T], head: &[T], first: usize, width: usize, logits: &mut [T]) {
        let vocab = head.len() / width;
        let count = logits.len() / vocab;
        matmul(
            MatMut::new(logits, count, vocab, vocab),
            Mat::new(&hidden[first * width..], count, width, width),
            Mat::new(head, vocab, width, width).t(),
            T::ONE,
            false,
            self.exec.is_parallel(),
        );
    }

    /// Calls `f(row, logits_of_row)` for every row of a chunk, in parallel when allowed; returns the results in order.
    fn for_rows<T: Real, R: Send>(
        &self,
        logits: &mut [T],
        vocab: usize,
        f: impl Fn(usize, &mut [T]) -> R + Sync,
    ) -> Vec<R> {
        use rayon::prelude::*;
        if self.exec.is_parallel() {
            logits
                .par_chunks_mut(vocab)
                .enumerate()
                .map(|(i, row)| f(i, row))
                .collect()
        } else {
            logits
                .chunks_mut(vocab)
                .enumerate()
                .map(|(i, row)| f(i, row))
                .collect()
        }
    }

    fn forward<T: Real>(&self, hidden: &[T], head: &[T], width: usize) -> CpuStorage {
        let vocab = head.len() / width;
        let inv_temperature = T::of(self.inv_temperature);
        let mut out = Vec::with_capacity(2 * self.targets.len());
        let mut logits = vec![T::ZERO; CHUNK.min(self.targets.len()) * vocab];
        for (chunk, targets) in self.targets.chunks(CHUNK).enumerate() {
            let logits = &mut logits[..targets.len() * vocab];
            self.logits(hidden, head, chunk * CHUNK, width, logits);
            let stats = self.for_rows(logits, vocab, |i, row| {
                rows::token_stats(row, targets[i] as usize, inv_temperature)
            });
            out.extend(
                stats
                    .into_iter()
                    .flat_map(|(logprob, entropy)| [logprob, entropy]),
            );
        }
        T::to_cpu_storage_owned(out)
    }

    fn backward<T: Real>(&self, hidden: &[T], head: &[T], g: &[T], width: usize) -> (Vec<T>, Vec<T>) {
        let vocab = head.len() / width;
        let inv_temperature = T::of(self.inv_temperature);
        let parallel = self.exec.is_parallel();
        let (mut dx, mut dw) = (vec![T::ZERO; hidden.len()], vec![T::ZERO; head.len()]);
        let mut logits = vec![T::ZERO; CHUNK.min(self.targets.len()) * vocab];
        for (chunk, targets) in self.targets.chunks(CHUNK).enumerate() {
            let (first, count) = (chunk * CHUNK, targets.len());
            let logits = &mut logits[..count * vocab];
            self.logits(hidden, head, first, width, logits);
            self.for_rows(logits, vocab, |i, row| {
                let g = (g[2 * (first + i)], g[2 * (first + i) + 1]);
                rows::token_stats_backward(row, targets[i] as usize, inv_temperature, g);
            });
            let dlogits = Mat::new(logits, count, vocab, vocab);
            let dx = &mut dx[first * width..][..count * width];
            let head = Mat::new(head, vocab, width, width);
            matmul(
                MatMut::new(dx, count, width, width),
                dlogits,
                head,
                T::ONE,
                false,
                parallel,
            );
            let hidden = Mat::new(&hidden[first * width..], count, width, width);
            matmul(
                MatMut::new(&mut dw, vocab, width, width),
                dlogits.t(),
                hidden,
                T::ONE,
                true,
                parallel,
            );
        }
        (dx, dw)
    }
}

impl CustomOp2 for TokenStats {
    fn name(&self) -> &'static str {
        "token-stats"
    }

    fn cpu_fwd(
        &self,
        h: &CpuStorage,
        hl: &Layout,
        w: &CpuStorage,
        wl: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (rows, width) = hl.shape().dims2()?;
        let (vocab, w_width) = wl.shape().dims2()?;
        if width != w_width {
            candle_core::bail!("token-stats: rows of {width} values for a head of [{vocab}, {w_width}]")
        }
        let out = for_float!(h.dtype(), T => {
            self.forward::<T>(operand("token-stats", h, hl)?, operand("token-stats", w, wl)?, width)
        });
        Ok((out, (rows, 2).into()))
    }

    fn bwd(
        &self,
        h: &Tensor,
        w: &Tensor,
        _y: &Tensor,
        g: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let g = g.contiguous()?;
        let width = h.dim(1)?;
        let (dh, dw) = for_float!(h.dtype(), T => {
            let (dh, dw) = with_values::<T, _>(h, |h| {
                with_values::<T, _>(w, |w| with_values::<T, _>(&g, |g| Ok(self.backward(h, w, g, width))))
            })?;
            (Tensor::from_vec(dh, h.shape(), h.device())?, Tensor::from_vec(dw, w.shape(), w.device())?)
        });
        Ok((Some(dh), Some(dw)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::ops::testing::{check_gradients, wave};

    #[test]
    fn equals_the_composed_form_and_has_its_gradient() {
        let targets: Arc<Vec<u32>> = Arc::new((0..CHUNK as u32 + 5).map(|i| i % 19).collect());
        check_gradients(
            &[wave((targets.len(), 7), 0.3), wave((19, 7), 0.7)],
            |v| token_stats(&v[0], &v[1], &targets, 1.0 / 0.7, Exec::Parallel),
            |v| composed(&v[0], &v[1], &targets, 1.0 / 0.7),
        );
    }

    #[test]
    fn a_target_outside_the_vocabulary_is_refused() {
        let error = token_stats(
            &wave((1, 3), 0.1),
            &wave((4, 3), 0.1),
            &Arc::new(vec![4]),
            1.0,
            Exec::Serial,
        )
        .unwrap_err();
        assert!(error.to_string().contains("target 4"), "{error}");
    }
}
