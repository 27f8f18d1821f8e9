//! How far the trainer policy pi is from the sampler mu on the sampler's own tokens.
//!
//! Everything is computed from raw log-probs, before any truncation or mask of a correction: `d_t = log pi(y_t) - log mu(y_t)` over generated
//! tokens only. [`diagnose`] describes one step; [`accumulate`] follows `S_n = sum_{t<=n} d_t` over a long horizon.
//!
//! Invariant with full support: `E_mu[e^{d_t}] = E_mu[e^{S_n}] = 1` exactly, whatever the mismatch. A deviation beyond several standard errors
//! is therefore a bug (temperature, top-p, shifted tokens), not imprecision, and is reported as an [`Alarm`].
//!
//! Not here: clip fractions of `pi_theta / pi_k` (they belong to the update) and argmax flips (they need logits).

mod accumulation;
mod alarm;
mod diagnostics;
#[cfg(test)]
mod tests;

pub use accumulation::{AccumulationReport, Fit, MIN_ALIVE, Point, WEIGHT_RANGE, accumulate};
pub use alarm::{ALARM_FLOOR, ALARM_STANDARD_ERRORS, Alarm, LENGTH_BIAS_WARNING};
pub use diagnostics::{Diagnostics, POSITION_BUCKETS, Slice, Totals, diagnose};

/// Log-probs of one episode's generated tokens under both policies. The three slices have one length.
#[derive(Clone, Copy, Debug)]
pub struct Scored<'a> {
    /// Recorded at sampling time (nats).
    pub sampler_logprobs: &'a [f32],
    /// Recomputed by the trainer policy (nats).
    pub trainer_logprobs: &'a [f32],
    /// Turn of each token, not decreasing.
    pub turn: &'a [u16],
}

impl Scored<'_> {
    /// `d_t` in f64; not finite where a log-prob is not.
    fn gaps(&self) -> impl Iterator<Item = f64> {
        assert_eq!(
            self.trainer_logprobs.len(),
            self.sampler_logprobs.len(),
            "one trainer log-prob for every sampler log-prob"
        );
        assert_eq!(
            self.turn.len(),
            self.sampler_logprobs.len(),
            "one turn index for every sampler log-prob"
        );
        self.trainer_logprobs
            .iter()
            .zip(self.sampler_logprobs)
            .map(|(pi, mu)| f64::from(*pi) - f64::from(*mu))
    }
}
