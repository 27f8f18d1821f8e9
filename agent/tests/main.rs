//! The sampler as a whole: parity with other implementations, bit-for-bit invariance, rollouts.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod engine;
mod gguf;
mod parity;
mod rollout;
mod support;
