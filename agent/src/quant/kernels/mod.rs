//! Products of packed panels with rows of activations: `out[panel][row][lane] (+)= sum_k w[panel][k][lane] * x[row][k]`.
//!
//! A panel is 32 output channels (lanes) of `k` inputs, stored `[k][32]`. Each output element is a chain of f32 fused
//! multiply-adds over ascending `k`, so AVX-512, AVX2 and the scalar twin agree bit for bit. E4M3 codes are decoded to
//! `value / 256` (a shifted code read as an IEEE half), which is exact; callers fold the 256 into their scales.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod scalar;

use std::sync::OnceLock;

/// Output channels of a panel.
pub(crate) const LANES: usize = 32;

/// What E4M3 codes must be multiplied by after a kernel.
pub(crate) const FP8_FACTOR: f32 = 256.0;

/// Packed values in one of the number formats.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Codes<'a> {
    F32(&'a [f32]),
    Bf16(&'a [u16]),
    F16(&'a [u16]),
    Fp8(&'a [u8]),
}

impl<'a> Codes<'a> {
    fn len(self) -> usize {
        match self {
            Self::F32(w) => w.len(),
            Self::Bf16(w) | Self::F16(w) => w.len(),
            Self::Fp8(w) => w.len(),
        }
    }
}

/// Instruction set of the kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Isa {
    Scalar,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Isa {
    /// The best one this processor has.
    pub(crate) fn best() -> Self {
        static BEST: OnceLock<Isa> = OnceLock::new();
        *BEST.get_or_init(|| Self::available().into_iter().next_back().unwrap_or(Self::Scalar))
    }

    /// Those this processor has, worst first.
    pub(crate) fn available() -> Vec<Self> {
        #[cfg_attr(
            not(target_arch = "x86_64"),
            expect(unused_mut, reason = "only x86-64 has more than the twin")
        )]
        let mut list = vec![Self::Scalar];
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c")
        {
            list.push(Self::Avx2);
            if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw") {
                list.push(Self::Avx512);
            }
        }
        list
    }
}

/// `out[panel][row][lane] = (out if accumulate else 0) + sum_k w[panel][k][lane] * x[row * stride + k]`.
///
/// - `w`: `[panels][k][32]`; `x`: at least `(rows - 1) * stride + k` values; `out`: `[panels][rows][32]`.
///
/// # Panics
/// When a slice is too short.
#[expect(clippy::too_many_arguments, reason = "the operands of a matrix product")]
pub(crate) fn multiply(
    isa: Isa,
    w: Codes<'_>,
    k: usize,
    x: &[f32],
    stride: usize,
    rows: usize,
    out: &mut [f32],
    accumulate: bool,
) {
    if rows == 0 || k == 0 {
        if !accumulate {
            out.fill(0.0);
        }
        return;
    }
    let panels = out.len() / (rows * LANES);
    assert_eq!(out.len(), panels * rows * LANES, "whole panels");
    assert!(w.len() >= panels * k * LANES, "weights of every panel");
    assert!(x.len() >= (rows - 1) * stride + k, "inputs of every row");
    match isa {
        Isa::Scalar => scalar::multiply(w, k, x, stride, rows, out, accumulate),
        // SAFETY: `Isa::best` and `Isa::available` yield an instruction set only where the processor has it, and the bounds the
        // kernels rely on were asserted above.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => unsafe { avx2::multiply(w, k, x, stride, rows, out, accumulate) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => unsafe { avx512::multiply(w, k, x, stride, rows, out, accumulate) },
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::quant::e4m3;

    fn floats(len: usize, seed: u64) -> Vec<f32> {
        let mut state = seed | 1;
        (0..len)
            .map(|_| {
                state = state
                    .wrapping_mul(6364136223846793005)
                    .wrapping_add(1442695040888963407);
                ((state >> 40) as f32 / 8388608.0 - 1.0) * if state >> 60 == 0 { 0.0 } else { 3.0 }
            })
            .collect()
    }

    /// Every instruction set gives the scalar twin's bits.
    fn check(panels: usize, k: usize, rows: usize, stride: usize, accumulate: bool, seed: u64) {
        let w = floats(panels * k * LANES, seed);
        let x = floats((rows - 1) * stride + k, seed ^ 99);
        let fp8: Vec<u8> = w.iter().map(|&v| e4m3::encode(v * 100.0)).collect();
        let f16: Vec<u16> = w.iter().map(|&v| half::f16::from_f32(v).to_bits()).collect();
        let bf16: Vec<u16> = w.iter().map(|&v| half::bf16::from_f32(v).to_bits()).collect();
        for codes in [
            Codes::F32(&w),
            Codes::Bf16(&bf16),
            Codes::F16(&f16),
            Codes::Fp8(&fp8),
        ] {
            let start = floats(panels * rows * LANES, seed ^ 7);
            let run = |isa| {
                let mut out = start.clone();
                multiply(isa, codes, k, &x, stride, rows, &mut out, accumulate);
                out.iter().map(|v| v.to_bits()).collect::<Vec<_>>()
            };
            let expected = run(Isa::Scalar);
            for isa in Isa::available() {
                assert_eq!(run(isa), expected, "{isa:?}, {panels} panels, k {k}, {rows} rows");
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(60))]
        #[test]
        fn every_instruction_set_gives_the_same_bits(
            panels in 1usize..6, k in 1usize..70, rows in 1usize..30, gap in 0usize..5, accumulate: bool, seed: u64,
        ) {
            check(panels, k, rows, k + gap, accumulate, seed);
        }
    }

    #[test]
    fn every_code_decodes_to_its_value() {
        let codes: Vec<u8> = (0..=255).collect();
        for isa in Isa::available() {
            let mut out = vec![0.0; 256];
            multiply(isa, Codes::Fp8(&codes), 1, &[FP8_FACTOR], 1, 1, &mut out, false);
            for (code, value) in codes.iter().zip(out) {
                let expected = e4m3::decode(*code);
                if !expected.is_nan() {
                    // The chain starts at +0, which swallows the sign of a zero.
                    assert_eq!(value.to_bits(), (0.0 + expected).to_bits(), "{isa:?} code {code}");
                }
            }
        }
    }

    #[test]
    fn products_agree_with_f64() {
        let (k, rows) = (57, 4);
        let (w, x) = (floats(2 * k * LANES, 1), floats(rows * k, 2));
        let mut out = vec![0.0; 2 * rows * LANES];
        multiply(Isa::best(), Codes::F32(&w), k, &x, k, rows, &mut out, false);
        for panel in 0..2 {
            for row in 0..rows {
                for lane in 0..LANES {
                    let term =
                        |i: usize| f64::from(w[(panel * k + i) * LANES + lane]) * f64::from(x[row * k + i]);
                    let exact: f64 = (0..k).map(term).sum();
                    let got = out[(panel * rows + row) * LANES + lane];
                    assert!((f64::from(got) - exact).abs() < 1e-4, "{got} {exact}");
                }
            }
        }
    }
}
