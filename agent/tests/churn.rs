//! Requests that come, go and are cancelled while memory is short.

use std::sync::Arc;
use std::time::Duration;

use mipu_agent::{EngineConfig, Policy, SampledTurn, Sampling, TurnRequest};
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::support::{bits, block_on, engine, model, once, request};

const REQUESTS: u64 = 10_000;
const MAX_CACHED: usize = 512;

/// A request as the number says: some share a prefix, some are long, some are filtered.
fn draw(number: u64) -> TurnRequest {
    let mut rng = ChaCha8Rng::seed_from_u64(number);
    let prefix = rng.random_range(0..6u32);
    let shared = prefix as usize * 9;
    let tail = rng.random_range(1..12);
    let context: Vec<u32> = (0..shared as u32)
        .map(|i| (prefix * 31 + i * 7) % 256)
        .chain((0..tail).map(|_| rng.random_range(0..272)))
        .collect();
    let budget = match rng.random_range(0..20) {
        0 => 80,
        _ => rng.random_range(1..8),
    };
    let mut request = request(number, &context, budget, rng.next_u64());
    if rng.random_bool(0.2) {
        request.sampling = Sampling {
            temperature: 0.8,
            top_k: 20,
            top_p: 0.9,
            min_p: 0.01,
        };
    }
    request
}

fn assert_same(a: &SampledTurn, b: &SampledTurn) {
    assert_eq!((&a.ids, a.truncated), (&b.ids, b.truncated));
    assert_eq!(bits(&a.logprobs), bits(&b.logprobs));
    assert_eq!(bits(&a.unfiltered_logprobs), bits(&b.unfiltered_logprobs));
}

#[test]
fn ten_thousand_requests_leave_nothing_behind() {
    block_on(async {
        let config = EngineConfig {
            threads: 1,
            max_cached_tokens: MAX_CACHED,
            ..EngineConfig::default()
        };
        let tight = engine(config, 3);
        let permits = Arc::new(Semaphore::new(48));
        let mut tasks = JoinSet::new();
        for number in 0..REQUESTS {
            let permit = permits.clone().acquire_owned().await.unwrap();
            let tight = tight.clone();
            tasks.spawn(async move {
                let _permit = permit;
                let request = draw(number);
                match number % 10 {
                    0 => {
                        let ids = Arc::new(request.context);
                        let scored = if ids.len() > 1 {
                            tight.score(ids.clone(), 1.0).await.unwrap().len()
                        } else {
                            0
                        };
                        assert_eq!(scored, ids.len() - 1);
                        None
                    }
                    // Cancelled at any moment, or finished before it.
                    1 | 2 => {
                        let wait = Duration::from_micros(number * 37 % 40_000);
                        let turn = tokio::time::timeout(wait, tight.sample(request)).await;
                        tight.release(number);
                        turn.ok().map(|turn| (number, turn.unwrap()))
                    }
                    // Never released: only the bound gets rid of its cache.
                    3 => Some((number, tight.sample(request).await.unwrap())),
                    _ => Some((number, once(&tight, request).await)),
                }
            });
        }
        let mut finished = Vec::new();
        let mut count = 0;
        while let Some(task) = tasks.join_next().await {
            finished.extend(task.unwrap());
            count += 1;
        }
        assert_eq!(count, REQUESTS);
        let stats = tight.stats().await.unwrap();
        println!("{} turns, {stats:?}", finished.len());
        assert!(finished.len() as u64 >= REQUESTS * 7 / 10);
        assert!(stats.cached_tokens <= MAX_CACHED, "{stats:?}");
        assert!(
            stats.preemptions > 0 && stats.evictions > 0 && stats.shared_tokens > 0,
            "{stats:?}"
        );
        // What the crowd did to a turn: nothing.
        let roomy = engine(
            EngineConfig {
                share_prefixes: false,
                max_cached_tokens: 1 << 16,
                ..config
            },
            3,
        );
        finished.sort_by_key(|(number, _)| *number);
        for (number, turn) in finished.iter().step_by(23) {
            assert_same(turn, &once(&roomy, draw(*number)).await);
        }
        // Nothing is left once the caches are flushed: no page leaked.
        tight.sync(model(4).weights, 2).await.unwrap();
        assert_eq!(tight.stats().await.unwrap().cached_tokens, 0);
    });
}
