//! Row-wise functions and their derivatives on slices; every one reads like its equation.

use rayon::prelude::*;

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

/// Values of AdamW's update run in pieces of this many on the pool.
const ADAM_PIECE: usize = 1 << 16;

/// One AdamW step: moments first, then `p = keep p - step_size m / (sqrt(v) / denominator_scale + eps)`.
pub(crate) fn adamw(
    rule: &AdamRule,
    gradient: &[f32],
    values: &mut [f32],
    first: &mut [f32],
    second: &mut [f32],
) {
    let moments = first
        .par_chunks_mut(ADAM_PIECE)
        .zip(second.par_chunks_mut(ADAM_PIECE));
    let pieces = values
        .par_chunks_mut(ADAM_PIECE)
        .zip(gradient.par_chunks(ADAM_PIECE))
        .zip(moments);
    pieces
        .for_each(|((values, gradient), (first, second))| adamw_piece(rule, gradient, values, first, second));
}

/// Whether [`adamw`] would leave only finite values and moments.
pub(crate) fn adamw_stays_finite(
    rule: &AdamRule,
    gradient: &[f32],
    values: &[f32],
    first: &[f32],
    second: &[f32],
) -> bool {
    let moments = first.par_chunks(ADAM_PIECE).zip(second.par_chunks(ADAM_PIECE));
    let pieces = values
        .par_chunks(ADAM_PIECE)
        .zip(gradient.par_chunks(ADAM_PIECE))
        .zip(moments);
    pieces.all(|((values, gradient), (first, second))| {
        adamw_piece_stays_finite(rule, gradient, values, first, second)
    })
}

/// New value and moments of one parameter.
#[inline(always)]
fn adamw_one<T: Real>(rule: &AdamRule<T>, gradient: T, value: T, first: T, second: T) -> (T, T, T) {
    let g = gradient * rule.clip_factor;
    let first = first * rule.beta1 + g * rule.one_minus_beta1;
    let second = second * rule.beta2 + g * g * rule.one_minus_beta2;
    let denominator = second.sqrt() / rule.denominator_scale + rule.eps;
    (
        value * rule.keep - rule.step_size * first / denominator,
        first,
        second,
    )
}

vectorized! {
    fn adamw_piece<T: Real>(rule: &AdamRule<T>, gradient: &[T], values: &mut [T], first: &mut [T], second: &mut [T]) {
        let n = values.len();
        let (gradient, first, second) = (&gradient[..n], &mut first[..n], &mut second[..n]);
        for i in 0..n {
            (values[i], first[i], second[i]) = adamw_one(rule, gradient[i], values[i], first[i], second[i]);
        }
    }

    fn adamw_piece_stays_finite<T: Real>(rule: &AdamRule<T>, gradient: &[T], values: &[T], first: &[T], second: &[T]) -> bool {
        let n = values.len();
        let (gradient, first, second) = (&gradient[..n], &first[..n], &second[..n]);
        // 0 x is 0 when x is finite and NaN otherwise; NaN survives the sum.
        let mut sums = [T::ZERO; 8];
        let mut i = 0;
        while i < n {
            let end = if i + 8 < n { i + 8 } else { n };
            for j in i..end {
                let (value, first, second) = adamw_one(rule, gradient[j], values[j], first[j], second[j]);
                sums[j - i] += value * T::ZERO + first * T::ZERO + second * T::ZERO;
            }
            i = end;
        }
        let sum = sums.iter().fold(T::ZERO, |sum, &x| sum + x);
        sum == T::ZERO
    }

    /// `out = w * x / sqrt(mean(x^2) + eps)` for each row of `w.len()` values.
    pub(crate) fn rms_norm<T: Real>(x: &[T], w: &[T], eps: T, out: &mut [T]) {
        let width = w.len();
        for row in 0..out.len() / width {
            let (x, out) = (&x[row * width..][..width], &mut out[row * width..][..width]);
            let inv = inverse_rms(x, eps);
            for j in 0..width {
                out[j] = x[j] * inv * w[j];
            }
        }
    }

    /// Derivative of [`rms_norm`] for the gradient `g` of its output: adds to `dx` and to `dw`.
    pub(crate) fn rms_norm_backward<T: Real>(x: &[T], w: &[T], eps: T, g: &[T], dx: &mut [T], dw: &mut [T]) {
        let width = w.len();
        let dw = &mut dw[..width];
        let inv_width = T::of(1.0 / width as f64);
        for row in 0..dx.len() / width {
            let (x, g) = (&x[row * width..][..width], &g[row * width..][..width]);
            let dx = &mut dx[row * width..][..width];
            let inv = inverse_rms(x, eps);
            let mut dot = T::ZERO;
            let mut i = 0;
            while i < width {
                let end = if i + 8 < width { i + 8 } else { width };
                let mut lanes = [T::ZERO; 8];
                for j in i..end {
                    lanes[j - i] = g[j] * w[j] * x[j];
                }
                dot += ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) + ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
                i = end;
            }
            let k = dot * inv * inv * inv * inv_width;
            for j in 0..width {
                dw[j] += g[j] * x[j] * inv;
                dx[j] += g[j] * w[j] * inv - x[j] * k;
            }
        }
    }

    /// `out = silu(gate) * up`, element-wise.
    pub(crate) fn swiglu<T: Real>(gate: &[T], up: &[T], out: &mut [T]) {
        let n = out.len();
        let (gate, up) = (&gate[..n], &up[..n]);
        for i in 0..n {
            out[i] = gate[i] / (T::ONE + (-gate[i]).exp()) * up[i];
        }
    }

    /// Derivative of [`swiglu`] for the gradient `g` of its output, written over `gate` and `up`.
    pub(crate) fn swiglu_backward<T: Real>(gate: &mut [T], up: &mut [T], g: &[T]) {
        let n = g.len();
        let (gate, up) = (&mut gate[..n], &mut up[..n]);
        for i in 0..n {
            let (a, b) = (gate[i], up[i]);
            let s = T::ONE / (T::ONE + (-a).exp());
            up[i] = g[i] * a * s;
            gate[i] = g[i] * b * s * (T::ONE + a * (T::ONE - s));
        }
    }

    /// Rotates each head of one token in place by half-rotation: `(a, b) -> (a cos - b sin, b cos + a sin)`, `b` half a head after `a`.
    pub(crate) fn rope<T: Real>(x: &mut [T], cos: &[T], sin: &[T], sign: T) {
        let half = cos.len();
        let sin = &sin[..half];
        for head in 0..x.len() / (2 * half) {
            let (a, b) = x[2 * half * head..][..2 * half].split_at_mut(half);
            for j in 0..half {
                let s = sign * sin[j];
                let (p, q) = (a[j], b[j]);
                a[j] = p * cos[j] - q * s;
                b[j] = q * cos[j] + p * s;
            }
        }
    }

    /// Softmax of each row of a tile of `keys` columns over its first `first + row + 1` columns; 0 after them.
    pub(crate) fn causal_softmax<T: Real>(tile: &mut [T], keys: usize, first: usize) {
        for row in 0..tile.len() / keys {
            let (seen, unseen) = tile[row * keys..][..keys].split_at_mut(first + row + 1);
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
        for row in 0..dp.len() / keys {
            let (p, dp) = (&p[row * keys..][..keys], &mut dp[row * keys..][..keys]);
            let dot = T::sum2(p, dp, |a, b| a * b);
            for j in 0..keys {
                dp[j] = scale * p[j] * (dp[j] - dot);
            }
        }
    }

    /// `sum += x`, element-wise.
    pub(crate) fn add<T: Real>(sum: &mut [T], x: &[T]) {
        let n = x.len();
        let sum = &mut sum[..n];
        for i in 0..n {
            sum[i] += x[i];
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
    let (mut sums, mut products) = ([T::ZERO; 8], [T::ZERO; 8]);
    let n = logits.len();
    let mut i = 0;
    while i < n {
        let end = if i + 8 < n { i + 8 } else { n };
        for j in i..end {
            let shifted = logits[j] * inv_temperature - max;
            let e = shifted.exp();
            sums[j - i] += e;
            products[j - i] += e * shifted;
            logits[j] = e;
        }
        i = end;
    }
    let fold = |x: &[T; 8]| ((x[0] + x[4]) + (x[2] + x[6])) + ((x[1] + x[5]) + (x[3] + x[7]));
    let (sum, weighted) = (fold(&sums), fold(&products));
    (sum.ln(), chosen, sum, weighted)
}
