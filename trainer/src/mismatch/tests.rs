//! Golden values from NumPy (`tests/golden/mismatch.py`), and the laws the diagnostics rest on.

use mipu_envs::seed::{Purpose, stream};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use serde::Deserialize;
use serde_json::Value;

use super::*;

#[derive(Clone, Deserialize)]
struct Episode {
    sampler: Vec<f32>,
    trainer: Vec<f32>,
    turn: Vec<u16>,
}

fn views(episodes: &[Episode]) -> Vec<Scored<'_>> {
    episodes
        .iter()
        .map(|e| Scored {
            sampler_logprobs: &e.sampler,
            trainer_logprobs: &e.trainer,
            turn: &e.turn,
        })
        .collect()
}

#[derive(Deserialize)]
struct Golden {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    episodes: Vec<Episode>,
    diagnostics: Value,
    accumulation: Value,
}

/// Every number of `expected` is in `found` under the same name, within 1e-9 relative.
#[track_caller]
fn agrees(what: &str, found: &impl serde::Serialize, expected: &Value) {
    let found = serde_json::to_value(found).unwrap();
    for (key, expected) in expected.as_object().unwrap() {
        let (Some(found), Some(expected)) = (found[key].as_f64(), expected.as_f64()) else {
            panic!("{what} {key}: {} against {expected}", found[key]);
        };
        assert!(
            (found - expected).abs() <= 1e-9 * (1e-3 + expected.abs()),
            "{what} {key}: {found} is not {expected}"
        );
    }
}

fn golden() -> Vec<Case> {
    serde_json::from_str::<Golden>(include_str!("../../tests/golden/mismatch.json"))
        .unwrap()
        .cases
}

#[test]
fn diagnostics_equal_numpy() {
    for Case {
        name,
        episodes,
        diagnostics: expected,
        ..
    } in golden()
    {
        let found = diagnose(&views(&episodes));
        agrees(&name, found.totals.as_ref().unwrap(), &expected["totals"]);
        assert_eq!(found.by_turn.len(), expected["by_turn"].as_array().unwrap().len());
        for (slice, expected) in found.by_turn.iter().zip(expected["by_turn"].as_array().unwrap()) {
            agrees(&name, slice, expected);
        }
        agrees(&name, &found.by_position[0], &expected["first_position"]);
    }
}

#[test]
fn accumulation_equals_numpy() {
    for Case {
        name,
        episodes,
        accumulation: expected,
        ..
    } in golden()
    {
        let found = accumulate(&*name, &views(&episodes));
        assert_eq!(found.tokens as u64, expected["tokens"].as_u64().unwrap());
        for key in ["drift_per_token", "drift_per_token_se"] {
            agrees(&name, &found, &serde_json::json!({ key: expected[key] }));
        }
        for (points, expected) in [
            (&found.by_token, &expected["points"]),
            (&found.by_turn, &expected["turn_points"]),
        ] {
            for expected in expected.as_array().unwrap() {
                let n = expected["n"].as_u64().unwrap() as usize;
                agrees(&name, points.iter().find(|p| p.n == n).unwrap(), expected);
            }
        }
        let fit = found.fit_by_token.unwrap();
        let expected = &expected["fit"];
        for key in ["exponent", "se", "residual_se", "scale", "points"] {
            agrees(&name, &fit, &serde_json::json!({ key: expected[key] }));
        }
        assert_eq!(fit.range, (1, expected["last"].as_u64().unwrap() as usize));
    }
}

/// Samples tokens from an explicit categorical `mu` and scores them under `pi`: the only way to have exact laws to test.
fn categorical(rng: &mut ChaCha8Rng, mu: &[f64], pi: &[f64], tokens: usize) -> Episode {
    let mut episode = Episode {
        sampler: vec![],
        trainer: vec![],
        turn: vec![],
    };
    for t in 0..tokens {
        let mut draw: f64 = rng.random();
        let token = mu.iter().position(|p| {
            draw -= p;
            draw < 0.0
        });
        let token = token.unwrap_or(mu.len() - 1);
        episode.sampler.push(mu[token].ln() as f32);
        episode.trainer.push(pi[token].ln() as f32);
        episode.turn.push((t / 8) as u16);
    }
    episode
}

fn sampled(seed: u64, mu: &[f64], pi: &[f64]) -> Vec<Episode> {
    let mut rng = stream(seed, Purpose::Eval, &[]);
    (0..200)
        .map(|_| {
            let tokens = rng.random_range(10..40);
            categorical(&mut rng, mu, pi, tokens)
        })
        .collect()
}

const MU: [f64; 3] = [0.5, 0.3, 0.2];
const PI: [f64; 3] = [0.47, 0.32, 0.21];

#[test]
fn a_proper_sampler_never_alarms_however_far_the_trainer_is() {
    for seed in 0..20 {
        for pi in [PI, [0.2, 0.2, 0.6]] {
            let found = diagnose(&views(&sampled(seed, &MU, &pi)));
            assert!(
                !found.alarms.iter().any(Alarm::is_bug),
                "{seed} {pi:?}: {:?}",
                found.alarms
            );
            // k3 estimates KL(mu || pi) = sum mu log(mu / pi).
            let kl: f64 = MU.iter().zip(&pi).map(|(m, p)| m * (m / p).ln()).sum();
            let k3 = found.totals.unwrap().k3;
            assert!((k3 / kl - 1.0).abs() < 0.25, "{k3} {kl}");
        }
    }
}

#[test]
fn top_p_sampling_with_unrenormalised_logprobs_raises_the_alarm() {
    // Trap 3: the sampler draws from the kept tokens, but the mass of the dropped one is missing from both log-probs.
    let kept = [MU[0] / 0.8, MU[1] / 0.8];
    let found = diagnose(&views(&sampled(1, &kept, &[MU[0], MU[1]])));
    let Some(Alarm::RatioMean { mean, .. }) = found.alarms.iter().find(|a| a.is_bug()) else {
        panic!("{:?}", found.alarms)
    };
    assert!((mean - 0.8).abs() < 1e-3, "{mean}");
    let text = found
        .alarms
        .iter()
        .map(|a| format!("{a}\n\n"))
        .collect::<String>();
    assert!(
        text.contains("check temperature, top-p and token alignment"),
        "{text}"
    );
}

#[test]
fn logprobs_shifted_by_one_token_raise_the_alarm() {
    // Trap 11.
    let mut episodes = sampled(2, &MU, &PI);
    for e in &mut episodes {
        e.trainer.rotate_left(1);
    }
    assert!(
        diagnose(&views(&episodes))
            .alarms
            .iter()
            .any(|a| matches!(a, Alarm::RatioMean { .. }))
    );
}

#[test]
fn a_small_bias_times_a_long_episode_is_warned_about() {
    // Trap 4: .012 nats over 100 tokens is a factor e^1.2.
    let episode = Episode {
        sampler: vec![-1.0; 100],
        trainer: vec![-1.012; 100],
        turn: vec![0; 100],
    };
    let found = diagnose(&views(&vec![episode; 4]));
    let warning = found.alarms.iter().find(|a| !a.is_bug()).unwrap();
    insta::assert_snapshot!(warning, @r"
    a mean log-prob gap of -0.01200 over 100 tokens makes a sequence weight of 0.30
    hint: sequence-level weights and masks will act on length; use a token-level correction
    ");
}

#[test]
fn equal_policies_have_no_mismatch_and_no_alarm() {
    let episodes = sampled(3, &MU, &MU);
    let found = diagnose(&views(&episodes));
    let totals = found.totals.unwrap();
    assert!(found.alarms.is_empty());
    assert!(totals.k3.abs() < 1e-15 && (totals.ess_seq.unwrap() - 1.0).abs() < 1e-12);
    let report = accumulate("equal", &views(&episodes));
    assert_eq!(report.fit_by_token, None, "a variance of zero has no exponent");
}

#[test]
fn a_gap_that_is_not_finite_is_counted_and_left_out() {
    // Trap 14: a masked log-prob must not reach exp.
    let mut episodes = sampled(4, &MU, &PI);
    let clean = diagnose(&views(&episodes)).totals.unwrap();
    episodes[0].trainer[3] = f32::NEG_INFINITY;
    episodes[1].sampler[0] = f32::NAN;
    let found = diagnose(&views(&episodes));
    assert_eq!(found.non_finite, 2);
    assert_eq!(found.alarms[0], Alarm::NonFinite { tokens: 2 });
    let totals = found.totals.unwrap();
    assert!((totals.k3 - clean.k3).abs() < 1e-5 && totals.chi2_seq.is_finite());
    assert_eq!(accumulate("", &views(&episodes)).left_out, 2);
}

#[test]
fn nothing_sampled_is_no_number() {
    let empty = Episode {
        sampler: vec![],
        trainer: vec![],
        turn: vec![],
    };
    let found = diagnose(&views(std::slice::from_ref(&empty)));
    assert!(found.totals.is_none() && found.alarms.is_empty() && found.episodes == 0);
    assert!(found.metrics().iter().all(|(_, v)| v.is_finite()));
    let report = accumulate("", &views(&[empty]));
    assert!(report.by_token.is_empty() && report.fit_by_token.is_none() && report.left_out == 1);
}

#[test]
fn sequence_weights_multiply_token_weights() {
    // Trap 17: exp of the sum, not the sum of exps; against naive code.
    let episodes = sampled(5, &MU, &PI);
    let naive: Vec<f64> = episodes
        .iter()
        .map(|e| {
            e.trainer
                .iter()
                .zip(&e.sampler)
                .map(|(p, m)| (f64::from(*p) - f64::from(*m)).exp())
                .product()
        })
        .collect();
    let chi2 = naive.iter().map(|w| w * w - 1.0).sum::<f64>() / naive.len() as f64;
    assert!((diagnose(&views(&episodes)).totals.unwrap().chi2_seq - chi2).abs() < 1e-9);
    let report = accumulate("", &views(&episodes));
    let last = report.by_token.last().unwrap();
    assert!((last.weight_mean - naive.iter().sum::<f64>() / naive.len() as f64).abs() < 1e-12);
    // E[e^S] = 1 for episodes stopped at their own end; sd of the mean is about .03 here.
    assert!((last.weight_mean - 1.0).abs() < 0.12, "{}", last.weight_mean);
}

#[test]
fn exponents_tell_a_random_walk_from_a_persistent_gap() {
    let walk = accumulate("walk", &views(&sampled(6, &MU, &PI)))
        .fit_by_token
        .unwrap();
    assert!(
        (walk.exponent - 1.0).abs() < 4.0 * walk.se && walk.se < 0.1,
        "{walk:?}"
    );
    let constant = |gap: f32| Episode {
        sampler: vec![-1.0; 32],
        trainer: vec![-1.0 + gap; 32],
        turn: vec![0; 32],
    };
    let episodes: Vec<Episode> = (0..16).map(|i| constant((i as f32 - 8.0) / 128.0)).collect();
    let persistent = accumulate("persistent", &views(&episodes)).fit_by_token.unwrap();
    assert!((persistent.exponent - 2.0).abs() < 1e-6, "{persistent:?}");
}

#[test]
fn metrics_carry_the_declared_keys() {
    let metrics = diagnose(&views(&sampled(7, &MU, &PI))).metrics();
    let declared = |name: &str| {
        crate::metrics::keys::FIXED.iter().any(|d| d.name == name) || name.starts_with("mismatch/k3_turn_")
    };
    assert!(metrics.iter().all(|(key, _)| declared(key.as_str())));
    for key in [
        "mismatch/k3",
        "mismatch/ess_seq",
        "mismatch/k3_turn_0",
        "mismatch/k3_turn_4",
    ] {
        assert!(metrics.iter().any(|(k, _)| k.as_str() == key), "{key}");
    }
}

#[test]
fn k3_is_accurate_where_the_formula_cancels() {
    for d in [1e-9, -1e-6, 9.99e-4, 1.01e-3, -0.5] {
        // Series to order 12 in f64, summed small to large.
        let series = (2..=12).rev().map(|k| d_pow(d, k)).sum::<f64>();
        let found = super::diagnostics::k3(d);
        assert!((found / series - 1.0).abs() < 1e-9, "{d}: {found} {series}");
    }
    fn d_pow(d: f64, k: i32) -> f64 {
        d.powi(k) / (1..=k).map(f64::from).product::<f64>()
    }
}
