//! Drawing from `softmax(logits / T)` and the log-probs of that very distribution.

use rand::Rng;
use rand_chacha::ChaCha8Rng;

use super::math;
use crate::policy::Sampling;
use crate::simd::wide;

/// Terms summed in f32 before they go into the f64 total.
const BLOCK: usize = 64;

/// `softmax(logits / T)`, unnormalised, with its normaliser, and what filters leave of it. Temperature 0 means greedy, with
/// log-probs of temperature 1.
pub(crate) struct Distribution {
    /// `logit / T - max`.
    scaled: Vec<f32>,
    /// `e^scaled`, 0 for what was filtered out.
    weights: Vec<f32>,
    /// Sums of 64 weights.
    blocks: Vec<f32>,
    total: f64,
    /// Of every weight, before filters.
    unfiltered: f64,
    /// Scratch.
    order: Vec<u32>,
}

impl Distribution {
    pub(crate) fn new() -> Self {
        Self {
            scaled: Vec::new(),
            weights: Vec::new(),
            blocks: Vec::new(),
            total: 0.0,
            unfiltered: 0.0,
            order: Vec::new(),
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
        self.unfiltered = self.total;
        self.total.is_finite()
    }

    /// Takes the ids out of the support that `top_k`, then `top_p`, then `min_p` cut off. At least the most likely id stays.
    pub(crate) fn filter(&mut self, sampling: &Sampling) {
        if sampling.full_support() || sampling.temperature <= 0.0 {
            return;
        }
        let n = self.weights.len();
        let weights = &self.weights;
        let weight = |id: u32| weights[id as usize];
        // The most likely first, of equals the smaller id.
        let before = |a: &u32, b: &u32| weight(*b).total_cmp(&weight(*a)).then(a.cmp(b));
        self.order.clear();
        self.order.extend(0..n as u32);
        if sampling.top_k > 0 && sampling.top_k < n {
            self.order.select_nth_unstable_by(sampling.top_k - 1, before);
            self.order.truncate(sampling.top_k);
        }
        self.order.sort_unstable_by(before);
        if sampling.top_p < 1.0 {
            let total: f64 = self.order.iter().map(|id| f64::from(weight(*id))).sum();
            let goal = f64::from(sampling.top_p) * total;
            let mut mass = 0.0;
            let reached = self.order.iter().position(|id| {
                mass += f64::from(weight(*id));
                mass >= goal
            });
            self.order.truncate(reached.map_or(n, |at| at + 1));
        }
        if sampling.min_p > 0.0 {
            let least = sampling.min_p * self.order.first().map_or(0.0, |id| weight(*id));
            let count = self.order.iter().take_while(|id| weight(**id) >= least).count();
            self.order.truncate(count.max(1));
        }
        self.order.sort_unstable();
        let mut kept = self.order.iter().peekable();
        for (id, weight) in self.weights.iter_mut().enumerate() {
            if kept.next_if(|next| **next as usize == id).is_none() {
                *weight = 0.0;
            }
        }
        for (block, weights) in self.blocks.iter_mut().zip(self.weights.chunks(BLOCK)) {
            *block = math::sum(weights, |w| w);
        }
        self.total = self.blocks.iter().map(|b| f64::from(*b)).sum();
    }

    /// Natural log-probability of `id` before filters.
    pub(crate) fn unfiltered_logprob(&self, id: u32) -> f32 {
        (f64::from(self.scaled[id as usize]) - self.unfiltered.ln()) as f32
    }

    /// Natural log-probability of `id`, which the filters left.
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

    /// Which ids stay, and both log-probs of each, against transformers (`golden/make_sampling.py`).
    #[test]
    fn filters_are_those_of_transformers() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/sampling.json");
        let cases: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        let cases = cases.as_array().unwrap();
        assert!(cases.len() >= 27);
        for case in cases {
            let numbers = |key: &str| case[key].as_array().unwrap().iter();
            let logits: Vec<f32> = numbers("logits")
                .map(|bits| f32::from_bits(bits.as_u64().unwrap() as u32))
                .collect();
            let number = |key: &str| case[key].as_f64().unwrap() as f32;
            let sampling = Sampling {
                temperature: number("temperature"),
                top_k: case["top_k"].as_u64().unwrap() as usize,
                top_p: number("top_p"),
                min_p: number("min_p"),
            };
            let mut d = Distribution::new();
            assert!(d.set(&logits, sampling.temperature));
            d.filter(&sampling);
            let kept: Vec<u64> = (0..logits.len())
                .filter(|i| d.weights[*i] > 0.0)
                .map(|i| i as u64)
                .collect();
            let want: Vec<u64> = numbers("kept").map(|id| id.as_u64().unwrap()).collect();
            assert_eq!(kept, want, "{sampling:?}");
            let mut rng = ChaCha8Rng::seed_from_u64(9);
            assert!((0..200).all(|_| kept.contains(&u64::from(d.draw(&mut rng)))));
            let logprobs = numbers("logprobs").zip(numbers("unfiltered"));
            for (id, (filtered, unfiltered)) in kept.iter().zip(logprobs) {
                let close = |got: f32, want: &serde_json::Value| {
                    (f64::from(got) - want.as_f64().unwrap()).abs() < 1e-5
                };
                assert!(close(d.logprob(*id as u32), filtered), "{sampling:?} {id}");
                assert!(
                    close(d.unfiltered_logprob(*id as u32), unfiltered),
                    "{sampling:?} {id}"
                );
            }
        }
    }
}
