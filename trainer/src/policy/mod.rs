//! The trainer policy pi: f32 weights as candle variables, a differentiable forward, and its evaluation over micro-batches.
//!
//! On the CPU forward and backward are written out over slices (`cpu`); on any other device candle's autograd does it (`graph`). Tests
//! compare both, and central differences in f64, for every variable of every family.

mod cpu;
mod evaluate;
mod graph;
mod kernels;
mod layout;
#[cfg(test)]
mod parity_tests;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use candle_core::{DType, Device, Tensor, Var};
use mipu_agent::{ModelConfig, Weights};

pub(crate) use evaluate::{Gradients, TokenGradients, TokenStats, backward, evaluate};
pub(crate) use kernels::rows;

use crate::TrainerError;
use layout::Layout;

/// A trainable policy; variables are in the order of [`ModelConfig::tensor_shapes`].
pub struct TrainerPolicy {
    config: Arc<ModelConfig>,
    device: Device,
    dtype: DType,
    vars: Vec<(String, Var)>,
    layout: Layout,
}

impl TrainerPolicy {
    /// Copies weights onto a device as f32 variables.
    ///
    /// # Errors
    /// When the weights lack a tensor, or one has another shape than its configuration says; when the shape cannot be run.
    pub fn from_weights(weights: &Weights, device: &Device) -> Result<Self, TrainerError> {
        Self::with_dtype(weights, device, DType::F32)
    }

    /// [`Self::from_weights`] in another float type: f64 serves to check gradients.
    pub(crate) fn with_dtype(weights: &Weights, device: &Device, dtype: DType) -> Result<Self, TrainerError> {
        let config = Arc::clone(&weights.config);
        check_shape(&config)?;
        let expected = config.tensor_shapes();
        let mut vars = Vec::with_capacity(expected.len());
        for (name, shape) in expected {
            let mismatch = |got: String| TrainerError::Weights {
                name: name.clone(),
                expected: format!("{shape:?}"),
                got,
            };
            let (_, found, values) = weights.get(&name).ok_or_else(|| mismatch("nothing".to_owned()))?;
            if *found != shape || values.len() != shape.iter().product::<usize>() {
                return Err(mismatch(format!("{found:?} with {} values", values.len())));
            }
            let tensor = Tensor::from_slice(values, shape.as_slice(), device)?.to_dtype(dtype)?;
            vars.push((name, Var::from_tensor(&tensor)?));
        }
        let layout = Layout::new(&config);
        Ok(Self {
            config,
            device: device.clone(),
            dtype,
            vars,
            layout,
        })
    }

    /// A copy of the weights, as they are now.
    ///
    /// # Errors
    /// When a device cannot be read.
    pub fn to_weights(&self) -> Result<Weights, TrainerError> {
        let mut tensors = Vec::with_capacity(self.vars.len());
        for (name, var) in &self.vars {
            let values = var.flatten_all()?.to_dtype(DType::F32)?.to_vec1::<f32>()?;
            tensors.push((name.clone(), var.dims().to_vec(), Arc::new(values)));
        }
        Ok(Weights {
            config: Arc::clone(&self.config),
            tensors,
        })
    }

    /// Puts back weights made by [`Self::to_weights`]; variables keep their identity.
    ///
    /// # Errors
    /// When the weights are those of another shape.
    pub fn set_weights(&mut self, weights: &Weights) -> Result<(), TrainerError> {
        let fits = weights.tensors.len() == self.vars.len()
            && self
                .vars
                .iter()
                .zip(&weights.tensors)
                .all(|((name, var), t)| *name == t.0 && var.dims() == t.1);
        if !fits {
            return Err(TrainerError::Weights {
                name: "all".to_owned(),
                expected: format!("{} tensors of this policy's shape", self.vars.len()),
                got: format!("{} tensors of another shape", weights.tensors.len()),
            });
        }
        for ((_, var), (_, shape, values)) in self.vars.iter().zip(&weights.tensors) {
            var.set(&Tensor::from_slice(values, shape.as_slice(), &self.device)?.to_dtype(self.dtype)?)?;
        }
        Ok(())
    }

    /// Shape of the model.
    pub fn config(&self) -> &Arc<ModelConfig> {
        &self.config
    }

    /// Trainable tensors by canonical name, in canonical order.
    pub fn vars(&self) -> &[(String, Var)] {
        &self.vars
    }

    /// Number of trainable values.
    pub fn parameters(&self) -> usize {
        self.vars.iter().map(|(_, var)| var.elem_count()).sum()
    }
}

fn check_shape(config: &ModelConfig) -> Result<(), TrainerError> {
    let fail = |why: String| Err(TrainerError::Shape(why));
    if config.head_dim == 0 || !config.head_dim.is_multiple_of(2) {
        return fail(format!(
            "head_dim must be even and above 0, got {}",
            config.head_dim
        ));
    }
    let (heads, kv) = (config.num_attention_heads, config.num_key_value_heads);
    if kv == 0 || !heads.is_multiple_of(kv) {
        return fail(format!("{heads} query heads cannot share {kv} key-value heads"));
    }
    if !["llama", "qwen2", "qwen3"].contains(&config.model_type.as_str()) {
        return fail(format!(
            "model_type must be llama, qwen2 or qwen3, got {}",
            config.model_type
        ));
    }
    Ok(())
}
