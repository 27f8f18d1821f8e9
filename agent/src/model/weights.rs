//! f32 master weights by canonical name, and their safetensors files.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mipu_envs::seed::{Purpose, stream};
use rand::Rng;
use safetensors::tensor::{Dtype, TensorView, View};
use safetensors::{SafeTensorError, SafeTensors};

use super::{ModelConfig, ModelError};

/// A tensor by canonical name: `(name, shape, row-major values)`.
pub type NamedTensor = (String, Vec<usize>, Arc<Vec<f32>>);

/// f32 tensors in the order of [`ModelConfig::tensor_shapes`]; immutable, shared between trainer, sampler and checkpoints.
#[derive(Clone, Debug)]
pub struct Weights {
    /// Shape of the model.
    pub config: Arc<ModelConfig>,
    /// `(name, shape, row-major values)`.
    pub tensors: Vec<NamedTensor>,
}

/// A tensor as safetensors writes it.
struct Bytes<'a>(&'a [usize], &'a [f32]);

impl View for Bytes<'_> {
    fn dtype(&self) -> Dtype {
        Dtype::F32
    }

    fn shape(&self) -> &[usize] {
        self.0
    }

    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(bytemuck::cast_slice(self.1))
    }

    fn data_len(&self) -> usize {
        self.1.len() * 4
    }
}

impl Weights {
    /// blake3 over names, shapes and little-endian values: the identity of a policy.
    pub fn hash(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        for (name, shape, values) in &self.tensors {
            hasher.update(&(name.len() as u64).to_le_bytes());
            hasher.update(name.as_bytes());
            hasher.update(&(shape.len() as u64).to_le_bytes());
            for &size in shape {
                hasher.update(&(size as u64).to_le_bytes());
            }
            hasher.update(bytemuck::cast_slice(values));
        }
        hasher.finalize().to_hex().to_string()
    }

    /// Random initial weights, a function of the seed (normal, std `hidden^-0.5`, output projections scaled by `1/sqrt(2 layers)`
    /// and, for the feed-forward one, by the fan-in; embedding std 0.05, norms 1, biases 0).
    pub fn init(config: Arc<ModelConfig>, seed: u64) -> Self {
        let std = (config.hidden_size as f64).powf(-0.5);
        let residual = 1.0 / (2.0 * config.num_hidden_layers as f64).sqrt();
        let fan_in = (config.hidden_size as f64 / config.intermediate_size as f64).sqrt();
        let tensors = config
            .tensor_shapes()
            .into_iter()
            .enumerate()
            .map(|(index, (name, shape))| {
                let len = shape.iter().product();
                let values = if name.ends_with("norm.weight") {
                    vec![1.0; len]
                } else if name.ends_with(".bias") {
                    vec![0.0; len]
                } else {
                    let std = match name.rsplit('.').nth(1) {
                        Some("embed_tokens" | "lm_head") => 0.05,
                        Some("o_proj") => std * residual,
                        Some("down_proj") => std * residual * fan_in,
                        _ => std,
                    };
                    normal(len, std, &mut stream(seed, Purpose::Init, &[index as u64]))
                };
                (name, shape, Arc::new(values))
            });
        Self {
            tensors: tensors.collect(),
            config,
        }
    }

    /// A tensor's values.
    pub fn get(&self, name: &str) -> Option<&NamedTensor> {
        self.tensors.iter().find(|t| t.0 == name)
    }

    /// A tensor's values, which the constructor promised to be there.
    pub(crate) fn values(&self, name: &str) -> &[f32] {
        &self
            .get(name)
            .expect("a model holds every tensor of its config")
            .2
    }

    /// Checks names, order, shapes and finiteness against the config.
    ///
    /// # Errors
    /// Names the first tensor that is missing, extra, mis-shaped or not finite.
    pub fn check(&self) -> Result<(), ModelError> {
        let path = Path::new("weights");
        let shapes = self.config.tensor_shapes();
        for (i, (name, shape)) in shapes.iter().enumerate() {
            match self.tensors.get(i) {
                Some((n, s, values)) if n == name => check_tensor(path, name, shape, s, values)?,
                _ => {
                    return Err(ModelError::tensor(
                        path,
                        name,
                        format!("missing (expected {shape:?})"),
                    ));
                }
            }
        }
        match self.tensors.get(shapes.len()) {
            Some((name, ..)) => Err(ModelError::tensor(path, name, "not part of this model")),
            None => Ok(()),
        }
    }

    /// Writes one f32 safetensors file (equal weights give equal bytes).
    ///
    /// # Errors
    /// On a file-system failure.
    pub fn write(&self, path: &Path) -> Result<(), ModelError> {
        let views = self
            .tensors
            .iter()
            .map(|(name, shape, values)| (name.as_str(), Bytes(shape, values)));
        let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
        safetensors::serialize_to_file(views, Some(metadata), path).map_err(|e| match e {
            SafeTensorError::IoError(e) => ModelError::io(path)(e),
            other => ModelError::file(path, other),
        })
    }

    /// Reads one safetensors file (f32, bf16 or f16).
    ///
    /// # Errors
    /// Names the file and the tensor: missing, extra, mis-shaped, truncated, non-finite.
    pub fn read(config: Arc<ModelConfig>, path: &Path) -> Result<Self, ModelError> {
        Self::read_files(config, &[path.to_owned()], path)
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
        Self::read_files(config, &shards, &index)
    }

    fn read_files(config: Arc<ModelConfig>, files: &[PathBuf], whole: &Path) -> Result<Self, ModelError> {
        let mut expected: BTreeMap<String, Vec<usize>> = config.tensor_shapes().into_iter().collect();
        if config.tie_word_embeddings {
            // Some writers store the tied head as well; it must then equal the embedding.
            expected.insert(
                "lm_head.weight".to_owned(),
                vec![config.vocab_size, config.hidden_size],
            );
        }
        let mut found: HashMap<String, Arc<Vec<f32>>> = HashMap::new();
        for path in files {
            let bytes = std::fs::read(path).map_err(ModelError::io(path))?;
            let file = SafeTensors::deserialize(&bytes).map_err(|e| ModelError::file(path, describe(&e)))?;
            for (name, view) in file.iter() {
                if name.ends_with("rotary_emb.inv_freq") {
                    continue; // derived from the config
                }
                let Some(shape) = expected.get(name) else {
                    return Err(ModelError::tensor(
                        path,
                        name,
                        "not part of this model (see `config.json`)",
                    ));
                };
                let values = floats(path, name, &view)?;
                check_tensor(path, name, shape, view.shape(), &values)?;
                if found.insert(name.to_owned(), Arc::new(values)).is_some() {
                    return Err(ModelError::tensor(path, name, "stored twice"));
                }
            }
        }
        if config.tie_word_embeddings
            && let Some(head) = found.get("lm_head.weight")
            && found.get("model.embed_tokens.weight") != Some(head)
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
            .map(|(name, shape)| match found.remove(&name) {
                Some(values) => Ok((name, shape, values)),
                None => Err(ModelError::tensor(
                    whole,
                    &name,
                    format!("missing (expected {shape:?})"),
                )),
            });
        Ok(Self {
            tensors: tensors.collect::<Result<_, _>>()?,
            config,
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
        other => Err(ModelError::tensor(
            path,
            name,
            format!("expected F32, BF16 or F16; got {other:?}"),
        )),
    }
}

fn check_tensor(
    path: &Path,
    name: &str,
    want: &[usize],
    got: &[usize],
    values: &[f32],
) -> Result<(), ModelError> {
    if want != got || want.iter().product::<usize>() != values.len() {
        return Err(ModelError::tensor(
            path,
            name,
            format!("expected shape {want:?}; got {got:?}"),
        ));
    }
    match values.iter().position(|v| !v.is_finite()) {
        Some(i) => Err(ModelError::tensor(
            path,
            name,
            format!("value {} at index {i} is not finite", values[i]),
        )),
        None => Ok(()),
    }
}

/// Normal draws by Box-Muller from 53-bit uniforms.
fn normal(len: usize, std: f64, rng: &mut impl Rng) -> Vec<f32> {
    let mut uniform = || ((rng.next_u64() >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
    let mut out = Vec::with_capacity(len + 1);
    while out.len() < len {
        let (radius, angle) = ((-2.0 * uniform().ln()).sqrt(), std::f64::consts::TAU * uniform());
        out.push((std * radius * angle.cos()) as f32);
        out.push((std * radius * angle.sin()) as f32);
    }
    out.truncate(len);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tiny() -> Weights {
        Weights::init(Arc::new(ModelConfig::tiny()), 7)
    }

    fn rewrite(dir: &Path, edit: impl FnOnce(&mut Vec<NamedTensor>)) -> String {
        let mut weights = tiny();
        edit(&mut weights.tensors);
        let path = dir.join("model.safetensors");
        weights.write(&path).unwrap();
        match Weights::read_dir(Arc::new(ModelConfig::tiny()), dir) {
            Ok(_) => "read".to_owned(),
            Err(e) => e.to_string().replace(&dir.display().to_string(), "DIR"),
        }
    }

    #[test]
    fn a_round_trip_keeps_every_bit() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("w.safetensors");
        let weights = tiny();
        weights.write(&path).unwrap();
        let first = std::fs::read(&path).unwrap();
        let again = Weights::read(weights.config.clone(), &path).unwrap();
        assert_eq!(again.hash(), weights.hash());
        again.write(&path).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), first);
        assert_ne!(Weights::init(weights.config.clone(), 8).hash(), weights.hash());
    }

    #[test]
    fn errors_name_the_file_and_the_tensor() {
        let dir = tempfile::tempdir().unwrap();
        let d = dir.path();
        assert_eq!(rewrite(d, |_| ()), "read");
        let missing = rewrite(d, |t| drop(t.remove(3)));
        assert!(
            missing
                .contains("DIR/model.safetensors: tensor `model.layers.0.self_attn.k_proj.weight`: missing")
        );
        let extra = rewrite(d, |t| {
            t.push(("adapter.weight".into(), vec![1], Arc::new(vec![0.0])))
        });
        assert!(
            extra.contains("tensor `adapter.weight`: not part of this model"),
            "{extra}"
        );
        let shape = rewrite(d, |t| t[1].1 = vec![2, 48]);
        assert!(
            shape.contains("input_layernorm.weight`: expected shape [96]; got [2, 48]"),
            "{shape}"
        );
        let nan = rewrite(d, |t| Arc::make_mut(&mut t[0].2)[5] = f32::NAN);
        assert!(nan.contains("value NaN at index 5 is not finite"), "{nan}");
        let head = vec![0.0; 272 * 96];
        let tied = rewrite(d, |t| {
            t.push(("lm_head.weight".into(), vec![272, 96], Arc::new(head)))
        });
        assert!(tied.contains("differs from the embedding"), "{tied}");

        let path = d.join("model.safetensors");
        tiny().write(&path).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        std::fs::write(&path, &bytes[..bytes.len() - 10]).unwrap();
        let cut = Weights::read_dir(Arc::new(ModelConfig::tiny()), d)
            .unwrap_err()
            .to_string();
        assert!(
            cut.contains("model.safetensors") && cut.contains("truncated"),
            "{cut}"
        );
    }

    #[test]
    fn shards_and_half_precision_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let weights = tiny();
        let mut map = serde_json::Map::new();
        for (shard, part) in weights.tensors.chunks(20).enumerate() {
            let file = format!("model-{shard}.safetensors");
            let halves: Vec<Vec<u8>> = part
                .iter()
                .map(|(_, _, v)| {
                    v.iter()
                        .flat_map(|&x| half::bf16::from_f32(x).to_le_bytes())
                        .collect()
                })
                .collect();
            let views = part.iter().zip(&halves).map(|((name, shape, _), data)| {
                map.insert(name.clone(), file.clone().into());
                (
                    name.clone(),
                    TensorView::new(Dtype::BF16, shape.clone(), data).unwrap(),
                )
            });
            let views: Vec<_> = views.collect();
            safetensors::serialize_to_file(views, None, &dir.path().join(&file)).unwrap();
        }
        let index = serde_json::json!({ "weight_map": map }).to_string();
        std::fs::write(dir.path().join("model.safetensors.index.json"), index).unwrap();
        let read = Weights::read_dir(weights.config.clone(), dir.path()).unwrap();
        for (a, b) in read.tensors.iter().zip(&weights.tensors) {
            let rounded: Vec<f32> = b.2.iter().map(|&x| half::bf16::from_f32(x).to_f32()).collect();
            assert_eq!(*a.2, rounded, "{}", a.0);
        }
    }
}
