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

/// From this many rows on, codes are decoded once for all of them.
const DECODE_ONCE: usize = 9;

/// Inputs decoded at a time: 16 lanes of them stay in the first-level cache.
const BLOCK: usize = 256;

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
            match rows {
                1 => tiles::<F, 1, 4>(w, k, x, stride, out, accumulate),
                2 => tiles::<F, 2, 4>(w, k, x, stride, out, accumulate),
                3 => tiles::<F, 3, 4>(w, k, x, stride, out, accumulate),
                4 => tiles::<F, 4, 2>(w, k, x, stride, out, accumulate),
                5 => tiles::<F, 5, 2>(w, k, x, stride, out, accumulate),
                6 => tiles::<F, 6, 2>(w, k, x, stride, out, accumulate),
                7 => tiles::<F, 7, 1>(w, k, x, stride, out, accumulate),
                8 => tiles::<F, 8, 1>(w, k, x, stride, out, accumulate),
                DECODE_ONCE.. => blocks::<F>(w, k, x, stride, rows, out, accumulate),
                0 => (),
            }
            p += 1;
        }
    }
}

/// `R` rows of one panel, `8 V` lanes at a time (so that the `R V` sums stay in registers).
///
/// # Safety
/// `w` has `k * 32` codes, `x` has `R` rows of `k` values `stride` apart, `out` has `R * 32` values.
#[inline(always)]
unsafe fn tiles<F: Format, const R: usize, const V: usize>(
    w: *const F::Code,
    k: usize,
    x: *const f32,
    stride: usize,
    out: *mut f32,
    accumulate: bool,
) {
    let mut lane = 0;
    while lane < LANES {
        // SAFETY: by this function's contract; `8 V` divides 32.
        unsafe { tile::<F, R, V, LANES>(w.add(lane), k, x, stride, out.add(lane), accumulate) };
        lane += 8 * V;
    }
}

/// Many rows of one panel: blocks of 16 lanes are decoded to f32 once and multiplied with the rows, six or so at a time. A sum is
/// laid down in `out` between blocks, which keeps its bits.
///
/// # Safety
/// `w` has `k * 32` codes, `x` has `rows` rows of `k` values `stride` apart, `out` has `rows * 32` values.
#[inline(always)]
unsafe fn blocks<F: Format>(
    w: *const F::Code,
    k: usize,
    x: *const f32,
    stride: usize,
    rows: usize,
    out: *mut f32,
    accumulate: bool,
) {
    const WIDTH: usize = 16;
    let mut decoded = [0f32; BLOCK * WIDTH];
    for half in [0, WIDTH] {
        let mut first = 0;
        while first < k {
            let len = BLOCK.min(k - first);
            let goes_on = accumulate || first > 0;
            // SAFETY: `first + len <= k` and `half + 16 <= 32` keep the codes in the panel, `len <= BLOCK` the copies in `decoded`;
            // `row + tile <= rows` keeps the tiles in `x` and `out`.
            unsafe {
                for i in 0..len {
                    let from = w.add((first + i) * LANES + half);
                    let to = decoded.as_mut_ptr().add(i * WIDTH);
                    _mm256_storeu_ps(to, F::load(from));
                    _mm256_storeu_ps(to.add(8), F::load(from.add(8)));
                }
                let w = decoded.as_ptr();
                let mut row = 0;
                while row < rows {
                    let (x, out) = (x.add(row * stride + first), out.add(row * LANES + half));
                    row += match rows - row {
                        1 => tile::<F32, 1, 2, WIDTH>(w, len, x, stride, out, goes_on),
                        2 => tile::<F32, 2, 2, WIDTH>(w, len, x, stride, out, goes_on),
                        3 => tile::<F32, 3, 2, WIDTH>(w, len, x, stride, out, goes_on),
                        4 | 7 | 8 => tile::<F32, 4, 2, WIDTH>(w, len, x, stride, out, goes_on),
                        5 | 10 => tile::<F32, 5, 2, WIDTH>(w, len, x, stride, out, goes_on),
                        _ => tile::<F32, 6, 2, WIDTH>(w, len, x, stride, out, goes_on),
                    };
                }
            }
            first += len;
        }
    }
}

/// `R` rows and `8 V` lanes of a panel whose inputs lie `W` codes apart. Returns `R`.
///
/// # Safety
/// `w` has `(k - 1) * W + 8 V` codes, `x` has `R` rows of `k` values `stride` apart, `out` has `R` rows of `8 V` values 32 apart.
#[inline(always)]
#[expect(clippy::needless_range_loop, reason = "v picks a column of the sums")]
unsafe fn tile<F: Format, const R: usize, const V: usize, const W: usize>(
    w: *const F::Code,
    k: usize,
    x: *const f32,
    stride: usize,
    out: *mut f32,
    accumulate: bool,
) -> usize {
    // SAFETY: by this function's contract.
    unsafe {
        let mut sum = [[_mm256_setzero_ps(); V]; R];
        if accumulate {
            for (r, sum) in sum.iter_mut().enumerate() {
                for (v, sum) in sum.iter_mut().enumerate() {
                    *sum = _mm256_loadu_ps(out.add(r * LANES + v * 8));
                }
            }
        }
        for i in 0..k {
            // The fewer of the two operands are held in registers.
            if R < V {
                let mut xs = [_mm256_setzero_ps(); R];
                for (r, xs) in xs.iter_mut().enumerate() {
                    *xs = _mm256_broadcast_ss(&*x.add(r * stride + i));
                }
                for v in 0..V {
                    let w = F::load(w.add(i * W + v * 8));
                    for r in 0..R {
                        sum[r][v] = _mm256_fmadd_ps(w, xs[r], sum[r][v]);
                    }
                }
            } else {
                let mut ws = [_mm256_setzero_ps(); V];
                for (v, ws) in ws.iter_mut().enumerate() {
                    *ws = F::load(w.add(i * W + v * 8));
                }
                for (r, sum) in sum.iter_mut().enumerate() {
                    let x = _mm256_broadcast_ss(&*x.add(r * stride + i));
                    for (sum, w) in sum.iter_mut().zip(&ws) {
                        *sum = _mm256_fmadd_ps(*w, x, *sum);
                    }
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
