//! Rotary position embedding, half-rotation convention (HF `rotate_half`).

use std::sync::Arc;

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CustomOp1, D, Layout, Result, Shape, Tensor};

use super::super::kernels::{Real, rows};
use super::{Exec, for_float, for_row_pieces, operand, with_values};

/// Cosines and sines of every position and frequency: `[max_positions, head_dim / 2]`.
pub(crate) struct RopeTable {
    half: usize,
    cos: (Vec<f32>, Vec<f64>),
    sin: (Vec<f32>, Vec<f64>),
}

impl RopeTable {
    /// Angles `position / theta^(2 i / head_dim)`, rounded to f32 where the reference implementations round.
    pub(crate) fn new(head_dim: usize, theta: f64, max_positions: usize) -> Self {
        let half = head_dim / 2;
        let frequencies: Vec<f32> = (0..half)
            .map(|i| (1.0 / theta.powf((2 * i) as f64 / head_dim as f64)) as f32)
            .collect();
        let angles: Vec<f64> = (0..max_positions)
            .flat_map(|position| frequencies.iter().map(move |f| f64::from(position as f32 * f)))
            .collect();
        let table = |f: fn(f64) -> f64| {
            let wide: Vec<f64> = angles.iter().map(|&a| f(a)).collect();
            (wide.iter().map(|&x| x as f32).collect(), wide)
        };
        Self {
            half,
            cos: table(f64::cos),
            sin: table(f64::sin),
        }
    }

    /// Positions in the table.
    pub(crate) fn positions(&self) -> usize {
        self.cos.0.len() / self.half
    }
}

/// The table in the op's float type.
trait Tabled: Real {
    fn pick(table: &(Vec<f32>, Vec<f64>)) -> &[Self];
}

impl Tabled for f32 {
    fn pick(table: &(Vec<f32>, Vec<f64>)) -> &[Self] {
        &table.0
    }
}

impl Tabled for f64 {
    fn pick(table: &(Vec<f32>, Vec<f64>)) -> &[Self] {
        &table.1
    }
}

/// Rotates every head of every token: `x: [tokens, heads * head_dim]`, `positions[token]` is its place in its sequence.
///
/// # Errors
/// On a shape or dtype mismatch, or a position outside the table.
pub(crate) fn rope(
    x: &Tensor,
    table: &Arc<RopeTable>,
    positions: &Arc<Vec<u32>>,
    exec: Exec,
) -> Result<Tensor> {
    let (tokens, width) = x.dims2()?;
    if positions.len() != tokens || width % (2 * table.half) != 0 {
        candle_core::bail!(
            "rope: {} positions and heads of {} for {:?}",
            positions.len(),
            2 * table.half,
            x.shape()
        )
    }
    let limit = table.positions();
    if let Some(position) = positions.iter().find(|&&p| p as usize >= limit) {
        candle_core::bail!("rope: position {position} is outside the table of {limit}")
    }
    if x.device().is_cpu() {
        x.apply_op1(Rope {
            table: Arc::clone(table),
            positions: Arc::clone(positions),
            sign: 1.0,
            exec,
        })
    } else {
        composed(x, table, positions)
    }
}

fn composed(x: &Tensor, table: &RopeTable, positions: &[u32]) -> Result<Tensor> {
    let (tokens, width) = x.dims2()?;
    let half = table.half;
    let rows = |values: &[f64]| -> Result<Tensor> {
        let picked: Vec<f64> = positions
            .iter()
            .flat_map(|&p| values[p as usize * half..][..half].iter().copied())
            .collect();
        Tensor::from_vec(picked, (tokens, 1, half), x.device())?.to_dtype(x.dtype())
    };
    let (cos, sin) = (rows(&table.cos.1)?, rows(&table.sin.1)?);
    let x = x.reshape((tokens, width / (2 * half), 2 * half))?;
    let (a, b) = (x.narrow(D::Minus1, 0, half)?, x.narrow(D::Minus1, half, half)?);
    let out_a = (a.broadcast_mul(&cos)? - b.broadcast_mul(&sin)?)?;
    let out_b = (b.broadcast_mul(&cos)? + a.broadcast_mul(&sin)?)?;
    Tensor::cat(&[out_a, out_b], D::Minus1)?.reshape((tokens, width))
}

struct Rope {
    table: Arc<RopeTable>,
    positions: Arc<Vec<u32>>,
    sign: f64,
    exec: Exec,
}

impl Rope {
    fn apply<T: Tabled>(&self, x: &[T], sign: f64) -> Vec<T> {
        let (half, width) = (self.table.half, x.len() / self.positions.len().max(1));
        let (cos, sin) = (T::pick(&self.table.cos), T::pick(&self.table.sin));
        let mut out = vec![T::ZERO; x.len()];
        for_row_pieces(self.exec, &mut out, width, |first, out| {
            for (i, out) in out.chunks_exact_mut(width).enumerate() {
                let row = first + i;
                let at = self.positions[row] as usize * half;
                rows::rope(
                    &x[row * width..][..width],
                    &cos[at..][..half],
                    &sin[at..][..half],
                    T::of(sign),
                    out,
                );
            }
        });
        out
    }
}

impl CustomOp1 for Rope {
    fn name(&self) -> &'static str {
        "rope-half"
    }

    fn cpu_fwd(&self, x: &CpuStorage, xl: &Layout) -> Result<(CpuStorage, Shape)> {
        let out = for_float!(x.dtype(), T => {
            <T as candle_core::WithDType>::to_cpu_storage_owned(self.apply::<T>(operand("rope", x, xl)?, self.sign))
        });
        Ok((out, xl.shape().clone()))
    }

    fn bwd(&self, x: &Tensor, _y: &Tensor, g: &Tensor) -> Result<Option<Tensor>> {
        // The rotation is orthogonal: its transpose rotates back.
        let g = g.contiguous()?;
        let dx = for_float!(x.dtype(), T => {
            with_values::<T, _>(&g, |g| Tensor::from_vec(self.apply::<T>(g, -self.sign), x.shape(), x.device()))?
        });
        Ok(Some(dx))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::ops::testing::{check_gradients, wave};

    #[test]
    fn equals_the_composed_form_and_has_its_gradient() {
        let table = Arc::new(RopeTable::new(6, 1e4, 20));
        let positions = Arc::new(vec![0, 1, 19, 3, 0]);
        check_gradients(
            &[wave((5, 12), 0.3)],
            |v| rope(&v[0], &table, &positions, Exec::Serial),
            |v| composed(&v[0], &table, &positions),
        );
    }

    #[test]
    fn a_position_outside_the_table_is_refused() {
        let table = Arc::new(RopeTable::new(6, 1e4, 4));
        let error = rope(&wave((1, 6), 0.1), &table, &Arc::new(vec![4]), Exec::Serial).unwrap_err();
        assert!(error.to_string().contains("position 4"), "{error}");
    }
}
