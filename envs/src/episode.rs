//! The turn loop that every kind of environment shares: budgets, mistakes, chance, and the reward at the end.
//!
//! A turn's calls go to the task's tools or to the [`World`], its final text to the world or, if that does not listen, to the reward
//! rules. The rewards of an episode add up to its verdict in [0, 1]: a world's own rewards are paid turn by turn where the rule is
//! `environment` with `partial`, and with the last turn in every other case.

use std::sync::Arc;

use mipu_sandbox::Sandbox;
use rand_chacha::ChaCha8Rng;

use crate::env::{Env, StepResult, StopReason, Unscored};
use crate::message::{Message, Reply, Role, ToolCall, ToolSpec};
use crate::reward::{self, Effort};
use crate::seed::{self, Purpose};
use crate::spec::{RewardSpec, Rule};
use crate::stochastic::Knobs;
use crate::task::Task;
use crate::tools::toolbox::Toolbox;
use crate::tools::{self, Tool};
use crate::worlds::{Effect, World};

/// Tool calls run in one turn; a reply may hold any number.
const MAX_CALLS_PER_TURN: usize = 16;

/// One episode of a task. Every draw is a function of `(seed, turn)`.
pub(crate) struct Episode {
    task: Arc<Task>,
    sandbox: Sandbox,
    seed: u64,
    toolbox: Toolbox,
    world: Option<Box<dyn World>>,
    opening: Option<String>,
    started: bool,
    turn: usize,
    calls: usize,
    failures: usize,
    malformed: usize,
    written_bytes: usize,
    /// Sum of the world's rewards.
    earned: f64,
    /// What of it was paid in earlier turns.
    paid: f64,
    over: bool,
}

impl Episode {
    /// A live instance of `task`; nothing is opened before it is needed.
    pub(crate) fn new(task: Arc<Task>, sandbox: Sandbox, seed: u64) -> Self {
        Self {
            toolbox: Toolbox::new(Arc::clone(&task), sandbox.clone(), seed),
            task,
            sandbox,
            seed,
            world: None,
            opening: None,
            started: false,
            turn: 0,
            calls: 0,
            failures: 0,
            malformed: 0,
            written_bytes: 0,
            earned: 0.0,
            paid: 0.0,
            over: false,
        }
    }

    /// Draws of the world: in a turn, or before the first.
    fn chance(&self, turn: Option<usize>) -> ChaCha8Rng {
        let turn = turn.map_or(u64::MAX, |turn| turn as u64);
        seed::stream(self.seed, Purpose::Environment, &[turn, 1])
    }

    /// Builds the world, if the task has one.
    async fn begin(&mut self) -> Result<(), Unscored> {
        if self.started {
            return Ok(());
        }
        self.started = true;
        if let Some(kind) = &self.task.spec.kind {
            let seed = seed::derive(self.seed, Purpose::Sandbox, &[6]);
            let mut world = kind.open(&self.task, &self.sandbox, seed)?;
            let mut chance = self.chance(None);
            self.opening = world.start(&mut chance).await?;
            self.world = Some(world);
        }
        Ok(())
    }

    fn reward_spec(&self) -> &RewardSpec {
        &self.task.spec.file.reward
    }

    /// Whether the world's rewards are the episode's own.
    fn pays_by_turn(&self) -> bool {
        let spec = self.reward_spec();
        spec.partial && matches!(spec.rule, Rule::Environment(_))
    }

    /// Books what a call or a message did to the world; the turn's share of the return goes to `result`.
    fn book(&mut self, effect: &Effect, result: &mut StepResult) -> Result<(), Unscored> {
        if !effect.reward.is_finite() {
            return Err(Unscored {
                reason: format!("the environment's reward is not finite: {}", effect.reward),
            });
        }
        let before = self.earned.clamp(0.0, 1.0);
        self.earned += effect.reward;
        if self.pays_by_turn() {
            result.reward += self.earned.clamp(0.0, 1.0) - before;
        }
        Ok(())
    }

    /// Answers one call; true if the world has ended.
    async fn answer_call(
        &mut self,
        call: &ToolCall,
        knobs: &mut Knobs<'_>,
        chance: &mut ChaCha8Rng,
        result: &mut StepResult,
    ) -> Result<bool, Unscored> {
        let luck = knobs.call();
        result.latency_ms += luck.latency_ms;
        self.calls += 1;
        let (text, done) = if luck.fails {
            self.failures += 1;
            (self.task.spec.file.stochastic.failure_text.clone(), false)
        } else {
            let (text, done) = self.run_call(call, chance, result).await?;
            (self.shown(text, knobs), done)
        };
        result.observations.push(Message::tool(&call.name, text));
        Ok(done)
    }

    async fn run_call(
        &mut self,
        call: &ToolCall,
        chance: &mut ChaCha8Rng,
        result: &mut StepResult,
    ) -> Result<(String, bool), Unscored> {
        if let Some(text) = self.toolbox.call(call, self.turn).await? {
            return Ok((text, false));
        }
        let known = self.task.spec.tools.iter().any(|tool| tool.name == call.name);
        match &mut self.world {
            Some(world) if known => {
                let effect = world.call(call, chance).await?;
                self.book(&effect, result)?;
                Ok((effect.observation, effect.done))
            }
            _ => {
                let names: Vec<&str> = self.task.spec.tools.iter().map(|t| t.name.as_str()).collect();
                let text = match names.as_slice() {
                    [] => format!("error: no tool `{}`; this task has none", call.name),
                    names => format!("error: no tool `{}`; tools: {}", call.name, names.join(", ")),
                };
                Ok((text, false))
            }
        }
    }

    /// An observation as the agent gets it.
    fn shown(&self, text: String, knobs: &mut Knobs<'_>) -> String {
        knobs.observe(tools::cap(
            text,
            self.task.spec.file.limits.observation_bytes.get(),
        ))
    }

    /// Gives a final text to the world. `None`: the world does not listen, the text is the answer; else whether the world has ended.
    async fn converse(
        &mut self,
        text: &str,
        knobs: &mut Knobs<'_>,
        chance: &mut ChaCha8Rng,
        result: &mut StepResult,
    ) -> Result<Option<bool>, Unscored> {
        let Some(world) = &mut self.world else {
            return Ok(None);
        };
        let Some(effect) = world.message(text, chance).await? else {
            return Ok(None);
        };
        self.book(&effect, result)?;
        result.latency_ms += knobs.call().latency_ms;
        let said = self.shown(effect.observation, knobs);
        result.observations.push(Message::new(Role::User, said));
        Ok(Some(effect.done))
    }

    /// The end of the episode. Without an answer only what the world itself pays counts.
    async fn end(
        &mut self,
        stop: StopReason,
        answer: Option<String>,
        latency_ms: f64,
    ) -> Result<StepResult, Unscored> {
        self.over = true;
        let task = Arc::clone(&self.task);
        let spec = &task.spec.file.reward;
        let mut metrics = vec![("reward/score".to_owned(), 0.0)];
        let mut reward = 0.0;
        if answer.is_some() || spec.rule.reads_environment() {
            let answer = answer.unwrap_or_default();
            let mut judge = self.toolbox.judge(&answer, spec.rule.reads_files(), 0)?;
            judge.earned = self.earned;
            let effort = Effort {
                turns: self.turn,
                written_bytes: self.written_bytes,
            };
            let verdict = reward::score(spec, &judge, effort).await?;
            (reward, metrics) = (verdict.reward, verdict.metrics);
        }
        metrics.extend(self.totals());
        Ok(StepResult {
            observations: Vec::new(),
            reward: reward - self.paid,
            stop: Some(stop),
            metrics,
            latency_ms,
        })
    }

    fn totals(&self) -> Vec<(String, f64)> {
        let mut totals = vec![
            ("tool/calls".to_owned(), self.calls as f64),
            ("tool/failures".to_owned(), self.failures as f64),
            ("reply/malformed".to_owned(), self.malformed as f64),
        ];
        if self.world.is_some() {
            totals.push(("environment/return".to_owned(), self.earned));
        }
        totals
    }

    /// What a turn without calls and answer is told.
    fn mistake(&mut self, reply: &Reply) -> Message {
        self.malformed += 1;
        let why = match (&reply.malformed, reply.truncated) {
            (Some(reason), _) => reason.as_str(),
            (None, true) => "the turn was cut at its token limit",
            (None, false) => "no tool call and no answer",
        };
        let limit = self.task.spec.file.limits.observation_bytes.get();
        Message::new(Role::Tool, tools::cap(format!("error: {why}"), limit))
    }
}

#[async_trait::async_trait]
impl Env for Episode {
    fn tools(&self) -> &[ToolSpec] {
        &self.task.spec.tools
    }

    async fn start(&mut self) -> Result<Vec<Message>, Unscored> {
        self.begin().await?;
        let mut messages = self.task.opening();
        if let (Some(first), Some(last)) = (&self.opening, messages.last_mut()) {
            let separator = if last.content.is_empty() { "" } else { "\n" };
            last.content.push_str(separator);
            last.content.push_str(first);
        }
        Ok(messages)
    }

    async fn step(&mut self, reply: &Reply) -> Result<StepResult, Unscored> {
        if self.over {
            return Err(Unscored {
                reason: "a step after the end of the episode".to_owned(),
            });
        }
        self.begin().await?;
        let turn = self.turn;
        self.turn += 1;
        self.written_bytes += reply.content.len();
        let submits = self.toolbox.submits();
        let is_submit = |call: &ToolCall| submits && call.name == Tool::Submit.name();
        let last = self.turn >= self.task.spec.max_turns;
        let answers = reply.answer.is_some() || reply.tool_calls.iter().any(is_submit);
        if last && !answers && self.world.is_none() {
            // Nothing that a tool could still do would count.
            return self.end(StopReason::MaxTurns, None, 0.0).await;
        }
        let task = Arc::clone(&self.task);
        let mut knobs = Knobs::new(&task.spec.file.stochastic, self.seed, turn);
        let mut chance = self.chance(Some(turn));
        let mut result = StepResult::default();
        let (mut answer, mut done) = (None, false);
        for call in reply.tool_calls.iter().take(MAX_CALLS_PER_TURN) {
            if is_submit(call) {
                let text = tools::text(&call.arguments, "answer");
                answer = Some(text.unwrap_or_default().to_owned());
                break;
            }
            done = self
                .answer_call(call, &mut knobs, &mut chance, &mut result)
                .await?;
            if done {
                break;
            }
        }
        if let (Some(text), None, false) = (&reply.answer, &answer, done) {
            match self.converse(text, &mut knobs, &mut chance, &mut result).await? {
                Some(ended) => done = ended,
                None => answer = Some(text.clone()),
            }
        }
        if done {
            let outcome = self
                .world
                .as_ref()
                .map(|world| world.outcome())
                .unwrap_or_default();
            return self
                .end(StopReason::Terminal, Some(outcome), result.latency_ms)
                .await;
        }
        if answer.is_some() {
            return self.end(StopReason::Answered, answer, result.latency_ms).await;
        }
        if last {
            return self.end(StopReason::MaxTurns, None, result.latency_ms).await;
        }
        if result.observations.is_empty() {
            let mistake = self.mistake(reply);
            result.observations.push(mistake);
        }
        self.paid += result.reward;
        Ok(result)
    }

    async fn finish(&mut self, stop: StopReason) -> Result<StepResult, Unscored> {
        self.begin().await?;
        self.end(stop, None, 0.0).await
    }
}
