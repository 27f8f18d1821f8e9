//! Values with a range, checked where the YAML is read so that the error has a line and a column.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

macro_rules! ranged {
    ($(#[$doc:meta])* $name:ident($raw:ty, $text:literal), $span:literal, $test:expr) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
        #[serde(try_from = $text, into = $text)]
        pub struct $name($raw);

        impl $name {
            /// The plain value.
            pub fn get(self) -> $raw {
                self.0
            }
        }

        impl TryFrom<$raw> for $name {
            type Error = String;

            fn try_from(value: $raw) -> Result<Self, String> {
                let test: fn($raw) -> bool = $test;
                if test(value) { Ok(Self(value)) } else { Err(format!("must lie in {}; got {value}", $span)) }
            }
        }

        impl From<$name> for $raw {
            fn from(value: $name) -> Self {
                value.0
            }
        }
    };
}

ranged!(
    /// A probability in [0, 1].
    Probability(f64, "f64"), "[0, 1]", |p| (0.0..=1.0).contains(&p)
);
ranged!(
    /// A share of the rows in [0, 1).
    Share(f64, "f64"), "[0, 1)", |p| (0.0..1.0).contains(&p)
);
ranged!(
    /// A finite number that is not negative.
    NonNegative(f64, "f64"), "[0, inf)", |x| x >= 0.0 && x.is_finite()
);
ranged!(
    /// A finite number.
    Finite(f64, "f64"), "(-inf, inf)", f64::is_finite
);
ranged!(
    /// Seconds in (0, 600].
    Seconds(f64, "f64"), "(0, 600] seconds", |s| s > 0.0 && s <= 600.0
);
ranged!(
    /// Mebibytes in 48..=4096 (the interpreter itself takes some 40).
    Mebibytes(usize, "usize"), "48..=4096 MiB", |m| (48..=4096).contains(&m)
);
ranged!(
    /// Turns in 1..=1000.
    Turns(usize, "usize"), "1..=1000 turns", |n| (1..=1000).contains(&n)
);
ranged!(
    /// Tokens in 1..=10 million.
    TokenCount(usize, "usize"), "1..=10000000 tokens", |n| (1..=10_000_000).contains(&n)
);
ranged!(
    /// Bytes in 8..=1 MiB.
    ByteCount(usize, "usize"), "8..=1048576 bytes", |n| (8..=1 << 20).contains(&n)
);
ranged!(
    /// Rows in 1..=10 million.
    RowCount(usize, "usize"), "1..=10000000 rows", |n| (1..=10_000_000).contains(&n)
);

impl Seconds {
    /// As a duration.
    pub fn duration(self) -> Duration {
        Duration::from_secs_f64(self.0)
    }
}
