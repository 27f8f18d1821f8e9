//! The engine's thread: admits requests, batches whatever is running, keeps caches between turns.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use tokio::sync::{mpsc, oneshot};

use super::forward::{Packed, Scratch};
use super::kv::{KvCache, PAGE, common_prefix};
use super::{EngineConfig, EngineStats};
use crate::model::Weights;
use crate::policy::{PolicyError, SampledTurn, TurnRequest};

/// Caches of finished episodes kept for others to share a prefix with.
const RETIRED: usize = 32;

pub(super) type Reply<T> = oneshot::Sender<Result<T, PolicyError>>;

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
pub(super) struct Job {
    /// Context and what was sampled.
    pub(super) ids: Vec<u32>,
    pub(super) cache: KvCache,
    pub(super) logprobs: Vec<f32>,
    pub(super) unfiltered_logprobs: Vec<f32>,
    /// Most ids it may come to.
    pub(super) limit: usize,
    /// There is no room for its cache now.
    pub(super) waiting: bool,
    /// No row of its own was run yet, so a prefix may still be adopted.
    pub(super) fresh: bool,
    /// A logit was not finite.
    pub(super) broken: bool,
    pub(super) kind: Kind,
}

pub(super) enum Kind {
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
    /// Tokens of cache, in whole pages, that its next step comes to.
    fn need(&self) -> usize {
        self.ids.len().next_multiple_of(PAGE)
    }

    /// Gives its cache up; what was sampled stays, what was scored is scored again.
    fn preempt(&mut self) {
        self.cache = KvCache::default();
        match self.kind {
            Kind::Turn { .. } => self.fresh = true,
            Kind::Score { .. } => {
                self.logprobs.clear();
                self.unfiltered_logprobs.clear();
            }
        }
    }

    fn abandoned(&self) -> bool {
        match &self.kind {
            Kind::Turn { reply, .. } => reply.is_closed(),
            Kind::Score { reply, .. } => reply.is_closed(),
        }
    }
}

/// The cache of an episode between its turns.
pub(super) struct Idle {
    pub(super) cache: KvCache,
    pub(super) used: u64,
}

pub(super) struct Worker {
    pub(super) config: EngineConfig,
    pub(super) model: Packed,
    pub(super) weights_hash: String,
    pub(super) version: u64,
    pub(super) stop_ids: Vec<u32>,
    pub(super) jobs: Vec<Job>,
    backlog: VecDeque<Command>,
    pub(super) idle: HashMap<u64, Idle>,
    pub(super) retired: VecDeque<KvCache>,
    pub(super) scratch: Vec<Scratch>,
    clock: u64,
    pub(super) stats: EngineStats,
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
            self.preempt();
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
                    match self.room_for(request.context.len(), limit) {
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
                    match self.room_for(ids.len(), ids.len()) {
                        Room::Now => self.jobs.push(Job {
                            limit: ids.len(),
                            ids: ids.to_vec(),
                            cache: KvCache::default(),
                            logprobs: Vec::new(),
                            unfiltered_logprobs: Vec::new(),
                            fresh: false,
                            waiting: false,
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
        request.sampling.check()?;
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

    /// Whether a request with `now` ids, which may come to `limit`, can start beside the jobs as they are. They may grow out of the
    /// room later: then the youngest wait ([`Worker::preempt`]).
    fn room_for(&self, now: usize, limit: usize) -> Room {
        let max = self.config.max_cached_tokens;
        if limit.next_multiple_of(PAGE) > max {
            return Room::Never(PolicyError(format!(
                "{limit} tokens do not fit the cache of {max}\nhint: raise `max_cached_tokens`"
            )));
        }
        let taken: usize = self.jobs.iter().map(Job::need).sum();
        if taken + (now + 1).next_multiple_of(PAGE) <= max || self.jobs.is_empty() {
            Room::Now
        } else {
            Room::Later
        }
    }

    /// Runs jobs in the order they came as long as their caches fit. The others wait and give up their caches, which are computed
    /// again when there is room: that changes no bit. The first job fits alone, so there is always one that ends.
    fn preempt(&mut self) {
        let mut used = 0;
        for job in &mut self.jobs {
            used += job.need();
            job.waiting = used > self.config.max_cached_tokens;
            if job.waiting && !job.cache.ids().is_empty() {
                job.preempt();
                self.stats.preemptions += 1;
            }
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
            unfiltered_logprobs: Vec::new(),
            limit,
            waiting: false,
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
        tracing::debug!(
            policy_version = version,
            weights_hash = self.weights_hash,
            "synced the sampler"
        );
        Ok(self.weights_hash.clone())
    }

    fn cached_tokens(&self) -> usize {
        self.model.live_pages.load(Ordering::Relaxed) * PAGE
    }

    /// Drops caches nobody runs on, oldest first, until the bound holds with what the next step adds.
    fn evict(&mut self) {
        let running = self.jobs.iter().filter(|job| !job.waiting);
        let grows: usize = running.map(|job| job.cache.growth(job.ids.len())).sum();
        while self.cached_tokens() + grows * PAGE > self.config.max_cached_tokens {
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

    /// Replies to finished jobs and keeps the caches of turns.
    pub(super) fn finish(&mut self) {
        let mut index = 0;
        while index < self.jobs.len() {
            let job = &self.jobs[index];
            let broken = job.broken;
            let (done, truncated) = match &job.kind {
                Kind::Turn { request, .. } => {
                    let sampled = &job.ids[request.context.len()..];
                    let stopped = sampled.last().is_some_and(|id| self.stop_ids.contains(id))
                        || request.stop.met(sampled);
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
                        unfiltered_logprobs: job.unfiltered_logprobs,
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

/// Whether a job may start.
enum Room {
    Now,
    Later,
    Never(PolicyError),
}
