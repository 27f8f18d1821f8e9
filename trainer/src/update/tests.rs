//! The update as a whole: regression tests named after the symptoms of docs/mipu.md's traps, failure atomicity, determinism.

use candle_core::Device;
use mipu_agent::{Group, Tokens};

use super::*;
use crate::loss::{KlConfig, KlEstimator};
use crate::number::{NonNegative, Positive};
use crate::optim::OptimConfig;
use crate::testing::{group, tiny_config, tiny_weights, tokens};

pub(super) const VOCAB: usize = 13;

pub(super) fn policy(seed: u64) -> TrainerPolicy {
    TrainerPolicy::from_weights(&tiny_weights(&tiny_config("qwen3"), seed), &Device::Cpu).unwrap()
}

pub(super) fn optim(policy: &TrainerPolicy) -> AdamW {
    AdamW::new(policy, OptimConfig::default())
}

pub(super) fn context(lr: f64) -> UpdateContext<'static> {
    UpdateContext {
        seed: 7,
        attempt: 3,
        lr,
        temperature: 1.0,
        reference: None,
    }
}

/// Three groups with a signal whose sampler log-probs are those of the policy, give or take `noise`.
pub(super) fn groups(policy: &TrainerPolicy, noise: f32) -> Vec<Group> {
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

pub(super) fn with_sampler_logprobs(tokens: &Tokens, logprob: impl Fn(usize) -> f32) -> Tokens {
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

pub(super) fn run_update(
    groups: &[Group],
    config: &AlgorithmConfig,
    lr: f64,
) -> (UpdateReport, Vec<(String, Vec<f32>)>) {
    let mut pi = policy(1);
    let mut adam = optim(&pi);
    let report = update(&mut pi, &mut adam, groups, config, &context(lr)).unwrap();
    (report, flat(&pi))
}

pub(super) fn flat(policy: &TrainerPolicy) -> Vec<(String, Vec<f32>)> {
    policy
        .to_weights()
        .unwrap()
        .tensors
        .into_iter()
        .map(|(n, _, v)| (n, v.to_vec()))
        .collect()
}

pub(super) fn nonzero(n: usize) -> NonZeroUsize {
    NonZeroUsize::new(n).unwrap()
}

pub(super) fn gradients(groups: &[Group], config: &AlgorithmConfig) -> Vec<Vec<f32>> {
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
        micro_batch_tokens: nonzero(16),
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
                micro_batch_tokens: nonzero(n),
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
