//! One supervised step: the warm start's update.

use mipu_agent::Tokens;
use serde::{Deserialize, Serialize};

use crate::TrainerError;
use crate::batch::{Episode, Packed, micro_batches};
use crate::optim::AdamW;
use crate::policy::{TokenGradients, TokenStats, TrainerPolicy, backward};

/// What a supervised step did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SftReport {
    /// Mean negative log-likelihood (nats) of the marked tokens before the step.
    pub nll: f64,
    /// Marked tokens.
    pub tokens: usize,
    /// Tokens read.
    pub input_tokens: usize,
    /// Gradient norm before clipping; 0 without a marked token, when no step is taken.
    pub grad_norm: f64,
}

/// One optimizer step on the mean negative log-likelihood of the tokens that `loss_mask` marks.
///
/// # Errors
/// On an episode the model cannot read or any number that is not finite; policy and optimizer are then as they were.
pub fn sft_step(
    policy: &mut TrainerPolicy,
    optim: &mut AdamW,
    episodes: &[Tokens],
    lr: f64,
) -> Result<SftReport, TrainerError> {
    let episodes: Vec<Episode> = episodes
        .iter()
        .enumerate()
        .map(|(i, t)| Episode::new(i, t, policy.config()))
        .collect::<Result<_, _>>()?;
    let episodes: Vec<&Episode> = episodes.iter().filter(|e| e.sampled_len() > 0).collect();
    let tokens: usize = episodes.iter().map(|e| e.sampled_len()).sum();
    if tokens == 0 {
        return Ok(SftReport::default());
    }
    let lengths: Vec<usize> = episodes.iter().map(|e| e.input_len()).collect();
    let packed: Vec<Packed> = micro_batches(&lengths, policy.tokens_per_pass())
        .into_iter()
        .map(|range| Packed::new(episodes[range].iter().copied()))
        .collect();
    let (gradients, nll) = backward(policy, &packed, 1.0, |i, stats: TokenStats| {
        let nll = -stats.logprobs.iter().sum::<f64>() / tokens as f64;
        if !nll.is_finite() {
            return Err(TrainerError::NonFinite {
                what: format!("log-likelihood of micro-batch {i}"),
                value: nll,
            });
        }
        let n = stats.logprobs.len();
        Ok((
            TokenGradients {
                logprobs: vec![-1.0 / tokens as f64; n],
                entropies: vec![0.0; n],
            },
            nll,
        ))
    })?;
    let grad_norm = optim.step(policy, &gradients, lr)?.grad_norm;
    Ok(SftReport {
        nll: nll.iter().sum(),
        tokens,
        input_tokens: lengths.iter().sum(),
        grad_norm,
    })
}
