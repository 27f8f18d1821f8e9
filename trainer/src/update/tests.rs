//! The update as a whole: regression tests named after the symptoms of MIPU.md's traps, failure atomicity, determinism.

use candle_core::Device;
use mipu_agent::{Group, Tokens};

use super::*;
use crate::correction::{SequenceBounds, Tis};
use crate::loss::{KlConfig, KlEstimator, UninformativeGroups};
use crate::number::{NonNegative, Positive};
use crate::optim::OptimConfig;
use crate::testing::{group, tiny_config, tiny_weights, tokens, trajectory};

const VOCAB: usize = 13;

fn policy(seed: u64) -> TrainerPolicy {
    TrainerPolicy::from_weights(&tiny_weights(&tiny_config("qwen3"), seed), &Device::Cpu).unwrap()
}

fn optim(policy: &TrainerPolicy) -> AdamW {
    AdamW::new(policy, OptimConfig::default())
}

fn context(lr: f64) -> UpdateContext<'static> {
    UpdateContext {
        seed: 7,
        attempt: 3,
        lr,
        temperature: 1.0,
        reference: None,
    }
}

/// Three groups with a signal whose sampler log-probs are those of the policy, give or take `noise`.
fn groups(policy: &TrainerPolicy, noise: f32) -> Vec<Group> {
    let rewards = [vec![1.0, 0.0, 0.0], vec![0.0, 1.0, 1.0, 0.0], vec![0.2, 0.7]];
    let mut groups: Vec<Group> = rewards
        .iter()
        .enumerate()
        .map(|(i, r)| group(VOCAB, &format!("g{i}"), r, i as u64))
        .collect();
    for (i, t) in groups.iter_mut().flat_map(|g| &mut g.trajectories).enumerate() {
        let logprobs = &score(policy, &[&t.tokens], 1.0).unwrap()[0];
        let noisy = |j: usize| logprobs[j] + noise * ((i * 31 + j * 7) as f32).sin();
        t.tokens = with_sampler_logprobs(&t.tokens, noisy);
    }
    groups
}

fn with_sampler_logprobs(tokens: &Tokens, logprob: impl Fn(usize) -> f32) -> Tokens {
    let mut out = Tokens::default();
    let mut seen = 0;
    for t in 0..tokens.len() {
        if tokens.loss_mask()[t] {
            out.push_sampled(&[tokens.ids()[t]], &[logprob(seen)], tokens.turn()[t]);
            seen += 1;
        } else {
            out.push_context(&[tokens.ids()[t]], tokens.turn()[t]);
        }
    }
    out
}

fn run_update(
    groups: &[Group],
    config: &AlgorithmConfig,
    lr: f64,
) -> (UpdateReport, Vec<(String, Vec<f32>)>) {
    let mut pi = policy(1);
    let mut adam = optim(&pi);
    let report = update(&mut pi, &mut adam, groups, config, &context(lr)).unwrap();
    (report, flat(&pi))
}

fn flat(policy: &TrainerPolicy) -> Vec<(String, Vec<f32>)> {
    policy
        .to_weights()
        .unwrap()
        .tensors
        .into_iter()
        .map(|(n, _, v)| (n, v.to_vec()))
        .collect()
}

fn nonzero(n: usize) -> NonZeroUsize {
    NonZeroUsize::new(n).unwrap()
}

fn gradients(groups: &[Group], config: &AlgorithmConfig) -> Vec<Vec<f32>> {
    let pi = policy(1);
    let mut batch = prepare(&pi, groups, config, &mut UpdateReport::default()).unwrap();
    let all: Vec<usize> = (0..batch.len()).collect();
    minibatch_gradients(&pi, &mut batch, &all, config, &context(0.0))
        .unwrap()
        .gradients
        .values
}

fn largest_difference(a: &[Vec<f32>], b: &[Vec<f32>]) -> f32 {
    a.iter()
        .flatten()
        .zip(b.iter().flatten())
        .map(|(x, y)| (x - y).abs())
        .fold(0.0, f32::max)
}

#[test]
fn reward_is_learnt_on_a_fixed_batch() {
    let mut pi = policy(1);
    let mut adam = optim(&pi);
    let groups = groups(&pi, 0.05);
    let best = &groups[0].trajectories[0].tokens;
    let worst = &groups[0].trajectories[1].tokens;
    let sum = |pi: &TrainerPolicy, t: &Tokens| score(pi, &[t], 1.0).unwrap()[0].iter().sum::<f32>();
    let before = (sum(&pi, best), sum(&pi, worst));
    update(
        &mut pi,
        &mut adam,
        &groups,
        &AlgorithmConfig::default(),
        &context(5e-3),
    )
    .unwrap();
    assert!(sum(&pi, best) > before.0 && sum(&pi, worst) < before.1);
}

#[test]
fn the_same_update_has_the_same_bits_at_any_thread_count() {
    let groups = groups(&policy(1), 0.3);
    let config = AlgorithmConfig {
        minibatches: nonzero(2),
        epochs: nonzero(2),
        micro_batch_tokens: Some(nonzero(16)),
        ..AlgorithmConfig::default()
    };
    let run = |threads| {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .build()
            .unwrap();
        pool.install(|| run_update(&groups, &config, 1e-2))
    };
    let one = run(1);
    assert!(one == run(1) && one == run(2) && one == run(5));
    assert!(one.0.optimizer_steps == 4 && one.0.ratio_max > 1.0);
}

#[test]
fn micro_batches_change_nothing_beyond_rounding() {
    let groups = groups(&policy(1), 0.3);
    let of = |n| {
        gradients(
            &groups,
            &AlgorithmConfig {
                micro_batch_tokens: Some(nonzero(n)),
                ..AlgorithmConfig::default()
            },
        )
    };
    assert!(largest_difference(&of(1), &of(10_000)) < 1e-6);
}

#[test]
fn context_after_the_last_sampled_token_changes_nothing() {
    let groups = groups(&policy(1), 0.3);
    let mut longer = groups.clone();
    for t in longer.iter_mut().flat_map(|g| &mut g.trajectories) {
        t.tokens.push_context(&[1, 2, 3], 1);
    }
    let config = AlgorithmConfig::default();
    assert_eq!(
        run_update(&groups, &config, 1e-2),
        run_update(&longer, &config, 1e-2)
    );
}

#[test]
fn a_failed_update_leaves_policy_and_optimizer_untouched() {
    let mut pi = policy(1);
    let mut adam = optim(&pi);
    let groups = groups(&pi, 0.1);
    let config = AlgorithmConfig {
        minibatches: nonzero(3),
        ..AlgorithmConfig::default()
    };
    update(&mut pi, &mut adam, &groups, &config, &context(1e-3)).unwrap();
    let before = (flat(&pi), adam.state());

    // A step so large that the second minibatch's forward overflows.
    let error = update(&mut pi, &mut adam, &groups, &config, &context(1e38)).unwrap_err();
    assert!(matches!(&error, TrainerError::NonFinite { .. }), "{error}");
    assert!(before == (flat(&pi), adam.state()));

    let mut broken = groups.clone();
    broken[1].trajectories[2].tokens =
        with_sampler_logprobs(&groups[1].trajectories[2].tokens, |_| f32::NEG_INFINITY);
    let error = update(&mut pi, &mut adam, &broken, &config, &context(1e-3)).unwrap_err();
    assert!(error.to_string().contains("sampler log-prob of token"), "{error}");
    assert!(before == (flat(&pi), adam.state()));
}

#[test]
fn weights_that_are_not_finite_stop_the_update_by_name() {
    let pi = policy(1);
    let groups = groups(&pi, 0.1);
    let mut weights = pi.to_weights().unwrap();
    let mut values = weights.tensors[4].2.to_vec();
    values[0] = f32::NAN;
    weights.tensors[4].2 = std::sync::Arc::new(values);
    let mut pi = TrainerPolicy::from_weights(&weights, &Device::Cpu).unwrap();
    let mut adam = optim(&pi);
    let error = update(
        &mut pi,
        &mut adam,
        &groups,
        &AlgorithmConfig::default(),
        &context(1e-3),
    )
    .unwrap_err();
    let error = error.to_string();
    assert!(
        error.starts_with("log-prob of sampled token 0 of g") && error.ends_with("/0 is not finite (NaN)"),
        "{error}"
    );
}

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

#[test]
fn an_entropy_bonus_raises_the_entropy() {
    let groups = groups(&policy(1), 0.0);
    let entropy_after = |bonus| {
        let loss = LossConfig {
            entropy_bonus: NonNegative::literal(bonus),
            ..LossConfig::default()
        };
        let config = AlgorithmConfig {
            loss,
            epochs: nonzero(6),
            ..AlgorithmConfig::default()
        };
        run_update(&groups, &config, 5e-3).0.entropy
    };
    assert!(entropy_after(1.0) > entropy_after(0.0) + 1e-3);
}

#[test]
fn a_kl_term_without_a_reference_is_refused() {
    let kl = KlConfig {
        estimator: KlEstimator::K1,
        coefficient: Positive::literal(0.1),
    };
    let config = AlgorithmConfig {
        loss: LossConfig {
            kl: Some(kl),
            ..LossConfig::default()
        },
        ..AlgorithmConfig::default()
    };
    let mut pi = policy(1);
    let groups = groups(&pi, 0.1);
    let mut adam = optim(&pi);
    let error = update(&mut pi, &mut adam, &groups, &config, &context(1e-3)).unwrap_err();
    assert!(matches!(error, TrainerError::MissingReference));
}

#[test]
fn unusable_episodes_are_named() {
    let pi = policy(1);
    let mut first = Tokens::default();
    first.push_sampled(&[1], &[-1.0], 0);
    assert!(matches!(
        score(&pi, &[&first], 1.0),
        Err(TrainerError::NoContext { episode: 0 })
    ));
    let mut outside = Tokens::default();
    outside.push_context(&[1, 13], 0);
    outside.push_sampled(&[1], &[-1.0], 0);
    let error = score(&pi, &[&outside], 1.0).unwrap_err().to_string();
    assert_eq!(
        error,
        "token id 13 at position 1 of episode 0 is outside the vocabulary of 13"
    );
    let long = tokens(VOCAB, &[(false, 60), (true, 5)], 1);
    assert!(score(&pi, &[&long], 1.0).is_ok());
    let long = tokens(VOCAB, &[(false, 60), (true, 6)], 1);
    assert!(matches!(
        score(&pi, &[&long], 1.0),
        Err(TrainerError::EpisodeTooLong { len: 66, max: 64, .. })
    ));
    assert_eq!(
        score(&pi, &[&Tokens::default(), &tokens(VOCAB, &[(false, 2)], 1)], 1.0).unwrap(),
        vec![Vec::<f32>::new(); 2]
    );
}

#[test]
fn supervised_steps_lower_the_loss_and_skip_empty_batches() {
    let mut pi = policy(1);
    let mut adam = optim(&pi);
    let data: Vec<Tokens> = (0..4)
        .map(|i| tokens(VOCAB, &[(false, 2), (true, 3), (false, 1), (true, 2)], i))
        .collect();
    let first = sft_step(&mut pi, &mut adam, &data, 1e-2).unwrap();
    let mut last = first;
    for _ in 0..80 {
        last = sft_step(&mut pi, &mut adam, &data, 1e-2).unwrap();
    }
    assert!(last.nll < 0.1 * first.nll, "{first:?} {last:?}");
    assert_eq!((first.tokens, first.input_tokens), (20, 28));
    // The loss is the mean over marked tokens.
    let fresh = policy(1);
    let scored = score(&fresh, &data.iter().collect::<Vec<_>>(), 1.0).unwrap();
    let nll = -scored.iter().flatten().map(|&l| f64::from(l)).sum::<f64>() / 20.0;
    assert!((nll - first.nll).abs() < 1e-6);
    let before = flat(&pi);
    let none = sft_step(&mut pi, &mut adam, &[tokens(VOCAB, &[(false, 2)], 1)], 1e-2).unwrap();
    assert!(none == SftReport::default() && before == flat(&pi));
}

#[test]
fn the_configuration_reads_like_the_docs_and_has_a_schema() {
    let yaml = "advantage: dr_grpo\ncorrection: {tis: {w_max: 2.0}}\nloss: {clip_low: 0.2, clip_high: 0.28, aggregation: token_mean}\nminibatches: 2\n";
    let config: AlgorithmConfig = serde_saphyr::from_str(yaml).unwrap();
    assert_eq!(config.advantage, AdvantageConfig::DrGrpo);
    assert_eq!(config.minibatches.get(), 2);
    for (bad, why) in [
        ("minibatches: 0", "nonzero"),
        ("advantages: grpo", "advantages"),
        ("epochs: two", "two"),
    ] {
        let error = serde_saphyr::from_str::<AlgorithmConfig>(bad)
            .unwrap_err()
            .to_string();
        assert!(error.contains(why), "{error}");
    }
    let schema = serde_json::to_value(schemars::schema_for!(AlgorithmConfig)).unwrap();
    assert_eq!(schema["$defs"]["ClipWidth"]["exclusiveMaximum"], 1.0);
    assert_eq!(schema["additionalProperties"], false);
}
