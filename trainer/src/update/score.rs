//! Log-probs of recorded tokens under a trainer policy.

use mipu_agent::Tokens;

use crate::TrainerError;
use crate::batch::{Episode, Packed, micro_batches};
use crate::policy::{TrainerPolicy, evaluate};

/// Trainer log-probs (nats) of the sampled tokens of each episode under `log_softmax(logits / temperature)`, in their order; empty for an
/// episode without a sampled token.
///
/// # Errors
/// On an episode the model cannot read, or a log-prob that is not finite.
pub fn score(
    policy: &TrainerPolicy,
    episodes: &[&Tokens],
    temperature: f64,
) -> Result<Vec<Vec<f32>>, TrainerError> {
    let episodes: Vec<Episode> = episodes
        .iter()
        .enumerate()
        .map(|(i, t)| Episode::new(i, t, policy.config()))
        .collect::<Result<_, _>>()?;
    let views: Vec<&Episode> = episodes.iter().collect();
    let scored = logprobs(policy, &views, temperature, policy.tokens_per_pass())?;
    for (i, values) in scored.iter().enumerate() {
        if let Some(t) = values.iter().position(|v| !v.is_finite()) {
            let what = format!("log-prob of sampled token {t} of episode {i}");
            return Err(TrainerError::NonFinite {
                what,
                value: values[t],
            });
        }
    }
    Ok(scored
        .into_iter()
        .map(|values| values.into_iter().map(|v| v as f32).collect())
        .collect())
}

/// [`score`] in f64 and without the check for finite values.
pub(super) fn logprobs(
    policy: &TrainerPolicy,
    episodes: &[&Episode],
    temperature: f64,
    micro_batch_tokens: usize,
) -> Result<Vec<Vec<f64>>, TrainerError> {
    let lengths: Vec<usize> = episodes.iter().map(|e| e.input_len()).collect();
    let packed: Vec<Packed> = micro_batches(&lengths, micro_batch_tokens)
        .into_iter()
        .map(|range| Packed::new(episodes[range].iter().copied()))
        .collect();
    let stats = evaluate(policy, &packed, temperature)?;
    Ok(packed
        .iter()
        .zip(&stats)
        .flat_map(|(p, s)| p.split(&s.logprobs).map(<[f64]>::to_vec))
        .collect())
}
