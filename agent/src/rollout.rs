//! The loop everyone reads first: an environment and a policy become a trajectory.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mipu_envs::seed::{Purpose, derive};
use mipu_envs::{Env, Message, Reply, Role, StepResult, StopReason, Task, Unscored};
use mipu_sandbox::Sandbox;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::dialect::Renderer;
use crate::policy::{Policy, PolicyError, Sampling, Stop, TurnRequest};
use crate::trajectory::{Group, PROMPT_TURN, Tokens, Trajectory};

/// How a batch of groups is sampled.
#[derive(Clone, Copy, Debug)]
pub struct RolloutConfig {
    /// Episodes per group.
    pub group_size: usize,
    /// Temperature and filters. A trainer's ratios need the full support.
    pub sampling: Sampling,
    /// Token budget of one turn.
    pub max_turn_tokens: usize,
    /// Model context: no episode grows past it.
    pub max_context: usize,
    /// Episodes in flight.
    pub concurrency: usize,
    /// Seed; every draw is a function of `(seed, purpose, task, sample, turn)`.
    pub seed: u64,
}

/// What a rollout needs besides the tasks.
#[derive(Clone)]
pub struct RolloutContext {
    /// Sandbox of the tools.
    pub sandbox: Sandbox,
    /// Writes the turns.
    pub policy: Arc<dyn Policy>,
    /// Template and dialect.
    pub renderer: Arc<dyn Renderer>,
}

/// Samples `group_size` episodes of each task. The order of the result is the order of `tasks`, the bytes do not depend on
/// `concurrency`. `on_episode` is told of each finished episode. Cancelling ends with [`PolicyError`].
///
/// A task that stands several times in `tasks` gets fresh episodes each time.
///
/// # Errors
/// When the policy or the host failed; a failed environment is counted in its group instead.
pub async fn rollout_groups(
    context: &RolloutContext,
    tasks: &[Arc<Task>],
    config: &RolloutConfig,
    cancel: &CancellationToken,
    on_episode: &(dyn Fn() + Sync),
) -> Result<Vec<Group>, PolicyError> {
    let starts = tasks.iter().map(|task| {
        let (task, sandbox) = (task.clone(), context.sandbox.clone());
        GroupStart {
            task_id: task.id.clone(),
            max_tokens: task.spec.max_tokens,
            env: Arc::new(move |seed| task.env(&sandbox, seed)),
        }
    });
    let players = Players {
        policy: context.policy.clone(),
        renderer: context.renderer.clone(),
    };
    rollout_envs(&players, starts.collect(), config, cancel, on_episode).await
}

/// A group to sample: its task's name and limit, and how to build an environment from a seed.
#[derive(Clone)]
pub struct GroupStart {
    /// Task instance; the episodes' seeds derive from it.
    pub task_id: String,
    /// Token limit of an episode (prompt and observations included).
    pub max_tokens: usize,
    /// Builds a fresh environment.
    pub env: Arc<dyn Fn(u64) -> Box<dyn Env> + Send + Sync>,
}

/// Who writes the turns and in which dialect.
#[derive(Clone)]
pub struct Players {
    /// Writes the turns.
    pub policy: Arc<dyn Policy>,
    /// Template and dialect.
    pub renderer: Arc<dyn Renderer>,
}

/// [`rollout_groups`] over any environments.
///
/// # Errors
/// As [`rollout_groups`].
pub async fn rollout_envs(
    players: &Players,
    starts: Vec<GroupStart>,
    config: &RolloutConfig,
    cancel: &CancellationToken,
    on_episode: &(dyn Fn() + Sync),
) -> Result<Vec<Group>, PolicyError> {
    let permits = Arc::new(Semaphore::new(config.concurrency.max(1)));
    let mut seen: HashMap<String, u64> = HashMap::new();
    let mut running = JoinSet::new();
    for (index, start) in starts.iter().enumerate() {
        let repeat = seen
            .entry(start.task_id.clone())
            .and_modify(|n| *n += 1)
            .or_insert(0);
        for sample in 0..config.group_size {
            let draw = *repeat * config.group_size as u64 + sample as u64;
            let seed = derive(config.seed, Purpose::Sampling, &[name_seed(&start.task_id), draw]);
            let (start, players, config) = (start.clone(), players.clone(), *config);
            let (permits, cancel) = (permits.clone(), cancel.clone());
            running.spawn(async move {
                let _permit = permits.acquire_owned().await;
                let episode = Box::pin(play(&players, &start, &config, sample, seed));
                let outcome = tokio::select! {
                    biased;
                    () = cancel.cancelled() => Err(Failure::Policy(PolicyError("the rollout was cancelled".to_owned()))),
                    outcome = episode => outcome,
                };
                (index, sample, outcome)
            });
        }
    }
    let mut slots: Vec<Vec<Option<Result<Trajectory, Unscored>>>> = starts
        .iter()
        .map(|_| (0..config.group_size).map(|_| None).collect())
        .collect();
    while let Some(joined) = running.join_next().await {
        let (index, sample, outcome) =
            joined.map_err(|e| PolicyError(format!("an episode's task died: {e}")))?;
        slots[index][sample] = Some(match outcome {
            Ok(trajectory) => Ok(trajectory),
            Err(Failure::Env(unscored)) => {
                tracing::debug!(
                    task = starts[index].task_id,
                    sample,
                    reason = unscored.reason,
                    "unscored episode"
                );
                Err(unscored)
            }
            Err(Failure::Policy(error)) => return Err(error),
        });
        on_episode();
    }
    let groups = starts.into_iter().zip(slots).map(|(start, episodes)| {
        let mut group = Group {
            task_id: start.task_id,
            trajectories: Vec::new(),
            unscored: Vec::new(),
        };
        for episode in episodes.into_iter().flatten() {
            match episode {
                Ok(trajectory) => group.trajectories.push(trajectory),
                Err(unscored) => group.unscored.push(unscored.reason),
            }
        }
        group
    });
    Ok(groups.collect())
}

/// Why an episode gave no trajectory.
enum Failure {
    Env(Unscored),
    Policy(PolicyError),
}

impl From<Unscored> for Failure {
    fn from(unscored: Unscored) -> Self {
        Self::Env(unscored)
    }
}

impl From<PolicyError> for Failure {
    fn from(error: PolicyError) -> Self {
        Self::Policy(error)
    }
}

/// Tells the policy that an episode is over, also when its future is dropped.
struct Episode<'a> {
    policy: &'a dyn Policy,
    id: u64,
}

impl<'a> Episode<'a> {
    /// Ids are unique in the process; no result depends on them.
    fn new(policy: &'a dyn Policy) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self {
            policy,
            id: NEXT.fetch_add(1, Ordering::Relaxed),
        }
    }
}

impl Drop for Episode<'_> {
    fn drop(&mut self) {
        self.policy.release(self.id);
    }
}

/// Plays one episode to its end.
async fn play(
    players: &Players,
    start: &GroupStart,
    config: &RolloutConfig,
    sample: usize,
    seed: u64,
) -> Result<Trajectory, Failure> {
    let renderer = players.renderer.as_ref();
    let refused = |e: crate::ModelError| Unscored {
        reason: format!("the dialect refused the episode: {e}"),
    };
    let limit = config.max_context.min(start.max_tokens);
    let mut env = (start.env)(derive(seed, Purpose::Environment, &[]));
    let mut record = Trajectory {
        task_id: start.task_id.clone(),
        sample,
        seed,
        policy_version: 0,
        weights_hash: String::new(),
        tokens: Tokens::default(),
        messages: env.start().await?,
        turn_rewards: Vec::new(),
        stop: StopReason::MaxTokens,
        metrics: Vec::new(),
        malformed_turns: 0,
        latency_ms: 0.0,
    };
    let tools = env.tools().to_vec();
    let decoder = players.renderer.clone();
    let stop = Stop {
        ids: Vec::new(),
        strings: renderer.stop_strings(&tools),
        decode: Some(Arc::new(move |ids| decoder.decode(ids))),
    };
    let prompt = renderer.prompt(&record.messages, &tools).map_err(refused)?;
    if prompt.len() >= limit {
        // No token could be sampled, so the episode has no place in a mean over tokens.
        let reason = format!(
            "the prompt of {} tokens leaves no room in the limit of {limit}",
            prompt.len()
        );
        return Err(Unscored { reason }.into());
    }
    record.tokens.push_context(&prompt, PROMPT_TURN);
    let episode = Episode::new(players.policy.as_ref());
    for turn in 0u16.. {
        let sampled = players.policy.sample(TurnRequest {
            episode: episode.id,
            context: record.tokens.ids().to_vec(),
            max_tokens: config.max_turn_tokens.min(limit - record.tokens.len()),
            sampling: config.sampling,
            stop: stop.clone(),
            seed: derive(seed, Purpose::Sampling, &[u64::from(turn)]),
        });
        let sampled = sampled.await?;
        if turn > 0 && sampled.weights_hash != record.weights_hash {
            return Err(PolicyError("the weights were swapped during an episode".to_owned()).into());
        }
        record.policy_version = sampled.policy_version;
        record.weights_hash = sampled.weights_hash;
        record.tokens.push_sampled(&sampled.ids, &sampled.logprobs, turn);
        let reply = renderer.parse(&sampled.ids, sampled.truncated, &tools);
        record.malformed_turns += usize::from(reply.malformed.is_some());
        record.messages.push(assistant(&reply));
        if sampled.truncated && record.tokens.len() >= limit {
            end(&mut record, env.as_mut(), false).await?;
            break;
        }
        let step = env.step(&reply).await?;
        let (observations, stop) = take(&mut record, step);
        if let Some(stop) = stop {
            record.stop = stop;
            break;
        }
        let ids = renderer
            .observation(&record.messages, &tools, &sampled.ids, &observations)
            .map_err(refused)?;
        record.messages.extend(observations);
        if record.tokens.len() + ids.len() >= limit {
            // No further turn fits, so the observation conditions nothing and is left out of the ids.
            end(&mut record, env.as_mut(), true).await?;
            break;
        }
        record.tokens.push_context(&ids, turn);
    }
    let ret = record.ret();
    if !ret.is_finite() {
        return Err(Unscored {
            reason: format!("the environment's reward is not finite: {ret}"),
        }
        .into());
    }
    Ok(record)
}

/// The token budget is spent: the environment scores what there is, as part of the last turn (`stepped` when that turn already
/// has a reward).
async fn end(record: &mut Trajectory, env: &mut dyn Env, stepped: bool) -> Result<(), Unscored> {
    let last = env.finish(StopReason::MaxTokens).await?;
    take(record, last);
    if stepped && let Some(reward) = record.turn_rewards.pop() {
        *record.turn_rewards.last_mut().expect("the step's own reward") += reward;
    }
    record.stop = StopReason::MaxTokens;
    Ok(())
}

/// Books a step; gives back what continues the episode.
fn take(record: &mut Trajectory, step: StepResult) -> (Vec<Message>, Option<StopReason>) {
    record.turn_rewards.push(step.reward);
    record.latency_ms += step.latency_ms;
    for (name, value) in step.metrics {
        match record.metrics.iter_mut().find(|(n, _)| *n == name) {
            Some((_, total)) => *total += value,
            None => record.metrics.push((name, value)),
        }
    }
    (step.observations, step.stop)
}

fn assistant(reply: &Reply) -> Message {
    let mut message = Message::new(Role::Assistant, reply.content.clone());
    message.tool_calls.clone_from(&reply.tool_calls);
    message
}

/// A task's name as a seed index.
fn name_seed(task_id: &str) -> u64 {
    let hash = blake3::hash(task_id.as_bytes());
    u64::from_le_bytes(
        hash.as_bytes()[..8]
            .try_into()
            .expect("a blake3 hash has 32 bytes"),
    )
}
