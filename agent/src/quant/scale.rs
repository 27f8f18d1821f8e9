//! Scales of quantised rows.

use super::e4m3;
use crate::engine::Precision;

/// Smallest scale, so that a row of zeros divides.
const FLOOR: f32 = 1e-12;

/// `amax / 448` of a row, at least 1e-12.
fn scale_of(row: &[f32]) -> f32 {
    let mut lanes = [0f32; 8];
    let chunks = row.chunks_exact(8);
    let rest = chunks.remainder();
    for chunk in chunks {
        for (lane, x) in lanes.iter_mut().zip(chunk) {
            *lane = if x.abs() > *lane { x.abs() } else { *lane };
        }
    }
    let amax = lanes.iter().chain(rest).fold(0f32, |max, x| max.max(x.abs()));
    (amax / e4m3::MAX).max(FLOOR)
}

/// Codes of a row and their scale.
pub(crate) fn quantise(row: &[f32], codes: impl Iterator<Item = usize>, out: &mut [u8]) -> f32 {
    let scale = scale_of(row);
    for (x, at) in row.iter().zip(codes) {
        out[at] = e4m3::encode(x / scale);
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
        Precision::Fp8 => {
            let scale = scale_of(row);
            row.iter_mut().for_each(|x| *x = e4m3::round(*x / scale));
            scale
        }
    }
}
