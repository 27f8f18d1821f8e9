//! Elementwise arithmetic in f32 with one fixed order of operations, free of the platform's libm.

use crate::simd::wide;

/// `e^x`, within 2 ulp; 0 below -86, NaN for NaN.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23: adding it rounds to an integer
    let clamped = x.clamp(-86.0, 88.0);
    let shifted = clamped * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = clamped - n * 0.693_359_4 - n * -2.121_944_4e-4;
    let p = 1.987_569_1e-4;
    let p = p * r + 1.398_199_9e-3;
    let p = p * r + 8.333_452e-3;
    let p = p * r + 4.166_579_6e-2;
    let p = p * r + 1.666_666_5e-1;
    let p = p * r + 0.5;
    let y = p * (r * r) + r + 1.0;
    let scaled = f32::from_bits(y.to_bits().wrapping_add(shifted.to_bits() << 23));
    if x < -86.0 { 0.0 } else { scaled }
}

/// Sum of `of(x)` in a fixed order: eight interleaved partial sums, then a tree.
#[inline(always)]
pub(crate) fn sum(x: &[f32], of: impl Fn(f32) -> f32) -> f32 {
    let mut l = [0f32; 8];
    let (chunks, rest) = x.as_chunks::<8>();
    for chunk in chunks {
        for i in 0..8 {
            l[i] += of(chunk[i]);
        }
    }
    for i in 0..rest.len() {
        l[i] += of(rest[i]);
    }
    ((l[0] + l[4]) + (l[2] + l[6])) + ((l[1] + l[5]) + (l[3] + l[7]))
}

#[inline(always)]
fn inverse_rms(x: &[f32], eps: f32) -> f32 {
    1.0 / (sum(x, |v| v * v) / x.len() as f32 + eps).sqrt()
}

/// Largest value (order does not matter: a maximum is exact). NaN is passed over.
#[inline(always)]
pub(crate) fn max(x: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; 8];
    let (chunks, rest) = x.as_chunks::<8>();
    for chunk in chunks {
        for i in 0..8 {
            lanes[i] = if chunk[i] > lanes[i] { chunk[i] } else { lanes[i] };
        }
    }
    let mut max = f32::NEG_INFINITY;
    for v in lanes.iter().chain(rest) {
        max = if *v > max { *v } else { max };
    }
    max
}

wide! {
    /// `x / sqrt(mean(x^2) + eps) * weight`.
    pub(crate) fn rms_norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
        let scale = inverse_rms(x, eps);
        let n = out.len();
        let (x, weight) = (&x[..n], &weight[..n]);
        for i in 0..n {
            out[i] = x[i] * scale * weight[i];
        }
    }

    /// [`rms_norm`] in place.
    pub(crate) fn rms_norm_mut(x: &mut [f32], weight: &[f32], eps: f32) {
        let scale = inverse_rms(x, eps);
        let n = x.len();
        let weight = &weight[..n];
        for i in 0..n {
            x[i] = x[i] * scale * weight[i];
        }
    }

    /// Rotates the pairs `(x[i], x[i + half])` by the angles of one position.
    pub(crate) fn rotate(x: &mut [f32], cos: &[f32], sin: &[f32]) {
        let n = cos.len();
        let (a, b) = x.split_at_mut(n);
        let (b, sin) = (&mut b[..n], &sin[..n]);
        for i in 0..n {
            (a[i], b[i]) = (a[i] * cos[i] - b[i] * sin[i], b[i] * cos[i] + a[i] * sin[i]);
        }
    }

    /// SwiGLU: `silu(gate) * up`, from `[gate | up]`.
    pub(crate) fn swiglu(gate_up: &[f32], out: &mut [f32]) {
        let n = out.len();
        let (gate, up) = gate_up.split_at(n);
        let up = &up[..n];
        for i in 0..n {
            out[i] = gate[i] / (1.0 + exp(-gate[i])) * up[i];
        }
    }

    /// Replaces `x` by `e^(x - max)` and returns the sum.
    pub(crate) fn softmax_unscaled(x: &mut [f32]) -> f32 {
        let max = max(x);
        for v in x.iter_mut() {
            *v = exp(*v - max);
        }
        sum(x, |v| v)
    }

    /// `x += y`.
    pub(crate) fn add(x: &mut [f32], y: &[f32]) {
        let n = x.len();
        let y = &y[..n];
        for i in 0..n {
            x[i] += y[i];
        }
    }

    /// `out = x * factors * factor`.
    pub(crate) fn scale(x: &[f32], factors: &[f32], factor: f32, out: &mut [f32]) {
        let n = out.len();
        let (x, factors) = (&x[..n], &factors[..n]);
        for i in 0..n {
            out[i] = x[i] * factors[i] * factor;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_within_two_ulp() {
        let mut worst = 0.0f64;
        for i in -860_000..880_000 {
            let x = i as f32 / 10_000.0;
            let exact = f64::from(x).exp();
            let ulp = f64::from((exact as f32).next_up() - exact as f32);
            worst = worst.max((f64::from(exp(x)) - exact).abs() / ulp);
        }
        assert!(worst <= 2.0, "{worst} ulp");
        assert_eq!(exp(-90.0).to_bits(), 0);
        assert!(exp(f32::NAN).is_nan());
        assert_eq!(exp(0.0).to_bits(), 1f32.to_bits());
    }

    #[test]
    fn rotation_keeps_length() {
        let mut x = [3.0, 1.0, 4.0, 2.0];
        rotate(&mut x, &[0.6, 1.0], &[0.8, 0.0]);
        for (got, expected) in x
            .iter()
            .zip([3.0 * 0.6 - 4.0 * 0.8, 1.0, 4.0 * 0.6 + 3.0 * 0.8, 2.0])
        {
            assert!((got - expected).abs() < 1e-6);
        }
    }

    #[test]
    fn norms_and_sums_agree_with_f64() {
        let x: Vec<f32> = (0..27).map(|i| (i as f32 * 0.7).sin()).collect();
        let weight: Vec<f32> = (0..27).map(|i| 1.0 + i as f32 / 30.0).collect();
        let mut out = x.clone();
        rms_norm(&x, &weight, 1e-6, &mut out);
        let mean = x.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>() / 27.0;
        for ((o, v), w) in out.iter().zip(&x).zip(&weight) {
            let exact = f64::from(*v) / (mean + 1e-6).sqrt() * f64::from(*w);
            assert!((f64::from(*o) - exact).abs() < 1e-6);
        }
        let mut e = x.clone();
        let total = softmax_unscaled(&mut e);
        assert!((e.iter().sum::<f32>() - total).abs() < 1e-4 && e.iter().all(|v| *v <= 1.0));
    }
}
