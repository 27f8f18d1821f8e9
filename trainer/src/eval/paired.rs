//! Two policies on the same rows with the same seeds: is one better?

use mipu_agent::{Group, Trajectory};
use mipu_envs::seed::{self, Purpose};
use rand::RngExt;
use serde::Serialize;

use super::{RESAMPLES, mean};

/// Sign flips of the permutation test.
const FLIPS: usize = 10_000;

/// The difference of two policies in mean return, paired by row.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// Mean over rows of (first - second).
    pub difference: f64,
    /// 95 % bootstrap interval of it, resampling rows.
    pub interval: [f64; 2],
    /// Two-sided p-value of the sign-flip permutation test: under the null, each row's difference is as likely to have the other sign.
    pub p_value: f64,
    /// Rows that both policies were scored on.
    pub rows: usize,
    /// Rows on which the first did better.
    pub better: usize,
    /// Rows on which it did worse.
    pub worse: usize,
}

/// Compares the groups of two policies, which must belong to the same rows in the same order.
pub fn compare(first: &[Group], second: &[Group], seed: u64) -> Comparison {
    let differences: Vec<f64> = first
        .iter()
        .zip(second)
        .filter(|(a, b)| !a.trajectories.is_empty() && !b.trajectories.is_empty())
        .map(|(a, b)| returns(a) - returns(b))
        .collect();
    of_differences(&differences, seed)
}

fn returns(group: &Group) -> f64 {
    mean(group.trajectories.iter().map(Trajectory::ret))
}

fn of_differences(differences: &[f64], seed: u64) -> Comparison {
    let n = differences.len();
    let difference = mean(differences.iter().copied());
    let mut out = Comparison {
        difference,
        interval: [0.0, 0.0],
        p_value: 1.0,
        rows: n,
        better: differences.iter().filter(|d| **d > 0.0).count(),
        worse: differences.iter().filter(|d| **d < 0.0).count(),
    };
    if n == 0 {
        return out;
    }
    let mut rng = seed::stream(seed, Purpose::Eval, &[u64::MAX - 1]);
    let mut means: Vec<f64> = (0..RESAMPLES)
        .map(|_| mean((0..n).map(|_| differences[rng.random_range(0..n)])))
        .collect();
    means.sort_by(f64::total_cmp);
    out.interval = [means[RESAMPLES * 25 / 1000], means[RESAMPLES * 975 / 1000 - 1]];
    let as_large = (0..FLIPS)
        .filter(|_| {
            let flipped = mean(differences.iter().map(|d| if rng.random() { *d } else { -d }));
            flipped.abs() >= difference.abs() - 1e-12
        })
        .count();
    // The observed assignment counts as one of the draws, so p is never 0.
    out.p_value = (as_large + 1) as f64 / (FLIPS + 1) as f64;
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_p_value_is_that_of_the_exact_sign_test() {
        // Ten equal differences: only all-plus and all-minus are as large, 2 of 1024.
        let all = of_differences(&[0.5; 10], 1);
        assert!((all.p_value - 2.0 / 1024.0).abs() < 1.5e-3, "{}", all.p_value);
        assert!((all.difference - 0.5).abs() < 1e-12 && all.better == 10 && all.worse == 0);
        // +1 and -1 in equal parts: every assignment is as large.
        let none = of_differences(&[1.0, -1.0, 1.0, -1.0], 1);
        assert!((none.p_value - 1.0).abs() < 1e-12 && none.interval[0] < 0.0 && none.interval[1] > 0.0);
        assert_eq!(of_differences(&[], 1).rows, 0);
    }
}
