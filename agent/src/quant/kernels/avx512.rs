//! AVX-512 (F and BW) kernels.

use std::arch::x86_64::*;

use super::{Codes, LANES};

/// Loads sixteen packed values as f32.
trait Format {
    type Code: Copy;

    /// # Safety
    /// The processor has AVX-512 F and BW, and `p` points to 16 readable codes.
    unsafe fn load(p: *const Self::Code) -> __m512;
}

struct F32;
struct Bf16;
struct F16;
struct Fp8;

impl Format for F32 {
    type Code = f32;

    #[inline(always)]
    unsafe fn load(p: *const f32) -> __m512 {
        // SAFETY: by the trait's contract.
        unsafe { _mm512_loadu_ps(p) }
    }
}

impl Format for Bf16 {
    type Code = u16;

    #[inline(always)]
    unsafe fn load(p: *const u16) -> __m512 {
        // SAFETY: by the trait's contract.
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        }
    }
}

impl Format for F16 {
    type Code = u16;

    #[inline(always)]
    unsafe fn load(p: *const u16) -> __m512 {
        // SAFETY: by the trait's contract.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
    }
}

impl Format for Fp8 {
    type Code = u8;

    #[inline(always)]
    unsafe fn load(p: *const u8) -> __m512 {
        // SAFETY: by the trait's contract (AVX-512 implies AVX2). Sign extension keeps the sign in bit 15 after the shift; the
        // mask clears its copy in bit 14, the top exponent bit of a half.
        unsafe {
            let wide = _mm256_cvtepi8_epi16(_mm_loadu_si128(p.cast()));
            let half = _mm256_and_si256(_mm256_slli_epi16::<7>(wide), _mm256_set1_epi16(0xBFFFu16 as i16));
            _mm512_cvtph_ps(half)
        }
    }
}

/// # Safety
/// The processor has AVX-512 F and BW, AVX2, FMA and F16C; `w` holds `panels * k * 32` codes, `x` holds `(rows - 1) * stride + k`
/// values and `out` `panels * rows * 32`, with `k` and `rows` positive.
#[target_feature(enable = "avx512f,avx512bw,avx2,fma,f16c")]
pub(super) unsafe fn multiply(
    w: Codes<'_>,
    k: usize,
    x: &[f32],
    stride: usize,
    rows: usize,
    out: &mut [f32],
    accumulate: bool,
) {
    // SAFETY: by this function's contract, in each arm.
    unsafe {
        match w {
            Codes::F32(w) => panels::<F32>(w, k, x, stride, rows, out, accumulate),
            Codes::Bf16(w) => panels::<Bf16>(w, k, x, stride, rows, out, accumulate),
            Codes::F16(w) => panels::<F16>(w, k, x, stride, rows, out, accumulate),
            Codes::Fp8(w) => panels::<Fp8>(w, k, x, stride, rows, out, accumulate),
        }
    }
}

/// # Safety
/// As [`multiply`].
#[target_feature(enable = "avx512f,avx512bw,avx2,fma,f16c")]
unsafe fn panels<F: Format>(
    w: &[F::Code],
    k: usize,
    x: &[f32],
    stride: usize,
    rows: usize,
    out: &mut [f32],
    accumulate: bool,
) {
    let panels = out.len() / (rows * LANES);
    let (w, x, out) = (w.as_ptr(), x.as_ptr(), out.as_mut_ptr());
    // SAFETY: every tile stays inside panel `p` (`k * 32` codes, `rows * 32` outputs) and the rows of `x`, which the contract
    // bounds.
    unsafe {
        let mut p = 0;
        // One row has too short a dependency chain per panel to fill the pipeline: take four panels at once.
        while rows == 1 && p + 4 <= panels {
            row_of_four::<F>(w.add(p * k * LANES), k, x, out.add(p * LANES), accumulate);
            p += 4;
        }
        while p < panels {
            let (w, out) = (w.add(p * k * LANES), out.add(p * rows * LANES));
            let mut row = 0;
            while row < rows {
                let (x, out) = (x.add(row * stride), out.add(row * LANES));
                row += match rows - row {
                    1 => tile::<F, 1>(w, k, x, stride, out, accumulate),
                    2 => tile::<F, 2>(w, k, x, stride, out, accumulate),
                    3 => tile::<F, 3>(w, k, x, stride, out, accumulate),
                    4 | 5 => tile::<F, 4>(w, k, x, stride, out, accumulate),
                    6 | 7 => tile::<F, 6>(w, k, x, stride, out, accumulate),
                    8..=11 | 16 => tile::<F, 8>(w, k, x, stride, out, accumulate),
                    _ => tile::<F, 12>(w, k, x, stride, out, accumulate),
                };
            }
            p += 1;
        }
    }
}

/// `R` rows of one panel.
///
/// # Safety
/// `w` has `k * 32` codes, `x` has `R` rows of `k` values `stride` apart, `out` has `R * 32` values.
#[inline(always)]
unsafe fn tile<F: Format, const R: usize>(
    w: *const F::Code,
    k: usize,
    x: *const f32,
    stride: usize,
    out: *mut f32,
    accumulate: bool,
) -> usize {
    // SAFETY: by this function's contract.
    unsafe {
        let mut sum = [[_mm512_setzero_ps(); 2]; R];
        if accumulate {
            for (r, sum) in sum.iter_mut().enumerate() {
                *sum = [
                    _mm512_loadu_ps(out.add(r * LANES)),
                    _mm512_loadu_ps(out.add(r * LANES + 16)),
                ];
            }
        }
        for i in 0..k {
            let (w0, w1) = (F::load(w.add(i * LANES)), F::load(w.add(i * LANES + 16)));
            for (r, sum) in sum.iter_mut().enumerate() {
                let xv = _mm512_set1_ps(*x.add(r * stride + i));
                *sum = [_mm512_fmadd_ps(w0, xv, sum[0]), _mm512_fmadd_ps(w1, xv, sum[1])];
            }
        }
        for (r, sum) in sum.iter().enumerate() {
            _mm512_storeu_ps(out.add(r * LANES), sum[0]);
            _mm512_storeu_ps(out.add(r * LANES + 16), sum[1]);
        }
        R
    }
}

/// One row of four consecutive panels.
///
/// # Safety
/// `w` has `4 * k * 32` codes, `x` has `k` values, `out` has 128.
#[inline(always)]
unsafe fn row_of_four<F: Format>(
    w: *const F::Code,
    k: usize,
    x: *const f32,
    out: *mut f32,
    accumulate: bool,
) {
    // SAFETY: by this function's contract.
    unsafe {
        let mut sum = [_mm512_setzero_ps(); 8];
        if accumulate {
            for (v, sum) in sum.iter_mut().enumerate() {
                *sum = _mm512_loadu_ps(out.add(v * 16));
            }
        }
        for i in 0..k {
            let xv = _mm512_set1_ps(*x.add(i));
            for p in 0..4 {
                for v in 0..2 {
                    let wv = F::load(w.add((p * k + i) * LANES + v * 16));
                    sum[p * 2 + v] = _mm512_fmadd_ps(wv, xv, sum[p * 2 + v]);
                }
            }
        }
        for (v, sum) in sum.iter().enumerate() {
            _mm512_storeu_ps(out.add(v * 16), *sum);
        }
    }
}
