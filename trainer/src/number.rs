//! Numbers that are valid by construction: range checks happen while the configuration is read.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

macro_rules! bounded {
    ($(#[$doc:meta])* $name:ident, $says:literal, $schema:tt, |$x:ident| $valid:expr) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize, Deserialize, JsonSchema)]
        #[serde(try_from = "f64", into = "f64")]
        #[schemars(extend $schema)]
        pub struct $name(f64);

        impl $name {
            /// The number.
            pub const fn get(self) -> f64 {
                self.0
            }

            /// Checks a number known in the code.
            ///
            /// # Panics
            /// When it is out of range.
            pub const fn literal($x: f64) -> Self {
                assert!($valid, $says);
                Self($x)
            }
        }

        impl TryFrom<f64> for $name {
            type Error = String;

            fn try_from($x: f64) -> Result<Self, String> {
                if $valid { Ok(Self($x)) } else { Err(format!(concat!("must be ", $says, "; got {}"), $x)) }
            }
        }

        impl From<$name> for f64 {
            fn from(value: $name) -> Self {
                value.0
            }
        }
    };
}

bounded!(
    /// A finite number above zero.
    Positive, "a finite number above 0", ("exclusiveMinimum" = 0.0), |x| x > 0.0 && x.is_finite()
);
bounded!(
    /// A finite number, zero or above.
    NonNegative, "a finite number of at least 0", ("minimum" = 0.0), |x| x >= 0.0 && x.is_finite()
);
bounded!(
    /// A share in `[0, 1]`.
    Share, "in [0, 1]", ("minimum" = 0.0, "maximum" = 1.0), |x| x >= 0.0 && 1.0 - x >= 0.0
);
bounded!(
    /// A decay rate in `[0, 1)`.
    Decay, "in [0, 1)", ("minimum" = 0.0, "exclusiveMaximum" = 1.0), |x| x >= 0.0 && 1.0 - x > 0.0
);
bounded!(
    /// Half-width of a clip range: a ratio, unitless, in `(0, 1)`.
    ClipWidth, "in (0, 1)", ("exclusiveMinimum" = 0.0, "exclusiveMaximum" = 1.0), |x| x > 0.0 && x < 1.0
);
bounded!(
    /// A factor of at least 1.
    AtLeastOne, "a finite number of at least 1", ("minimum" = 1.0), |x| x >= 1.0 && x.is_finite()
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_exact_and_errors_name_them() {
        assert!(Positive::try_from(0.0).is_err() && Positive::try_from(f64::NAN).is_err());
        assert!(NonNegative::try_from(0.0).is_ok() && NonNegative::try_from(f64::INFINITY).is_err());
        assert!(
            Share::try_from(1.0).is_ok()
                && Decay::try_from(1.0).is_err()
                && Decay::try_from(1.0 - f64::EPSILON).is_ok()
        );
        assert!(Share::try_from(f64::NAN).is_err() && Share::try_from(1.0 + f64::EPSILON).is_err());
        assert_eq!(
            ClipWidth::try_from(1.5),
            Err("must be in (0, 1); got 1.5".to_owned())
        );
    }
}
