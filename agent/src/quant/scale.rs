//! Scales of quantised rows.

use super::e4m3;
use crate::engine::Precision;
use crate::simd::wide;

/// Smallest scale, so that a row of zeros divides.
const FLOOR: f32 = 1e-12;

/// Largest magnitude.
#[inline(always)]
pub(crate) fn amax(row: &[f32]) -> f32 {
    let mut lanes = [0f32; 8];
    let (chunks, rest) = row.as_chunks::<8>();
    for chunk in chunks {
        for i in 0..8 {
            let x = chunk[i].abs();
            lanes[i] = if x > lanes[i] { x } else { lanes[i] };
        }
    }
    lanes.iter().chain(rest).fold(0f32, |amax, x| amax.max(x.abs()))
}

/// `amax / 448`, at least 1e-12.
#[inline(always)]
pub(crate) fn scale_for(amax: f32) -> f32 {
    (amax / e4m3::MAX).max(FLOOR)
}

wide! {
    /// Codes of `row / scale`.
    pub(crate) fn encode_row(row: &[f32], scale: f32, codes: &mut [u8]) {
        let n = row.len();
        let codes = &mut codes[..n];
        for i in 0..n {
            codes[i] = e4m3::encode(row[i] / scale);
        }
    }

    /// Divides a row by its scale and rounds to E4M3 values; returns the scale.
    fn round_row(row: &mut [f32]) -> f32 {
        let scale = scale_for(amax(row));
        for x in row.iter_mut() {
            *x = e4m3::round(*x / scale);
        }
        scale
    }
}

/// Codes of a row, put at the given places, and their scale.
pub(crate) fn quantise(row: &[f32], places: impl Iterator<Item = usize>, out: &mut [u8]) -> f32 {
    let mut codes = [0u8; 256];
    let scale = scale_for(amax(row));
    let mut places = places;
    for part in row.chunks(codes.len()) {
        encode_row(part, scale, &mut codes);
        for (code, at) in codes[..part.len()].iter().zip(&mut places) {
            out[at] = *code;
        }
    }
    scale
}

/// Replaces a row by what the precision can hold, in units of the returned scale.
pub(crate) fn fake_quantise(row: &mut [f32], precision: Precision) -> f32 {
    match precision {
        Precision::F32 => 1.0,
        Precision::Bf16 => {
            row.iter_mut()
                .for_each(|x| *x = half::bf16::from_f32(*x).to_f32());
            1.0
        }
        Precision::F16 => {
            row.iter_mut().for_each(|x| *x = half::f16::from_f32(*x).to_f32());
            1.0
        }
        Precision::Fp8 => round_row(row),
    }
}
