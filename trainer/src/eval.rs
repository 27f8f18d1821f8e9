//! Held-out success of a deployed sampler: J(mu), with intervals.

mod paired;

use std::collections::BTreeMap;
use std::sync::Arc;

use mipu_agent::{Group, PolicyError, RolloutConfig, RolloutContext, rollout_groups};
use mipu_envs::{StopReason, Task};
use rand::RngExt;
use rand::seq::SliceRandom;
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use mipu_envs::seed::{self, Purpose};

pub use paired::{Comparison, compare};

/// Bootstrap resamples of the interval.
const RESAMPLES: usize = 1000;

/// J(mu) and what surrounds it.
#[derive(Clone, Debug, Serialize)]
pub struct EvalReport {
    /// Mean return over scored episodes; the estimate of J.
    pub mean_return: f64,
    /// 95 % bootstrap interval of it, resampling task instances.
    pub interval: [f64; 2],
    /// Its standard error, task instances being the independent units.
    pub standard_error: f64,
    /// Share of episodes with a return of at least 1 (pass@1).
    pub pass_at_1: f64,
    /// Unbiased pass@k for k = samples (Chen et al. 2021, arXiv 2107.03374, eq. 1).
    pub pass_at_k: f64,
    /// The k of it.
    pub k: usize,
    /// Scored episodes.
    pub episodes: usize,
    /// Episodes left out because their environment failed.
    pub unscored: usize,
    /// Task instances.
    pub prompts: usize,
    /// Mean return by task name.
    pub by_task: BTreeMap<String, f64>,
    /// Mean return and episodes by the number of turns played.
    pub by_turns: BTreeMap<usize, TurnBucket>,
    /// Episodes by why they ended.
    pub stop: BTreeMap<String, usize>,
    /// Mean turns of an episode.
    pub turns: f64,
    /// Mean sampled tokens of an episode.
    pub response_tokens: f64,
}

/// Episodes of the same number of turns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct TurnBucket {
    /// Episodes.
    pub episodes: usize,
    /// Their mean return.
    pub mean_return: f64,
}

/// The first `count` of `tasks` in an order that depends on `seed` alone.
pub fn draw(tasks: &[Arc<Task>], count: usize, purpose: Purpose, seed: u64, index: u64) -> Vec<Arc<Task>> {
    let mut order: Vec<usize> = (0..tasks.len()).collect();
    order.shuffle(&mut seed::stream(seed, purpose, &[index, tasks.len() as u64]));
    order.into_iter().take(count).map(|i| tasks[i].clone()).collect()
}

/// Rolls `tasks` out and measures.
///
/// # Errors
/// When the policy failed or the rollout was cancelled.
pub async fn evaluate(
    context: &RolloutContext,
    tasks: &[Arc<Task>],
    config: &RolloutConfig,
    cancel: &CancellationToken,
    on_episode: &(dyn Fn() + Sync),
) -> Result<(EvalReport, Vec<Group>), PolicyError> {
    let groups = rollout_groups(context, tasks, config, cancel, on_episode).await?;
    Ok((report(&groups, tasks, config.group_size, config.seed), groups))
}

fn report(groups: &[Group], tasks: &[Arc<Task>], k: usize, seed: u64) -> EvalReport {
    let returns: Vec<Vec<f64>> = groups
        .iter()
        .map(|g| g.trajectories.iter().map(mipu_agent::Trajectory::ret).collect())
        .collect();
    let mut by_task: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    let mut stop: BTreeMap<String, usize> = BTreeMap::new();
    let mut by_turns: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
    let (mut turns, mut tokens) = (0usize, 0usize);
    for (group, task) in groups.iter().zip(tasks) {
        for trajectory in &group.trajectories {
            by_task
                .entry(task.spec.name.clone())
                .or_default()
                .push(trajectory.ret());
            *stop.entry(stop_name(trajectory.stop)).or_default() += 1;
            let played = trajectory.turn_rewards.len();
            by_turns.entry(played).or_default().push(trajectory.ret());
            turns += played;
            tokens += trajectory.tokens.sampled_len();
        }
    }
    let episodes: usize = returns.iter().map(Vec::len).sum();
    let passes: Vec<(usize, usize)> = returns
        .iter()
        .map(|r| (r.len(), r.iter().filter(|&&x| x >= 1.0).count()))
        .collect();
    EvalReport {
        mean_return: mean(returns.iter().flatten().copied()),
        interval: bootstrap(&returns, seed),
        standard_error: standard_error(&returns),
        pass_at_1: mean(
            passes
                .iter()
                .filter(|p| p.0 > 0)
                .map(|&(n, c)| pass_at_k(n, c, 1)),
        ),
        pass_at_k: mean(
            passes
                .iter()
                .filter(|p| p.0 >= k)
                .map(|&(n, c)| pass_at_k(n, c, k)),
        ),
        k,
        episodes,
        unscored: groups.iter().map(|g| g.unscored.len()).sum(),
        prompts: groups.len(),
        by_task: by_task
            .into_iter()
            .map(|(name, r)| (name, mean(r.into_iter())))
            .collect(),
        by_turns: by_turns
            .into_iter()
            .map(|(turns, r)| {
                let bucket = TurnBucket {
                    episodes: r.len(),
                    mean_return: mean(r.into_iter()),
                };
                (turns, bucket)
            })
            .collect(),
        stop,
        turns: turns as f64 / episodes.max(1) as f64,
        response_tokens: tokens as f64 / episodes.max(1) as f64,
    }
}

/// The name a stop reason has in reports and metrics (`max_turns`).
pub fn stop_name(stop: StopReason) -> String {
    match serde_json::to_value(stop) {
        Ok(serde_json::Value::String(name)) => name,
        _ => format!("{stop:?}"),
    }
}

/// Mean, 0 for nothing.
pub(crate) fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (mut sum, mut n) = (0.0, 0usize);
    for value in values {
        sum += value;
        n += 1;
    }
    if n == 0 { 0.0 } else { sum / n as f64 }
}

/// `1 - C(n - c, k) / C(n, k)`: the chance that one of k draws without replacement passes, given c passes among n.
pub fn pass_at_k(n: usize, c: usize, k: usize) -> f64 {
    if n < c + k {
        return 1.0;
    }
    1.0 - (n - c + 1..=n)
        .map(|i| 1.0 - k as f64 / i as f64)
        .product::<f64>()
}

/// Standard error of the mean over instances, 0 with fewer than two.
fn standard_error(returns: &[Vec<f64>]) -> f64 {
    let means: Vec<f64> = returns
        .iter()
        .filter(|r| !r.is_empty())
        .map(|r| mean(r.iter().copied()))
        .collect();
    let n = means.len() as f64;
    if n < 2.0 {
        return 0.0;
    }
    let centre = mean(means.iter().copied());
    (means.iter().map(|m| (m - centre).powi(2)).sum::<f64>() / (n - 1.0) / n).sqrt()
}

/// 95 % percentile interval of the mean return, resampling task instances (episodes of one instance are not independent).
fn bootstrap(returns: &[Vec<f64>], seed: u64) -> [f64; 2] {
    let sums: Vec<(f64, usize)> = returns
        .iter()
        .filter(|r| !r.is_empty())
        .map(|r| (r.iter().sum(), r.len()))
        .collect();
    if sums.is_empty() {
        return [0.0, 0.0];
    }
    let mut rng = seed::stream(seed, Purpose::Eval, &[u64::MAX]);
    let mut means: Vec<f64> = (0..RESAMPLES)
        .map(|_| {
            let (mut sum, mut n) = (0.0, 0);
            for _ in 0..sums.len() {
                let (s, m) = sums[rng.random_range(0..sums.len())];
                sum += s;
                n += m;
            }
            sum / n as f64
        })
        .collect();
    means.sort_by(f64::total_cmp);
    [means[RESAMPLES * 25 / 1000], means[RESAMPLES * 975 / 1000 - 1]]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pass_at_k_by_hand() {
        // Of 4 samples 1 passes. Two draws: C(3,2)/C(4,2) = 3/6 miss.
        assert!((pass_at_k(4, 1, 2) - 0.5).abs() < 1e-12);
        assert!((pass_at_k(4, 1, 1) - 0.25).abs() < 1e-12);
        assert!((pass_at_k(4, 4, 1) - 1.0).abs() < 1e-12);
        assert!(pass_at_k(4, 0, 4).abs() < 1e-12);
    }

    #[test]
    fn the_interval_of_a_fair_coin_is_the_textbook_one() {
        let returns: Vec<Vec<f64>> = (0..400).map(|i| vec![f64::from(i % 2)]).collect();
        let [low, high] = bootstrap(&returns, 1);
        // Normal approximation: 0.5 +- 1.96 * 0.5 / 20.
        assert!(
            (low - 0.451).abs() < 0.012 && (high - 0.549).abs() < 0.012,
            "{low} {high}"
        );
    }

    #[test]
    fn no_episode_gives_zeros_not_nan() {
        let report = report(&[], &[], 2, 0);
        assert!(report.mean_return.abs() < 1e-12 && report.pass_at_k.abs() < 1e-12);
    }
}
