//! How fast the sampler is: the figures of `mipu bench sampler`.

use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;

use crate::engine::{Engine, EngineConfig};
use crate::model::Weights;
use crate::policy::{Policy, PolicyError, Sampling, Stop, TurnRequest};
use crate::quant::Isa;

/// Times each figure is taken; the median is reported.
const REPEATS: usize = 3;

/// Speed of a sampler with whole turns: attention, sampling and log-probs included.
#[derive(Clone, Debug, Serialize)]
pub struct SamplerReport {
    /// Parameters of the model.
    pub parameters: usize,
    /// Instruction set of the kernels.
    pub instruction_set: String,
    /// Threads of the engine.
    pub threads: usize,
    /// What was quantised.
    pub config: EngineConfig,
    /// Bytes of the packed weights.
    pub weight_bytes: usize,
    /// Seconds to quantise and pack new weights (a sync).
    pub sync_seconds: f64,
    /// Reading a prompt.
    pub prefill: Rate,
    /// Sampling at several batch sizes.
    pub decode: Vec<Rate>,
    /// Re-scoring eight sequences at once.
    pub score: Rate,
}

/// Tokens in a time.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Rate {
    /// Sequences at once.
    pub batch: usize,
    /// Tokens of all sequences.
    pub tokens: usize,
    /// Median wall-clock seconds.
    pub seconds: f64,
    /// `tokens / seconds`.
    pub tokens_per_second: f64,
    /// Tokens for each second of this process's CPU time, which other work on the machine disturbs less; `null` where the system
    /// does not tell it.
    pub tokens_per_cpu_second: Option<f64>,
}

/// CPU seconds of this process so far, in steps of 10 ms (Linux).
fn cpu_seconds() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // Behind the command's closing parenthesis; user and system time are fields 14 and 15 of the whole line.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |field: usize| fields.get(field - 3)?.parse::<f64>().ok();
    Some((ticks(14)? + ticks(15)?) / 100.0)
}

/// Measures a sampler: `tokens` per sequence at each of `batches`, a prompt of `tokens`, and re-scoring.
///
/// # Errors
/// When `tokens` and a short prompt do not fit the model's positions or the engine refuses the weights.
pub async fn sampler(
    weights: &Weights,
    config: EngineConfig,
    batches: &[usize],
    tokens: usize,
) -> Result<SamplerReport, PolicyError> {
    let model = weights.config.clone();
    let engine = Engine::start(config, weights.clone(), 0, Vec::new())?;
    let start = Instant::now();
    engine.sync(weights.clone(), 1).await?;
    let sync_seconds = start.elapsed().as_secs_f64();
    let ids = |len: usize, which: usize| -> Vec<u32> {
        (0..len)
            .map(|i| ((i * 31 + which * 17 + 7) % model.vocab_size) as u32)
            .collect()
    };
    // A context none of the earlier measurements left in a cache.
    let mut fresh = 0;
    let mut turn = |len: usize, max_tokens: usize| {
        fresh += 1;
        let sampling = Sampling::at(1.0);
        TurnRequest {
            episode: fresh as u64,
            context: ids(len, fresh),
            max_tokens,
            sampling,
            stop: Stop::default(),
            seed: fresh as u64,
        }
    };
    let prefill = median(1, tokens, async || play(&engine, vec![turn(tokens, 1)]).await).await?;
    let mut decode = Vec::new();
    for &batch in batches {
        let run = async || play(&engine, (0..batch).map(|_| turn(4, tokens)).collect()).await;
        decode.push(median(batch, batch * tokens, run).await?);
    }
    let score = median(8, 8 * tokens, async || {
        let scores = (0..8).map(|i| {
            let (engine, ids) = (engine.clone(), Arc::new(ids(tokens, i)));
            tokio::spawn(async move { engine.score(ids, 1.0).await.map(drop) })
        });
        join(scores.collect()).await
    });
    Ok(SamplerReport {
        parameters: model.parameters(),
        instruction_set: format!("{:?}", Isa::best()).to_lowercase(),
        threads: config.thread_count(),
        weight_bytes: config.weight_bytes(&model),
        config,
        sync_seconds,
        prefill,
        decode,
        score: score.await?,
    })
}

async fn median(
    batch: usize,
    tokens: usize,
    mut run: impl AsyncFnMut() -> Result<(), PolicyError>,
) -> Result<Rate, PolicyError> {
    let mut times = Vec::with_capacity(REPEATS);
    let before = cpu_seconds();
    for _ in 0..REPEATS {
        let start = Instant::now();
        run().await?;
        times.push(start.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    let seconds = times[REPEATS / 2];
    let cpu = cpu_seconds()
        .zip(before)
        .map(|(after, before)| after - before)
        .filter(|cpu| *cpu > 0.0);
    Ok(Rate {
        batch,
        tokens,
        seconds,
        tokens_per_second: tokens as f64 / seconds,
        tokens_per_cpu_second: cpu.map(|cpu| (tokens * REPEATS) as f64 / cpu),
    })
}

/// Samples all turns at once.
async fn play(engine: &Engine, turns: Vec<TurnRequest>) -> Result<(), PolicyError> {
    let episodes: Vec<u64> = turns.iter().map(|t| t.episode).collect();
    let running = turns.into_iter().map(|turn| {
        let engine = engine.clone();
        tokio::spawn(async move { engine.sample(turn).await.map(drop) })
    });
    let done = join(running.collect()).await;
    episodes.into_iter().for_each(|episode| engine.release(episode));
    done
}

async fn join(running: Vec<tokio::task::JoinHandle<Result<(), PolicyError>>>) -> Result<(), PolicyError> {
    for task in running {
        task.await
            .map_err(|e| PolicyError(format!("a request's task died: {e}")))??;
    }
    Ok(())
}
