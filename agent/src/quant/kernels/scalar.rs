//! The scalar twin: what every other kernel must equal bit for bit, and the fallback of other processors.

use super::{Codes, LANES};

pub(super) fn multiply(
    w: Codes<'_>,
    k: usize,
    x: &[f32],
    stride: usize,
    rows: usize,
    out: &mut [f32],
    accumulate: bool,
) {
    match w {
        Codes::F32(w) => panels(w, |v| v, k, x, stride, rows, out, accumulate),
        Codes::Bf16(w) => panels(
            w,
            |v| half::bf16::from_bits(v).to_f32(),
            k,
            x,
            stride,
            rows,
            out,
            accumulate,
        ),
        Codes::F16(w) => panels(
            w,
            |v| half::f16::from_bits(v).to_f32(),
            k,
            x,
            stride,
            rows,
            out,
            accumulate,
        ),
        Codes::Fp8(w) => panels(w, fp8, k, x, stride, rows, out, accumulate),
    }
}

/// A code's value / 256: its sign, exponent and mantissa moved into an IEEE half, whose bias differs by 8.
fn fp8(code: u8) -> f32 {
    half::f16::from_bits((u16::from(code & 0x80) << 8) | (u16::from(code & 0x7f) << 7)).to_f32()
}

#[expect(clippy::too_many_arguments, reason = "the operands of a matrix product")]
fn panels<T: Copy>(
    w: &[T],
    value: impl Fn(T) -> f32,
    k: usize,
    x: &[f32],
    stride: usize,
    rows: usize,
    out: &mut [f32],
    accumulate: bool,
) {
    for (panel, out) in w.chunks_exact(k * LANES).zip(out.chunks_exact_mut(rows * LANES)) {
        for (row, out) in out.chunks_exact_mut(LANES).enumerate() {
            let mut sum = [0f32; LANES];
            if accumulate {
                sum.copy_from_slice(out);
            }
            for (w, x) in panel.chunks_exact(LANES).zip(&x[row * stride..row * stride + k]) {
                for (sum, w) in sum.iter_mut().zip(w) {
                    *sum = value(*w).mul_add(*x, *sum);
                }
            }
            out.copy_from_slice(&sum);
        }
    }
}
