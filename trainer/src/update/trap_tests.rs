//! Regression tests named after the symptoms of docs/mipu.md's traps.

use mipu_agent::{Group, Tokens};

use super::tests::*;
use super::*;
use crate::correction::{SequenceBounds, Tis};
use crate::loss::{KlConfig, KlEstimator, UninformativeGroups};
use crate::number::Positive;
use crate::testing::{tokens, trajectory};

#[test]
fn trap_02_temperature_belongs_inside_the_softmax() {
    let pi = policy(1);
    let record = tokens(VOCAB, &[(false, 3), (true, 6)], 5);
    let at = |temperature| score(&pi, &[&record], temperature).unwrap().remove(0);
    let (hot, unit) = (at(2.0), at(1.0));
    // Dividing log-probs by T afterwards is not a distribution; the real one is flatter than T = 1, yet normalised.
    assert!(hot.iter().zip(&unit).any(|(h, u)| (h - u / 2.0).abs() > 1e-2));
    let total: f64 = (0..VOCAB as u32)
        .map(|last| {
            let mut all = Tokens::default();
            all.push_context(&record.ids()[..4], 0);
            all.push_sampled(&[last], &[-1.0], 0);
            f64::from(score(&pi, &[&all], 2.0).unwrap()[0][0]).exp()
        })
        .sum();
    assert!((total - 1.0).abs() < 1e-5, "{total}");
}

#[test]
fn trap_05_truncating_an_episode_truncates_every_array() {
    let mut pi = policy(1);
    let mut groups = groups(&pi, 0.1);
    for t in groups.iter_mut().flat_map(|g| &mut g.trajectories) {
        t.tokens.truncate(t.tokens.len() - 1);
    }
    let sampled: usize = groups
        .iter()
        .flat_map(|g| &g.trajectories)
        .map(|t| t.tokens.sampled_len())
        .sum();
    let mut adam = optim(&pi);
    let report = update(
        &mut pi,
        &mut adam,
        &groups,
        &AlgorithmConfig::default(),
        &context(1e-3),
    )
    .unwrap();
    assert_eq!(report.tokens, sampled);
    assert!(
        report.w_max < 1.2,
        "a shifted array would show in the ratios: {}",
        report.w_max
    );
}

#[test]
fn trap_06_reported_ratios_are_raw_not_truncated() {
    let groups = groups(&policy(1), 2.0);
    let config = |w_max| AlgorithmConfig {
        correction: CorrectionConfig::Tis(Tis {
            w_max: Positive::literal(w_max),
            ..Tis::default()
        }),
        ..AlgorithmConfig::default()
    };
    let (tight, _) = run_update(&groups, &config(1.01), 1e-4);
    let (loose, _) = run_update(&groups, &config(100.0), 1e-4);
    assert!(
        tight.w_max > 5.0
            && (tight.w_max, tight.w_mean, tight.w_ess, tight.mismatch_k3)
                == (loose.w_max, loose.w_mean, loose.w_ess, loose.mismatch_k3)
    );
    assert!(tight.truncated_frac > 0.3 && loose.truncated_frac < 1e-12);
}

#[test]
fn trap_07_a_group_with_one_valid_reward_moves_nothing() {
    let mut pi = policy(1);
    let mut all = groups(&pi, 0.1);
    all[0].trajectories.truncate(1);
    all[0].unscored.push("timeout".to_owned());
    let before = flat(&pi);
    let mut adam = optim(&pi);
    let report = update(
        &mut pi,
        &mut adam,
        &all[..1],
        &AlgorithmConfig::default(),
        &context(1e-2),
    )
    .unwrap();
    assert_eq!(
        (
            report.groups.too_small,
            report.unscored_episodes,
            report.optimizer_steps
        ),
        (1, 1, 0)
    );
    assert!(before == flat(&pi) && report.loss == 0.0);
}

#[test]
fn trap_08_zero_std_groups_regularise_only_when_asked() {
    let mut groups = groups(&policy(1), 0.1);
    for t in &mut groups[1].trajectories {
        t.turn_rewards = vec![1.0];
    }
    let reference = policy(2);
    let with = |groups: &[Group], uninformative_groups| {
        let kl = KlConfig {
            estimator: KlEstimator::K3,
            coefficient: Positive::literal(0.1),
        };
        let loss = LossConfig {
            kl: Some(kl),
            uninformative_groups,
            ..LossConfig::default()
        };
        let config = AlgorithmConfig {
            loss,
            ..AlgorithmConfig::default()
        };
        let mut pi = policy(1);
        let mut adam = optim(&pi);
        let context = UpdateContext {
            reference: Some(&reference),
            ..context(1e-3)
        };
        let report = update(&mut pi, &mut adam, groups, &config, &context).unwrap();
        (report, flat(&pi))
    };
    let (dropped, dropped_weights) = with(&groups, UninformativeGroups::Drop);
    let (kept, kept_weights) = with(&groups, UninformativeGroups::Regularize);
    assert_eq!((dropped.episodes, kept.episodes), (5, 9));
    assert_eq!((dropped.groups.no_spread, kept.groups.no_spread), (1, 1));
    assert!(dropped_weights != kept_weights && dropped.kl > 0.0);
    // The dropped group is as if it had never been sampled.
    groups.remove(1);
    let (without, without_weights) = with(&groups, UninformativeGroups::Drop);
    assert!(without_weights == dropped_weights && without.loss.to_bits() == dropped.loss.to_bits());
}

#[test]
fn trap_11_log_probs_shifted_by_one_are_seen_in_the_ratio() {
    let pi = policy(1);
    let aligned = groups(&pi, 0.0);
    let mut shifted = aligned.clone();
    for t in shifted.iter_mut().flat_map(|g| &mut g.trajectories) {
        let logprobs = score(&pi, &[&t.tokens], 1.0).unwrap().remove(0);
        t.tokens = with_sampler_logprobs(&t.tokens, |j| logprobs[(j + 1) % logprobs.len()]);
    }
    let (right, _) = run_update(&aligned, &AlgorithmConfig::default(), 1e-4);
    let (wrong, _) = run_update(&shifted, &AlgorithmConfig::default(), 1e-4);
    assert!(right.mismatch_k3 < 1e-10 && (right.w_mean - 1.0).abs() < 1e-5);
    assert!(wrong.mismatch_k3 > 0.05);
}

#[test]
fn trap_12_every_sampled_turn_carries_the_advantage() {
    let pi = policy(1);
    let groups = groups(&pi, 0.0);
    let mut batch = prepare(
        &pi,
        &groups,
        &AlgorithmConfig::default(),
        &mut UpdateReport::default(),
    )
    .unwrap();
    let all: Vec<usize> = (0..batch.len()).collect();
    let turns = batch[0][0].episode.turn().to_vec();
    assert!(turns.contains(&0) && turns.contains(&1));
    // On the policy itself r = w = 1: the surrogate of every token is exactly its advantage.
    let sums: f64 = batch[0].iter().map(|s| s.advantage).sum::<f64>();
    assert!(sums.abs() < 1e-12);
    let stats = minibatch_gradients(&pi, &mut batch, &all, &AlgorithmConfig::default(), &context(0.0))
        .unwrap()
        .stats;
    assert_eq!(
        stats.active,
        groups
            .iter()
            .flat_map(|g| &g.trajectories)
            .map(|t| t.tokens.sampled_len())
            .sum::<usize>()
    );
}

#[test]
fn trap_13_an_appended_end_token_is_not_trained() {
    let groups = groups(&policy(1), 0.1);
    let mut appended = groups.clone();
    for t in appended.iter_mut().flat_map(|g| &mut g.trajectories) {
        t.tokens.push_context(&[12], 1);
    }
    let config = AlgorithmConfig::default();
    let (a, b) = (
        run_update(&groups, &config, 1e-2),
        run_update(&appended, &config, 1e-2),
    );
    assert!(a == b && a.0.tokens == b.0.tokens);
}

#[test]
fn trap_14_context_positions_never_enter_a_ratio() {
    // Sampler log-probs of context are stored as 0; were they read, w would be e^(log pi) there and the statistics would show it.
    let pi = policy(1);
    let (report, _) = run_update(&groups(&pi, 0.0), &AlgorithmConfig::default(), 1e-4);
    assert!((report.w_mean - 1.0).abs() < 1e-5 && (report.w_max - 1.0).abs() < 1e-5);
}

#[test]
fn trap_15_a_failed_environment_is_not_a_zero_reward() {
    let mut groups = groups(&policy(1), 0.1);
    groups[1].trajectories.remove(2);
    let config = AlgorithmConfig::default();
    let lost = run_update(&groups, &config, 1e-2);
    groups[1].unscored.push("sandbox: out of memory".to_owned());
    let counted = run_update(&groups, &config, 1e-2);
    assert!(lost.1 == counted.1 && counted.0.unscored_episodes == 1 && counted.0.episodes == 8);
}

#[test]
fn trap_16_a_fully_masked_batch_is_skipped_and_counted() {
    let groups = groups(&policy(1), 2.0);
    let narrow = Positive::literal(1e9);
    let bounds = SequenceBounds {
        low: narrow,
        high: narrow,
    };
    let config = AlgorithmConfig {
        correction: CorrectionConfig::SeqMis(bounds),
        ..AlgorithmConfig::default()
    };
    let (report, weights) = run_update(&groups, &config, 1e-2);
    assert_eq!((report.skipped_minibatches, report.optimizer_steps), (1, 0));
    assert!(report.loss == 0.0 && weights == flat(&policy(1)) && report.truncated_frac > 0.999);
    let (report, weights) = run_update(&[], &AlgorithmConfig::default(), 1e-2);
    assert!(weights == flat(&policy(1)) && report.optimizer_steps == 0 && report.loss == 0.0);
}

#[test]
fn trap_18_pi_k_is_frozen_before_the_first_step() {
    let groups = groups(&policy(1), 0.0);
    let config = AlgorithmConfig {
        minibatches: nonzero(3),
        epochs: nonzero(2),
        ..AlgorithmConfig::default()
    };
    let (report, _) = run_update(&groups, &config, 1e-3);
    // The sampler is pi_k itself, so w = 1 in every minibatch if pi_k is frozen, while r = pi_theta / pi_k has moved.
    assert_eq!(report.optimizer_steps, 6);
    assert!(
        (report.w_max - 1.0).abs() < 1e-5 && report.mismatch_k3 < 1e-10,
        "{report:?}"
    );
    assert!(report.ratio_max > 1.001, "{report:?}");
}

#[test]
fn trap_19_an_episode_is_one_sequence_however_many_turns_it_has() {
    let pi = policy(1);
    let base = tokens(VOCAB, &[(false, 3), (true, 3), (true, 3)], 9);
    let logprobs = score(&pi, &[&base], 1.0).unwrap().remove(0);
    // Every token is off by a factor e^0.2: e^1.2 over the episode leaves [0.5, 2], e^0.6 over either turn would not.
    let off = with_sampler_logprobs(&base, |j| logprobs[j] - 0.2);
    let group = Group {
        task_id: "g".to_owned(),
        trajectories: (0..2)
            .map(|i| trajectory("g", i, off.clone(), i as f64))
            .collect(),
        unscored: Vec::new(),
    };
    let config = AlgorithmConfig {
        correction: CorrectionConfig::SeqMis(SequenceBounds::default()),
        ..AlgorithmConfig::default()
    };
    let (report, _) = run_update(&[group], &config, 1e-3);
    assert_eq!((report.skipped_minibatches, report.truncated_frac), (1, 1.0));
}

#[test]
fn trap_20_an_empty_output_is_left_out_before_the_statistics() {
    let mut groups = groups(&policy(1), 0.1);
    let plain = run_update(&groups, &AlgorithmConfig::default(), 1e-2);
    let empty = trajectory("g0", 3, tokens(VOCAB, &[(false, 4)], 1), 1.0);
    groups[0].trajectories.push(empty);
    let with_empty = run_update(&groups, &AlgorithmConfig::default(), 1e-2);
    assert!(plain.1 == with_empty.1 && with_empty.0.empty_episodes == 1);
}
