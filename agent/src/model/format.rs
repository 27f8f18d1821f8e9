//! How a directory stores its weights: plain floats, or FP8 in the two layouts that other engines load.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::ModelConfig;
use crate::quant::Tile;

/// Rows and columns of a block of [`WeightFormat::Fp8Block`].
pub(super) const BLOCK: usize = 128;

/// How a directory stores weights. In the FP8 formats the linear layers are E4M3 and embedding, norms, biases and head bf16.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WeightFormat {
    /// Every bit of the f32 master weights.
    F32,
    /// bfloat16, rounded to nearest even.
    Bf16,
    /// compressed-tensors `float-quantized`: a scale for each output channel (`weight_scale`), dynamic token activations.
    Fp8Channel,
    /// DeepSeek's layout: a scale for each 128 x 128 block (`weight_scale_inv`, a multiplier despite its name).
    Fp8Block,
}

impl WeightFormat {
    /// Every format.
    pub const ALL: [Self; 4] = [Self::F32, Self::Bf16, Self::Fp8Channel, Self::Fp8Block];

    /// Its name in configs and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::Fp8Channel => "fp8_channel",
            Self::Fp8Block => "fp8_block",
        }
    }

    /// Which weights of an `[outputs, inputs]` layer share a scale; `None` for plain floats.
    pub(super) fn tile(self, inputs: usize) -> Option<Tile> {
        match self {
            Self::F32 | Self::Bf16 => None,
            Self::Fp8Channel => Some(Tile {
                rows: 1,
                columns: inputs,
            }),
            Self::Fp8Block => Some(Tile {
                rows: BLOCK,
                columns: BLOCK,
            }),
        }
    }

    /// What the name of a layer's scales ends in.
    pub(super) fn scale_suffix(self) -> &'static str {
        match self {
            Self::Fp8Block => SCALE_INV,
            _ => SCALE,
        }
    }

    /// `quantization_config` of the directory's `config.json`.
    pub(super) fn quantization(self, model: &ModelConfig) -> Option<Value> {
        let kept: Vec<&str> = if model.tie_word_embeddings {
            Vec::new()
        } else {
            vec!["lm_head"]
        };
        match self {
            Self::F32 | Self::Bf16 => None,
            Self::Fp8Channel => {
                let of = |strategy: &str, dynamic: bool| json!({"num_bits": 8, "type": "float", "strategy": strategy, "dynamic": dynamic, "symmetric": true});
                let group = json!({"targets": ["Linear"], "weights": of("channel", false),
                                   "input_activations": of("token", true), "output_activations": null});
                // The head is a Linear too, tied or not.
                Some(
                    json!({"quant_method": "compressed-tensors", "format": "float-quantized",
                            "quantization_status": "compressed", "ignore": ["lm_head"], "kv_cache_scheme": null,
                            "config_groups": {"group_0": group}}),
                )
            }
            Self::Fp8Block => Some(
                json!({"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
                                          "weight_block_size": [BLOCK, BLOCK], "modules_to_not_convert": kept}),
            ),
        }
    }

    /// `torch_dtype` of the tensors that are not quantised.
    pub(super) fn torch_dtype(self) -> &'static str {
        match self {
            Self::F32 => "float32",
            _ => "bfloat16",
        }
    }
}

pub(super) const SCALE: &str = "_scale";
pub(super) const SCALE_INV: &str = "_scale_inv";

/// The weights that FP8 formats quantise.
pub(super) fn is_linear(name: &str) -> bool {
    name.ends_with("_proj.weight")
}

/// Refuses a `quantization_config` that is neither absent nor one of the FP8 layouts.
pub(super) fn check_quantization(config: &Value) -> Result<(), String> {
    let method = match config {
        Value::Null => return Ok(()),
        other => other["quant_method"].as_str().unwrap_or("?"),
    };
    let hint = "hint: start from the bf16 checkpoint; the sampler quantises it itself";
    match method {
        "fp8" => Ok(()),
        "compressed-tensors" if config["format"] == "float-quantized" => Ok(()),
        "compressed-tensors" => Err(format!(
            "`quantization_config.format` must be `float-quantized`; got {}\n{hint}",
            config["format"]
        )),
        other => Err(format!(
            "`quantization_config`: checkpoints quantised by `{other}` are not read\n{hint}"
        )),
    }
}
