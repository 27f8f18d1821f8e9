//! FP8 matrices with one scale for each tile: how weights are quantised, stored and read back.

use super::e4m3;
use super::scale::{amax, encode_row, scale_for};

/// A rectangle of a matrix that shares a scale. At the right and lower edge it may be cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tile {
    pub(crate) rows: usize,
    pub(crate) columns: usize,
}

impl Tile {
    /// Tiles of an `[outputs, inputs]` matrix: down and across.
    pub(crate) fn grid(self, outputs: usize, inputs: usize) -> [usize; 2] {
        [outputs.div_ceil(self.rows), inputs.div_ceil(self.columns)]
    }

    /// `amax / 448` of every tile of a row-major matrix of `inputs` columns, down first.
    pub(crate) fn scales(self, values: &[f32], inputs: usize) -> Vec<f32> {
        let band = |rows: &[f32]| {
            let mut largest = vec![0f32; inputs.div_ceil(self.columns)];
            for row in rows.chunks_exact(inputs) {
                for (largest, part) in largest.iter_mut().zip(row.chunks(self.columns)) {
                    *largest = largest.max(amax(part));
                }
            }
            largest.into_iter().map(scale_for)
        };
        values.chunks(self.rows * inputs).flat_map(band).collect()
    }

    /// E4M3 codes of `value / scale`, row-major.
    pub(crate) fn encode(self, values: &[f32], inputs: usize, scales: &[f32]) -> Vec<u8> {
        let mut codes = vec![0; values.len()];
        let across = inputs.div_ceil(self.columns);
        for (row, (values, codes)) in values
            .chunks_exact(inputs)
            .zip(codes.chunks_exact_mut(inputs))
            .enumerate()
        {
            let scales = &scales[row / self.rows * across..][..across];
            let parts = values.chunks(self.columns).zip(codes.chunks_mut(self.columns));
            for ((values, codes), scale) in parts.zip(scales) {
                encode_row(values, *scale, codes);
            }
        }
        codes
    }

    /// `code * scale`, row-major.
    pub(crate) fn decode(self, codes: &[u8], inputs: usize, scales: &[f32]) -> Vec<f32> {
        let table: Vec<f32> = (0..=255).map(e4m3::decode).collect();
        let across = inputs.div_ceil(self.columns);
        let place = |(at, code): (usize, &u8)| {
            let (row, column) = (at / inputs, at % inputs);
            table[usize::from(*code)] * scales[row / self.rows * across + column / self.columns]
        };
        codes.iter().enumerate().map(place).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_tile_reaches_448_and_comes_back_within_half_a_step() {
        let (outputs, inputs) = (7, 10);
        let values: Vec<f32> = (0..outputs * inputs)
            .map(|i| ((i * 37 % 71) as f32 - 30.0) * if i % 10 < 4 { 100.0 } else { 0.01 })
            .collect();
        for (rows, columns) in [(1, inputs), (outputs, inputs), (3, 4), (2, 10)] {
            let tile = Tile { rows, columns };
            let scales = tile.scales(&values, inputs);
            let [down, across] = tile.grid(outputs, inputs);
            assert_eq!(scales.len(), down * across);
            let codes = tile.encode(&values, inputs, &scales);
            let back = tile.decode(&codes, inputs, &scales);
            let mut reached = vec![false; scales.len()];
            for (at, (x, y)) in values.iter().zip(&back).enumerate() {
                let which = at / inputs / rows * across + at % inputs / columns;
                reached[which] |= codes[at] & 0x7f == 0x7e;
                let step = (x.abs() / 16.0).max(scales[which] / 1024.0);
                assert!((x - y).abs() <= step * 1.001, "{x} {y}");
            }
            assert!(reached.iter().all(|r| *r), "{rows} x {columns}");
        }
    }
}
