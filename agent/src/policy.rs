//! The policy interface: context ids in, one sampled turn out.

/// How tokens are drawn.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Sampling {
    /// Softmax temperature; 0 is greedy (log-probs are then those of temperature 1).
    pub temperature: f32,
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
    /// Temperature.
    pub sampling: Sampling,
    /// Seed of this turn's draws (a function of seed, task, sample and turn).
    pub seed: u64,
}

/// A sampled turn.
#[derive(Clone, Debug, PartialEq)]
pub struct SampledTurn {
    /// Ids, the stop id included when one was sampled.
    pub ids: Vec<u32>,
    /// Log-prob (nats) of each id under the distribution it was drawn from (`log_softmax(logits / T)`).
    pub logprobs: Vec<f32>,
    /// The budget ran out before a stop id.
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
