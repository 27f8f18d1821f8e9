//! What must not change a bit, and what a request may ask.

use std::sync::Arc;
use std::time::{Duration, Instant};

use mipu_agent::{EngineConfig, Policy, Precision, Rounding, SampledTurn, Sampling, Stop, TurnRequest};
use proptest::prelude::*;

use crate::support::{bits, block_on, engine, model, once, request};

fn config() -> EngineConfig {
    EngineConfig {
        threads: 1,
        ..EngineConfig::default()
    }
}

fn prompt(text: &str) -> Vec<u32> {
    std::iter::once(257).chain(text.bytes().map(u32::from)).collect()
}

/// Each request alone on a fresh engine, without any sharing.
async fn alone(config: EngineConfig, requests: &[TurnRequest]) -> Vec<SampledTurn> {
    let mut turns = Vec::new();
    for request in requests {
        let engine = engine(
            EngineConfig {
                share_prefixes: false,
                threads: 1,
                ..config
            },
            3,
        );
        turns.push(once(&engine, request.clone()).await);
    }
    turns
}

async fn together(engine: &mipu_agent::Engine, requests: &[TurnRequest]) -> Vec<SampledTurn> {
    let running: Vec<_> = requests
        .iter()
        .map(|r| {
            let (engine, r) = (engine.clone(), r.clone());
            tokio::spawn(async move { engine.sample(r).await.unwrap() })
        })
        .collect();
    let mut turns = Vec::new();
    for turn in running {
        turns.push(turn.await.unwrap());
    }
    turns
}

fn assert_same(a: &[SampledTurn], b: &[SampledTurn]) {
    for (a, b) in a.iter().zip(b) {
        assert_eq!(a.ids, b.ids);
        assert_eq!(bits(&a.logprobs), bits(&b.logprobs));
        assert_eq!(a.truncated, b.truncated);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    /// Batch, position in it, prefix sharing, threads, and a cache too small for all change nothing.
    #[test]
    fn a_turn_does_not_depend_on_its_batch(
        texts in prop::collection::vec("[0-9+]{1,70}", 1..7),
        tail in "[a-c]{0,4}", seed: u64, threads in 1usize..4, kv in 0usize..3, weights in 0usize..4, small: bool,
    ) {
        let all = [Precision::Fp8, Precision::F16, Precision::F32, Precision::Bf16];
        let config = EngineConfig { kv_cache: all[kv], weights: all[weights], ..config() };
        let mut requests = Vec::new();
        for (i, text) in texts.iter().enumerate() {
            // Groups with a shared prompt, and one that goes on a little.
            for (j, text) in [text.clone(), text.clone(), format!("{text}{tail}")].iter().enumerate() {
                let number = (i * 3 + j) as u64;
                requests.push(request(number, &prompt(text), 5 + i, seed ^ number));
            }
        }
        block_on(async {
            let expected = alone(config, &requests).await;
            let max_cached_tokens = if small { 256 } else { 1 << 16 };
            let shared = engine(EngineConfig { threads, max_cached_tokens, ..config }, 3);
            assert_same(&together(&shared, &requests).await, &expected);
            requests.reverse();
            let mut again = together(&shared, &requests).await;
            again.reverse();
            assert_same(&again, &expected);
        });
    }
}

/// Log-probs recorded at sampling are those of re-scoring, token by token, over several turns.
#[test]
fn packed_or_padded_logprobs_off_by_one() {
    for kv_cache in [Precision::Fp8, Precision::F16, Precision::F32] {
        block_on(async {
            let engine = engine(EngineConfig { kv_cache, ..config() }, 3);
            let mut context = prompt("12+30?");
            let (mut recorded, mut places) = (Vec::new(), Vec::new());
            for turn in 0..3 {
                let sampled = engine.sample(request(9, &context, 20, turn)).await.unwrap();
                places.extend(context.len()..context.len() + sampled.ids.len());
                recorded.extend(sampled.logprobs);
                context.extend(sampled.ids);
                context.extend([262, 52, 50, 263]);
            }
            let scored = engine.score(Arc::new(context), 1.0).await.unwrap();
            let at: Vec<f32> = places.iter().map(|p| scored[p - 1]).collect();
            assert_eq!(bits(&at), bits(&recorded));
        });
    }
}

#[test]
fn an_equal_prefix_is_computed_once() {
    block_on(async {
        let text = prompt(&"7+".repeat(30));
        let requests: Vec<_> = (0..6).map(|i| request(i, &text, 1, i)).collect();
        let engine = engine(config(), 3);
        together(&engine, &requests).await;
        let stats = engine.stats().await.unwrap();
        let rows = (text.len() + 5) as u64;
        assert_eq!(
            (stats.computed_tokens, stats.shared_tokens),
            (rows, 5 * (text.len() as u64 - 1))
        );
        assert_eq!(stats.sampled_tokens, 6);
    });
}

#[test]
fn a_turn_continues_from_its_cache_and_survives_eviction() {
    block_on(async {
        let run = async |max_cached_tokens, crowd: u64| {
            let engine = engine(
                EngineConfig {
                    max_cached_tokens,
                    share_prefixes: false,
                    ..config()
                },
                3,
            );
            let mut context = prompt("1+2?");
            let mut turns = Vec::new();
            for turn in 0..3u64 {
                let sampled = engine.sample(request(1, &context, 10, turn)).await.unwrap();
                context.extend(&sampled.ids);
                context.extend([262, 51, 263]);
                turns.push(sampled);
                for other in 0..crowd {
                    engine
                        .sample(request(100 + other, &prompt("9+9+9+9?"), 4, other))
                        .await
                        .unwrap();
                }
            }
            (turns, engine.stats().await.unwrap())
        };
        let (kept, roomy) = run(1 << 16, 0).await;
        let (evicted, tight) = run(160, 6).await;
        assert_same(&evicted, &kept);
        assert_eq!(roomy.evictions, 0);
        let once_each = kept.iter().map(|t| t.ids.len() as u64).sum::<u64>() + 5 + 2 * 3 - 1;
        assert_eq!(roomy.computed_tokens, once_each, "nothing is computed twice");
        assert!(
            tight.evictions > 0 && tight.cached_tokens <= 160 + 64,
            "{tight:?}"
        );
    });
}

#[test]
fn sync_swaps_weights_and_forgets_every_cache() {
    block_on(async {
        let engine = engine(config(), 3);
        let first = once(&engine, request(1, &prompt("5+5?"), 12, 0)).await;
        let mut running = request(2, &prompt("5+5?"), 12, 0);
        let kept = engine.sample(running.clone()).await.unwrap();
        let before = engine.packed_hash().await.unwrap();
        let new = model(4).weights;
        assert_eq!(engine.sync(new.clone(), 2).await.unwrap(), new.hash());
        assert_ne!(engine.packed_hash().await.unwrap(), before);
        assert_eq!(engine.stats().await.unwrap().cached_tokens, 0);
        // The episode goes on under the new weights as if they had always been there.
        running.context.extend(&kept.ids);
        let after = engine.sample(running.clone()).await.unwrap();
        assert_eq!((after.policy_version, &after.weights_hash), (2, &new.hash()));
        let fresh = self::engine(config(), 4).sample(running).await.unwrap();
        assert_same(std::slice::from_ref(&after), std::slice::from_ref(&fresh));
        // Back to the old weights: bit for bit the old sampler.
        engine.sync(model(3).weights, 3).await.unwrap();
        assert_eq!(engine.packed_hash().await.unwrap(), before);
        let again = once(&engine, request(1, &prompt("5+5?"), 12, 0)).await;
        assert_same(&[again], &[first]);
    });
}

#[test]
fn refused_weights_leave_the_old_ones() {
    block_on(async {
        let engine = engine(config(), 3);
        let before = engine.packed_hash().await.unwrap();
        let mut bad = model(4).weights;
        Arc::make_mut(&mut bad.tensors[2].2)[7] = f32::INFINITY;
        let error = engine.sync(bad, 2).await.unwrap_err().to_string();
        assert!(
            error.contains("q_proj.weight") && error.contains("index 7 is not finite"),
            "{error}"
        );
        assert_eq!(engine.packed_hash().await.unwrap(), before);
    });
}

#[test]
fn impossible_requests_are_told_why() {
    block_on(async {
        let engine = engine(
            EngineConfig {
                max_cached_tokens: 64,
                ..config()
            },
            3,
        );
        let mut hot = request(1, &[257], 4, 0);
        hot.sampling = Sampling::at(f32::NAN);
        let filtered = |edit: fn(&mut Sampling)| {
            let mut request = request(1, &[257], 4, 0);
            edit(&mut request.sampling);
            request
        };
        for (request, expected) in [
            (filtered(|s| s.top_p = 0.0), "the top_p must lie in (0, 1]; got 0"),
            (
                filtered(|s| s.min_p = 1.5),
                "the min_p must lie in [0, 1]; got 1.5",
            ),
            (request(1, &[], 4, 0), "context is empty"),
            (
                request(1, &[257, 272], 4, 0),
                "token 272 is outside the vocabulary of 272",
            ),
            (request(1, &[65; 160], 4, 0), "leaves no room in 160 positions"),
            (
                request(1, &[65; 60], 40, 0),
                "100 tokens do not fit the cache of 64",
            ),
            (request(1, &[257], 0, 0), "budget of at least 1"),
            (hot, "temperature must be finite"),
        ] {
            let error = engine.sample(request).await.unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
        assert!(engine.score(Arc::new(vec![257]), 1.0).await.is_err());
    });
}

/// The model's positions end a turn that has budget left.
#[test]
fn a_turn_ends_where_the_positions_end() {
    block_on(async {
        let turn = once(&engine(config(), 3), request(1, &[65; 150], 64, 1)).await;
        assert!(turn.ids.len() <= 10);
        assert_eq!(
            turn.truncated,
            turn.ids.len() == 10 && ![261, 265].contains(&turn.ids[9])
        );
    });
}

#[test]
fn cancelled_requests_leave_the_batch_and_the_last_handle_ends_the_thread() {
    block_on(async {
        let engine = engine(config(), 3);
        let stuck: Vec<_> = (0..4)
            .map(|i| {
                let engine = engine.clone();
                tokio::spawn(async move { engine.sample(request(i, &prompt("1?"), 140, i)).await })
            })
            .collect();
        for task in stuck {
            task.abort();
            let _ = task.await;
        }
        let turn = once(&engine, request(50, &prompt("1?"), 3, 0)).await;
        assert!(!turn.ids.is_empty());
        let commands = engine.clone();
        drop(engine);
        assert!(commands.stats().await.is_ok(), "a handle is left");
        drop(commands);
    });
}

/// Every figure of `mipu bench sampler` is there and positive.
#[test]
fn the_benchmark_reports_its_figures() {
    let report = block_on(mipu_agent::bench::sampler(
        &model(3).weights,
        config(),
        &[1, 3],
        16,
    ))
    .unwrap();
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(
        (report.prefill.tokens, report.score.tokens, report.threads),
        (16, 128, 1)
    );
    let batches: Vec<_> = report.decode.iter().map(|r| (r.batch, r.tokens)).collect();
    assert_eq!(batches, [(1, 16), (3, 48)]);
    for rate in [&json["prefill"], &json["score"], &json["decode"][1]] {
        assert!(rate["tokens_per_second"].as_f64().unwrap() > 0.0);
    }
    let error = block_on(mipu_agent::bench::sampler(&model(3).weights, config(), &[1], 200)).unwrap_err();
    assert!(error.to_string().contains("positions"), "{error}");
}

/// The figure behind the quick start's step: 192 episodes of about 40 sampled tokens.
#[test]
fn a_quick_start_rollout_is_fast() {
    let model = mipu_agent::LoadedModel::init_compact(mipu_agent::ModelConfig::tiny(), 1).unwrap();
    block_on(async {
        let engine = mipu_agent::Engine::start(EngineConfig::default(), model.weights, 1, vec![]).unwrap();
        let requests: Vec<_> = (0..192u64)
            .map(|i| request(i, &prompt(&format!("{}+48*{}?", 10 + i / 8, 3 + i / 8)), 40, i))
            .collect();
        let start = Instant::now();
        let turns = together(&engine, &requests).await;
        let elapsed = start.elapsed();
        let tokens: usize = turns.iter().map(|t| t.ids.len()).sum();
        println!(
            "{tokens} tokens in {elapsed:?}: {:.0} tokens/s",
            tokens as f64 / elapsed.as_secs_f64()
        );
        assert_eq!(tokens, 192 * 40);
        assert!(
            elapsed < Duration::from_secs(5),
            "an order of magnitude above an idle machine's: {elapsed:?}"
        );
    });
}

/// A stop text ends a turn at the token that completes it, wherever the tokens are cut; a stop id of the request's own too.
#[test]
fn a_turn_ends_behind_its_stop_text_or_id() {
    block_on(async {
        let engine = engine(config(), 3);
        let mut seed = 0;
        let (free, at) = loop {
            let free = once(&engine, request(1, &prompt("1+1?"), 60, seed)).await;
            // Two bytes it wrote, not at its very start.
            let pair = |w: &[u32]| w[0] < 256 && w[1] < 256 && w[0] != w[1];
            match free.ids.windows(2).skip(3).position(pair) {
                Some(at)
                    if !free.ids[..at + 3]
                        .windows(2)
                        .any(|w| w == &free.ids[at + 3..at + 5]) =>
                {
                    break (free, at + 3);
                }
                _ => seed += 1,
            }
        };
        let text: String = free.ids[at..at + 2]
            .iter()
            .map(|id| char::from(*id as u8))
            .collect();
        let decode = |ids: &[u32]| ids.iter().map(|id| char::from(*id as u8)).collect::<String>();
        let mut stopped = request(1, &prompt("1+1?"), 60, seed);
        stopped.stop = Stop {
            ids: vec![],
            strings: vec!["never".to_owned(), text],
            decode: Some(Arc::new(decode)),
        };
        let turn = once(&engine, stopped.clone()).await;
        assert_eq!((&turn.ids[..], turn.truncated), (&free.ids[..at + 2], false));
        assert_eq!(bits(&turn.logprobs), bits(&free.logprobs[..at + 2]));
        stopped.stop = Stop {
            ids: vec![free.ids[at]],
            ..Stop::default()
        };
        let first = free.ids.iter().position(|id| *id == free.ids[at]).unwrap();
        let turn = once(&engine, stopped).await;
        assert_eq!((&turn.ids[..], turn.truncated), (&free.ids[..=first], false));
    });
}

/// Ratios to filtered log-probs are biased by the mass that was cut; both are recorded, so that it can be told.
#[test]
fn filtered_turns_carry_both_logprobs() {
    block_on(async {
        let engine = engine(config(), 3);
        let mut cut = request(1, &prompt("1+1?"), 30, 5);
        assert!(cut.sampling.full_support());
        let free = once(&engine, cut.clone()).await;
        assert_eq!(bits(&free.logprobs), bits(&free.unfiltered_logprobs));
        cut.sampling.top_k = 4;
        assert!(!cut.sampling.full_support());
        let turn = once(&engine, cut.clone()).await;
        let all = Arc::new([cut.context, turn.ids.clone()].concat());
        let scored = engine.score(all.clone(), 1.0).await.unwrap();
        let own = &scored[all.len() - 1 - turn.ids.len()..];
        assert_eq!(bits(own), bits(&turn.unfiltered_logprobs));
        assert!(turn.logprobs.iter().zip(own).all(|(kept, all)| kept > all));
        assert!(turn.logprobs.iter().all(|l| *l > -6.0), "four ids share the mass");
    });
}

/// Coarser formats move log-probs further; `fp8_channel` is `weights: fp8` up to the order of one multiplication.
#[test]
fn rounded_weights_are_rungs_between_f32_and_int4() {
    block_on(async {
        let ids: Arc<Vec<u32>> = Arc::new(prompt(&"12+30?7*8".repeat(10)));
        let score = async |weights, weight_rounding| {
            let config = EngineConfig {
                weights,
                weight_rounding,
                threads: 1,
                ..EngineConfig::f32()
            };
            engine(config, 3).score(ids.clone(), 1.0).await.unwrap()
        };
        let distance = |a: &[f32], b: &[f32]| {
            a.iter()
                .zip(b)
                .map(|(a, b)| f64::from((a - b).abs()))
                .sum::<f64>()
                / a.len() as f64
        };
        let exact = score(Precision::F32, Rounding::None).await;
        let mut moved = std::collections::HashMap::new();
        for rounding in Rounding::ALL {
            let got = score(Precision::F32, rounding).await;
            moved.insert(format!("{rounding:?}"), distance(&got, &exact));
            if rounding == Rounding::Fp8Channel {
                let native = score(Precision::Fp8, Rounding::None).await;
                assert!(distance(&got, &native) < 1e-5);
            }
        }
        println!("{moved:?}");
        assert!(moved["None"] == 0.0 && moved["Int8"] > 1e-4);
        assert!(moved["Int8"] < moved["Fp8Channel"] && moved["Fp8Channel"] < moved["Int4"]);
        assert!(moved["Fp8Tensor"] > 1e-3 && moved["Fp8BlockUe8m0"] > 1e-3);
    });
    let config = EngineConfig {
        weight_rounding: Rounding::Int8,
        ..EngineConfig::default()
    };
    let error = mipu_agent::Engine::start(config, model(3).weights, 0, vec![])
        .err()
        .unwrap();
    assert!(error.to_string().contains("needs `weights: f32`"), "{error}");
}
