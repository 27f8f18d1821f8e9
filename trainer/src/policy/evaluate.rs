//! Forward and backward over micro-batches, with sums in a fixed order.

use candle_core::backprop::GradStore;
use candle_core::{DType, Tensor};
use rayon::prelude::*;

use super::TrainerPolicy;
use super::forward::Params;
use super::ops::{self, Exec};
use crate::TrainerError;
use crate::batch::Packed;

/// Micro-batches that run side by side; their gradients are then added in order, so this bounds memory and changes no bit.
const WAVE: usize = 16;

/// Models up to this many values run micro-batches side by side (a gradient each); larger ones use all threads inside an operation.
const SIDE_BY_SIDE_PARAMETERS: usize = 4_000_000;

/// Log-prob and entropy (nats) of each sampled token.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct TokenStats {
    pub(crate) logprobs: Vec<f64>,
    pub(crate) entropies: Vec<f64>,
}

/// Derivative of a loss with respect to [`TokenStats`].
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct TokenGradients {
    pub(crate) logprobs: Vec<f64>,
    pub(crate) entropies: Vec<f64>,
}

/// One gradient for each variable of a policy, in its order.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Gradients {
    pub(crate) values: Vec<Vec<f32>>,
}

impl Gradients {
    pub(crate) fn zeros(policy: &TrainerPolicy) -> Self {
        Self {
            values: policy
                .vars()
                .iter()
                .map(|(_, var)| vec![0.0; var.elem_count()])
                .collect(),
        }
    }

    fn add(&mut self, policy: &TrainerPolicy, grads: &GradStore) -> Result<(), TrainerError> {
        for ((name, var), sum) in policy.vars().iter().zip(&mut self.values) {
            let grad = grads
                .get(var)
                .ok_or_else(|| TrainerError::MissingGradient { name: name.clone() })?;
            let grad = grad
                .to_device(&candle_core::Device::Cpu)?
                .to_dtype(DType::F32)?
                .contiguous()?;
            ops::with_values::<f32, _>(&grad, |grad| {
                for (sum, &g) in sum.iter_mut().zip(grad) {
                    *sum += g;
                }
                Ok(())
            })?;
        }
        Ok(())
    }
}

fn read(stats: &Tensor) -> Result<TokenStats, TrainerError> {
    let rows = stats.to_dtype(DType::F64)?.to_vec2::<f64>()?;
    Ok(TokenStats {
        logprobs: rows.iter().map(|row| row[0]).collect(),
        entropies: rows.iter().map(|row| row[1]).collect(),
    })
}

/// Log-probs and entropies of every micro-batch, without recording anything.
///
/// # Errors
/// When a tensor operation fails.
pub(crate) fn evaluate(
    policy: &TrainerPolicy,
    micro: &[Packed],
    temperature: f64,
) -> Result<Vec<TokenStats>, TrainerError> {
    let params = policy.params(false);
    let one = |batch: &Packed, exec: Exec| -> Result<TokenStats, TrainerError> {
        if batch.targets.is_empty() {
            return Ok(TokenStats::default());
        }
        read(&policy.forward(&params, batch, temperature, exec)?)
    };
    match exec(policy, micro.len()) {
        Exec::Serial => micro.par_iter().map(|batch| one(batch, Exec::Serial)).collect(),
        Exec::Parallel => micro.iter().map(|batch| one(batch, Exec::Parallel)).collect(),
    }
}

/// Forward, `loss` and backward of every micro-batch: the summed gradient, and what `loss` returned for each.
///
/// `loss(i, stats)` gives the derivative of the loss with respect to the stats of micro-batch `i`, and anything else worth keeping.
///
/// # Errors
/// When a tensor operation or `loss` fails, or a variable gets no gradient.
pub(crate) fn backward<R: Send>(
    policy: &TrainerPolicy,
    micro: &[Packed],
    temperature: f64,
    loss: impl Fn(usize, TokenStats) -> Result<(TokenGradients, R), TrainerError> + Sync,
) -> Result<(Gradients, Vec<R>), TrainerError> {
    let params = policy.params(true);
    let mut total = Gradients::zeros(policy);
    let mut kept = Vec::with_capacity(micro.len());
    let one = |i: usize, exec: Exec| {
        backward_one(policy, &params, &micro[i], temperature, exec, |stats| {
            loss(i, stats)
        })
    };
    let wave = match exec(policy, micro.len()) {
        Exec::Serial => WAVE,
        Exec::Parallel => 1,
    };
    for first in (0..micro.len()).step_by(wave) {
        let wave = first..(first + wave).min(micro.len());
        let results: Vec<_> = if wave.len() > 1 {
            wave.into_par_iter()
                .map(|i| one(i, Exec::Serial))
                .collect::<Result<_, _>>()?
        } else {
            wave.map(|i| one(i, Exec::Parallel)).collect::<Result<_, _>>()?
        };
        for (grads, result) in results {
            total.add(policy, &grads)?;
            kept.push(result);
        }
    }
    Ok((total, kept))
}

/// Forward, `loss` and backward of one micro-batch.
pub(crate) fn backward_one<R>(
    policy: &TrainerPolicy,
    params: &Params,
    batch: &Packed,
    temperature: f64,
    exec: Exec,
    loss: impl FnOnce(TokenStats) -> Result<(TokenGradients, R), TrainerError>,
) -> Result<(GradStore, R), TrainerError> {
    let stats = policy.forward(params, batch, temperature, exec)?;
    let (grads, kept) = loss(read(&stats)?)?;
    // d loss / d weights = d (stats . G) / d weights with G = d loss / d stats held constant.
    let flat: Vec<f64> = grads
        .logprobs
        .iter()
        .zip(&grads.entropies)
        .flat_map(|(&l, &e)| [l, e])
        .collect();
    let seed = Tensor::from_vec(flat, stats.shape(), stats.device())?.to_dtype(stats.dtype())?;
    Ok(((stats * seed)?.sum_all()?.backward()?, kept))
}

fn exec(policy: &TrainerPolicy, micro_batches: usize) -> Exec {
    if micro_batches > 1 && policy.parameters() <= SIDE_BY_SIDE_PARAMETERS {
        Exec::Serial
    } else {
        Exec::Parallel
    }
}
