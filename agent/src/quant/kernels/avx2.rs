//! AVX2 + FMA + F16C kernels.

use std::arch::x86_64::*;

use super::{Codes, LANES};

/// Loads eight packed values as f32.
trait Format {
    type Code: Copy;

    /// # Safety
    /// The processor has AVX2 and F16C, and `p` points to 8 readable codes.
    unsafe fn load(p: *const Self::Code) -> __m256;
}

struct F32;
struct Bf16;
struct F16;
struct Fp8;

impl Format for F32 {
    type Code = f32;

    #[inline(always)]
    unsafe fn load(p: *const f32) -> __m256 {
        // SAFETY: by the trait's contract.
        unsafe { _mm256_loadu_ps(p) }
    }
}

impl Format for Bf16 {
    type Code = u16;

    #[inline(always)]
    unsafe fn load(p: *const u16) -> __m256 {
        // SAFETY: by the trait's contract.
        unsafe {
            let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
        }
    }
}

impl Format for F16 {
    type Code = u16;

    #[inline(always)]
    unsafe fn load(p: *const u16) -> __m256 {
        // SAFETY: by the trait's contract.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(p.cast())) }
    }
}

impl Format for Fp8 {
    type Code = u8;

    #[inline(always)]
    unsafe fn load(p: *const u8) -> __m256 {
        // SAFETY: by the trait's contract. Sign extension keeps the sign in bit 15 after the shift; the mask clears its copy
        // in bit 14, the top exponent bit of a half.
        unsafe {
            let wide = _mm_cvtepi8_epi16(_mm_loadl_epi64(p.cast()));
            let half = _mm_and_si128(_mm_slli_epi16::<7>(wide), _mm_set1_epi16(0xBFFFu16 as i16));
            _mm256_cvtph_ps(half)
        }
    }
}

/// # Safety
/// The processor has AVX2, FMA and F16C; `w` holds `panels * k * 32` codes, `x` holds `(rows - 1) * stride + k` values and `out`
/// `panels * rows * 32`, with `k` and `rows` positive.
#[target_feature(enable = "avx2,fma,f16c")]
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
#[target_feature(enable = "avx2,fma,f16c")]
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
        // One row has too short a dependency chain per panel to fill the pipeline: take three panels at once.
        while rows == 1 && p + 3 <= panels {
            row_of_three::<F>(w.add(p * k * LANES), k, x, out.add(p * LANES), accumulate);
            p += 3;
        }
        while p < panels {
            let (w, out) = (w.add(p * k * LANES), out.add(p * rows * LANES));
            let mut row = 0;
            while row < rows {
                let (x, out) = (x.add(row * stride), out.add(row * LANES));
                let tile = match rows - row {
                    1 => tile_wide::<F, 1>(w, k, x, stride, out, accumulate),
                    2 => tile_wide::<F, 2>(w, k, x, stride, out, accumulate),
                    3 => tile_wide::<F, 3>(w, k, x, stride, out, accumulate),
                    4 => tile_halves::<F, 4>(w, k, x, stride, out, accumulate),
                    5 => tile_halves::<F, 5>(w, k, x, stride, out, accumulate),
                    7 | 8 => tile_halves::<F, 4>(w, k, x, stride, out, accumulate),
                    _ => tile_halves::<F, 6>(w, k, x, stride, out, accumulate),
                };
                row += tile;
            }
            p += 1;
        }
    }
}

/// `R` rows of one panel, all 32 lanes at once.
///
/// # Safety
/// `w` has `k * 32` codes, `x` has `R` rows of `k` values `stride` apart, `out` has `R * 32` values.
#[inline(always)]
unsafe fn tile_wide<F: Format, const R: usize>(
    w: *const F::Code,
    k: usize,
    x: *const f32,
    stride: usize,
    out: *mut f32,
    accumulate: bool,
) -> usize {
    // SAFETY: by this function's contract.
    unsafe {
        let mut sum = [[_mm256_setzero_ps(); 4]; R];
        if accumulate {
            for (r, sum) in sum.iter_mut().enumerate() {
                for (v, sum) in sum.iter_mut().enumerate() {
                    *sum = _mm256_loadu_ps(out.add(r * LANES + v * 8));
                }
            }
        }
        for i in 0..k {
            let mut wv = [_mm256_setzero_ps(); 4];
            for (v, wv) in wv.iter_mut().enumerate() {
                *wv = F::load(w.add(i * LANES + v * 8));
            }
            for (r, sum) in sum.iter_mut().enumerate() {
                let xv = _mm256_broadcast_ss(&*x.add(r * stride + i));
                for v in 0..4 {
                    sum[v] = _mm256_fmadd_ps(wv[v], xv, sum[v]);
                }
            }
        }
        for (r, sum) in sum.iter().enumerate() {
            for (v, sum) in sum.iter().enumerate() {
                _mm256_storeu_ps(out.add(r * LANES + v * 8), *sum);
            }
        }
        R
    }
}

/// `R` rows of one panel, 16 lanes at a time (so that `2 R` sums fit the 16 registers).
///
/// # Safety
/// As [`tile_wide`].
#[inline(always)]
unsafe fn tile_halves<F: Format, const R: usize>(
    w: *const F::Code,
    k: usize,
    x: *const f32,
    stride: usize,
    out: *mut f32,
    accumulate: bool,
) -> usize {
    // SAFETY: by this function's contract.
    unsafe {
        for half in [0, 16] {
            let (w, out) = (w.add(half), out.add(half));
            let mut sum = [[_mm256_setzero_ps(); 2]; R];
            if accumulate {
                for (r, sum) in sum.iter_mut().enumerate() {
                    *sum = [
                        _mm256_loadu_ps(out.add(r * LANES)),
                        _mm256_loadu_ps(out.add(r * LANES + 8)),
                    ];
                }
            }
            for i in 0..k {
                let (w0, w1) = (F::load(w.add(i * LANES)), F::load(w.add(i * LANES + 8)));
                for (r, sum) in sum.iter_mut().enumerate() {
                    let xv = _mm256_broadcast_ss(&*x.add(r * stride + i));
                    *sum = [_mm256_fmadd_ps(w0, xv, sum[0]), _mm256_fmadd_ps(w1, xv, sum[1])];
                }
            }
            for (r, sum) in sum.iter().enumerate() {
                _mm256_storeu_ps(out.add(r * LANES), sum[0]);
                _mm256_storeu_ps(out.add(r * LANES + 8), sum[1]);
            }
        }
        R
    }
}

/// One row of three consecutive panels.
///
/// # Safety
/// `w` has `3 * k * 32` codes, `x` has `k` values, `out` has 96.
#[inline(always)]
unsafe fn row_of_three<F: Format>(
    w: *const F::Code,
    k: usize,
    x: *const f32,
    out: *mut f32,
    accumulate: bool,
) {
    // SAFETY: by this function's contract.
    unsafe {
        let mut sum = [_mm256_setzero_ps(); 12];
        if accumulate {
            for (v, sum) in sum.iter_mut().enumerate() {
                *sum = _mm256_loadu_ps(out.add(v * 8));
            }
        }
        for i in 0..k {
            let xv = _mm256_broadcast_ss(&*x.add(i));
            for p in 0..3 {
                for v in 0..4 {
                    let wv = F::load(w.add((p * k + i) * LANES + v * 8));
                    sum[p * 4 + v] = _mm256_fmadd_ps(wv, xv, sum[p * 4 + v]);
                }
            }
        }
        for (v, sum) in sum.iter().enumerate() {
            _mm256_storeu_ps(out.add(v * 8), *sum);
        }
    }
}
