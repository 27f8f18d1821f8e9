//! Rotary position embedding, half-rotation convention (HF `rotate_half`).

use super::{Exec, Real, for_row_pieces, rows};

/// Cosines and sines of every position and frequency: `[positions, head_dim / 2]`.
pub(crate) struct RopeTable<T> {
    half: usize,
    pub(crate) cos: Vec<T>,
    pub(crate) sin: Vec<T>,
}

impl<T: Real> RopeTable<T> {
    /// Angles `position / theta^(2 i / head_dim)`, rounded to f32 where the reference implementations round.
    pub(crate) fn new(head_dim: usize, theta: f64, positions: usize) -> Self {
        let half = head_dim / 2;
        let frequencies: Vec<f32> = (0..half)
            .map(|i| (1.0 / theta.powf((2 * i) as f64 / head_dim as f64)) as f32)
            .collect();
        let angles = || {
            (0..positions)
                .flat_map(|position| frequencies.iter().map(move |f| f64::from(position as f32 * f)))
        };
        Self {
            half,
            cos: angles().map(|a| T::of(a.cos())).collect(),
            sin: angles().map(|a| T::of(a.sin())).collect(),
        }
    }
}

/// Rotates every head of every token in place: `x: [tokens, heads * head_dim]`, `positions[token]` is its place in its sequence.
/// `sign` -1 rotates back, which is also the derivative.
///
/// # Panics
/// On a position outside the table.
pub(crate) fn rope<T: Real>(x: &mut [T], table: &RopeTable<T>, positions: &[u32], sign: f64, exec: Exec) {
    let (half, width) = (table.half, x.len() / positions.len().max(1));
    for_row_pieces(exec, x, width, |first, x| {
        for (x, &position) in x.chunks_exact_mut(width).zip(&positions[first..]) {
            let at = position as usize * half;
            rows::rope(x, &table.cos[at..][..half], &table.sin[at..][..half], T::of(sign));
        }
    });
}
