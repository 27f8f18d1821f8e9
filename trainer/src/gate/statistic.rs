//! T_hat (Eq 8) with what is needed to judge it: standard error, permutation null, counts.

use serde::{Deserialize, Serialize};

use super::permutation::{self, Pairing};
use crate::statistics::clustered_mean;

/// One validation episode, sampled by `mu_{k+1}`; both slices cover its generated tokens only and have one length.
#[derive(Clone, Copy, Debug)]
pub struct ValidationEpisode<'a> {
    /// Log-probs recorded by the sampler `mu_{k+1}` (nats).
    pub sampler_logprobs: &'a [f32],
    /// Log-probs of the same tokens under the candidate trainer policy `pi_{k+1}` (nats).
    pub trainer_logprobs: &'a [f32],
    /// Its return.
    pub ret: f64,
}

/// A mean with its standard error over groups.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// The mean over episodes.
    pub mean: f64,
    /// Its standard error, groups being the independent units; `None` with fewer than two groups.
    pub se: Option<f64>,
}

/// What the validation groups say about an update.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Statistic {
    /// `T_hat = - mean_i rho_i A_i` over all episodes (Eq 8); `None` when undefined or not finite.
    pub t_hat: Option<f64>,
    /// The same mean over the episodes of informative groups alone.
    pub t_hat_informative: Option<f64>,
    /// Standard error of `t_hat` over groups (linearised ratio estimator); `None` with fewer than two groups.
    pub se: Option<f64>,
    /// One-sided within-group permutation p-value of a `t_hat` as low.
    pub p_value: Option<f64>,
    /// Standard deviation of `t_hat` under that permutation null, in closed form.
    pub null_sd: Option<f64>,
    /// Episodes that entered (at least one generated token).
    pub n_episodes: usize,
    /// Groups that entered (at least one such episode).
    pub n_groups: usize,
    /// Groups whose advantages are not all zero.
    pub n_informative: usize,
    /// Episodes without a generated token, left out before any group statistic.
    pub n_left_out: usize,
    /// No informative group.
    pub undefined: bool,
    /// A ratio, an advantage or `T_hat` itself was not finite.
    pub non_finite: bool,
    /// Mean validation return of `mu_{k+1}`; `None` without finite returns.
    pub reward: Option<Estimate>,
}

/// Length-normalised ratio `rho_i = exp((1/T_i) sum_t [log pi(y_t) - log mu(y_t)])` in f64; `None` for an episode without generated tokens.
///
/// # Panics
/// When the two slices differ in length.
pub fn rho(episode: &ValidationEpisode<'_>) -> Option<f64> {
    let (pi, mu) = (episode.trainer_logprobs, episode.sampler_logprobs);
    assert_eq!(
        pi.len(),
        mu.len(),
        "one trainer log-prob for every sampler log-prob"
    );
    let gap: f64 = pi
        .iter()
        .zip(mu)
        .map(|(p, m)| f64::from(*p) - f64::from(*m))
        .sum();
    (!pi.is_empty()).then(|| (gap / pi.len() as f64).exp())
}

/// Measures T_hat over validation groups.
///
/// - `groups`: the episodes of each task instance.
/// - `advantage`: returns of one group to its advantages (the estimator the update uses); all zero marks an uninformative group.
/// - `seed`, `attempt`: name the permutation draws.
///
/// A group holding a non-finite return has zero advantages, whatever `advantage` says.
///
/// # Panics
/// When an episode's slices differ in length, or `advantage` returns another number of values than it was given.
pub fn measure(
    groups: &[Vec<ValidationEpisode<'_>>],
    advantage: &dyn Fn(&[f64]) -> Vec<f64>,
    seed: u64,
    attempt: u64,
) -> Statistic {
    let mut out = Statistic::default();
    let mut clusters = Vec::new();
    let mut rewards = Vec::new();
    let mut pairings = Vec::new();
    let mut informative_episodes = 0;
    for group in groups {
        let (ratios, returns): (Vec<f64>, Vec<f64>) =
            group.iter().filter_map(|e| Some((rho(e)?, e.ret))).unzip();
        out.n_left_out += group.len() - ratios.len();
        if ratios.is_empty() {
            continue;
        }
        out.n_groups += 1;
        out.n_episodes += ratios.len();
        let size = ratios.len() as f64;
        let finite_returns = returns.iter().all(|r| r.is_finite());
        if finite_returns {
            rewards.push((returns.iter().sum::<f64>(), size));
        }
        let advantages = if finite_returns {
            advantage(&returns)
        } else {
            vec![0.0; returns.len()]
        };
        assert_eq!(advantages.len(), returns.len(), "one advantage for every return");
        out.non_finite |= ratios.iter().chain(&advantages).any(|v| !v.is_finite());
        let total: f64 = -ratios.iter().zip(&advantages).map(|(r, a)| r * a).sum::<f64>();
        clusters.push((total, size));
        if advantages.iter().any(|a| *a != 0.0) {
            informative_episodes += ratios.len();
            pairings.push(Pairing {
                rho: ratios,
                advantage: advantages,
            });
        }
    }
    out.reward = clustered_mean(&rewards).map(|r| Estimate {
        mean: r.mean,
        se: r.se,
    });
    out.n_informative = pairings.len();
    out.undefined = pairings.is_empty();
    let Some(ratio) = clustered_mean(&clusters) else {
        return out;
    };
    out.non_finite |= !ratio.mean.is_finite();
    if out.undefined || out.non_finite {
        return out;
    }
    out.t_hat = Some(ratio.mean);
    out.t_hat_informative = Some(ratio.mean * out.n_episodes as f64 / informative_episodes as f64);
    out.se = ratio.se;
    out.null_sd = Some(permutation::null_sd(&pairings, out.n_episodes));
    out.p_value = Some(permutation::p_value(&pairings, seed, attempt));
    out
}
