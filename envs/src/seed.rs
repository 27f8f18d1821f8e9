//! Counter-based random streams for the whole workspace: every draw is a function of `(seed, purpose, indices)`.

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

/// What a stream is for; two purposes never share draws.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Rows of a generated task.
    Data,
    /// Order in which training tasks are drawn.
    Order,
    /// Tokens sampled by the policy.
    Sampling,
    /// An environment's own randomness (failures, noise, latency, transitions).
    Environment,
    /// RNG and clock of a sandboxed interpreter.
    Sandbox,
    /// Initial weights.
    Init,
    /// Order of minibatches.
    Minibatch,
    /// Gate: validation draws and permutations.
    Gate,
    /// Held-out evaluation.
    Eval,
    /// Demonstrations for supervised fine-tuning.
    Demonstration,
}

impl Purpose {
    const fn tag(self) -> u64 {
        match self {
            Self::Data => 1,
            Self::Order => 2,
            Self::Sampling => 3,
            Self::Environment => 4,
            Self::Sandbox => 5,
            Self::Init => 6,
            Self::Minibatch => 7,
            Self::Gate => 8,
            Self::Eval => 9,
            Self::Demonstration => 10,
        }
    }
}

/// A 64-bit seed that depends on every argument.
pub fn derive(seed: u64, purpose: Purpose, indices: &[u64]) -> u64 {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&seed.to_le_bytes());
    hasher.update(&purpose.tag().to_le_bytes());
    for index in indices {
        hasher.update(&index.to_le_bytes());
    }
    let bytes = hasher.finalize();
    u64::from_le_bytes(
        bytes.as_bytes()[..8]
            .try_into()
            .expect("a blake3 hash has 32 bytes"),
    )
}

/// A generator for [`derive()`]'s seed.
pub fn stream(seed: u64, purpose: Purpose, indices: &[u64]) -> ChaCha8Rng {
    ChaCha8Rng::seed_from_u64(derive(seed, purpose, indices))
}
