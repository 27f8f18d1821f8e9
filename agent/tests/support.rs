//! A tiny policy, a real little environment, and helpers.

use std::future::Future;
use std::sync::Arc;

use mipu_agent::rollout::{GroupStart, Players};
use mipu_agent::{
    Engine, EngineConfig, LoadedModel, ModelConfig, Policy, RolloutConfig, SampledTurn, Sampling, Stop,
    TurnRequest, renderer,
};
use mipu_envs::{Env, Message, Reply, Role, StepResult, StopReason, ToolSpec, Unscored};
use serde_json::json;

pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
        .block_on(future)
}

/// A random compact policy whose turns end now and then: its end tokens are as likely as a dozen bytes.
pub(crate) fn model(seed: u64) -> LoadedModel {
    let config = ModelConfig {
        num_hidden_layers: 2,
        max_position_embeddings: 160,
        ..ModelConfig::tiny()
    };
    LoadedModel::init_compact(config, seed).unwrap()
}

pub(crate) fn engine(config: EngineConfig, seed: u64) -> Engine {
    Engine::start(config, model(seed).weights, 1, vec![261, 265]).unwrap()
}

pub(crate) fn request(episode: u64, context: &[u32], max_tokens: usize, seed: u64) -> TurnRequest {
    TurnRequest {
        episode,
        context: context.to_vec(),
        max_tokens,
        sampling: Sampling::at(1.0),
        stop: Stop::default(),
        seed,
    }
}

/// Samples a turn and forgets the episode.
pub(crate) async fn once(engine: &Engine, request: TurnRequest) -> SampledTurn {
    let episode = request.episode;
    let turn = engine.sample(request).await.unwrap();
    engine.release(episode);
    turn
}

pub(crate) fn bits(logprobs: &[f32]) -> Vec<u32> {
    logprobs.iter().map(|l| l.to_bits()).collect()
}

/// `a+b?` with a tool that adds, or says `busy` by the seed. Three turns.
pub(crate) struct Sums {
    question: String,
    seed: u64,
    turns: usize,
    tools: Vec<ToolSpec>,
    /// The tool's backend is down.
    pub(crate) broken: bool,
}

impl Sums {
    pub(crate) fn new(question: &str, seed: u64) -> Self {
        let parameters =
            json!({"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]});
        let python = ToolSpec {
            name: "python".into(),
            description: "Runs code.".into(),
            parameters,
        };
        Self {
            question: question.to_owned(),
            seed,
            turns: 0,
            tools: vec![python],
            broken: false,
        }
    }

    fn gold(&self) -> Option<String> {
        let sum = |text: &str| {
            text.split('+')
                .map(|n| n.parse::<i64>().ok())
                .sum::<Option<i64>>()
        };
        Some(sum(&self.question)?.to_string())
    }
}

#[async_trait::async_trait]
impl Env for Sums {
    fn tools(&self) -> &[ToolSpec] {
        &self.tools
    }

    async fn start(&mut self) -> Result<Vec<Message>, Unscored> {
        Ok(vec![Message::new(Role::User, format!("{}?", self.question))])
    }

    async fn step(&mut self, reply: &Reply) -> Result<StepResult, Unscored> {
        // Let other episodes run in between.
        tokio::task::yield_now().await;
        self.turns += 1;
        if let Some(answer) = &reply.answer {
            let reward = f64::from(u8::from(self.gold().as_deref() == Some(answer)));
            return Ok(StepResult {
                reward,
                stop: Some(StopReason::Answered),
                ..StepResult::default()
            });
        }
        if self.broken {
            return Err(Unscored {
                reason: "the tool's backend is down".to_owned(),
            });
        }
        let stop = (self.turns >= 3).then_some(StopReason::MaxTurns);
        let busy = (self.seed >> self.turns) & 1 == 1;
        let text = match (&reply.malformed, busy) {
            (Some(reason), _) => reason.clone(),
            (None, true) => "busy".to_owned(),
            (None, false) => self.gold().unwrap_or_default(),
        };
        let observations = if stop.is_some() {
            Vec::new()
        } else {
            vec![Message::tool("python", text)]
        };
        let metrics = vec![("tool/busy".to_owned(), f64::from(u8::from(busy)))];
        Ok(StepResult {
            observations,
            stop,
            metrics,
            latency_ms: 1.0,
            ..StepResult::default()
        })
    }

    async fn finish(&mut self, _stop: StopReason) -> Result<StepResult, Unscored> {
        Ok(StepResult {
            reward: -0.25,
            ..StepResult::default()
        })
    }
}

/// One group for each question.
pub(crate) fn starts(questions: &[&str]) -> Vec<GroupStart> {
    let start = |q: &&str| {
        let question = (*q).to_owned();
        GroupStart {
            task_id: format!("sums/{question}"),
            max_tokens: 150,
            env: Arc::new(move |seed| Box::new(Sums::new(&question, seed))),
        }
    };
    questions.iter().map(start).collect()
}

pub(crate) fn players(policy: impl Policy + 'static) -> Players {
    Players {
        policy: Arc::new(policy),
        renderer: renderer(&model(0)).unwrap(),
    }
}

pub(crate) fn rollout_config() -> RolloutConfig {
    RolloutConfig {
        group_size: 4,
        sampling: Sampling::at(1.0),
        max_turn_tokens: 24,
        max_context: 160,
        concurrency: 8,
        seed: 11,
    }
}
