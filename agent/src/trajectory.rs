//! The record of an episode: one struct whose arrays cannot disagree.

use mipu_envs::{Message, StopReason};
use serde::{Deserialize, Serialize};

/// Index marking tokens before the agent's first turn.
pub const PROMPT_TURN: u16 = u16::MAX;

/// Token-level record of an episode. All arrays have one length by construction; ids only grow.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "RawTokens", into = "RawTokens")]
pub struct Tokens {
    ids: Vec<u32>,
    loss_mask: Vec<bool>,
    sampler_logprobs: Vec<f32>,
    turn: Vec<u16>,
}

#[derive(Serialize, Deserialize)]
struct RawTokens {
    ids: Vec<u32>,
    loss_mask: Vec<bool>,
    sampler_logprobs: Vec<f32>,
    turn: Vec<u16>,
}

impl From<Tokens> for RawTokens {
    fn from(t: Tokens) -> Self {
        Self {
            ids: t.ids,
            loss_mask: t.loss_mask,
            sampler_logprobs: t.sampler_logprobs,
            turn: t.turn,
        }
    }
}

impl TryFrom<RawTokens> for Tokens {
    type Error = String;

    fn try_from(raw: RawTokens) -> Result<Self, String> {
        let n = raw.ids.len();
        if raw.loss_mask.len() != n || raw.sampler_logprobs.len() != n || raw.turn.len() != n {
            return Err(format!(
                "token arrays disagree: {n} ids, {} mask, {} logprobs, {} turns",
                raw.loss_mask.len(),
                raw.sampler_logprobs.len(),
                raw.turn.len()
            ));
        }
        Ok(Self {
            ids: raw.ids,
            loss_mask: raw.loss_mask,
            sampler_logprobs: raw.sampler_logprobs,
            turn: raw.turn,
        })
    }
}

impl Tokens {
    /// Appends tokens the policy did not sample (prompt, tool output, template glue): mask false, log-prob 0.
    pub fn push_context(&mut self, ids: &[u32], turn: u16) {
        self.ids.extend_from_slice(ids);
        self.loss_mask.resize(self.ids.len(), false);
        self.sampler_logprobs.resize(self.ids.len(), 0.0);
        self.turn.resize(self.ids.len(), turn);
    }

    /// Appends sampled tokens with the log-probs they were drawn with (nats).
    ///
    /// # Panics
    /// When the two slices differ in length.
    pub fn push_sampled(&mut self, ids: &[u32], sampler_logprobs: &[f32], turn: u16) {
        assert_eq!(
            ids.len(),
            sampler_logprobs.len(),
            "one log-prob for every sampled token"
        );
        self.ids.extend_from_slice(ids);
        self.loss_mask.resize(self.ids.len(), true);
        self.sampler_logprobs.extend_from_slice(sampler_logprobs);
        self.turn.resize(self.ids.len(), turn);
    }

    /// Keeps the first `len` tokens of every array.
    pub fn truncate(&mut self, len: usize) {
        self.ids.truncate(len);
        self.loss_mask.truncate(len);
        self.sampler_logprobs.truncate(len);
        self.turn.truncate(len);
    }

    /// Token ids.
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// True on tokens the policy sampled.
    pub fn loss_mask(&self) -> &[bool] {
        &self.loss_mask
    }

    /// Log-probability (nats) of each sampled token under the distribution it was sampled from; 0 elsewhere.
    pub fn sampler_logprobs(&self) -> &[f32] {
        &self.sampler_logprobs
    }

    /// Turn of each token; [`PROMPT_TURN`] before the first turn. Tool output carries the turn it answers.
    pub fn turn(&self) -> &[u16] {
        &self.turn
    }

    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// True without tokens.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// `T_i`: tokens the policy sampled.
    pub fn sampled_len(&self) -> usize {
        self.loss_mask.iter().filter(|&&m| m).count()
    }
}

/// One episode.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Trajectory {
    /// Task instance.
    pub task_id: String,
    /// Position inside the group.
    pub sample: usize,
    /// Seed the episode's randomness derives from.
    pub seed: u64,
    /// Version of the sampler's weights.
    pub policy_version: u64,
    /// blake3 of the weights the sampler was synced from.
    pub weights_hash: String,
    /// Ids, mask, log-probs, turn indices.
    pub tokens: Tokens,
    /// The same episode as messages.
    pub messages: Vec<Message>,
    /// Reward of each turn; the return is their sum.
    pub turn_rewards: Vec<f64>,
    /// Why it ended.
    pub stop: StopReason,
    /// Named facts from the environment.
    pub metrics: Vec<(String, f64)>,
    /// Turns that could not be parsed.
    pub malformed_turns: usize,
    /// Virtual latency of the tools in milliseconds.
    pub latency_ms: f64,
}

impl Trajectory {
    /// Sum of the turn rewards.
    pub fn ret(&self) -> f64 {
        self.turn_rewards.iter().sum()
    }
}

/// The trajectories of one task instance, and what failed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Group {
    /// Task instance.
    pub task_id: String,
    /// Scored episodes, by `sample`.
    pub trajectories: Vec<Trajectory>,
    /// Reasons of the episodes left out (environment failures), never a zero reward.
    pub unscored: Vec<String>,
}
