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
            truncated: !ids.last().is_some_and(|id| self.stop_ids.contains(id)),
            ids,
            policy_version: 0,
            weights_hash: "scripted".to_owned(),
        })
    }

    fn release(&self, _episode: u64) {}
}
