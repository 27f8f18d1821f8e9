//! The multi-turn environment: tools, budgets, seeded failures, and the reward at the end.

use std::f64::consts::TAU;
use std::sync::Arc;

use mipu_sandbox::Sandbox;
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use crate::env::{Env, StepResult, StopReason, Unscored};
use crate::message::{Message, Reply, Role, ToolCall, ToolSpec};
use crate::reward::{self, Effort, Judge};
use crate::seed::{self, Purpose};
use crate::spec::Latency;
use crate::task::Task;
use crate::tools::workspace::Workspace;
use crate::tools::{self, Tool, files};

/// Tool calls run in one turn; a reply may hold any number.
const MAX_CALLS_PER_TURN: usize = 16;

/// One episode of a task. Every draw is a function of `(seed, turn)`.
pub(crate) struct ToolEnv {
    task: Arc<Task>,
    sandbox: Sandbox,
    seed: u64,
    workspace: Option<Workspace>,
    turn: usize,
    calls: usize,
    failures: usize,
    malformed: usize,
    written_bytes: usize,
    over: bool,
}

impl ToolEnv {
    /// A live instance of `task`; no sandbox is opened before a tool needs it.
    pub(crate) fn new(task: Arc<Task>, sandbox: Sandbox, seed: u64) -> Self {
        Self {
            task,
            sandbox,
            seed,
            workspace: None,
            turn: 0,
            calls: 0,
            failures: 0,
            malformed: 0,
            written_bytes: 0,
            over: false,
        }
    }

    fn workspace(&mut self) -> Result<&mut Workspace, Unscored> {
        if self.workspace.is_none() {
            let files = self.task.workspace().map_err(|error| Unscored {
                reason: error.to_string(),
            })?;
            let policy = self.task.spec.policy();
            self.workspace = Some(Workspace::new(self.sandbox.clone(), policy, self.seed, files));
        }
        Ok(self.workspace.as_mut().expect("set above"))
    }

    /// Observation and virtual latency of one call.
    async fn answer_call(
        &mut self,
        call: &ToolCall,
        rng: &mut ChaCha8Rng,
    ) -> Result<(Message, f64), Unscored> {
        let task = Arc::clone(&self.task);
        let stochastic = &task.spec.file.stochastic;
        // Always the same draws in the same order, so that one knob does not move another.
        let fails = rng.random::<f64>() < stochastic.tool_failure.get();
        let latency = stochastic.latency_ms.map_or(0.0, |latency| normal(latency, rng));
        self.calls += 1;
        let text = if fails {
            self.failures += 1;
            stochastic.failure_text.clone()
        } else {
            let text = self.run_tool(call).await?;
            let capped = tools::cap(text, task.spec.file.limits.observation_bytes.get());
            noisy(capped, stochastic.observation_noise.get(), rng)
        };
        Ok((Message::tool(&call.name, text), latency))
    }

    /// What a call answers; the agent's mistakes are text.
    async fn run_tool(&mut self, call: &ToolCall) -> Result<String, Unscored> {
        let task = Arc::clone(&self.task);
        let Some(tool) = task.spec.toolbox.iter().find(|tool| tool.name() == call.name) else {
            let names: Vec<&str> = task.spec.toolbox.iter().map(Tool::name).collect();
            return Ok(format!(
                "error: no tool `{}`; tools: {}",
                call.name,
                names.join(", ")
            ));
        };
        let arguments = &call.arguments;
        let text = |name: &str| tools::text(arguments, name);
        let told =
            |result: Result<String, String>| result.unwrap_or_else(|reason| format!("error: {reason}"));
        Ok(match tool {
            Tool::Python => {
                let code = match text("code") {
                    Ok(code) => code,
                    Err(reason) => return Ok(reason),
                };
                let timeout_sec = task.spec.file.limits.timeout_sec.get();
                let outcome = self.workspace()?.session().await?.exec(code, b"").await?;
                tools::python::observation(&outcome, timeout_sec)
            }
            Tool::RunTests(tests) => {
                let answer = match (tests.file.is_some(), text("answer")) {
                    (true, _) => "",
                    (false, Ok(answer)) => answer,
                    (false, Err(reason)) => return Ok(reason),
                };
                let judge = self.judge(answer, tests.file.is_some(), self.turn as u64)?;
                reward::unit_tests::observe(&judge, tests).await?
            }
            Tool::ListFiles => files::list(&self.workspace()?.files().await?),
            Tool::ReadFile => match text("path") {
                Ok(path) => told(files::read(&self.workspace()?.files().await?, path)),
                Err(reason) => reason,
            },
            Tool::WriteFile => match (text("path"), text("content")) {
                (Ok(path), Ok(content)) => {
                    let directory = self.workspace()?.files().await?;
                    told(files::write(&directory, path, content.as_bytes()).map(|()| "ok".to_owned()))
                }
                (Err(reason), _) | (_, Err(reason)) => reason,
            },
            Tool::EditFile => match (text("path"), text("old"), text("new")) {
                (Ok(path), Ok(old), Ok(new)) => {
                    let directory = self.workspace()?.files().await?;
                    told(files::edit(&directory, path, old, new).map(|()| "ok".to_owned()))
                }
                (Err(reason), _, _) | (_, Err(reason), _) | (_, _, Err(reason)) => reason,
            },
            Tool::Submit => unreachable!("`submit` ends the episode before tools run"),
        })
    }

    /// What a reward rule or a test looks at.
    fn judge(&mut self, answer: &str, with_files: bool, salt: u64) -> Result<Judge, Unscored> {
        let files = if with_files {
            self.workspace()?.snapshot()
        } else {
            Default::default()
        };
        let seed = seed::derive(self.seed, Purpose::Sandbox, &[1, salt]);
        Ok(Judge::new(
            Arc::clone(&self.task),
            self.sandbox.clone(),
            seed,
            answer.to_owned(),
            files,
        ))
    }

    async fn score(&mut self, answer: &str) -> Result<StepResult, Unscored> {
        let task = Arc::clone(&self.task);
        let reward_spec = &task.spec.file.reward;
        let judge = self.judge(answer, reward_spec.rule.reads_files(), 0)?;
        let effort = Effort {
            turns: self.turn,
            written_bytes: self.written_bytes,
        };
        let verdict = reward::score(reward_spec, &judge, effort).await?;
        let mut metrics = verdict.metrics;
        metrics.extend(self.totals());
        Ok(StepResult {
            reward: verdict.reward,
            stop: Some(StopReason::Answered),
            metrics,
            ..StepResult::default()
        })
    }

    fn totals(&self) -> Vec<(String, f64)> {
        vec![
            ("tool/calls".to_owned(), self.calls as f64),
            ("tool/failures".to_owned(), self.failures as f64),
            ("reply/malformed".to_owned(), self.malformed as f64),
        ]
    }

    /// The end of an episode that gave no answer.
    fn end(&mut self, stop: StopReason) -> StepResult {
        self.over = true;
        let mut metrics = vec![("reward/score".to_owned(), 0.0)];
        metrics.extend(self.totals());
        StepResult {
            stop: Some(stop),
            metrics,
            ..StepResult::default()
        }
    }
}

#[async_trait::async_trait]
impl Env for ToolEnv {
    fn tools(&self) -> &[ToolSpec] {
        &self.task.spec.tools
    }

    async fn start(&mut self) -> Result<Vec<Message>, Unscored> {
        Ok(self.task.opening())
    }

    async fn step(&mut self, reply: &Reply) -> Result<StepResult, Unscored> {
        if self.over {
            return Err(Unscored {
                reason: "a step after the end of the episode".to_owned(),
            });
        }
        let turn = self.turn;
        self.turn += 1;
        self.written_bytes += reply.content.len();
        let submits = self
            .task
            .spec
            .toolbox
            .iter()
            .any(|tool| matches!(tool, Tool::Submit));
        let mut answer = reply.answer.clone();
        if answer.is_none() && self.turn >= self.task.spec.max_turns {
            let submitted = submits
                && reply
                    .tool_calls
                    .iter()
                    .any(|call| call.name == Tool::Submit.name());
            if !submitted {
                return Ok(self.end(StopReason::MaxTurns));
            }
        }
        let mut rng = seed::stream(self.seed, Purpose::Environment, &[turn as u64]);
        let mut result = StepResult::default();
        for call in reply.tool_calls.iter().take(MAX_CALLS_PER_TURN) {
            if submits && call.name == Tool::Submit.name() {
                answer = Some(
                    tools::text(&call.arguments, "answer")
                        .unwrap_or_default()
                        .to_owned(),
                );
                break;
            }
            let (observation, latency_ms) = self.answer_call(call, &mut rng).await?;
            result.observations.push(observation);
            result.latency_ms += latency_ms;
        }
        if let Some(answer) = answer {
            self.over = true;
            let scored = self.score(&answer).await?;
            return Ok(StepResult {
                latency_ms: result.latency_ms,
                ..scored
            });
        }
        if result.observations.is_empty() {
            self.malformed += 1;
            let why = match (&reply.malformed, reply.truncated) {
                (Some(reason), _) => reason.as_str(),
                (None, true) => "the turn was cut at its token limit",
                (None, false) => "no tool call and no answer",
            };
            let text = tools::cap(
                format!("error: {why}"),
                self.task.spec.file.limits.observation_bytes.get(),
            );
            result.observations.push(Message {
                name: None,
                ..Message::new(Role::Tool, text)
            });
        }
        Ok(result)
    }

    async fn finish(&mut self, stop: StopReason) -> Result<StepResult, Unscored> {
        Ok(self.end(stop))
    }
}

/// A normal draw cut at 0 (Box-Muller; always two uniforms).
fn normal(latency: Latency, rng: &mut ChaCha8Rng) -> f64 {
    let (u, v): (f64, f64) = (rng.random(), rng.random());
    let z = (-2.0 * (1.0 - u).ln()).sqrt() * (TAU * v).cos();
    (latency.mean.get() + latency.sd.get() * z).max(0.0)
}

/// Replaces letters and digits, each with this probability, by another of their kind.
fn noisy(text: String, probability: f64, rng: &mut ChaCha8Rng) -> String {
    if probability <= 0.0 {
        return text;
    }
    text.chars()
        .map(|c| {
            let (first, count) = match c {
                '0'..='9' => (b'0', 10),
                'a'..='z' => (b'a', 26),
                'A'..='Z' => (b'A', 26),
                _ => return c,
            };
            if rng.random::<f64>() >= probability {
                return c;
            }
            let shift = rng.random_range(1..count);
            char::from(first + (c as u8 - first + shift) % count)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::NonNegative;

    #[test]
    fn noise_changes_each_character_with_its_probability() {
        let rng = || seed::stream(7, Purpose::Environment, &[0]);
        let text = "a0Z -+".repeat(2000);
        assert_eq!(noisy(text.clone(), 0.0, &mut rng()), text);
        let all = noisy(text.clone(), 1.0, &mut rng());
        for (before, after) in text.chars().zip(all.chars()) {
            assert_eq!(
                before != after,
                before.is_ascii_alphanumeric(),
                "{before} {after}"
            );
            assert_eq!(before.is_ascii_digit(), after.is_ascii_digit());
            assert_eq!(before.is_ascii_uppercase(), after.is_ascii_uppercase());
        }
        // 6000 characters may change: 4 standard deviations of a share around 0.3 are 0.024.
        let changed = text
            .chars()
            .zip(noisy(text.clone(), 0.3, &mut rng()).chars())
            .filter(|(a, b)| a != b)
            .count();
        assert!((changed as f64 / 6000.0 - 0.3).abs() < 0.024, "{changed}");
    }

    #[test]
    fn latency_has_the_mean_and_spread_asked() {
        let value = |x| NonNegative::try_from(x).unwrap();
        let latency = Latency {
            mean: value(100.0),
            sd: value(10.0),
        };
        let mut rng = seed::stream(3, Purpose::Environment, &[0]);
        let draws: Vec<f64> = (0..4000).map(|_| normal(latency, &mut rng)).collect();
        let mean = draws.iter().sum::<f64>() / 4000.0;
        let sd = (draws.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 4000.0).sqrt();
        // Standard errors: 10 / sqrt(4000) = 0.16 and 10 / sqrt(8000) = 0.11; four of each.
        assert!(
            (mean - 100.0).abs() < 0.64 && (sd - 10.0).abs() < 0.45,
            "{mean} {sd}"
        );
    }
}
