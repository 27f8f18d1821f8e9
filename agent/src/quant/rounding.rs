//! Weight formats that have no kernel of their own: weights are rounded to what the format can hold and kept as f32.
//!
//! The values are those of the format bit for bit (code times scale, in f32), so log-probs are too, up to the order of one
//! multiplication; speed and memory are those of f32. These are rungs of the mismatch ladder.

use super::matrix::Tile;
use super::scale::{FLOOR, amax};

/// Side of the blocks that share a scale.
const BLOCK: usize = 128;

/// Inputs that share a scale in `int4`.
const GROUP: usize = 32;

/// What linear weights are rounded to before they are packed.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Rounding {
    /// Nothing.
    #[default]
    None,
    /// E4M3, one f32 scale for each output channel: the values of `weights: fp8`.
    Fp8Channel,
    /// E4M3, one f32 scale for the matrix.
    Fp8Tensor,
    /// E4M3, one f32 scale for each 128 x 128 block.
    Fp8Block,
    /// [`Rounding::Fp8Channel`] with scales `2^ceil(log2(amax / 448))` (UE8M0).
    Fp8ChannelUe8m0,
    /// [`Rounding::Fp8Block`] with scales `2^ceil(log2(amax / 448))` (UE8M0).
    Fp8BlockUe8m0,
    /// Integers of -127..=127, one scale `amax / 127` for each output channel.
    Int8,
    /// Integers of -7..=7, one scale `amax / 7` for each 32 inputs of an output channel.
    Int4,
}

impl Rounding {
    /// Every format.
    pub const ALL: [Self; 8] = [
        Self::None,
        Self::Fp8Channel,
        Self::Fp8Tensor,
        Self::Fp8Block,
        Self::Fp8ChannelUe8m0,
        Self::Fp8BlockUe8m0,
        Self::Int8,
        Self::Int4,
    ];

    /// Values of a row-major matrix of `inputs` columns, rounded; `None` where nothing is to be done.
    pub(crate) fn apply(self, values: &[f32], inputs: usize) -> Option<Vec<f32>> {
        let tile = |rows, columns| Tile { rows, columns };
        let (tile, power_of_two) = match self {
            Self::None => return None,
            Self::Int8 => return Some(integers(values, inputs, inputs, 127.0)),
            Self::Int4 => return Some(integers(values, inputs, GROUP, 7.0)),
            Self::Fp8Channel => (tile(1, inputs), false),
            Self::Fp8Tensor => (tile(values.len() / inputs, inputs), false),
            Self::Fp8Block => (tile(BLOCK, BLOCK), false),
            Self::Fp8ChannelUe8m0 => (tile(1, inputs), true),
            Self::Fp8BlockUe8m0 => (tile(BLOCK, BLOCK), true),
        };
        let mut scales = tile.scales(values, inputs);
        if power_of_two {
            scales
                .iter_mut()
                .for_each(|scale| *scale = next_power_of_two(*scale));
        }
        Some(tile.decode(&tile.encode(values, inputs, &scales), inputs, &scales))
    }
}

/// The smallest power of two that is not below a positive normal number.
fn next_power_of_two(x: f32) -> f32 {
    let mantissa = (1 << 23) - 1;
    f32::from_bits((x.to_bits() + mantissa) & !mantissa)
}

/// Each group of a row in whole steps of `amax / largest`, ties to even.
fn integers(values: &[f32], inputs: usize, group: usize, largest: f32) -> Vec<f32> {
    let groups = values.chunks_exact(inputs).flat_map(|row| row.chunks(group));
    let round = |group: &[f32]| {
        let scale = (amax(group) / largest).max(FLOOR);
        let code = move |x: &f32| (x / scale).round_ties_even().clamp(-largest, largest);
        group.iter().map(|x| code(x) * scale).collect::<Vec<f32>>()
    };
    groups.flat_map(round).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against NumPy and ml_dtypes (`golden/make_rounding.py`), bit for bit.
    #[test]
    fn every_format_is_what_numpy_makes_of_it() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/rounding.json");
        let golden: serde_json::Value =
            serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        let bits = |value: &serde_json::Value| -> Vec<u32> {
            let list = value.as_array().unwrap().iter();
            list.map(|v| v.as_u64().unwrap() as u32).collect()
        };
        let values: Vec<f32> = bits(&golden["values"]).into_iter().map(f32::from_bits).collect();
        let inputs = golden["inputs"].as_u64().unwrap() as usize;
        for rounding in Rounding::ALL {
            let name = serde_json::to_value(rounding).unwrap();
            match rounding.apply(&values, inputs) {
                None => assert_eq!(rounding, Rounding::None),
                Some(rounded) => {
                    let got: Vec<u32> = rounded.iter().map(|x| x.to_bits()).collect();
                    assert_eq!(got, bits(&golden[name.as_str().unwrap()]), "{name}");
                }
            }
        }
    }

    #[test]
    fn powers_of_two_are_their_own_next() {
        for (x, want) in [
            (1.0, 1.0),
            (1.000_000_1, 2.0),
            (0.3, 0.5),
            (448.0, 512.0),
            (FLOOR, 2f32.powi(-39)),
        ] {
            assert_eq!(next_power_of_two(x).to_bits(), f32::to_bits(want), "{x}");
        }
    }
}
