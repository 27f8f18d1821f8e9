//! f32 master weights by canonical name.

use std::path::Path;
use std::sync::Arc;

use mipu_envs::seed::{Purpose, stream};
use rand::Rng;

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
}

/// Checks a tensor's shape and that every value is finite.
pub(super) fn check_tensor(
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

    #[test]
    fn initial_weights_are_a_function_of_the_seed() {
        let config = Arc::new(ModelConfig::tiny());
        let hash = |seed| Weights::init(config.clone(), seed).hash();
        assert_eq!(hash(7), hash(7));
        assert_ne!(hash(7), hash(8));
        assert!(Weights::init(config, 7).check().is_ok());
    }
}
