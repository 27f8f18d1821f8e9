//! Views of an episode restricted to the tokens the policy sampled.

use mipu_agent::Tokens;

/// The sampler's log-probs (nats) of the sampled tokens, in order.
pub fn sampled_logprobs(tokens: &Tokens) -> Vec<f32> {
    pick(tokens, tokens.sampler_logprobs())
}

/// The turn of each sampled token, in order.
pub fn sampled_turns(tokens: &Tokens) -> Vec<u16> {
    pick(tokens, tokens.turn())
}

fn pick<T: Copy>(tokens: &Tokens, values: &[T]) -> Vec<T> {
    values
        .iter()
        .zip(tokens.loss_mask())
        .filter(|(_, sampled)| **sampled)
        .map(|(value, _)| *value)
        .collect()
}
