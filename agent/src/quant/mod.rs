//! Reduced precision: the E4M3 format, its scales, packed linear layers and the kernels that multiply them.
//!
//! Conventions are those of deployed engines: range +-448, clamp then round to nearest even, `scale = amax / 448` with floor
//! 1e-12, dequantised value = code * scale. Weights have one scale per output channel, activations one per token.
//!
//! Invariant: an output element is one chain of fused multiply-adds in the order of the inputs, whatever the instruction set,
//! the batch, the position in it or the thread. So prefill, decode and re-scoring give the same bits.

pub mod e4m3;
mod kernels;
mod linear;
mod matrix;
mod scale;

pub(crate) use kernels::{Codes, Isa, LANES, multiply};
pub(crate) use linear::{Linear, Store, Team};
pub(crate) use matrix::Tile;
pub(crate) use scale::{fake_quantise, quantise};
