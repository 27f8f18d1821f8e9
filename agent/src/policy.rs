//! The policy interface: context ids in, one sampled turn out.

use std::sync::Arc;

/// How tokens are drawn: temperature first, then `top_k`, `top_p` and `min_p` in this order.
///
/// A filter cuts the support, so log-probs of the distribution sampled from are not those of the model: ratios to them are biased
/// by the mass that was cut. Training samples with the full support; filters are for evaluation ([`Sampling::full_support`]).
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Sampling {
    /// Softmax temperature; 0 is greedy (log-probs are then those of temperature 1). Default 1.
    pub temperature: f32,
    /// Only the `k` most likely ids, of equals those with the smaller id; 0 is all. Default 0.
    pub top_k: usize,
    /// Only the most likely ids that together first reach this share of what `top_k` left, in (0, 1]. Default 1.
    pub top_p: f32,
    /// Only ids at least this share as likely as the most likely one, in [0, 1]. Default 0.
    pub min_p: f32,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
        }
    }
}

impl Sampling {
    /// The model's own distribution at a temperature.
    pub fn at(temperature: f32) -> Self {
        Self {
            temperature,
            ..Self::default()
        }
    }

    /// No filter: every id of the vocabulary can be drawn.
    pub fn full_support(&self) -> bool {
        self.top_k == 0 && self.top_p >= 1.0 && self.min_p <= 0.0
    }

    /// Checks the ranges.
    ///
    /// # Errors
    /// Names the setting, what was expected and what was found.
    pub fn check(&self) -> Result<(), PolicyError> {
        let refuse = |name: &str, wanted: &str, got: f32| {
            Err(PolicyError(format!("the {name} must {wanted}; got {got}")))
        };
        if !(self.temperature >= 0.0 && self.temperature.is_finite()) {
            return refuse("temperature", "be finite and not negative", self.temperature);
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return refuse("top_p", "lie in (0, 1]", self.top_p);
        }
        if !(self.min_p >= 0.0 && self.min_p <= 1.0) {
            return refuse("min_p", "lie in [0, 1]", self.min_p);
        }
        Ok(())
    }
}

/// Makes text of ids.
pub type Decode = dyn Fn(&[u32]) -> String + Send + Sync;

/// What ends one turn beside the engine's own stop ids. Whatever completes it was sampled and stays in the turn.
#[derive(Clone, Default)]
pub struct Stop {
    /// More ids that end the turn.
    pub ids: Vec<u32>,
    /// Texts that end the turn once its last tokens hold one.
    pub strings: Vec<String>,
    /// Makes text of ids; needed where `strings` is not empty.
    pub decode: Option<Arc<Decode>>,
}

impl std::fmt::Debug for Stop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Stop {{ ids: {:?}, strings: {:?} }}", self.ids, self.strings)
    }
}

impl Stop {
    /// The last of the sampled ids ends the turn.
    pub(crate) fn met(&self, sampled: &[u32]) -> bool {
        let Some(last) = sampled.last() else {
            return false;
        };
        if self.ids.contains(last) {
            return true;
        }
        let (Some(longest), Some(decode)) = (self.strings.iter().map(String::len).max(), &self.decode) else {
            return false;
        };
        // A token stands for at least a byte, and at most the first token of the window is cut into.
        let text = decode(&sampled[sampled.len().saturating_sub(longest + 4)..]);
        self.strings.iter().any(|stop| text.contains(stop.as_str()))
    }
}

/// One turn to sample.
#[derive(Clone, Debug)]
pub struct TurnRequest {
    /// Identifies the episode, so that its KV cache is found again at the next turn.
    pub episode: u64,
    /// All ids of the episode so far.
    pub context: Vec<u32>,
    /// Token budget of the turn.
    pub max_tokens: usize,
    /// Temperature and filters.
    pub sampling: Sampling,
    /// What ends this turn beside the engine's stop ids.
    pub stop: Stop,
    /// Seed of this turn's draws (a function of seed, task, sample and turn).
    pub seed: u64,
}

/// A sampled turn.
#[derive(Clone, Debug, PartialEq)]
pub struct SampledTurn {
    /// Ids, those of the stop included when one was sampled.
    pub ids: Vec<u32>,
    /// Log-prob (nats) of each id under the distribution it was drawn from: `log_softmax(logits / T)` over the ids that the
    /// filters left.
    pub logprobs: Vec<f32>,
    /// Log-prob (nats) of each id under `log_softmax(logits / T)` over the whole vocabulary; equal to `logprobs` without filters.
    pub unfiltered_logprobs: Vec<f32>,
    /// The budget ran out before a stop.
    pub truncated: bool,
    /// Version of the weights that sampled it.
    pub policy_version: u64,
    /// blake3 of those weights.
    pub weights_hash: String,
}

/// A policy failed (not the agent's mistake).
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct PolicyError(pub String);

/// Something that writes turns.
#[async_trait::async_trait]
pub trait Policy: Send + Sync {
    /// Samples one turn.
    async fn sample(&self, request: TurnRequest) -> Result<SampledTurn, PolicyError>;
    /// The episode is over: its cache can go.
    fn release(&self, episode: u64);
}

/// A policy that writes turns a function chooses, with log-prob 0: for tests and replays.
///
/// The function sees the context and gives the turn's ids; those beyond the budget are cut.
pub struct Scripted<F> {
    turn: F,
    stop_ids: Vec<u32>,
}

impl<F: Fn(&[u32]) -> Vec<u32> + Send + Sync> Scripted<F> {
    /// A policy that answers a context with `turn(context)`.
    pub fn new(stop_ids: &[u32], turn: F) -> Self {
        Self {
            turn,
            stop_ids: stop_ids.to_vec(),
        }
    }
}

#[async_trait::async_trait]
impl<F: Fn(&[u32]) -> Vec<u32> + Send + Sync> Policy for Scripted<F> {
    async fn sample(&self, request: TurnRequest) -> Result<SampledTurn, PolicyError> {
        let mut ids = (self.turn)(&request.context);
        ids.truncate(request.max_tokens);
        Ok(SampledTurn {
            logprobs: vec![0.0; ids.len()],
            unfiltered_logprobs: vec![0.0; ids.len()],
            truncated: !(ids.last().is_some_and(|id| self.stop_ids.contains(id)) || request.stop.met(&ids)),
            ids,
            policy_version: 0,
            weights_hash: "scripted".to_owned(),
        })
    }

    fn release(&self, _episode: u64) {}
}
