//! Element-wise loops compiled for several instruction sets, and the numeric trait they are written against.
//!
//! Loops use plain multiplications and additions (never a fused one) and fixed lane counts, so each instruction set gives the same bits.

use std::ops::{Add, AddAssign, Div, Mul, MulAssign, Neg, Sub, SubAssign};

/// Lanes of a reduction: sums run in this many independent accumulators, then pairwise.
const LANES: usize = 8;

/// The float types the ops run in: f32 in use, f64 to check gradients.
pub(crate) trait Real:
    candle_core::WithDType
    + Default
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
    + AddAssign
    + SubAssign
    + MulAssign
{
    const ZERO: Self;
    const ONE: Self;

    fn of(x: f64) -> Self;
    fn sqrt(self) -> Self;
    fn ln(self) -> Self;
    /// `e^x`; for f32 a polynomial that vectorises, within 2 ulp, 0 below -87.3.
    fn exp(self) -> Self;
    fn larger(self, other: Self) -> Self;

    /// Sum of `f` over pairs of two slices of one length, in a fixed order.
    #[inline(always)]
    fn sum2(a: &[Self], b: &[Self], f: impl Fn(Self, Self) -> Self) -> Self {
        let n = a.len();
        let b = &b[..n];
        let mut lanes = [Self::ZERO; LANES];
        let whole = n - n % LANES;
        let mut i = 0;
        while i < whole {
            let (x, y) = (&a[i..i + LANES], &b[i..i + LANES]);
            for lane in 0..LANES {
                lanes[lane] += f(x[lane], y[lane]);
            }
            i += LANES;
        }
        let mut tail = Self::ZERO;
        while i < n {
            tail += f(a[i], b[i]);
            i += 1;
        }
        let mut width = LANES / 2;
        while width > 0 {
            for lane in 0..width {
                let other = lanes[lane + width];
                lanes[lane] += other;
            }
            width /= 2;
        }
        lanes[0] + tail
    }

    /// Largest value, or minus infinity.
    #[inline(always)]
    fn largest(a: &[Self]) -> Self {
        let mut lanes = [Self::of(f64::NEG_INFINITY); LANES];
        let whole = a.len() - a.len() % LANES;
        let mut i = 0;
        while i < whole {
            let x = &a[i..i + LANES];
            for lane in 0..LANES {
                lanes[lane] = lanes[lane].larger(x[lane]);
            }
            i += LANES;
        }
        let mut best = lanes[0];
        for lane in &lanes[1..] {
            best = best.larger(*lane);
        }
        while i < a.len() {
            best = best.larger(a[i]);
            i += 1;
        }
        best
    }
}

impl Real for f64 {
    const ZERO: Self = 0.0;
    const ONE: Self = 1.0;

    #[inline(always)]
    fn of(x: f64) -> Self {
        x
    }
    #[inline(always)]
    fn sqrt(self) -> Self {
        self.sqrt()
    }
    #[inline(always)]
    fn ln(self) -> Self {
        self.ln()
    }
    #[inline(always)]
    fn exp(self) -> Self {
        self.exp()
    }
    #[inline(always)]
    fn larger(self, other: Self) -> Self {
        if self > other { self } else { other }
    }
}

impl Real for f32 {
    const ZERO: Self = 0.0;
    const ONE: Self = 1.0;

    #[inline(always)]
    fn of(x: f64) -> Self {
        x as f32
    }
    #[inline(always)]
    fn sqrt(self) -> Self {
        self.sqrt()
    }
    #[inline(always)]
    fn ln(self) -> Self {
        self.ln()
    }
    #[inline(always)]
    fn larger(self, other: Self) -> Self {
        if self > other { self } else { other }
    }

    #[inline(always)]
    fn exp(self) -> Self {
        const LOWEST: f32 = -87.336;
        const HIGHEST: f32 = 88.376;
        // Adding and subtracting 1.5 * 2^23 rounds to the nearest integer and leaves it in the low mantissa bits.
        const ROUND: f32 = 12_582_912.0;
        const LN2_HIGH: f32 = 0.693_359_4;
        const LN2_LOW: f32 = -2.121_944_4e-4;
        let x = if self > HIGHEST { HIGHEST } else { self };
        let x = if x < LOWEST { LOWEST } else { x };
        let shifted = x * std::f32::consts::LOG2_E + ROUND;
        let n = shifted - ROUND;
        let r = x - n * LN2_HIGH - n * LN2_LOW;
        let mut p = 1.987_569_1e-4;
        p = p * r + 1.398_199_9e-3;
        p = p * r + 8.333_452e-3;
        p = p * r + 4.166_579_6e-2;
        p = p * r + 1.666_666_5e-1;
        p = p * r + 0.5;
        let e = p * (r * r) + r + 1.0;
        let exponent = shifted.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127) << 23;
        let value = e * f32::from_bits(exponent);
        // Comparisons keep NaN: an f32 that is not ordered with the bounds flows through the polynomial as NaN.
        if self < LOWEST { 0.0 } else { value }
    }
}

/// Defines functions whose body is compiled for several instruction sets and chosen at run time.
macro_rules! vectorized {
    ($($(#[$doc:meta])* $vis:vis fn $name:ident<T: Real>($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block)*) => {$(
        $(#[$doc])*
        $vis fn $name<T: Real>($($arg: $ty),*) $(-> $ret)? {
            #[inline(always)]
            fn body<T: Real>($($arg: $ty),*) $(-> $ret)? $body

            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512vl,avx512dq")]
                fn avx512<T: Real>($($arg: $ty),*) $(-> $ret)? {
                    body($($arg),*)
                }
                #[target_feature(enable = "avx2")]
                fn avx2<T: Real>($($arg: $ty),*) $(-> $ret)? {
                    body($($arg),*)
                }
                let has_avx512 = is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512dq");
                if has_avx512 {
                    // SAFETY: the machine has the instruction sets, which were just detected; the body itself is safe code.
                    return unsafe { avx512($($arg),*) };
                }
                if is_x86_feature_detected!("avx2") {
                    // SAFETY: as above.
                    return unsafe { avx2($($arg),*) };
                }
            }
            body($($arg),*)
        }
    )*};
}
pub(crate) use vectorized;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_within_two_ulp_of_the_true_value() {
        let mut worst = 0f64;
        for i in -870_000..=880_000 {
            let x = i as f32 * 1e-4;
            let want = f64::from(x).exp();
            let ulp = f64::from(f32::EPSILON) * want;
            worst = worst.max((f64::from(Real::exp(x)) - want).abs() / ulp);
        }
        assert!(worst <= 2.0, "{worst} ulp");
        assert_eq!(Real::exp(0f32).to_bits(), 1f32.to_bits());
        assert_eq!(Real::exp(f32::NEG_INFINITY).to_bits(), 0);
        assert!(Real::exp(f32::NAN).is_nan());
    }

    vectorized! {
        fn probe<T: Real>(x: &[T], out: &mut [T]) -> T {
            for (o, &v) in out.iter_mut().zip(x) {
                *o = v.exp();
            }
            T::sum2(out, x, |a, b| a * b)
        }
    }

    #[test]
    fn every_instruction_set_gives_the_same_bits() {
        let x: Vec<f32> = (0..1003).map(|i| (i as f32 * 0.713).sin() * 20.0).collect();
        let mut wide = vec![0.0; x.len()];
        let sum = probe(&x, &mut wide);
        let plain: Vec<f32> = x.iter().map(|&v| Real::exp(v)).collect();
        assert_eq!(sum.to_bits(), f32::sum2(&plain, &x, |a, b| a * b).to_bits());
        assert!(wide.iter().zip(&plain).all(|(a, b)| a.to_bits() == b.to_bits()));
    }
}
