//! The engine's thread: admits requests, batches whatever is running, keeps caches between turns.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;
use tokio::sync::{mpsc, oneshot};

use super::forward::{Packed, Scratch, Want, Work};
use super::kv::{KvCache, PAGE, common_prefix};
use super::{EngineConfig, EngineStats};
use crate::model::Weights;
use crate::policy::{PolicyError, SampledTurn, TurnRequest};
use crate::quant::Team;

/// Context tokens run in one step, so that long prompts do not hold up running turns.
const PREFILL_ROWS: usize = 512;

/// Caches of finished episodes kept for others to share a prefix with.
const RETIRED: usize = 32;

/// A prefix shorter than this is computed again rather than waited for.
const WORTH_WAITING: usize = 8;

/// Packed models up to this size fit the cores' caches: then each thread takes a share of the episodes instead of a share of each
/// layer.
const SMALL_MODEL: usize = 4 << 20;

type Reply<T> = oneshot::Sender<Result<T, PolicyError>>;

/// A request to the engine.
pub(super) enum Command {
    Sample(TurnRequest, Reply<SampledTurn>),
    Score(Arc<Vec<u32>>, f32, Reply<Vec<f32>>),
    Sync(Box<Weights>, u64, Reply<String>),
    Hash(oneshot::Sender<String>),
    Stats(oneshot::Sender<EngineStats>),
    Release(u64),
}

/// A turn being sampled or a sequence being scored.
struct Job {
    /// Context and what was sampled.
    ids: Vec<u32>,
    cache: KvCache,
    logprobs: Vec<f32>,
    /// Most ids it may come to.
    limit: usize,
    /// No row of its own was run yet, so a prefix may still be adopted.
    fresh: bool,
    /// A logit was not finite.
    broken: bool,
    kind: Kind,
}

enum Kind {
    Turn {
        request: TurnRequest,
        rng: Box<ChaCha8Rng>,
        reply: Reply<SampledTurn>,
    },
    Score {
        temperature: f32,
        reply: Reply<Vec<f32>>,
    },
}

impl Job {
    fn abandoned(&self) -> bool {
        match &self.kind {
            Kind::Turn { reply, .. } => reply.is_closed(),
            Kind::Score { reply, .. } => reply.is_closed(),
        }
    }
}

/// The cache of an episode between its turns.
struct Idle {
    cache: KvCache,
    used: u64,
}

pub(super) struct Worker {
    pub(super) config: EngineConfig,
    pub(super) model: Packed,
    pub(super) weights_hash: String,
    pub(super) version: u64,
    pub(super) stop_ids: Vec<u32>,
    jobs: Vec<Job>,
    backlog: VecDeque<Command>,
    idle: HashMap<u64, Idle>,
    retired: VecDeque<KvCache>,
    scratch: Vec<Scratch>,
    clock: u64,
    stats: EngineStats,
}

impl Worker {
    pub(super) fn new(config: EngineConfig, weights: &Weights, version: u64, stop_ids: Vec<u32>) -> Self {
        Self {
            model: Packed::new(weights, &config),
            weights_hash: weights.hash(),
            config,
            version,
            stop_ids,
            jobs: Vec::new(),
            backlog: VecDeque::new(),
            idle: HashMap::new(),
            retired: VecDeque::new(),
            scratch: Vec::new(),
            clock: 0,
            stats: EngineStats::default(),
        }
    }

    /// Serves commands until every handle is gone.
    pub(super) fn serve(mut self, mut commands: mpsc::UnboundedReceiver<Command>) {
        loop {
            if self.jobs.is_empty() && self.backlog.is_empty() {
                match commands.blocking_recv() {
                    Some(command) => self.backlog.push_back(command),
                    None => return,
                }
            }
            while let Ok(command) = commands.try_recv() {
                self.backlog.push_back(command);
            }
            self.jobs.retain(|job| !job.abandoned());
            self.admit();
            self.evict();
            self.step();
        }
    }

    /// Takes commands in order, until one has to wait for running jobs.
    fn admit(&mut self) {
        while let Some(command) = self.backlog.pop_front() {
            match command {
                Command::Sample(request, reply) => {
                    if reply.is_closed() {
                        continue;
                    }
                    if let Err(e) = self.check_turn(&request) {
                        let _ = reply.send(Err(e));
                        continue;
                    }
                    let room = self.model.config.max_position_embeddings - request.context.len();
                    let limit = request.context.len() + request.max_tokens.min(room);
                    match self.room_for(limit) {
                        Room::Now => self.start_turn(request, limit, reply),
                        Room::Never(e) => drop(reply.send(Err(e))),
                        Room::Later => return self.backlog.push_front(Command::Sample(request, reply)),
                    }
                }
                Command::Score(ids, temperature, reply) => {
                    if let Err(e) = self.check(&ids[..ids.len().saturating_sub(1)]) {
                        let _ = reply.send(Err(e));
                        continue;
                    }
                    match self.room_for(ids.len()) {
                        Room::Now => self.jobs.push(Job {
                            limit: ids.len(),
                            ids: ids.to_vec(),
                            cache: KvCache::default(),
                            logprobs: Vec::new(),
                            fresh: false,
                            broken: false,
                            kind: Kind::Score { temperature, reply },
                        }),
                        Room::Never(e) => drop(reply.send(Err(e))),
                        Room::Later => {
                            return self.backlog.push_front(Command::Score(ids, temperature, reply));
                        }
                    }
                }
                Command::Sync(weights, version, reply) => {
                    if !self.jobs.is_empty() {
                        return self.backlog.push_front(Command::Sync(weights, version, reply));
                    }
                    let _ = reply.send(self.sync(&weights, version));
                }
                Command::Hash(reply) => drop(reply.send(self.model.hash())),
                Command::Stats(reply) => {
                    let cached_tokens = self.cached_tokens();
                    let _ = reply.send(EngineStats {
                        cached_tokens,
                        ..self.stats
                    });
                }
                Command::Release(episode) => {
                    if let Some(idle) = self.idle.remove(&episode) {
                        self.retired.push_back(idle.cache);
                        if self.retired.len() > RETIRED {
                            self.retired.pop_front();
                        }
                    }
                }
            }
        }
    }

    fn check_turn(&self, request: &TurnRequest) -> Result<(), PolicyError> {
        if request.max_tokens == 0 {
            return Err(PolicyError(
                "a turn needs a token budget of at least 1; got 0".to_owned(),
            ));
        }
        if !(request.sampling.temperature >= 0.0 && request.sampling.temperature.is_finite()) {
            let got = request.sampling.temperature;
            return Err(PolicyError(format!(
                "the temperature must be finite and not negative; got {got}"
            )));
        }
        self.check(&request.context)
    }

    fn check(&self, context: &[u32]) -> Result<(), PolicyError> {
        let config = &self.model.config;
        if context.is_empty() {
            return Err(PolicyError(
                "the context is empty: there is nothing to predict from".to_owned(),
            ));
        }
        if let Some(id) = context.iter().find(|&&id| id as usize >= config.vocab_size) {
            return Err(PolicyError(format!(
                "token {id} is outside the vocabulary of {}",
                config.vocab_size
            )));
        }
        if context.len() >= config.max_position_embeddings {
            let (len, max) = (context.len(), config.max_position_embeddings);
            return Err(PolicyError(format!(
                "a context of {len} tokens leaves no room in {max} positions"
            )));
        }
        Ok(())
    }

    fn room_for(&self, limit: usize) -> Room {
        let pages = |tokens: usize| tokens.next_multiple_of(PAGE);
        let max = self.config.max_cached_tokens;
        if pages(limit) > max {
            return Room::Never(PolicyError(format!(
                "{limit} tokens do not fit the cache of {max}\nhint: raise `max_cached_tokens`"
            )));
        }
        let reserved: usize = self.jobs.iter().map(|job| pages(job.limit)).sum();
        if reserved + pages(limit) <= max {
            Room::Now
        } else {
            Room::Later
        }
    }

    fn start_turn(&mut self, request: TurnRequest, limit: usize, reply: Reply<SampledTurn>) {
        let mut cache = self
            .idle
            .remove(&request.episode)
            .map(|idle| idle.cache)
            .unwrap_or_default();
        // The last context token is always run: its logits are needed.
        cache.truncate(common_prefix(
            cache.ids(),
            &request.context[..request.context.len() - 1],
        ));
        self.jobs.push(Job {
            ids: request.context.clone(),
            fresh: cache.ids().is_empty(),
            cache,
            logprobs: Vec::new(),
            limit,
            broken: false,
            kind: Kind::Turn {
                rng: Box::new(ChaCha8Rng::seed_from_u64(request.seed)),
                request,
                reply,
            },
        });
    }

    fn sync(&mut self, weights: &Weights, version: u64) -> Result<String, PolicyError> {
        weights
            .check()
            .map_err(|e| PolicyError(format!("the new weights are refused: {e}")))?;
        self.idle.clear();
        self.retired.clear();
        self.model = Packed::new(weights, &self.config);
        self.weights_hash = weights.hash();
        self.version = version;
        Ok(self.weights_hash.clone())
    }

    fn cached_tokens(&self) -> usize {
        self.model.live_pages.load(Ordering::Relaxed) * PAGE
    }

    /// Drops caches nobody runs on, oldest first, until the bound holds.
    fn evict(&mut self) {
        while self.cached_tokens() > self.config.max_cached_tokens {
            if self.retired.pop_front().is_none() {
                let oldest = self
                    .idle
                    .iter()
                    .min_by_key(|(_, idle)| idle.used)
                    .map(|(episode, _)| *episode);
                match oldest {
                    Some(episode) => self.idle.remove(&episode),
                    None => return,
                };
            }
            self.stats.evictions += 1;
        }
    }

    /// Lets a fresh job start from the longest prefix that some cache already has. False when another job is about to compute
    /// more of it: then it is worth waiting.
    fn adopt_prefix(&mut self, index: usize) -> bool {
        let (before, rest) = self.jobs.split_at_mut(index);
        let Some((job, after)) = rest.split_first_mut() else {
            return true;
        };
        if !job.fresh || !self.config.share_prefixes {
            return true;
        }
        let context = &job.ids[..job.ids.len() - 1];
        let others = before.iter().chain(after.iter()).map(|other| &other.cache);
        let kept = self.idle.values().map(|idle| &idle.cache).chain(&self.retired);
        let best = others
            .chain(kept)
            .max_by_key(|cache| common_prefix(cache.ids(), context));
        if let Some(cache) = best {
            let len = common_prefix(cache.ids(), context);
            if len > job.cache.ids().len() {
                self.stats.shared_tokens += (len - job.cache.ids().len()) as u64;
                job.cache = cache.share(len);
            }
        }
        let have = job.cache.ids().len();
        !before.iter().any(|other| {
            let len = common_prefix(&other.ids, context);
            len >= have + WORTH_WAITING && other.cache.ids().len() < len
        })
    }

    /// Runs one batch and hands out what is finished.
    fn step(&mut self) {
        let mut prefill = PREFILL_ROWS;
        let mut counts = vec![0; self.jobs.len()];
        for (index, count) in counts.iter_mut().enumerate() {
            if prefill == 0 && self.jobs[index].fresh {
                continue;
            }
            if !self.adopt_prefix(index) {
                continue;
            }
            let job = &self.jobs[index];
            let left = job.ids.len() - job.cache.ids().len();
            // A score needs no row for its last id.
            let left = left - usize::from(matches!(job.kind, Kind::Score { .. }));
            *count = if left == 1 { 1 } else { left.min(prefill) };
            prefill -= if left == 1 { 0 } else { *count };
            self.jobs[index].fresh &= *count == 0;
        }
        let results = self.run(&counts);
        for Ran {
            job: index,
            out,
            broken,
        } in results
        {
            self.stats.computed_tokens += counts[index] as u64;
            let job = &mut self.jobs[index];
            if matches!(job.kind, Kind::Turn { .. }) {
                job.ids.extend(out.iter().map(|drawn| drawn.0));
            }
            job.logprobs.extend(out.iter().map(|drawn| drawn.1));
            job.broken |= broken;
        }
        self.finish();
    }

    /// Runs `counts[i]` tokens of job `i`.
    fn run(&mut self, counts: &[usize]) -> Vec<Ran> {
        let mut works = Vec::new();
        let mut owners = Vec::new();
        for (index, (job, &count)) in self.jobs.iter_mut().zip(counts).enumerate() {
            if count == 0 {
                continue;
            }
            let start = job.cache.ids().len();
            let want = match &mut job.kind {
                Kind::Score { temperature, .. } => {
                    let targets = &job.ids[start + 1..start + count + 1];
                    Want::Score {
                        temperature: *temperature,
                        targets,
                    }
                }
                Kind::Turn { request, rng, .. } if start + count == job.ids.len() => Want::Draw {
                    temperature: request.sampling.temperature,
                    rng,
                },
                Kind::Turn { .. } => Want::Nothing,
            };
            let tokens = &job.ids[start..start + count];
            works.push(Work {
                cache: &mut job.cache,
                tokens,
                want,
                out: Vec::new(),
                broken: false,
            });
            owners.push(index);
        }
        if works.is_empty() {
            return Vec::new();
        }
        let threads = rayon::current_num_threads();
        let rows: usize = works.iter().map(|w| w.tokens.len()).sum();
        let small = self.config.weight_bytes(&self.model.config) <= SMALL_MODEL;
        let shares = if works.len() >= threads && (small || rows >= 64 * threads) {
            threads
        } else {
            1
        };
        self.scratch.resize_with(threads, Scratch::default);
        let model = &self.model;
        if shares == 1 {
            let team = if threads == 1 || small {
                Team::Solo
            } else {
                Team::Pool
            };
            model.run(&mut works, &mut self.scratch[0], team);
        } else {
            let parts = split(&mut works, shares, rows);
            let jobs = parts.into_par_iter().zip(&mut self.scratch);
            jobs.for_each(|(works, scratch)| model.run(works, scratch, Team::Solo));
        }
        owners
            .into_iter()
            .zip(works)
            .map(|(job, work)| Ran {
                job,
                out: work.out,
                broken: work.broken,
            })
            .collect()
    }

    /// Replies to finished jobs and keeps the caches of turns.
    fn finish(&mut self) {
        let mut index = 0;
        while index < self.jobs.len() {
            let job = &self.jobs[index];
            let broken = job.broken;
            let (done, truncated) = match &job.kind {
                Kind::Turn { request, .. } => {
                    let sampled = &job.ids[request.context.len()..];
                    let stopped = sampled.last().is_some_and(|id| self.stop_ids.contains(id));
                    (stopped || job.ids.len() >= job.limit, !stopped)
                }
                Kind::Score { .. } => (job.logprobs.len() + 1 >= job.ids.len(), false),
            };
            if !(done || broken) {
                index += 1;
                continue;
            }
            let job = self.jobs.remove(index);
            let error = || PolicyError("the policy's logits are not finite".to_owned());
            match job.kind {
                Kind::Score { reply, .. } => {
                    let _ = reply.send(if broken { Err(error()) } else { Ok(job.logprobs) });
                }
                Kind::Turn { reply, .. } if broken => drop(reply.send(Err(error()))),
                Kind::Turn { request, reply, .. } => {
                    self.clock += 1;
                    self.stats.sampled_tokens += job.logprobs.len() as u64;
                    self.idle.insert(
                        request.episode,
                        Idle {
                            cache: job.cache,
                            used: self.clock,
                        },
                    );
                    let turn = SampledTurn {
                        ids: job.ids[request.context.len()..].to_vec(),
                        logprobs: job.logprobs,
                        truncated,
                        policy_version: self.version,
                        weights_hash: self.weights_hash.clone(),
                    };
                    if reply.send(Ok(turn)).is_err() {
                        self.idle.remove(&request.episode);
                    }
                }
            }
        }
    }
}

/// What one batch gave a job: drawn or scored ids with their log-probs.
struct Ran {
    job: usize,
    out: Vec<(u32, f32)>,
    broken: bool,
}

/// Whether a job may start.
enum Room {
    Now,
    Later,
    Never(PolicyError),
}

/// Cuts works into `shares` runs of about equally many rows.
fn split<'a, 'b>(mut works: &'a mut [Work<'b>], shares: usize, rows: usize) -> Vec<&'a mut [Work<'b>]> {
    let mut parts = Vec::with_capacity(shares);
    let mut taken = 0;
    for share in 1..shares {
        let goal = rows * share / shares;
        let mut count = 0;
        while count < works.len() && taken < goal {
            taken += works[count].tokens.len();
            count += 1;
        }
        let (part, rest) = works.split_at_mut(count);
        parts.push(part);
        works = rest;
    }
    parts.push(works);
    parts.retain(|part| !part.is_empty());
    parts
}
