//! From token records to what the forward pass reads: sequences packed end to end, without padding.

use std::ops::Range;

use mipu_agent::{ModelConfig, Tokens};

use crate::TrainerError;

/// What the trainer needs of one episode. Per-token arrays cover exactly the sampled tokens, so no mask is needed after this point.
#[derive(Clone, Debug, PartialEq)]
pub struct Episode {
    /// Inputs: every id before the last sampled token (later context predicts nothing).
    ids: Vec<u32>,
    /// For each sampled token, the input position that predicts it.
    rows: Vec<u32>,
    targets: Vec<u32>,
    sampler_logprobs: Vec<f32>,
    turn: Vec<u16>,
}

impl Episode {
    /// Checks and gathers the sampled tokens of an episode; `index` names it in errors.
    ///
    /// # Errors
    /// On a token outside the vocabulary, an episode longer than the model's context, a sampled first token, or a sampler log-prob that is
    /// not finite.
    pub fn new(index: usize, tokens: &Tokens, config: &ModelConfig) -> Result<Self, TrainerError> {
        let sampled = || (0..tokens.len()).filter(|&t| tokens.loss_mask()[t]);
        let inputs = sampled().next_back().unwrap_or(0);
        if sampled().next() == Some(0) {
            return Err(TrainerError::NoContext { episode: index });
        }
        if inputs > config.max_position_embeddings {
            let max = config.max_position_embeddings;
            return Err(TrainerError::EpisodeTooLong {
                episode: index,
                len: inputs + 1,
                max,
            });
        }
        for (position, &id) in tokens.ids()[..(inputs + 1).min(tokens.len())].iter().enumerate() {
            if id as usize >= config.vocab_size {
                let vocab = config.vocab_size;
                return Err(TrainerError::TokenOutOfVocabulary {
                    episode: index,
                    position,
                    id,
                    vocab,
                });
            }
        }
        if let Some(t) = sampled().find(|&t| !tokens.sampler_logprobs()[t].is_finite()) {
            return Err(TrainerError::NonFinite {
                what: format!("sampler log-prob of token {t} of episode {index}"),
                value: f64::from(tokens.sampler_logprobs()[t]),
            });
        }
        Ok(Self {
            ids: tokens.ids()[..inputs].to_vec(),
            rows: sampled().map(|t| t as u32 - 1).collect(),
            targets: sampled().map(|t| tokens.ids()[t]).collect(),
            sampler_logprobs: sampled().map(|t| tokens.sampler_logprobs()[t]).collect(),
            turn: sampled().map(|t| tokens.turn()[t]).collect(),
        })
    }

    /// `T_i`: sampled tokens.
    pub fn sampled_len(&self) -> usize {
        self.targets.len()
    }

    /// Tokens the forward pass reads.
    pub fn input_len(&self) -> usize {
        self.ids.len()
    }

    /// Log-probs (nats) of the sampled tokens under the distribution they were drawn from.
    pub fn sampler_logprobs(&self) -> &[f32] {
        &self.sampler_logprobs
    }

    /// Turn of each sampled token.
    pub fn turn(&self) -> &[u16] {
        &self.turn
    }
}

/// Sequences end to end, ready for one forward pass.
#[derive(Clone, Debug)]
pub(crate) struct Packed {
    /// Input ids of all sequences.
    pub(crate) ids: Vec<u32>,
    /// Position of each input in its own sequence.
    pub(crate) positions: Vec<u32>,
    /// Sequence `i` is inputs `offsets[i]..offsets[i + 1]`.
    pub(crate) offsets: Vec<usize>,
    /// Input whose output predicts target `j`.
    pub(crate) rows: Vec<u32>,
    /// Sampled tokens.
    pub(crate) targets: Vec<u32>,
    /// Targets of sequence `i` are `target_offsets[i]..target_offsets[i + 1]`.
    target_offsets: Vec<usize>,
}

impl Packed {
    /// Packs episodes in the given order.
    pub(crate) fn new<'a>(episodes: impl IntoIterator<Item = &'a Episode>) -> Self {
        let (mut ids, mut positions, mut offsets) = (Vec::new(), Vec::new(), vec![0]);
        let (mut rows, mut targets, mut target_offsets) = (Vec::new(), Vec::new(), vec![0]);
        for episode in episodes {
            let start = ids.len() as u32;
            ids.extend_from_slice(&episode.ids);
            positions.extend(0..episode.ids.len() as u32);
            offsets.push(ids.len());
            rows.extend(episode.rows.iter().map(|row| start + row));
            targets.extend_from_slice(&episode.targets);
            target_offsets.push(targets.len());
        }
        Self {
            ids,
            positions,
            offsets,
            rows,
            targets,
            target_offsets,
        }
    }

    /// Inputs of the longest sequence.
    pub(crate) fn longest(&self) -> usize {
        self.offsets.windows(2).map(|w| w[1] - w[0]).max().unwrap_or(0)
    }

    /// Splits values per target into one slice per sequence.
    pub(crate) fn split<'a, T>(&'a self, values: &'a [T]) -> impl Iterator<Item = &'a [T]> {
        self.target_offsets.windows(2).map(|w| &values[w[0]..w[1]])
    }
}

/// Cuts a list of episodes into runs of at most `max_tokens` inputs (at least one episode each), in order.
pub(crate) fn micro_batches(lengths: &[usize], max_tokens: usize) -> Vec<Range<usize>> {
    let mut out = Vec::new();
    let (mut start, mut tokens) = (0, 0);
    for (i, &len) in lengths.iter().enumerate() {
        if i > start && tokens + len > max_tokens {
            out.push(start..i);
            (start, tokens) = (i, 0);
        }
        tokens += len;
    }
    if start < lengths.len() {
        out.push(start..lengths.len());
    }
    out
}
