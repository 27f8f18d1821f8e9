//! Small statistics shared by the gate and the mismatch diagnostics, all in f64.

/// A ratio estimate `sum_g total_g / sum_g weight_g` and its standard error over the clusters `g`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Ratio {
    /// The pooled mean.
    pub(crate) mean: f64,
    /// Its standard error; `None` with fewer than two clusters.
    pub(crate) se: Option<f64>,
}

/// Pooled mean of clustered values with a standard error that treats *clusters* as the independent units.
///
/// Each cluster is `(total, weight)`, usually a sum over its members and their number. The standard error is the linearised one of a ratio
/// estimator, `m/(m-1) * sum_g ((total_g - mean * weight_g) / W)^2`; with equal weights it is `sd_{m-1}(cluster means) / sqrt(m)`.
/// `None` when the weights sum to zero.
pub(crate) fn clustered_mean(clusters: &[(f64, f64)]) -> Option<Ratio> {
    let weight: f64 = clusters.iter().map(|c| c.1).sum();
    if weight <= 0.0 {
        return None;
    }
    let mean = clusters.iter().map(|c| c.0).sum::<f64>() / weight;
    let m = clusters.iter().filter(|c| c.1 > 0.0).count() as f64;
    let se = (m >= 2.0).then(|| {
        let squares: f64 = clusters
            .iter()
            .map(|(total, w)| ((total - mean * w) / weight).powi(2))
            .sum();
        (squares * m / (m - 1.0)).sqrt()
    });
    Some(Ratio { mean, se })
}

/// Arithmetic mean; `None` without values.
pub(crate) fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// Sum of squared deviations from the mean; 0 without values.
pub(crate) fn sum_squares(values: &[f64]) -> f64 {
    let Some(mean) = mean(values) else { return 0.0 };
    values.iter().map(|v| (v - mean).powi(2)).sum()
}

/// Unbiased variance (`n - 1`); `None` with fewer than two values.
pub(crate) fn variance(values: &[f64]) -> Option<f64> {
    (values.len() >= 2).then(|| sum_squares(values) / (values.len() - 1) as f64)
}

/// Quantile `q` in `[0, 1]` of sorted values with linear interpolation (NumPy's default); `None` without values.
pub(crate) fn quantile_sorted(sorted: &[f64], q: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    let position = q.clamp(0.0, 1.0) * last as f64;
    let low = position.floor() as usize;
    let high = position.ceil() as usize;
    Some(sorted[low] + (sorted[high] - sorted[low]) * (position - low as f64))
}

/// Spearman's rank correlation, ties sharing their mean rank; `None` with fewer than three pairs or when either side does not vary.
pub(crate) fn spearman(x: &[f64], y: &[f64]) -> Option<f64> {
    if x.len() < 3 {
        return None;
    }
    pearson(&ranks(x), &ranks(y))
}

fn ranks(values: &[f64]) -> Vec<f64> {
    let below = |v: f64| values.iter().filter(|w| w.total_cmp(&v).is_lt()).count() as f64;
    let equal = |v: f64| values.iter().filter(|w| w.total_cmp(&v).is_eq()).count() as f64;
    values
        .iter()
        .map(|&v| below(v) + (equal(v) + 1.0) / 2.0)
        .collect()
}

/// Pearson correlation; `None` with fewer than two pairs or when either side does not vary.
pub(crate) fn pearson(x: &[f64], y: &[f64]) -> Option<f64> {
    let (mx, my) = (mean(x)?, mean(y)?);
    let (mut xy, mut xx, mut yy) = (0.0, 0.0, 0.0);
    for (a, b) in x.iter().zip(y) {
        xy += (a - mx) * (b - my);
        xx += (a - mx).powi(2);
        yy += (b - my).powi(2);
    }
    (xx > 0.0 && yy > 0.0).then(|| xy / (xx * yy).sqrt())
}

/// Effective share of a weighted sample, `1 / mean((w / mean w)^2)` in `(0, 1]`, from log-weights (safe for any magnitude).
/// `None` without weights or when one is not finite.
pub(crate) fn effective_share(log_weights: &[f64]) -> Option<f64> {
    if log_weights.is_empty() || log_weights.iter().any(|w| !w.is_finite()) {
        return None;
    }
    let top = log_weights.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let (mut sum, mut squares) = (0.0, 0.0);
    for log_weight in log_weights {
        let weight = (log_weight - top).exp();
        sum += weight;
        squares += weight * weight;
    }
    Some(sum * sum / (squares * log_weights.len() as f64))
}

/// Least-squares line `y = intercept + slope x` with the slope's standard error from the residuals.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Line {
    pub(crate) slope: f64,
    pub(crate) intercept: f64,
    /// `None` with fewer than three points.
    pub(crate) slope_se: Option<f64>,
}

/// Ordinary least squares; `None` with fewer than two distinct `x`.
pub(crate) fn line(x: &[f64], y: &[f64]) -> Option<Line> {
    let (mx, my) = (mean(x)?, mean(y)?);
    let xx = sum_squares(x);
    if x.len() < 2 || xx <= 0.0 {
        return None;
    }
    let xy: f64 = x.iter().zip(y).map(|(a, b)| (a - mx) * (b - my)).sum();
    let slope = xy / xx;
    let intercept = my - slope * mx;
    let slope_se = (x.len() >= 3).then(|| {
        let residual: f64 = x
            .iter()
            .zip(y)
            .map(|(a, b)| (b - intercept - slope * a).powi(2))
            .sum();
        (residual / (x.len() - 2) as f64 / xx).sqrt()
    });
    Some(Line {
        slope,
        intercept,
        slope_se,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(a: f64, b: f64) {
        assert!((a - b).abs() <= 1e-12 * (1.0 + b.abs()), "{a} is not {b}");
    }

    #[test]
    fn clustered_mean_with_equal_sizes_is_the_textbook_standard_error() {
        // Cluster means 1, 2, 4: mean 7/3, sd_{n-1} = sqrt(7/3), SE = sqrt(7/9).
        let r = clustered_mean(&[(2.0, 2.0), (4.0, 2.0), (8.0, 2.0)]).unwrap();
        close(r.mean, 7.0 / 3.0);
        close(r.se.unwrap(), (7.0f64 / 9.0).sqrt());
    }

    #[test]
    fn clustered_mean_pools_unequal_clusters() {
        let r = clustered_mean(&[(3.0, 1.0), (1.0, 3.0)]).unwrap();
        close(r.mean, 1.0);
        // 2/1 * ((2/4)^2 + (-2/4)^2) = 1.
        close(r.se.unwrap(), 1.0);
        assert_eq!(clustered_mean(&[(1.0, 1.0)]).unwrap().se, None);
        assert_eq!(clustered_mean(&[]), None);
    }

    #[test]
    fn quantile_interpolates_like_numpy() {
        close(quantile_sorted(&[1.0, 2.0, 4.0], 0.99).unwrap(), 3.96);
        assert_eq!(quantile_sorted(&[], 0.5), None);
    }

    #[test]
    fn effective_share_survives_weights_that_overflow() {
        close(effective_share(&[1000.0, 1000.0]).unwrap(), 1.0);
        // Weights 1 and 3: 16 / (2 * 10).
        close(effective_share(&[0.0, 3f64.ln()]).unwrap(), 0.8);
        assert_eq!(effective_share(&[0.0, f64::INFINITY]), None);
    }

    #[test]
    fn line_recovers_slope_and_its_error() {
        let l = line(&[0.0, 1.0, 2.0], &[0.0, 2.0, 1.0]).unwrap();
        close(l.slope, 0.5);
        close(l.intercept, 0.5);
        // Residuals -0.5, 1, -0.5; SSE 1.5 over one degree of freedom, Sxx 2.
        close(l.slope_se.unwrap(), 0.75f64.sqrt());
        assert_eq!(line(&[1.0, 1.0], &[0.0, 1.0]), None);
    }

    #[test]
    fn pearson_is_undefined_without_variation() {
        assert_eq!(pearson(&[1.0, 1.0], &[0.0, 1.0]), None);
        close(pearson(&[1.0, 2.0, 3.0], &[2.0, 4.0, 6.0]).unwrap(), 1.0);
    }

    #[test]
    fn rank_correlation_equals_scipys() {
        // scipy.stats.spearmanr([1, 2, 2, 4, 5], [3, 1, 4, 4, 9]).statistic
        let got = spearman(&[1.0, 2.0, 2.0, 4.0, 5.0], &[3.0, 1.0, 4.0, 4.0, 9.0]).unwrap();
        assert!((got - 0.763_157_894_736_842_1).abs() < 1e-12, "{got}");
        assert_eq!(spearman(&[1.0, 2.0], &[1.0, 2.0]), None);
        assert_eq!(spearman(&[1.0, 1.0, 1.0], &[1.0, 2.0, 3.0]), None);
    }
}
