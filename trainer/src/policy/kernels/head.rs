//! Head, log-prob of the target and entropy together, so that `[tokens, vocab]` logits never exist as a whole.

use rayon::prelude::*;

use super::{Exec, Real, linear, linear_input, linear_weight, rows};

/// Rows of logits alive at a time.
const CHUNK: usize = 128;

/// For each row of `hidden: [rows, width]`, with `z = hidden W^T * inv_temperature` and `p = softmax(z)`: the log-prob `log p[target]` and
/// the entropy `-sum p log p`, in nats.
pub(crate) struct Head<'a, T> {
    /// `[vocab, width]`.
    pub(crate) weight: &'a [T],
    pub(crate) width: usize,
    pub(crate) targets: &'a [u32],
    pub(crate) inv_temperature: f64,
    pub(crate) exec: Exec,
}

impl<T: Real> Head<'_, T> {
    /// Calls `f(first_row, targets, logits)` for every chunk of rows.
    fn for_chunks(&self, hidden: &[T], mut f: impl FnMut(usize, &[u32], &mut [T])) {
        let vocab = self.weight.len() / self.width;
        let mut logits = vec![T::ZERO; CHUNK.min(self.targets.len()) * vocab];
        for (chunk, targets) in self.targets.chunks(CHUNK).enumerate() {
            let (first, count) = (chunk * CHUNK, targets.len());
            let logits = &mut logits[..count * vocab];
            let hidden = &hidden[first * self.width..][..count * self.width];
            linear(hidden, self.weight, count, logits, false, self.exec);
            f(first, targets, logits);
        }
    }

    /// Calls `f(row, logits_of_row)` for every row, in parallel when allowed; returns the results in order.
    fn for_rows<R: Send>(&self, logits: &mut [T], f: impl Fn(usize, &mut [T]) -> R + Sync) -> Vec<R> {
        let vocab = self.weight.len() / self.width;
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

    /// `(log-prob, entropy)` of each row.
    pub(crate) fn forward(&self, hidden: &[T]) -> Vec<(T, T)> {
        let inv_temperature = T::of(self.inv_temperature);
        let mut out = Vec::with_capacity(self.targets.len());
        self.for_chunks(hidden, |_, targets, logits| {
            out.extend(self.for_rows(logits, |i, row| {
                rows::token_stats(row, targets[i] as usize, inv_temperature)
            }));
        });
        out
    }

    /// For the gradients `g` of log-prob and entropy of each row, writes that of `hidden` and adds that of the weight. Logits are computed
    /// again, not kept.
    pub(crate) fn backward(&self, hidden: &[T], g: &[(T, T)], dhidden: &mut [T], dweight: &mut [T]) {
        let inv_temperature = T::of(self.inv_temperature);
        let width = self.width;
        self.for_chunks(hidden, |first, targets, logits| {
            let count = targets.len();
            self.for_rows(logits, |i, row| {
                rows::token_stats_backward(row, targets[i] as usize, inv_temperature, g[first + i]);
            });
            let rows = first * width..(first + count) * width;
            linear_input(
                logits,
                self.weight,
                count,
                &mut dhidden[rows.clone()],
                false,
                self.exec,
            );
            linear_weight(logits, &hidden[rows], count, dweight, self.exec);
        });
    }
}
