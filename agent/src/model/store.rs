//! Weights as safetensors files: read from any of the layouts, written in one.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use safetensors::tensor::{Dtype, TensorView, View};
use safetensors::{SafeTensorError, SafeTensors};

use super::format::{BLOCK, SCALE, SCALE_INV, is_linear};
use super::weights::check_tensor;
use super::{ModelConfig, ModelError, WeightFormat, Weights};
use crate::quant::Tile;

impl Weights {
    /// Writes one f32 safetensors file (equal weights give equal bytes).
    ///
    /// # Errors
    /// On a file-system failure.
    pub fn write(&self, path: &Path) -> Result<(), ModelError> {
        self.write_as(path, WeightFormat::F32)
    }

    /// Writes one safetensors file in the given format, quantised from the f32 values.
    ///
    /// # Errors
    /// On a file-system failure.
    pub fn write_as(&self, path: &Path, format: WeightFormat) -> Result<(), ModelError> {
        let mut views: Vec<(String, Stored<'_>)> = Vec::new();
        for (name, shape, values) in &self.tensors {
            let inputs = shape.last().copied().unwrap_or(1);
            let mut push = |name: String, shape: Vec<usize>, part| {
                let stored = Stored {
                    shape,
                    inputs,
                    values,
                    part,
                };
                views.push((name, stored));
            };
            match format.tile(inputs).filter(|_| is_linear(name)) {
                Some(tile) => {
                    let scales = format!("{name}{}", format.scale_suffix());
                    push(name.clone(), shape.clone(), Part::Codes(tile));
                    push(scales, tile.grid(shape[0], inputs).to_vec(), Part::Scales(tile));
                }
                None if format == WeightFormat::F32 => push(name.clone(), shape.clone(), Part::F32),
                None => push(name.clone(), shape.clone(), Part::Bf16),
            }
        }
        let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
        safetensors::serialize_to_file(views, Some(metadata), path).map_err(|e| match e {
            SafeTensorError::IoError(e) => ModelError::io(path)(e),
            other => ModelError::file(path, other),
        })
    }

    /// Reads one safetensors file (f32, bf16, f16, or FP8 with its scales, dequantised).
    ///
    /// # Errors
    /// Names the file and the tensor: missing, extra, mis-shaped, truncated, non-finite.
    pub fn read(config: Arc<ModelConfig>, path: &Path) -> Result<Self, ModelError> {
        read_files(config, &[path.to_owned()], path)
    }

    /// Reads `model.safetensors`, or the shards of `model.safetensors.index.json`.
    ///
    /// # Errors
    /// As [`Weights::read`].
    pub fn read_dir(config: Arc<ModelConfig>, dir: &Path) -> Result<Self, ModelError> {
        let index = dir.join("model.safetensors.index.json");
        if !index.exists() {
            return Self::read(config, &dir.join("model.safetensors"));
        }
        let text = std::fs::read_to_string(&index).map_err(ModelError::io(&index))?;
        let json: serde_json::Value = serde_json::from_str(&text).map_err(|e| ModelError::file(&index, e))?;
        let map = json.get("weight_map").and_then(|m| m.as_object());
        let map = map.ok_or_else(|| ModelError::file(&index, "`weight_map` must be an object"))?;
        let mut shards: Vec<PathBuf> = Vec::new();
        for (tensor, shard) in map {
            let name = shard.as_str().filter(|s| !s.contains(['/', '\\']));
            let name =
                name.ok_or_else(|| ModelError::tensor(&index, tensor, "its shard must be a file name"))?;
            shards.push(dir.join(name));
        }
        shards.sort();
        shards.dedup();
        read_files(config, &shards, &index)
    }
}

/// A tensor as it is written. Its bytes are made when they are asked for, so one tensor's at a time.
struct Stored<'a> {
    /// Shape in the file.
    shape: Vec<usize>,
    /// Columns of the values.
    inputs: usize,
    values: &'a [f32],
    part: Part,
}

/// What of a tensor is written.
enum Part {
    F32,
    Bf16,
    Codes(Tile),
    Scales(Tile),
}

impl View for Stored<'_> {
    fn dtype(&self) -> Dtype {
        match self.part {
            Part::F32 | Part::Scales(_) => Dtype::F32,
            Part::Bf16 => Dtype::BF16,
            Part::Codes(_) => Dtype::F8_E4M3,
        }
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        match self.part {
            Part::F32 => Cow::Borrowed(bytemuck::cast_slice(self.values)),
            Part::Bf16 => {
                let halves = self
                    .values
                    .iter()
                    .flat_map(|x| half::bf16::from_f32(*x).to_le_bytes());
                Cow::Owned(halves.collect())
            }
            Part::Codes(tile) => {
                let scales = tile.scales(self.values, self.inputs);
                Cow::Owned(tile.encode(self.values, self.inputs, &scales))
            }
            Part::Scales(tile) => {
                Cow::Owned(bytemuck::cast_slice(&tile.scales(self.values, self.inputs)).to_vec())
            }
        }
    }

    fn data_len(&self) -> usize {
        let width = match self.part {
            Part::F32 | Part::Scales(_) => 4,
            Part::Bf16 => 2,
            Part::Codes(_) => 1,
        };
        self.shape.iter().product::<usize>() * width
    }
}

/// What the files of a model hold so far.
#[derive(Default)]
struct Found {
    values: HashMap<String, Arc<Vec<f32>>>,
    /// E4M3 tensors and where they were read, until their scales are known.
    codes: BTreeMap<String, (PathBuf, Vec<u8>)>,
    /// Scales by the tensor they belong to, with their own name and shape.
    scales: BTreeMap<String, Scales>,
}

struct Scales {
    path: PathBuf,
    name: String,
    shape: Vec<usize>,
    values: Vec<f32>,
}

fn read_files(config: Arc<ModelConfig>, files: &[PathBuf], whole: &Path) -> Result<Weights, ModelError> {
    let mut expected: BTreeMap<String, Vec<usize>> = config.tensor_shapes().into_iter().collect();
    if config.tie_word_embeddings {
        // Some writers store the tied head as well; it must then equal the embedding.
        let head = vec![config.vocab_size, config.hidden_size];
        expected.insert("lm_head.weight".to_owned(), head);
    }
    let mut found = Found::default();
    for path in files {
        let bytes = std::fs::read(path).map_err(ModelError::io(path))?;
        let file = SafeTensors::deserialize(&bytes).map_err(|e| ModelError::file(path, describe(&e)))?;
        for (name, view) in file.iter() {
            found.take(path, name, &view, &expected)?;
        }
    }
    let mut values = found.dequantise(&expected)?;
    if config.tie_word_embeddings
        && let Some(head) = values.get("lm_head.weight")
        && values.get("model.embed_tokens.weight") != Some(head)
    {
        return Err(ModelError::tensor(
            whole,
            "lm_head.weight",
            "differs from the embedding although `tie_word_embeddings` is true",
        ));
    }
    let tensors = config
        .tensor_shapes()
        .into_iter()
        .map(|(name, shape)| match values.remove(&name) {
            Some(values) => Ok((name, shape, values)),
            None => {
                let reason = format!("missing (expected {shape:?})");
                Err(ModelError::tensor(whole, &name, reason))
            }
        });
    Ok(Weights {
        tensors: tensors.collect::<Result<_, _>>()?,
        config,
    })
}

impl Found {
    fn take(
        &mut self,
        path: &Path,
        name: &str,
        view: &TensorView<'_>,
        expected: &BTreeMap<String, Vec<usize>>,
    ) -> Result<(), ModelError> {
        if name.ends_with("rotary_emb.inv_freq") {
            return Ok(()); // derived from the config
        }
        let owner = name.strip_suffix(SCALE_INV).or_else(|| name.strip_suffix(SCALE));
        if let Some(owner) = owner.filter(|owner| is_linear(owner) && expected.contains_key(*owner)) {
            let scales = Scales {
                path: path.to_owned(),
                name: name.to_owned(),
                shape: view.shape().to_vec(),
                values: floats(path, name, view)?,
            };
            check_tensor(path, name, view.shape(), view.shape(), &scales.values)?;
            self.scales.insert(owner.to_owned(), scales);
            return Ok(());
        }
        let Some(shape) = expected.get(name) else {
            let reason = "not part of this model (see `config.json`)";
            return Err(ModelError::tensor(path, name, reason));
        };
        let twice = if view.dtype() == Dtype::F8_E4M3 && is_linear(name) {
            if shape != view.shape() {
                let reason = format!("expected shape {shape:?}; got {:?}", view.shape());
                return Err(ModelError::tensor(path, name, reason));
            }
            let codes = (path.to_owned(), view.data().to_vec());
            self.codes.insert(name.to_owned(), codes).is_some()
        } else {
            let values = floats(path, name, view)?;
            check_tensor(path, name, shape, view.shape(), &values)?;
            self.values.insert(name.to_owned(), Arc::new(values)).is_some()
        };
        if twice {
            return Err(ModelError::tensor(path, name, "stored twice"));
        }
        Ok(())
    }

    /// Multiplies codes by their scales.
    fn dequantise(
        mut self,
        expected: &BTreeMap<String, Vec<usize>>,
    ) -> Result<HashMap<String, Arc<Vec<f32>>>, ModelError> {
        for (name, (path, codes)) in self.codes {
            let shape = &expected[&name];
            let (outputs, inputs) = (shape[0], shape[1]);
            let Some(scales) = self.scales.remove(&name) else {
                let reason = format!("is FP8 without scales (`{name}{SCALE}` or `{name}{SCALE_INV}`)");
                return Err(ModelError::tensor(&path, &name, reason));
            };
            let tile = scales.tile(outputs, inputs)?;
            let values = tile.decode(&codes, inputs, &scales.values);
            check_tensor(&path, &name, shape, shape, &values)?;
            self.values.insert(name, Arc::new(values));
        }
        match self.scales.pop_first() {
            Some((owner, scales)) => {
                let reason = format!("scales of `{owner}`, which is not FP8");
                Err(ModelError::tensor(&scales.path, &scales.name, reason))
            }
            None => Ok(self.values),
        }
    }
}

impl Scales {
    /// Which codes share a scale, told by the number of scales.
    fn tile(&self, outputs: usize, inputs: usize) -> Result<Tile, ModelError> {
        let tile = |rows, columns| Tile { rows, columns };
        let options = [
            (
                tile(outputs, inputs),
                !self.name.ends_with(SCALE_INV) || self.shape.len() < 2,
            ),
            (tile(1, inputs), !self.name.ends_with(SCALE_INV)),
            (tile(BLOCK, BLOCK), self.name.ends_with(SCALE_INV)),
        ];
        let fits = |tile: &Tile| tile.grid(outputs, inputs).iter().product::<usize>() == self.values.len();
        let found = options.into_iter().find(|(tile, named)| *named && fits(tile));
        found.map(|(tile, _)| tile).ok_or_else(|| {
            let reason = format!(
                "scales of shape {:?} fit neither the whole [{outputs}, {inputs}] matrix, its rows nor its {BLOCK} x {BLOCK} blocks",
                self.shape
            );
            ModelError::tensor(&self.path, &self.name, reason)
        })
    }
}

fn describe(error: &SafeTensorError) -> String {
    let hint = match error {
        SafeTensorError::MetadataIncompleteBuffer | SafeTensorError::InvalidHeaderLength => {
            " (the file is truncated or was not fully downloaded)"
        }
        SafeTensorError::HeaderTooSmall | SafeTensorError::HeaderTooLarge => {
            " (not a safetensors file, or truncated)"
        }
        _ => "",
    };
    format!("not a readable safetensors file: {error}{hint}")
}

fn floats(path: &Path, name: &str, view: &TensorView<'_>) -> Result<Vec<f32>, ModelError> {
    let data = view.data();
    let half = |of: fn([u8; 2]) -> f32| data.chunks_exact(2).map(|b| of([b[0], b[1]])).collect();
    match view.dtype() {
        Dtype::F32 => Ok(data
            .chunks_exact(4)
            .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
            .collect()),
        Dtype::BF16 => Ok(half(|b| half::bf16::from_le_bytes(b).to_f32())),
        Dtype::F16 => Ok(half(|b| half::f16::from_le_bytes(b).to_f32())),
        other => {
            let reason = format!("expected F32, BF16, F16 or, for a linear layer, F8_E4M3; got {other:?}");
            Err(ModelError::tensor(path, name, reason))
        }
    }
}

#[cfg(test)]
#[path = "store_tests.rs"]
mod tests;
