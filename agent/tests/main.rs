//! The sampler as a whole: parity with other implementations, bit-for-bit invariance, rollouts.

mod engine;
mod parity;
mod rollout;
mod support;
