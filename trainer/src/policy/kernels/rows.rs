//! Row-wise functions and their derivatives on slices; every one reads like its equation.

use super::Real;
use super::simd::vectorized;

/// Constants of one AdamW step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AdamRule<T = f32> {
    pub(crate) clip_factor: T,
    pub(crate) beta1: T,
    pub(crate) one_minus_beta1: T,
    pub(crate) beta2: T,
    pub(crate) one_minus_beta2: T,
    /// `lr / (1 - beta1^t)`.
    pub(crate) step_size: T,
    /// `sqrt(1 - beta2^t)`.
    pub(crate) denominator_scale: T,
    pub(crate) eps: T,
    /// `1 - lr * weight_decay`.
    pub(crate) keep: T,
}

/// One AdamW step: `p = keep p - step_size m / (sqrt(v) / denominator_scale + eps)`, moments first.
pub(crate) fn adamw(
    rule: &AdamRule,
    gradient: &[f32],
    values: &mut [f32],
    first: &mut [f32],
    second: &mut [f32],
) {
    use rayon::prelude::*;
    const PIECE: usize = 1 << 16;
    let moments = first.par_chunks_mut(PIECE).zip(second.par_chunks_mut(PIECE));
    let pieces = values
        .par_chunks_mut(PIECE)
        .zip(gradient.par_chunks(PIECE))
        .zip(moments);
    pieces
        .for_each(|((values, gradient), (first, second))| adamw_piece(rule, gradient, values, first, second));
}

vectorized! {
    fn adamw_piece<T: Real>(rule: &AdamRule<T>, gradient: &[T], values: &mut [T], first: &mut [T], second: &mut [T]) {
        let n = values.len();
        let (gradient, first, second) = (&gradient[..n], &mut first[..n], &mut second[..n]);
        for i in 0..n {
            let g = gradient[i] * rule.clip_factor;
            first[i] = first[i] * rule.beta1 + g * rule.one_minus_beta1;
            second[i] = second[i] * rule.beta2 + g * g * rule.one_minus_beta2;
            let denominator = second[i].sqrt() / rule.denominator_scale + rule.eps;
            values[i] = values[i] * rule.keep - rule.step_size * first[i] / denominator;
        }
    }

    /// `out = w * x / sqrt(mean(x^2) + eps)` for each row of `w.len()` values.
    pub(crate) fn rms_norm<T: Real>(x: &[T], w: &[T], eps: T, out: &mut [T]) {
        let width = w.len();
        for (x, out) in x.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
            let inv = inverse_rms(x, eps);
            for j in 0..width {
                out[j] = x[j] * inv * w[j];
            }
        }
    }

    /// Derivative of [`rms_norm`]: writes `dx`, adds to `dw`.
    pub(crate) fn rms_norm_backward<T: Real>(x: &[T], w: &[T], eps: T, g: &[T], dx: &mut [T], dw: &mut [T]) {
        let width = w.len();
        let mut gw = vec![T::ZERO; width];
        for ((x, g), dx) in x.chunks_exact(width).zip(g.chunks_exact(width)).zip(dx.chunks_exact_mut(width)) {
            let inv = inverse_rms(x, eps);
            for j in 0..width {
                gw[j] = g[j] * w[j];
                dw[j] += g[j] * x[j] * inv;
            }
            let k = T::sum2(&gw, x, |a, b| a * b) * inv * inv * inv / T::of(width as f64);
            for j in 0..width {
                dx[j] = gw[j] * inv - x[j] * k;
            }
        }
    }

    /// `out = silu(gate) * up`, element-wise.
    pub(crate) fn swiglu<T: Real>(gate: &[T], up: &[T], out: &mut [T]) {
        for ((&a, &b), out) in gate.iter().zip(up).zip(out.iter_mut()) {
            *out = a / (T::ONE + (-a).exp()) * b;
        }
    }

    /// Derivative of [`swiglu`].
    pub(crate) fn swiglu_backward<T: Real>(gate: &[T], up: &[T], g: &[T], dgate: &mut [T], dup: &mut [T]) {
        let n = g.len();
        let (gate, up, dgate, dup) = (&gate[..n], &up[..n], &mut dgate[..n], &mut dup[..n]);
        for i in 0..n {
            let s = T::ONE / (T::ONE + (-gate[i]).exp());
            dup[i] = g[i] * gate[i] * s;
            dgate[i] = g[i] * up[i] * s * (T::ONE + gate[i] * (T::ONE - s));
        }
    }

    /// Rotates each head of one token by half-rotation: `(a, b) -> (a cos - b sin, b cos + a sin)` with `b` half a head after `a`.
    pub(crate) fn rope<T: Real>(x: &[T], cos: &[T], sin: &[T], sign: T, out: &mut [T]) {
        let half = cos.len();
        for (x, out) in x.chunks_exact(2 * half).zip(out.chunks_exact_mut(2 * half)) {
            let (a, b) = x.split_at(half);
            let (out_a, out_b) = out.split_at_mut(half);
            for j in 0..half {
                let s = sign * sin[j];
                out_a[j] = a[j] * cos[j] - b[j] * s;
                out_b[j] = b[j] * cos[j] + a[j] * s;
            }
        }
    }

    /// Softmax of each row of a tile of `keys` columns over its first `first + row + 1` columns; 0 after them.
    pub(crate) fn causal_softmax<T: Real>(tile: &mut [T], keys: usize, first: usize) {
        for (row, scores) in tile.chunks_exact_mut(keys).enumerate() {
            let (seen, unseen) = scores.split_at_mut(first + row + 1);
            let max = T::largest(seen);
            for s in seen.iter_mut() {
                *s = (*s - max).exp();
            }
            let inv = T::ONE / T::sum2(seen, seen, |a, _| a);
            for s in seen.iter_mut() {
                *s *= inv;
            }
            unseen.fill(T::ZERO);
        }
    }

    /// Derivative of a softmax times `scale`: `ds = scale * p * (dp - sum(p * dp))` for each row, written over `dp`.
    pub(crate) fn softmax_backward<T: Real>(p: &[T], dp: &mut [T], keys: usize, scale: T) {
        for (p, dp) in p.chunks_exact(keys).zip(dp.chunks_exact_mut(keys)) {
            let dot = T::sum2(p, dp, |a, b| a * b);
            for (d, &p) in dp.iter_mut().zip(p) {
                *d = scale * p * (*d - dot);
            }
        }
    }

    /// Log-prob of `target` and entropy (nats) under `softmax(logits * inv_temperature)`; overwrites `logits`.
    pub(crate) fn token_stats<T: Real>(logits: &mut [T], target: usize, inv_temperature: T) -> (T, T) {
        let (log_sum, chosen, sum, weighted) = exponentials(logits, target, inv_temperature);
        (chosen - log_sum, log_sum - weighted / sum)
    }

    /// Derivative of [`token_stats`] with respect to the logits, written over them.
    pub(crate) fn token_stats_backward<T: Real>(logits: &mut [T], target: usize, inv_temperature: T, g: (T, T)) {
        let shifted: Vec<T> = if g.1 == T::ZERO { Vec::new() } else { logits.to_vec() };
        let max = T::largest(logits) * inv_temperature;
        let (log_sum, _, sum, weighted) = exponentials(logits, target, inv_temperature);
        // d logprob / d z_j = 1[j = target] - p_j;  d entropy / d z_j = -p_j (log p_j + H), z = logits / T.
        let scale = -g.0 * inv_temperature / sum;
        if shifted.is_empty() {
            for e in logits.iter_mut() {
                *e *= scale;
            }
        } else {
            let entropy = log_sum - weighted / sum;
            let k = -g.1 * inv_temperature / sum;
            for (e, &z) in logits.iter_mut().zip(&shifted) {
                let log_p = z * inv_temperature - max - log_sum;
                *e = *e * scale + *e * k * (log_p + entropy);
            }
        }
        logits[target] += g.0 * inv_temperature;
    }
}

#[inline(always)]
fn inverse_rms<T: Real>(x: &[T], eps: T) -> T {
    T::ONE / (T::sum2(x, x, |a, b| a * b) / T::of(x.len() as f64) + eps).sqrt()
}

/// Replaces each logit by `e_j = exp(z_j - max)`; returns `(log sum e, z_target - max, sum e, sum e_j (z_j - max))`.
#[inline(always)]
fn exponentials<T: Real>(logits: &mut [T], target: usize, inv_temperature: T) -> (T, T, T, T) {
    let max = T::largest(logits) * inv_temperature;
    let chosen = logits[target] * inv_temperature - max;
    let mut lanes = [(T::ZERO, T::ZERO); 16];
    let mut chunks = logits.chunks_exact_mut(16);
    for chunk in &mut chunks {
        for (z, lane) in chunk.iter_mut().zip(lanes.iter_mut()) {
            let shifted = *z * inv_temperature - max;
            let e = shifted.exp();
            lane.0 += e;
            lane.1 += e * shifted;
            *z = e;
        }
    }
    for (z, lane) in chunks.into_remainder().iter_mut().zip(lanes.iter_mut()) {
        let shifted = *z * inv_temperature - max;
        let e = shifted.exp();
        lane.0 += e;
        lane.1 += e * shifted;
        *z = e;
    }
    let (sum, weighted) = lanes
        .iter()
        .fold((T::ZERO, T::ZERO), |sum, l| (sum.0 + l.0, sum.1 + l.1));
    (sum.ln(), chosen, sum, weighted)
}
