//! The stochastic knobs: failures, latency, noise and truncation of observations.
//!
//! Order of the draws in a turn: for each call one uniform (does it fail?), two for a latency if there is one, then one for each letter
//! or digit if there is noise. Truncation draws from a stream of its own, and so do worlds, so that no knob moves another.

use std::f64::consts::TAU;

use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use crate::seed::{self, Purpose};
use crate::spec::{Latency, Stochastic, Truncation};

/// The draws of one turn.
pub(crate) struct Knobs<'a> {
    settings: &'a Stochastic,
    rng: ChaCha8Rng,
    cuts: ChaCha8Rng,
}

/// What the knobs say about one call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Luck {
    /// The call is not run.
    pub fails: bool,
    /// Virtual latency.
    pub latency_ms: f64,
}

impl<'a> Knobs<'a> {
    /// The draws of `turn` in the episode of `seed`.
    pub(crate) fn new(settings: &'a Stochastic, seed: u64, turn: usize) -> Self {
        let stream = |indices: &[u64]| seed::stream(seed, Purpose::Environment, indices);
        Self {
            settings,
            rng: stream(&[turn as u64]),
            cuts: stream(&[turn as u64, 2]),
        }
    }

    /// Draws for the next call.
    pub(crate) fn call(&mut self) -> Luck {
        let fails = self.rng.random::<f64>() < self.settings.tool_failure.get();
        let latency_ms = self
            .settings
            .latency_ms
            .map_or(0.0, |latency| normal(latency, &mut self.rng));
        Luck { fails, latency_ms }
    }

    /// An observation as it reaches the agent.
    pub(crate) fn observe(&mut self, text: String) -> String {
        let text = noisy(text, self.settings.observation_noise.get(), &mut self.rng);
        match self.settings.truncation {
            Some(truncation) => truncated(text, truncation, &mut self.cuts),
            None => text,
        }
    }
}

/// A normal draw cut at 0 (Box-Muller; always two uniforms).
fn normal(latency: Latency, rng: &mut ChaCha8Rng) -> f64 {
    let (u, v): (f64, f64) = (rng.random(), rng.random());
    let z = (-2.0 * (1.0 - u).ln()).sqrt() * (TAU * v).cos();
    (latency.mean.get() + latency.sd.get() * z).max(0.0)
}

/// Replaces letters and digits, each with this probability, by another of their kind.
fn noisy(text: String, probability: f64, rng: &mut ChaCha8Rng) -> String {
    if probability <= 0.0 {
        return text;
    }
    text.chars()
        .map(|c| {
            let (first, count) = match c {
                '0'..='9' => (b'0', 10),
                'a'..='z' => (b'a', 26),
                'A'..='Z' => (b'A', 26),
                _ => return c,
            };
            if rng.random::<f64>() >= probability {
                return c;
            }
            let shift = rng.random_range(1..count);
            char::from(first + (c as u8 - first + shift) % count)
        })
        .collect()
}

/// Cuts with its probability what is longer than `keep_bytes`. Always one uniform.
fn truncated(text: String, truncation: Truncation, rng: &mut ChaCha8Rng) -> String {
    if rng.random::<f64>() < truncation.probability.get() {
        crate::tools::cap(text, truncation.keep_bytes.get())
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::{ByteCount, NonNegative, Probability};

    #[test]
    fn noise_changes_each_character_with_its_probability() {
        let rng = || seed::stream(7, Purpose::Environment, &[0]);
        let text = "a0Z -+".repeat(2000);
        assert_eq!(noisy(text.clone(), 0.0, &mut rng()), text);
        let all = noisy(text.clone(), 1.0, &mut rng());
        for (before, after) in text.chars().zip(all.chars()) {
            assert_eq!(
                before != after,
                before.is_ascii_alphanumeric(),
                "{before} {after}"
            );
            assert_eq!(before.is_ascii_digit(), after.is_ascii_digit());
            assert_eq!(before.is_ascii_uppercase(), after.is_ascii_uppercase());
        }
        // 6000 characters may change: 4 standard deviations of a share around 0.3 are 0.024.
        let changed = text
            .chars()
            .zip(noisy(text.clone(), 0.3, &mut rng()).chars())
            .filter(|(a, b)| a != b)
            .count();
        assert!((changed as f64 / 6000.0 - 0.3).abs() < 0.024, "{changed}");
    }

    #[test]
    fn latency_has_the_mean_and_spread_asked() {
        let value = |x| NonNegative::try_from(x).unwrap();
        let latency = Latency {
            mean: value(100.0),
            sd: value(10.0),
        };
        let mut rng = seed::stream(3, Purpose::Environment, &[0]);
        let draws: Vec<f64> = (0..4000).map(|_| normal(latency, &mut rng)).collect();
        let mean = draws.iter().sum::<f64>() / 4000.0;
        let sd = (draws.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 4000.0).sqrt();
        // Standard errors: 10 / sqrt(4000) = 0.16 and 10 / sqrt(8000) = 0.11; four of each.
        assert!(
            (mean - 100.0).abs() < 0.64 && (sd - 10.0).abs() < 0.45,
            "{mean} {sd}"
        );
    }

    fn settings(failure: f64, noise: f64, cut: f64) -> Stochastic {
        let chance = |p| Probability::try_from(p).unwrap();
        Stochastic {
            tool_failure: chance(failure),
            observation_noise: chance(noise),
            truncation: Some(Truncation {
                probability: chance(cut),
                keep_bytes: ByteCount::try_from(8).unwrap(),
            }),
            ..Stochastic::default()
        }
    }

    /// What two calls in each of many turns come to: failed, noisy text, cut.
    fn turns(settings: &Stochastic) -> Vec<(bool, String)> {
        let turn = |turn| {
            let mut knobs = Knobs::new(settings, 9, turn);
            let mut call = || (knobs.call().fails, knobs.observe("abcdefghij".to_owned()));
            [call(), call()]
        };
        (0..2000).flat_map(turn).collect()
    }

    #[test]
    fn truncation_comes_at_its_rate_and_cuts_to_its_length() {
        let seen = turns(&settings(0.0, 0.0, 0.25));
        let cut = seen.iter().filter(|(_, text)| text == "abcde...").count();
        assert!(
            seen.iter()
                .all(|(_, text)| ["abcdefghij", "abcde..."].contains(&text.as_str()))
        );
        // 4 standard deviations of a share of 0.25 over 4000 draws are 0.027.
        assert!((cut as f64 / 4000.0 - 0.25).abs() < 0.027, "{cut}");
    }

    #[test]
    fn truncation_moves_no_other_knob_and_is_moved_by_none() {
        let base = turns(&settings(0.3, 0.2, 0.0));
        let cut = turns(&settings(0.3, 0.2, 0.5));
        for ((fails, text), (also_fails, short)) in base.iter().zip(&cut) {
            assert_eq!(fails, also_fails);
            assert!(
                text == short || format!("{}...", &text[..5]) == *short,
                "{text} {short}"
            );
        }
        let quiet = turns(&settings(0.0, 0.0, 0.5));
        let is_cut = |seen: &[(bool, String)]| -> Vec<bool> {
            seen.iter().map(|(_, text)| text.ends_with("...")).collect()
        };
        assert_eq!(is_cut(&cut), is_cut(&quiet));
    }
}
