//! The derived facts of the gate, and golden values from NumPy (`tests/golden/gate.py`).

use rand::RngExt;
use serde::Deserialize;

use super::*;
use crate::number::Share;

/// GRPO advantages written from their definition, so that these tests depend on no other module.
fn grpo(returns: &[f64]) -> Vec<f64> {
    let n = returns.len() as f64;
    let mean = returns.iter().sum::<f64>() / n;
    let sd = (returns.iter().map(|r| (r - mean).powi(2)).sum::<f64>() / (n - 1.0)).sqrt();
    if returns.len() < 2 || sd <= 1e-6 {
        return vec![0.0; returns.len()];
    }
    returns.iter().map(|r| (r - mean) / (sd + 1e-6)).collect()
}

/// Owned episodes: sampler log-probs, trainer log-probs, return.
#[derive(Clone, Deserialize)]
struct Episode {
    sampler: Vec<f32>,
    trainer: Vec<f32>,
    ret: f64,
}

fn views(groups: &[Vec<Episode>]) -> Vec<Vec<ValidationEpisode<'_>>> {
    groups
        .iter()
        .map(|g| {
            g.iter()
                .map(|e| ValidationEpisode {
                    sampler_logprobs: &e.sampler,
                    trainer_logprobs: &e.trainer,
                    ret: e.ret,
                })
                .collect()
        })
        .collect()
}

fn measured(groups: &[Vec<Episode>]) -> Statistic {
    measure(&views(groups), &grpo, 7, 0)
}

/// Groups with per-token gaps of `sd`, and returns drawn independently of them: pure noise.
fn noise(seed: u64, groups: usize, size: usize, sd: f32) -> Vec<Vec<Episode>> {
    let mut rng = stream(seed, Purpose::Eval, &[]);
    let episode = |rng: &mut rand_chacha::ChaCha8Rng| {
        let tokens = rng.random_range(5..20);
        let sampler: Vec<f32> = (0..tokens).map(|_| -rng.random::<f32>()).collect();
        // A sum of uniforms is close enough to normal here; only symmetry and spread matter.
        let gap = |rng: &mut rand_chacha::ChaCha8Rng| {
            sd * ((0..12).map(|_| rng.random::<f32>()).sum::<f32>() - 6.0)
        };
        let trainer = sampler.iter().map(|m| m + gap(rng)).collect();
        Episode {
            sampler,
            trainer,
            ret: f64::from(u8::from(rng.random::<f64>() < 0.5)),
        }
    };
    (0..groups)
        .map(|_| (0..size).map(|_| episode(&mut rng)).collect())
        .collect()
}

#[track_caller]
fn close(found: f64, expected: f64, tolerance: f64) {
    assert!(
        (found - expected).abs() <= tolerance * (1.0 + expected.abs()),
        "{found} is not {expected}"
    );
}

#[derive(Deserialize)]
struct Golden {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    groups: Vec<Vec<Episode>>,
    expected: Expected,
}

#[derive(Deserialize)]
struct Expected {
    t_hat: f64,
    t_hat_informative: f64,
    covariance_form: f64,
    se: f64,
    p_value: f64,
    null_sd: f64,
    exact: bool,
    n_episodes: usize,
    n_groups: usize,
    n_informative: usize,
    reward: f64,
}

#[test]
fn statistic_equals_numpy() {
    let golden: Golden = serde_json::from_str(include_str!("../../tests/golden/gate.json")).unwrap();
    for case in golden.cases {
        let (found, expected) = (measured(&case.groups), case.expected);
        println!("{}", case.name);
        close(found.t_hat.unwrap(), expected.t_hat, 1e-12);
        close(found.t_hat.unwrap(), expected.covariance_form, 1e-9);
        close(
            found.t_hat_informative.unwrap(),
            expected.t_hat_informative,
            1e-12,
        );
        close(found.se.unwrap(), expected.se, 1e-12);
        close(found.null_sd.unwrap(), expected.null_sd, 1e-9);
        close(found.reward.unwrap().mean, expected.reward, 1e-12);
        assert_eq!(
            (found.n_episodes, found.n_groups, found.n_informative),
            (expected.n_episodes, expected.n_groups, expected.n_informative)
        );
        let p = expected.p_value;
        let tolerance = if expected.exact {
            1e-12
        } else {
            5.0 * (p * (1.0 - p) / MONTE_CARLO_DRAWS as f64).sqrt() + 3e-4
        };
        close(found.p_value.unwrap(), p, tolerance);
    }
}

#[test]
fn advantages_sum_to_zero_so_a_common_factor_on_rho_cancels() {
    let groups = noise(1, 6, 8, 0.05);
    for g in &groups {
        let total: f64 = grpo(&g.iter().map(|e| e.ret).collect::<Vec<_>>()).iter().sum();
        close(total, 0.0, 1e-12);
    }
    let shifted = |from: fn(&Episode) -> &[f32]| -> Vec<Vec<Episode>> {
        let shift = |e: &Episode| Episode {
            trainer: from(e).iter().map(|m| m + 0.25).collect(),
            ..e.clone()
        };
        groups.iter().map(|g| g.iter().map(shift).collect()).collect()
    };
    // A constant rho, however far from 1, says nothing: T_hat is 0 up to the rounding of f32 log-probs.
    close(measured(&shifted(|e| &e.sampler)).t_hat.unwrap(), 0.0, 1e-7);
    // On top of real gaps it adds nothing either, it only scales them: rho' = e^.25 rho.
    let plain = measured(&groups).t_hat.unwrap();
    assert!(plain.abs() > 1e-5);
    close(
        measured(&shifted(|e| &e.trainer)).t_hat.unwrap(),
        plain * 0.25f64.exp(),
        1e-6,
    );
}

#[test]
fn under_noise_t_hat_is_negative_half_the_time_and_p_is_uniform() {
    let runs = 400;
    let measured: Vec<Statistic> = (0..runs).map(|seed| measured(&noise(seed, 6, 6, 0.05))).collect();
    let negative = measured.iter().filter(|s| s.t_hat.unwrap() < 0.0).count() as f64 / runs as f64;
    // Four binomial standard errors.
    assert!((negative - 0.5).abs() < 0.1, "{negative}");
    let small = measured.iter().filter(|s| s.p_value.unwrap() < 0.1).count() as f64 / runs as f64;
    assert!((small - 0.1).abs() < 0.06, "{small}");
    // The two spreads agree with the spread over repetitions.
    let values: Vec<f64> = measured.iter().filter_map(|s| s.t_hat).collect();
    let spread = crate::statistics::variance(&values).unwrap().sqrt();
    let se = crate::statistics::mean(&measured.iter().filter_map(|s| s.se).collect::<Vec<_>>()).unwrap();
    let null =
        crate::statistics::mean(&measured.iter().filter_map(|s| s.null_sd).collect::<Vec<_>>()).unwrap();
    assert!(
        (se / spread - 1.0).abs() < 0.15 && (null / spread - 1.0).abs() < 0.15,
        "{spread} {se} {null}"
    );
}

fn two_by_two(gap: f32) -> Vec<Vec<Episode>> {
    let episode = |gap: f32, ret| Episode {
        sampler: vec![-1.0; 4],
        trainer: vec![-1.0 + gap; 4],
        ret,
    };
    vec![vec![episode(gap, 1.0), episode(0.0, 0.0)]; 4]
}

#[test]
fn a_trainer_that_overweights_successes_is_rejected_and_one_that_underweights_them_is_not() {
    let config = GateConfig::default();
    for (gap, expected) in [
        (0.1, Verdict::Reject(Reason::BelowTolerance)),
        (-0.1, Verdict::Accept(Reason::WithinTolerance)),
        (1e-4, Verdict::Accept(Reason::WithinTolerance)),
    ] {
        assert_eq!(
            judge(&config, &measured(&two_by_two(gap)), &Occasion::default()),
            expected,
            "{gap}"
        );
    }
    // By hand: A = +-0.5/(sqrt(.5)+1e-6), rho = e^gap and 1.
    let a = 0.5 / (0.5f64.sqrt() + 1e-6);
    close(
        measured(&two_by_two(0.1)).t_hat.unwrap(),
        -a * (f64::from(-1.0f32 + 0.1) + 1.0).exp_m1() / 2.0,
        1e-12,
    );
}

#[test]
fn significance_spares_what_chance_explains() {
    let config: GateConfig =
        serde_json::from_str(r#"{"mipu_significant": {"c": {"start": 0.0}, "alpha": 0.05}}"#).unwrap();
    let statistic = measured(&two_by_two(0.1));
    // Four pairs, all aligned: 1/16, not below .05.
    close(statistic.p_value.unwrap(), 1.0 / 16.0, 1e-12);
    assert_eq!(
        judge(&config, &statistic, &Occasion::default()),
        Verdict::Accept(Reason::NotSignificant)
    );
    let mut five = two_by_two(0.1);
    five.push(five[0].clone());
    assert_eq!(
        judge(&config, &measured(&five), &Occasion::default()),
        Verdict::Reject(Reason::BelowTolerance)
    );
}

#[test]
fn c_zero_and_equal_policies_accept_in_spite_of_rounding() {
    let config: GateConfig = serde_json::from_str(r#"{"mipu": {"c": {"start": 0.0}}}"#).unwrap();
    for seed in 0..20 {
        let mut groups = noise(seed, 4, 8, 0.0);
        for e in groups.iter_mut().flatten() {
            e.trainer.clone_from(&e.sampler);
        }
        let verdict = judge(&config, &measured(&groups), &Occasion::default());
        assert_eq!(verdict, Verdict::Accept(Reason::WithinTolerance));
    }
}

#[test]
fn no_informative_group_is_undefined_and_never_zero() {
    let mut groups = noise(3, 4, 8, 0.05);
    groups.iter_mut().flatten().for_each(|e| e.ret = 1.0);
    let statistic = measured(&groups);
    assert!(statistic.undefined && statistic.t_hat.is_none() && statistic.p_value.is_none());
    for (policy, expected) in [
        ("accept", Verdict::Accept(Reason::Undefined)),
        ("reject", Verdict::Reject(Reason::Undefined)),
        ("extend", Verdict::Extend),
    ] {
        let config: GateConfig =
            serde_json::from_str(&format!(r#"{{"mipu": {{"on_undefined": "{policy}"}}}}"#)).unwrap();
        assert_eq!(judge(&config, &statistic, &Occasion::default()), expected);
        let last = Occasion {
            round: EXTENSIONS,
            ..Occasion::default()
        };
        assert_ne!(judge(&config, &statistic, &last), Verdict::Extend);
    }
}

#[test]
fn one_survivor_or_a_nan_reward_leaves_a_group_uninformative() {
    let mut groups = noise(5, 2, 4, 0.05);
    groups[0].truncate(1);
    groups[1][2].ret = f64::NAN;
    let statistic = measured(&groups);
    assert!(statistic.undefined && !statistic.non_finite);
    assert_eq!(
        (statistic.n_groups, statistic.n_informative, statistic.n_episodes),
        (2, 0, 5)
    );
}

#[test]
fn empty_episodes_are_left_out_before_group_statistics() {
    let mut groups = two_by_two(0.1);
    let with_empty: Vec<Vec<Episode>> = groups
        .iter()
        .map(|g| {
            let mut g = g.clone();
            g.push(Episode {
                sampler: vec![],
                trainer: vec![],
                ret: 1.0,
            });
            g
        })
        .collect();
    let (a, b) = (measured(&groups), measured(&with_empty));
    assert_eq!((a.t_hat, a.se, a.n_episodes), (b.t_hat, b.se, b.n_episodes));
    assert_eq!(b.n_left_out, 4);
    groups.clear();
    assert!(measured(&groups).undefined);
}

#[test]
fn a_ratio_that_is_not_finite_rejects_under_every_gate() {
    let mut groups = two_by_two(0.0);
    groups[0][0].trainer[0] = f32::NAN;
    let nan = measured(&groups);
    groups[0][0].trainer[0] = f32::INFINITY;
    let infinite = measured(&groups);
    for statistic in [nan, infinite] {
        assert!(statistic.non_finite && statistic.t_hat.is_none());
        for config in [
            GateConfig::default(),
            GateConfig::Random(RandomGate {
                reject_rate: Share::literal(0.0),
                ..RandomGate::default()
            }),
            GateConfig::RewardDrop(RewardDropGate::default()),
        ] {
            assert_eq!(
                judge(&config, &statistic, &Occasion::default()),
                Verdict::Reject(Reason::NonFinite)
            );
        }
    }
    assert_eq!(
        judge(&GateConfig::Never, &Statistic::default(), &Occasion::default()),
        Verdict::Accept(Reason::Unjudged)
    );
}

#[test]
fn the_random_gate_rejects_at_its_rate_and_replays() {
    let config = GateConfig::Random(RandomGate {
        reject_rate: Share::literal(0.25),
        ..RandomGate::default()
    });
    let coin = |seed, attempt| {
        judge(
            &config,
            &Statistic::default(),
            &Occasion {
                seed,
                attempt,
                ..Occasion::default()
            },
        )
    };
    let rejected = (0..2000)
        .filter(|&t| coin(1, t) == Verdict::Reject(Reason::Coin))
        .count();
    // 500 expected, sd 19.
    assert!((420..580).contains(&rejected), "{rejected}");
    assert_eq!(coin(1, 3), coin(1, 3));
}

#[test]
fn reward_drop_weighs_the_fall_against_its_error() {
    let config = GateConfig::RewardDrop(RewardDropGate::default());
    let at = |mean, se| Some(Estimate { mean, se: Some(se) });
    let judged = |now, before| {
        let statistic = Statistic {
            reward: now,
            ..Statistic::default()
        };
        judge(
            &config,
            &statistic,
            &Occasion {
                reward_before: before,
                ..Occasion::default()
            },
        )
    };
    // SE of the difference: hypot(.03, .04) = .05.
    assert_eq!(
        judged(at(0.56, 0.03), at(0.60, 0.04)),
        Verdict::Accept(Reason::RewardHeld)
    );
    assert_eq!(
        judged(at(0.54, 0.03), at(0.60, 0.04)),
        Verdict::Reject(Reason::RewardFell)
    );
    assert_eq!(judged(at(0.1, 0.03), None), Verdict::Accept(Reason::Undefined));
}

#[test]
fn a_decision_refuses_weights_it_did_not_call_for() {
    let (config, statistic) = (GateConfig::default(), measured(&two_by_two(0.1)));
    let occasion = Occasion::default();
    let verdict = judge(&config, &statistic, &occasion);
    let hashes = |after: &str| Hashes {
        before: "old".into(),
        candidate: "new".into(),
        after: after.into(),
    };
    let decision = Decision::new(&config, &statistic, verdict, &occasion, hashes("old")).unwrap();
    assert!(!decision.accepted && decision.reason == Reason::BelowTolerance && decision.c_t == Some(4e-3));
    let json = serde_json::to_string(&decision).unwrap();
    assert!(json.contains(r#""reason":"below_tolerance""#), "{json}");
    let error = Decision::new(&config, &statistic, verdict, &occasion, hashes("new")).unwrap_err();
    insta::assert_snapshot!(error, @r"
    a rollback left the wrong weights: expected old, found new
    hint: the run is stopped before anything is recorded; resume from the last checkpoint
    ");
}
