//! FP8 E4M3 (the `fn` variant: no infinities, +-448, NaN at 0x7f and 0xff).

/// Largest finite value.
pub const MAX: f32 = 448.0;

/// Smallest normal value, 2^-6.
const MIN_NORMAL: f32 = 0.015625;

/// Value of a code; 0x7f and 0xff are NaN.
pub fn decode(code: u8) -> f32 {
    let sign = if code & 0x80 == 0 { 1.0 } else { -1.0 };
    let (exponent, mantissa) = (i32::from(code >> 3 & 15), f32::from(code & 7));
    match (exponent, code & 7) {
        (15, 7) => f32::NAN.copysign(sign),
        (0, _) => sign * mantissa / 512.0,
        _ => sign * (1.0 + mantissa / 8.0) * 2f32.powi(exponent - 7),
    }
}

/// Nearest code, ties to even, saturating at +-448; NaN keeps its sign.
#[inline(always)]
pub fn encode(x: f32) -> u8 {
    let bits = round(x).to_bits();
    let magnitude = f32::from_bits(bits & 0x7fff_ffff);
    // Rounded to 3 mantissa bits, so the upper bits of the f32 are the code with another exponent bias.
    let normal = (magnitude.to_bits() >> 20).wrapping_sub((127 - 7) << 3);
    // Multiples of 2^-9 below 2^-6: adding 2^23 leaves the multiple in the low bits.
    let subnormal = (magnitude * 512.0 + 8_388_608.0).to_bits() & 7;
    let code = if magnitude < MIN_NORMAL { subnormal } else { normal };
    let code = if magnitude.is_nan() { 0x7f } else { code };
    (bits >> 24 & 0x80 | code) as u8
}

/// `decode(encode(x))`: the nearest E4M3 value, as f32. NaN stays NaN.
#[inline(always)]
pub fn round(x: f32) -> f32 {
    let magnitude = x.abs();
    // `min` would turn NaN into 448.
    let clamped = if magnitude > MAX { MAX } else { magnitude };
    let bits = clamped.to_bits();
    let normal = f32::from_bits((bits.wrapping_add(0x7_ffff + (bits >> 20 & 1))) & !0xf_ffff);
    // Adding 2^14 leaves a unit in the last place of 2^-9, the subnormal step.
    let subnormal = (clamped + 16384.0) - 16384.0;
    let rounded = if clamped < MIN_NORMAL { subnormal } else { normal };
    let nan_safe = if magnitude.is_nan() { magnitude } else { rounded };
    nan_safe.copysign(x)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_round_trip() {
        for code in 0..=255u8 {
            let value = decode(code);
            if value.is_nan() {
                assert_eq!(code & 0x7f, 0x7f);
                assert!(round(value).is_nan());
            } else {
                assert_eq!(round(value).to_bits(), value.to_bits(), "code {code}");
            }
            assert_eq!(encode(value), code, "code {code}");
        }
    }

    #[test]
    fn saturates_and_keeps_signs() {
        for (x, expected) in [
            (f32::INFINITY, 448.0),
            (-1e30, -448.0),
            (464.0, 448.0),
            (1e-30, 0.0),
            (0.0, 0.0),
            (-0.0, -0.0),
            (-1e-30, -0.0f32),
        ] {
            assert_eq!(round(x).to_bits(), f32::to_bits(expected), "{x}");
        }
    }

    #[test]
    fn every_midpoint_goes_to_the_even_code() {
        for code in 0..0x7eu8 {
            let middle = (decode(code) + decode(code + 1)) / 2.0;
            let even = if code & 1 == 0 { code } else { code + 1 };
            assert_eq!(encode(middle), even, "between {code} and {}", code + 1);
            assert_eq!(encode(-middle), even | 0x80);
            let (below, above) = (middle.next_down(), middle.next_up());
            assert_eq!((encode(below), encode(above)), (code, code + 1));
        }
    }
}
