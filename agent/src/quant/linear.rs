//! A linear layer packed for the kernels.

use rayon::prelude::*;

use super::kernels::FP8_FACTOR;
use super::{Codes, Isa, LANES, multiply, quantise};
use crate::engine::{Precision, math};

/// Who computes: the calling thread, or every thread of the current rayon pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Team {
    Solo,
    Pool,
}

/// Packed weights `[panels][inputs][32]` with one scale per output channel.
pub(crate) struct Linear {
    inputs: usize,
    outputs: usize,
    store: Store,
    /// One per lane of every panel, the factor of the decoded format included.
    scales: Vec<f32>,
}

/// Owned packed values.
#[derive(Clone)]
pub(crate) enum Store {
    F32(Vec<f32>),
    Bf16(Vec<u16>),
    F16(Vec<u16>),
    Fp8(Vec<u8>),
}

impl Store {
    pub(crate) fn zeros(precision: Precision, len: usize) -> Self {
        match precision {
            Precision::F32 => Self::F32(vec![0.0; len]),
            Precision::Bf16 => Self::Bf16(vec![0; len]),
            Precision::F16 => Self::F16(vec![0; len]),
            Precision::Fp8 => Self::Fp8(vec![0; len]),
        }
    }

    /// The values in a range.
    pub(crate) fn codes(&self, range: std::ops::Range<usize>) -> Codes<'_> {
        match self {
            Self::F32(v) => Codes::F32(&v[range]),
            Self::Bf16(v) => Codes::Bf16(&v[range]),
            Self::F16(v) => Codes::F16(&v[range]),
            Self::Fp8(v) => Codes::Fp8(&v[range]),
        }
    }

    /// Stores `row` at the given places; returns what a kernel's result must be multiplied by.
    pub(crate) fn put(&mut self, row: &[f32], places: impl Iterator<Item = usize>) -> f32 {
        match self {
            Self::F32(out) => places.zip(row).for_each(|(at, x)| out[at] = *x),
            Self::Bf16(out) => places
                .zip(row)
                .for_each(|(at, x)| out[at] = half::bf16::from_f32(*x).to_bits()),
            Self::F16(out) => places
                .zip(row)
                .for_each(|(at, x)| out[at] = half::f16::from_f32(*x).to_bits()),
            Self::Fp8(out) => return quantise(row, places, out) * FP8_FACTOR,
        }
        1.0
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Self::F32(v) => bytemuck::cast_slice(v),
            Self::Bf16(v) | Self::F16(v) => bytemuck::cast_slice(v),
            Self::Fp8(v) => v,
        }
    }
}

impl Linear {
    /// Packs the rows of several `[outputs, inputs]` matrices, one below the other.
    pub(crate) fn pack(matrices: &[&[f32]], inputs: usize, precision: Precision) -> Self {
        let rows: Vec<&[f32]> = matrices.iter().flat_map(|m| m.chunks_exact(inputs)).collect();
        let panels = rows.len().div_ceil(LANES);
        let mut store = Store::zeros(precision, panels * inputs * LANES);
        let mut scales = vec![0.0; panels * LANES];
        for (row, values) in rows.iter().enumerate() {
            let first = row / LANES * inputs * LANES + row % LANES;
            scales[row] = store.put(values, (0..inputs).map(|i| first + i * LANES));
        }
        Self {
            inputs,
            outputs: rows.len(),
            store,
            scales,
        }
    }

    /// Output channels.
    pub(crate) fn outputs(&self) -> usize {
        self.outputs
    }

    /// Bytes of packed weights and scales, for hashing.
    pub(crate) fn state(&self) -> [&[u8]; 2] {
        [self.store.bytes(), bytemuck::cast_slice(&self.scales)]
    }

    /// `y[row][out] = row_scale[row] * scale[out] * sum_i w[out][i] * x[row][i]`.
    ///
    /// - `x`: `[rows][inputs]`; `row_scales`: one per row; `y`: `[rows][outputs]`, overwritten; `tile`: scratch.
    pub(crate) fn forward(
        &self,
        x: &[f32],
        row_scales: &[f32],
        y: &mut [f32],
        tile: &mut Vec<f32>,
        team: Team,
    ) {
        let rows = row_scales.len();
        let (panel_len, per_panel) = (self.inputs * LANES, rows * LANES);
        let panels = self.outputs.div_ceil(LANES);
        let isa = Isa::best();
        let run = |first: usize, out: &mut [f32]| {
            let count = out.len() / per_panel;
            let codes = self.store.codes(first * panel_len..(first + count) * panel_len);
            multiply(isa, codes, self.inputs, x, self.inputs, rows, out, false);
        };
        match team {
            // A few panels at a time, so that the tile stays in the cache.
            Team::Solo => {
                let step = (16384 / per_panel).clamp(1, panels) / 3 * 3;
                let step = step.max(1);
                tile.resize(step.min(panels) * per_panel, 0.0);
                for first in (0..panels).step_by(step) {
                    let count = step.min(panels - first);
                    let out = &mut tile[..count * per_panel];
                    run(first, out);
                    self.scale(first, out, row_scales, y);
                }
            }
            Team::Pool => {
                tile.resize(panels * per_panel, 0.0);
                let threads = rayon::current_num_threads();
                let step = panels.div_ceil(threads).next_multiple_of(3);
                tile.par_chunks_mut(step * per_panel)
                    .enumerate()
                    .for_each(|(i, out)| run(i * step, out));
                self.scale(0, tile, row_scales, y);
            }
        }
    }

    /// Applies the scales to panels from `first` on and lays them out by row.
    fn scale(&self, first: usize, tile: &[f32], row_scales: &[f32], y: &mut [f32]) {
        let rows = row_scales.len();
        for (i, panel) in tile.chunks_exact(rows * LANES).enumerate() {
            let channel = (first + i) * LANES;
            let width = LANES.min(self.outputs - channel);
            let scales = &self.scales[channel..channel + width];
            for (row, row_scale) in row_scales.iter().enumerate() {
                let y = &mut y[row * self.outputs + channel..][..width];
                math::scale(&panel[row * LANES..][..width], scales, *row_scale, y);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(len: usize) -> Vec<f32> {
        (0..len)
            .map(|i| ((i * 7919 + 13) % 1009) as f32 / 500.0 - 1.0)
            .collect()
    }

    /// The product of dequantised values, in f64.
    #[test]
    fn forward_is_the_product_of_what_was_stored() {
        let (inputs, a, b, rows) = (24, 40, 7, 5);
        let (first, second, x) = (values(a * inputs), values(b * inputs + 9), values(rows * inputs));
        let second = &second[9..];
        for precision in [Precision::F32, Precision::Bf16, Precision::F16, Precision::Fp8] {
            let linear = Linear::pack(&[&first, second], inputs, precision);
            assert_eq!(linear.outputs(), a + b);
            let scales = [1.0, 0.5, 2.0, 1.0, 3.0];
            let mut y = vec![0.0; rows * (a + b)];
            linear.forward(&x, &scales, &mut y, &mut Vec::new(), Team::Solo);
            let mut pooled = y.clone();
            linear.forward(&x, &scales, &mut pooled, &mut Vec::new(), Team::Pool);
            assert_eq!(y, pooled);
            for (o, w) in first.chunks(inputs).chain(second.chunks(inputs)).enumerate() {
                let mut stored = w.to_vec();
                let scale = crate::quant::fake_quantise(&mut stored, precision);
                for row in 0..rows {
                    let dot: f64 = (0..inputs)
                        .map(|i| f64::from(stored[i] * scale) * f64::from(x[row * inputs + i]))
                        .sum();
                    let got = f64::from(y[row * (a + b) + o]);
                    assert!(
                        (got - dot * f64::from(scales[row])).abs() < 2e-5,
                        "{precision:?}: {got} {dot}"
                    );
                }
            }
        }
    }
}
