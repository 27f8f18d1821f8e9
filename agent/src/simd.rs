//! Elementwise loops compiled for wider registers than the baseline.
//!
//! [`wide!`] compiles a function twice from one source, once for AVX2, and chooses at run time. Both give the same bits: Rust never
//! contracts `a * b + c`, and the loops state their order of summation themselves.

/// Whether AVX2 is there (cached by the standard library).
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) fn avx2() -> bool {
    is_x86_feature_detected!("avx2")
}

/// Defines functions that run their AVX2 version where the processor has it.
macro_rules! wide {
    ($($(#[$meta:meta])* $vis:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block)*) => {$(
        $(#[$meta])*
        $vis fn $name($($arg: $ty),*) $(-> $ret)? {
            #[inline(always)]
            fn body($($arg: $ty),*) $(-> $ret)? $body

            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2")]
                fn avx2($($arg: $ty),*) $(-> $ret)? {
                    body($($arg),*)
                }
                if crate::simd::avx2() {
                    // SAFETY: the processor has AVX2.
                    return unsafe { avx2($($arg),*) };
                }
            }
            body($($arg),*)
        }
    )*};
}

pub(crate) use wide;
