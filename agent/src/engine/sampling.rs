//! Drawing from `softmax(logits / T)` and the log-probs of that very distribution.

use rand::Rng;
use rand_chacha::ChaCha8Rng;

use super::math;
use crate::simd::wide;

/// Terms summed in f32 before they go into the f64 total.
const BLOCK: usize = 64;

/// `softmax(logits / T)`, unnormalised, with its normaliser. Temperature 0 means greedy, with log-probs of temperature 1.
pub(crate) struct Distribution {
    /// `logit / T - max`.
    scaled: Vec<f32>,
    /// `e^scaled`.
    weights: Vec<f32>,
    /// Sums of 64 weights.
    blocks: Vec<f32>,
    total: f64,
}

impl Distribution {
    pub(crate) fn new() -> Self {
        Self {
            scaled: Vec::new(),
            weights: Vec::new(),
            blocks: Vec::new(),
            total: 0.0,
        }
    }

    /// Takes the logits of one position; false when one is not finite.
    pub(crate) fn set(&mut self, logits: &[f32], temperature: f32) -> bool {
        let divisor = if temperature > 0.0 { temperature } else { 1.0 };
        self.scaled.resize(logits.len(), 0.0);
        self.weights.resize(logits.len(), 0.0);
        self.blocks.resize(logits.len().div_ceil(BLOCK), 0.0);
        normalise(
            logits,
            divisor,
            &mut self.scaled,
            &mut self.weights,
            &mut self.blocks,
        );
        self.total = self.blocks.iter().map(|b| f64::from(*b)).sum();
        self.total.is_finite()
    }

    /// Natural log-probability of `id`.
    pub(crate) fn logprob(&self, id: u32) -> f32 {
        (f64::from(self.scaled[id as usize]) - self.total.ln()) as f32
    }

    /// Inverse-transform draw from one uniform.
    pub(crate) fn draw(&self, rng: &mut ChaCha8Rng) -> u32 {
        let uniform = (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
        let mut left = uniform * self.total;
        let mut last = 0;
        for (block, (sum, weights)) in self.blocks.iter().zip(self.weights.chunks(BLOCK)).enumerate() {
            let sum = f64::from(*sum);
            if left >= sum {
                left -= sum;
                if sum > 0.0 {
                    last = block;
                }
                continue;
            }
            let mut within = left;
            for (i, weight) in weights.iter().enumerate() {
                let weight = f64::from(*weight);
                if within < weight {
                    return (block * BLOCK + i) as u32;
                }
                within -= weight;
            }
            // The block's f32 sum was a rounding above its terms.
            last = block;
            break;
        }
        let weights = &self.weights[last * BLOCK..];
        let end = weights.iter().take(BLOCK).rposition(|w| *w > 0.0);
        (last * BLOCK + end.unwrap_or(0)) as u32
    }

    /// The most likely id (the first of equals).
    pub(crate) fn argmax(&self) -> u32 {
        self.scaled.iter().position(|z| *z >= 0.0).unwrap_or(0) as u32
    }
}

wide! {
    /// `scaled = logits / divisor - max`, `weights = e^scaled`, and the sums of blocks of weights.
    fn normalise(logits: &[f32], divisor: f32, scaled: &mut [f32], weights: &mut [f32], blocks: &mut [f32]) {
        let n = logits.len();
        let (scaled, weights) = (&mut scaled[..n], &mut weights[..n]);
        for i in 0..n {
            scaled[i] = logits[i] / divisor;
        }
        let max = math::max(scaled);
        for i in 0..n {
            scaled[i] -= max;
            weights[i] = math::exp(scaled[i]);
        }
        for (block, weights) in blocks.iter_mut().zip(weights.chunks(BLOCK)) {
            *block = math::sum(weights, |w| w);
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    #[test]
    fn logprobs_divided_by_temperature_afterwards_are_not_those_of_the_draw() {
        let logits: Vec<f32> = (0..300).map(|i| ((i * 37) % 101) as f32 / 20.0).collect();
        let mut d = Distribution::new();
        for temperature in [0.5f32, 0.7, 1.0, 2.0] {
            assert!(d.set(&logits, temperature));
            let z: Vec<f64> = logits
                .iter()
                .map(|&l| f64::from(l) / f64::from(temperature))
                .collect();
            let log_sum = z.iter().map(|z| z.exp()).sum::<f64>().ln();
            let mut mass = 0.0;
            for id in 0..300 {
                let exact = z[id as usize] - log_sum;
                assert!((f64::from(d.logprob(id)) - exact).abs() < 1e-5);
                mass += f64::from(d.logprob(id)).exp();
            }
            assert!((mass - 1.0).abs() < 1e-5, "full support: {mass}");
        }
    }

    #[test]
    fn draws_follow_the_distribution() {
        let logits: Vec<f32> = (0..200)
            .map(|i| if i % 40 == 7 { 3.0 + i as f32 / 100.0 } else { -3.0 })
            .collect();
        let mut d = Distribution::new();
        assert!(d.set(&logits, 1.3));
        let mut rng = ChaCha8Rng::seed_from_u64(5);
        let n = 40_000;
        let mut counts = vec![0u32; 200];
        for _ in 0..n {
            counts[d.draw(&mut rng) as usize] += 1;
        }
        // Pearson's statistic over the likely ids and the rest: 5 degrees of freedom, 0.999 quantile 20.5.
        let likely: Vec<usize> = (0..200).filter(|i| i % 40 == 7).collect();
        let expected = |i: usize| f64::from(d.logprob(i as u32)).exp() * f64::from(n);
        let mut chi2 = 0.0;
        let (mut rest_seen, mut rest_expected) = (f64::from(n), f64::from(n));
        for i in likely {
            let (seen, want) = (f64::from(counts[i]), expected(i));
            chi2 += (seen - want).powi(2) / want;
            rest_seen -= seen;
            rest_expected -= want;
        }
        chi2 += (rest_seen - rest_expected).powi(2) / rest_expected;
        assert!(chi2 < 20.5, "{chi2}");
    }

    #[test]
    fn impossible_ids_are_never_drawn_and_bad_logits_are_told() {
        let mut logits = vec![f32::MIN; 130];
        logits[64] = 1.0;
        let mut d = Distribution::new();
        assert!(d.set(&logits, 1.0));
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        assert!((0..100).all(|_| d.draw(&mut rng) == 64));
        assert_eq!((d.argmax(), d.logprob(64).to_bits()), (64, 0f32.to_bits()));
        logits[3] = f32::NAN;
        assert!(!d.set(&logits, 1.0));
        logits[3] = f32::INFINITY;
        assert!(!d.set(&logits, 1.0));
    }
}
