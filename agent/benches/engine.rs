//! Speed of the sampler on the quick start's model: tokens per second at several batch sizes and precisions, prefill, E4M3.
#![expect(clippy::unwrap_used, reason = "a benchmark fails by panicking")]

use std::hint::black_box;
use std::sync::Arc;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use mipu_agent::quant::e4m3;
use mipu_agent::{Engine, EngineConfig, ModelConfig, Policy, Sampling, TurnRequest, Weights};

const TOKENS: usize = 40;

fn decode(c: &mut Criterion) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .build()
        .unwrap();
    let weights = Weights::init(Arc::new(ModelConfig::tiny()), 1);
    let mut group = c.benchmark_group("decode");
    for (name, config) in [("fp8", EngineConfig::default()), ("f32", EngineConfig::f32())] {
        let engine = Engine::start(config, weights.clone(), 0, Vec::new()).unwrap();
        let mut episode = 0;
        for batch in [1, 8, 32, 192] {
            group.throughput(Throughput::Elements((batch * TOKENS) as u64));
            group.bench_with_input(BenchmarkId::new(name, batch), &batch, |b, &batch| {
                b.iter(|| {
                    runtime.block_on(async {
                        let turns = (0..batch).map(|_| {
                            episode += 1;
                            let (engine, id) = (engine.clone(), episode);
                            let sampling = Sampling::at(1.0);
                            let context = vec![257, 49 + (id % 9) as u32, 43, 50, 63];
                            let turn = TurnRequest {
                                episode: id,
                                context,
                                max_tokens: TOKENS,
                                sampling,
                                stop: mipu_agent::Stop::default(),
                                seed: id,
                            };
                            tokio::spawn(async move {
                                engine.sample(turn).await.unwrap();
                                engine.release(id);
                            })
                        });
                        for turn in turns.collect::<Vec<_>>() {
                            turn.await.unwrap();
                        }
                    });
                });
            });
        }
        let ids = Arc::new((0..128).map(|i| i % 256).collect::<Vec<u32>>());
        group.throughput(Throughput::Elements(128));
        group.bench_function(BenchmarkId::new(name, "score 128"), |b| {
            b.iter(|| runtime.block_on(engine.score(ids.clone(), 1.0)).unwrap());
        });
    }
    group.finish();
}

fn quantise(c: &mut Criterion) {
    let values: Vec<f32> = (0..1 << 14).map(|i| (i as f32).sin() * 500.0).collect();
    let mut group = c.benchmark_group("e4m3");
    group.throughput(Throughput::Elements(values.len() as u64));
    group.bench_function("round", |b| {
        b.iter(|| black_box(&values).iter().map(|x| e4m3::round(*x)).sum::<f32>())
    });
    group.bench_function("encode", |b| {
        b.iter(|| {
            black_box(&values)
                .iter()
                .map(|x| u32::from(e4m3::encode(*x)))
                .sum::<u32>()
        });
    });
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(10);
    targets = decode, quantise
}
criterion_main!(benches);
