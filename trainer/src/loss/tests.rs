//! Derivatives against central differences, values against naive code, edges by hand.

use proptest::prelude::*;

use super::*;
use crate::correction::{
    Bounds, Cispo, GeometricBounds, Gspo, K3Bound, Level, LogGapBound, Mis, SequenceBounds, Tis,
};

fn corrections() -> Vec<CorrectionConfig> {
    let p = Positive::literal;
    vec![
        CorrectionConfig::None,
        CorrectionConfig::PpoIs,
        CorrectionConfig::VanillaIs,
        CorrectionConfig::Tis(Tis::default()),
        CorrectionConfig::Tis(Tis {
            w_max: p(5.0),
            level: Level::Sequence,
        }),
        CorrectionConfig::Mis(Mis::default()),
        CorrectionConfig::Mis(Mis {
            two_sided: Some(Bounds {
                low: p(0.5),
                high: p(5.0),
            }),
            ..Mis::default()
        }),
        CorrectionConfig::SeqMis(SequenceBounds::default()),
        CorrectionConfig::GeoMis(GeometricBounds {
            low: p(0.8),
            high: p(1.2),
        }),
        CorrectionConfig::K3Rs(K3Bound {
            max: NonNegative::literal(0.5),
        }),
        CorrectionConfig::Opsm(LogGapBound::default()),
        CorrectionConfig::Gspo(Gspo {
            clip_low: ClipWidth::literal(0.1),
            clip_high: ClipWidth::literal(0.15),
        }),
        CorrectionConfig::Cispo(Cispo::default()),
    ]
}

const DENOMINATORS: Denominators = Denominators {
    episodes: 3,
    tokens: 11,
};

#[derive(Clone, Debug)]
struct Case {
    current: Vec<f64>,
    frozen: Vec<f64>,
    sampler: Vec<f64>,
    reference: Vec<f64>,
    entropies: Vec<f64>,
    advantage: f64,
}

impl Case {
    fn inputs(&self) -> EpisodeInputs<'_> {
        EpisodeInputs {
            current: &self.current,
            frozen: &self.frozen,
            sampler: &self.sampler,
            reference: Some(&self.reference),
            entropies: &self.entropies,
            advantage: self.advantage,
        }
    }

    /// One token whose ratio to `pi_k` is `r`, with weight `w`.
    fn token(r: f64, w: f64, advantage: f64) -> Self {
        let frozen = vec![-1.0];
        Self {
            current: vec![-1.0 + r.ln()],
            sampler: vec![-1.0 - w.ln()],
            reference: vec![-1.2],
            entropies: vec![0.5],
            frozen,
            advantage,
        }
    }
}

fn case() -> impl Strategy<Value = Case> {
    let token = (
        -4.0f64..-0.1,
        -0.6f64..0.6,
        -1.2f64..1.2,
        -0.5f64..0.5,
        0.0f64..2.0,
    );
    (prop::collection::vec(token, 1..8), -2.0f64..2.0).prop_map(|(tokens, advantage)| Case {
        current: tokens.iter().map(|t| t.0 + t.1).collect(),
        frozen: tokens.iter().map(|t| t.0).collect(),
        sampler: tokens.iter().map(|t| t.0 - t.2).collect(),
        reference: tokens.iter().map(|t| t.0 + t.3).collect(),
        entropies: tokens.iter().map(|t| t.4).collect(),
        advantage,
    })
}

fn config(aggregation: Aggregation, estimator: KlEstimator) -> LossConfig {
    LossConfig {
        aggregation,
        kl: Some(KlConfig {
            estimator,
            coefficient: Positive::literal(0.3),
        }),
        entropy_bonus: NonNegative::literal(0.1),
        clip_high: ClipWidth::literal(0.28),
        ..LossConfig::default()
    }
}

/// The equations of docs/mipu.md token by token, without sharing code with the implementation.
fn naive(case: &Case, w_max: f64, eps: (f64, f64), dual: f64) -> f64 {
    let a = case.advantage;
    let mut sum = 0.0;
    for t in 0..case.current.len() {
        let w = (case.frozen[t].exp() / case.sampler[t].exp()).min(w_max);
        let r = case.current[t].exp() / case.frozen[t].exp();
        let clip = f64::min(r * a, r.clamp(1.0 - eps.0, 1.0 + eps.1) * a);
        let dc = if a >= 0.0 { clip } else { f64::max(clip, dual * a) };
        sum += w * dc;
    }
    -sum / case.current.len() as f64 / DENOMINATORS.episodes as f64
}

/// Sequence-level quantities from products of probabilities, never from sums of logarithms.
fn naive_product(case: &Case) -> f64 {
    case.frozen
        .iter()
        .zip(&case.sampler)
        .map(|(p, m)| p.exp() / m.exp())
        .product()
}

proptest! {
    #[test]
    fn derivatives_equal_central_differences(case in case()) {
        const STEP: f64 = 1e-6;
        let aggregations = [
            Aggregation::SeqMeanTokenMean,
            Aggregation::TokenMean,
            Aggregation::SeqSumConst { length: Positive::literal(16.0) },
        ];
        for (i, correction) in corrections().iter().enumerate() {
            let estimator = [KlEstimator::K1, KlEstimator::K2, KlEstimator::K3][i % 3];
            let config = config(aggregations[i % 3], estimator);
            let got = episode_loss(&config, correction, &case.inputs(), DENOMINATORS);
            for t in 0..case.current.len() {
                // CISPO's ratio is a constant by definition: its derivative is not that of its value.
                if matches!(correction, CorrectionConfig::Cispo(_)) {
                    continue;
                }
                let at = |delta: f64| {
                    let mut moved = case.clone();
                    moved.current[t] += delta;
                    episode_loss(&config, correction, &moved.inputs(), DENOMINATORS).value
                };
                let (up, here, down) = (at(STEP), at(0.0), at(-STEP));
                // Skip the kinks themselves, where one-sided slopes differ.
                if ((up - here) - (here - down)).abs() < 1e-9 {
                    let want = (up - down) / (2.0 * STEP);
                    prop_assert!((got.logprobs[t] - want).abs() < 1e-5, "{correction:?}: {} != {want}", got.logprobs[t]);
                }
            }
        }
    }

    #[test]
    fn the_default_is_the_equation(case in case()) {
        let got = episode_loss(&LossConfig::default(), &CorrectionConfig::default(), &case.inputs(), DENOMINATORS);
        prop_assert!((got.value - naive(&case, 2.0, (0.2, 0.2), 1.4)).abs() < 1e-9);
    }

    #[test]
    fn trap_17_the_product_of_ratios_is_not_the_sum_of_exponentials(case in case()) {
        let product = naive_product(&case);
        let n = case.frozen.len() as f64;
        let weights = |c: CorrectionConfig| c.weights(&case.frozen, &case.sampler, case.advantage);
        let tis = weights(CorrectionConfig::Tis(Tis { w_max: Positive::literal(5.0), level: Level::Sequence }));
        prop_assert!(tis.iter().all(|w| (w - product.min(5.0)).abs() < 1e-9 * product.max(1.0)));
        let kept = weights(CorrectionConfig::SeqMis(SequenceBounds::default()))[0] > 0.0;
        if (product - 0.5).abs() > 1e-9 && (product - 2.0).abs() > 1e-9 {
            prop_assert_eq!(kept, (0.5..=2.0).contains(&product));
        }
        let mean = product.powf(1.0 / n);
        let kept = weights(CorrectionConfig::GeoMis(GeometricBounds::default()))[0] > 0.0;
        if (mean - 0.99).abs() > 1e-9 && (mean - 1.01).abs() > 1e-9 {
            prop_assert_eq!(kept, (0.99..=1.01).contains(&mean));
        }
        let k3 = case.frozen.iter().zip(&case.sampler).map(|(p, m)| p.exp() / m.exp() - (p - m) - 1.0).sum::<f64>() / n;
        if (k3 - 0.01).abs() > 1e-9 {
            prop_assert_eq!(weights(CorrectionConfig::K3Rs(K3Bound::default()))[0] > 0.0, k3 <= 0.01);
        }
    }

    #[test]
    fn gspo_uses_the_geometric_mean_of_the_ratios(case in case()) {
        let gspo = Gspo { clip_low: ClipWidth::literal(0.1), clip_high: ClipWidth::literal(0.15) };
        let n = case.current.len() as f64;
        let s = case.current.iter().zip(&case.frozen).map(|(c, f)| c.exp() / f.exp()).product::<f64>().powf(1.0 / n);
        let a = case.advantage;
        let clip = f64::min(s * a, s.clamp(0.9, 1.15) * a);
        let want = -(if a >= 0.0 { clip } else { clip.max(1.4 * a) }) / 3.0;
        let got = episode_loss(&LossConfig::default(), &CorrectionConfig::Gspo(gspo), &case.inputs(), DENOMINATORS);
        prop_assert!((got.value - want).abs() < 1e-9);
    }

    #[test]
    fn k2_and_k3_are_never_negative(d in -30.0f64..30.0) {
        prop_assert!(kl_estimate(KlEstimator::K2, d).0 >= 0.0);
        prop_assert!(kl_estimate(KlEstimator::K3, d).0 >= -1e-12);
    }
}

#[test]
fn hand_computed_tokens() {
    // (ratio, weight, advantage) -> (surrogate, slope in log pi), eps 0.2, dual clip 1.4, w_max 2.
    for ((r, w, a), (value, slope)) in [
        ((1.0, 1.0, 1.0), (1.0, 1.0)),
        ((1.1, 1.5, 2.0), (3.3, 3.3)),
        ((1.5, 1.0, 1.0), (1.2, 0.0)),
        ((0.5, 1.0, 1.0), (0.5, 0.5)),
        ((0.5, 1.0, -1.0), (-0.8, 0.0)),
        ((1.3, 1.0, -1.0), (-1.3, -1.3)),
        ((3.0, 1.0, -1.0), (-1.4, 0.0)),
        ((3.0, 8.0, -1.0), (-2.8, 0.0)),
        ((1.0, 8.0, 1.0), (2.0, 2.0)),
        ((1.0, 1.0, 0.0), (0.0, 0.0)),
    ] {
        let case = Case::token(r, w, a);
        let one = Denominators {
            episodes: 1,
            tokens: 1,
        };
        let got = episode_loss(
            &LossConfig::default(),
            &CorrectionConfig::default(),
            &case.inputs(),
            one,
        );
        assert!(
            (got.value + value).abs() < 1e-12,
            "{r} {w} {a}: {} != {value}",
            -got.value
        );
        assert!(
            (got.logprobs[0] + slope).abs() < 1e-12,
            "{r} {w} {a}: slope {} != {slope}",
            -got.logprobs[0]
        );
    }
}

#[test]
fn a_ratio_on_the_clip_edge_keeps_its_whole_gradient() {
    let mut stats = LossStats::default();
    for (ratio, a) in [(1.2, 1.0), (0.8, -1.0), (1.4, -1.0)] {
        let at_edge = clipped(ratio, a, (0.2, 0.2), Some(1.4), &mut stats, 1);
        assert!(
            (at_edge.slope - a).abs() < 1e-15,
            "{ratio} {a}: {}",
            at_edge.slope
        );
    }
    assert_eq!(stats, LossStats::default());
}

#[test]
fn the_weight_comes_after_the_dual_clip() {
    // Were w inside, 2 * r * A = -6 would be cut to -1.4; outside it is 2 * (-1.4).
    let case = Case::token(3.0, 2.0, -1.0);
    let one = Denominators {
        episodes: 1,
        tokens: 1,
    };
    let got = episode_loss(
        &LossConfig::default(),
        &CorrectionConfig::VanillaIs,
        &case.inputs(),
        one,
    );
    assert!((got.value - 2.8).abs() < 1e-12);
    let open = LossConfig {
        dual_clip: None,
        ..LossConfig::default()
    };
    let got = episode_loss(&open, &CorrectionConfig::VanillaIs, &case.inputs(), one);
    assert!((got.value - 6.0).abs() < 1e-12);
}

#[test]
fn ppo_is_clips_the_ratio_to_the_sampler() {
    // pi_theta = pi_k, pi_k / mu = 1.5: the clipped ratio is 1.5 and no weight multiplies it.
    let case = Case::token(1.0, 1.5, 1.0);
    let one = Denominators {
        episodes: 1,
        tokens: 1,
    };
    let got = episode_loss(
        &LossConfig::default(),
        &CorrectionConfig::PpoIs,
        &case.inputs(),
        one,
    );
    assert!((got.value + 1.2).abs() < 1e-12 && got.logprobs[0].abs() < 1e-15 && got.stats.clip_high == 1);
}

#[test]
fn opsm_drops_only_negative_advantages() {
    let drop = |w: f64, a: f64| {
        let case = Case::token(1.0, w, a);
        CorrectionConfig::Opsm(LogGapBound::default()).weights(&case.frozen, &case.sampler, a)[0] <= 0.0
    };
    assert!(drop(0.5, -1.0) && !drop(0.5, 1.0) && !drop(2.0, -1.0));
}

#[test]
fn a_masked_token_with_an_infinite_ratio_contributes_nothing() {
    let case = Case {
        current: vec![700.0],
        ..Case::token(1.0, 1e9, -1.0)
    };
    let one = Denominators {
        episodes: 1,
        tokens: 1,
    };
    let open = LossConfig {
        dual_clip: None,
        ..LossConfig::default()
    };
    let got = episode_loss(&open, &CorrectionConfig::Mis(Mis::default()), &case.inputs(), one);
    assert!(got.value.abs() <= 0.0 && got.logprobs[0].abs() <= 0.0, "{got:?}");
}

#[test]
fn configs_read_like_the_docs() {
    let from = |yaml: &str| serde_saphyr::from_str::<LossConfig>(yaml).map_err(|e| e.to_string());
    let got =
        from("clip_high: 0.28\naggregation: token_mean\nkl: {estimator: k2, coefficient: 1e-3}\n").unwrap();
    assert_eq!(got.aggregation, Aggregation::TokenMean);
    assert_eq!(got.kl.unwrap().estimator, KlEstimator::K2);
    let got = from("aggregation: {seq_sum_const: {length: 64}}\ndual_clip: null\n").unwrap();
    assert!(
        matches!(got.aggregation, Aggregation::SeqSumConst { length } if length.get() > 63.0)
            && got.dual_clip.is_none()
    );
    assert!(
        from("clip_low: 1.5")
            .unwrap_err()
            .contains("must be in (0, 1); got 1.5")
    );
    assert!(from("cliplow: 0.1").is_err());
    let correction = |yaml: &str| serde_saphyr::from_str::<CorrectionConfig>(yaml).map_err(|e| e.to_string());
    assert_eq!(correction("none").unwrap(), CorrectionConfig::None);
    assert_eq!(
        correction("tis: {w_max: 2.0}").unwrap(),
        CorrectionConfig::default()
    );
    assert!(
        matches!(correction("mis: {two_sided: {low: 0.5, high: 5}}").unwrap(), CorrectionConfig::Mis(m) if m.two_sided.is_some())
    );
    assert_eq!(
        correction("seq_mis: {}").unwrap(),
        CorrectionConfig::SeqMis(SequenceBounds::default())
    );
    assert!(correction("tis: {wmax: 2.0}").is_err());
}
