//! Forward and backward over micro-batches, with sums in a fixed order.

use candle_core::{DType, Device, Storage, Tensor};
use rayon::prelude::*;

use super::TrainerPolicy;
use super::cpu::{Cpu, Trace};
use super::kernels::{Exec, Real, RopeTable, rows};
use crate::TrainerError;
use crate::batch::Packed;

/// Gradients that accumulate side by side: micro-batch `i` adds to gradient `i % LANES`, and the lanes are added in order. A constant, so
/// that results do not depend on the number of threads.
const LANES: usize = 8;

/// Models up to this many values run micro-batches side by side (a gradient for each lane); larger ones use all threads inside an operation.
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
pub(crate) struct Gradients<T = f32> {
    pub(crate) values: Vec<Vec<T>>,
}

impl<T: Real> Gradients<T> {
    pub(crate) fn zeros(policy: &TrainerPolicy) -> Self {
        Self {
            values: policy
                .vars()
                .iter()
                .map(|(_, var)| vec![T::ZERO; var.elem_count()])
                .collect(),
        }
    }

    fn add(&mut self, other: &Self) {
        self.values
            .iter_mut()
            .zip(&other.values)
            .for_each(|(sum, x)| rows::add(sum, x));
    }
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
    match (policy.device.is_cpu(), policy.dtype) {
        (true, DType::F64) => evaluate_cpu::<f64>(policy, micro, temperature),
        (true, _) => evaluate_cpu::<f32>(policy, micro, temperature),
        (false, _) => micro
            .iter()
            .map(|batch| {
                if batch.targets.is_empty() {
                    Ok(TokenStats::default())
                } else {
                    read(&policy.graph(batch, temperature, false)?)
                }
            })
            .collect(),
    }
}

fn evaluate_cpu<T: Real>(
    policy: &TrainerPolicy,
    micro: &[Packed],
    temperature: f64,
) -> Result<Vec<TokenStats>, TrainerError> {
    let exec = exec(policy, micro.len());
    with_cpu::<T, _>(policy, micro, exec, |cpu| {
        let one = |trace: &mut Trace<T>, batch: &Packed| {
            if batch.targets.is_empty() {
                TokenStats::default()
            } else {
                stats(&cpu.forward(batch, temperature, trace, false))
            }
        };
        Ok(match exec {
            Exec::Serial => micro.par_iter().map_init(Trace::default, one).collect(),
            Exec::Parallel => {
                let mut trace = Trace::default();
                micro.iter().map(|batch| one(&mut trace, batch)).collect()
            }
        })
    })
}

/// Forward, `loss` and backward of every micro-batch: the summed gradient, and what `loss` returned for each.
///
/// Every micro-batch must hold a target. `loss(i, stats)` gives the derivative of the loss with respect to the stats of micro-batch `i`, and
/// anything else worth keeping.
///
/// # Errors
/// When a tensor operation or `loss` fails, or a variable gets no gradient.
pub(crate) fn backward<R: Send>(
    policy: &TrainerPolicy,
    micro: &[Packed],
    temperature: f64,
    loss: impl Fn(usize, TokenStats) -> Result<(TokenGradients, R), TrainerError> + Sync,
) -> Result<(Gradients, Vec<R>), TrainerError> {
    if policy.device.is_cpu() {
        return backward_cpu::<f32, R>(policy, micro, temperature, loss);
    }
    let mut total = Gradients::zeros(policy);
    let mut kept = Vec::with_capacity(micro.len());
    for (i, batch) in micro.iter().enumerate() {
        let (grads, result) = backward_graph(policy, batch, temperature, |stats| loss(i, stats))?;
        for (sum, grad) in total.values.iter_mut().zip(grads) {
            let grad = grad
                .to_device(&Device::Cpu)?
                .to_dtype(DType::F32)?
                .flatten_all()?
                .to_vec1::<f32>()?;
            rows::add(sum, &grad);
        }
        kept.push(result);
    }
    Ok((total, kept))
}

/// [`backward`] on the CPU in either float type.
pub(crate) fn backward_cpu<T: Real, R: Send>(
    policy: &TrainerPolicy,
    micro: &[Packed],
    temperature: f64,
    loss: impl Fn(usize, TokenStats) -> Result<(TokenGradients, R), TrainerError> + Sync,
) -> Result<(Gradients<T>, Vec<R>), TrainerError> {
    let exec = exec(policy, micro.len());
    let lanes = match exec {
        Exec::Serial => LANES.min(micro.len()),
        Exec::Parallel => 1,
    };
    with_cpu::<T, _>(policy, micro, exec, |cpu| {
        let lane = |lane: usize| {
            let (mut total, mut kept, mut trace) = (Gradients::zeros(policy), Vec::new(), Trace::default());
            for i in (lane..micro.len()).step_by(lanes) {
                let out = cpu.forward(&micro[i], temperature, &mut trace, true);
                let (grads, result) = loss(i, stats(&out))?;
                let pairs = grads.logprobs.iter().zip(&grads.entropies);
                let seed: Vec<(T, T)> = pairs.map(|(&l, &e)| (T::of(l), T::of(e))).collect();
                cpu.backward(&micro[i], temperature, &mut trace, &seed, &mut total.values);
                kept.push((i, result));
            }
            Ok::<_, TrainerError>((total, kept))
        };
        let results: Vec<_> = if lanes > 1 {
            (0..lanes).into_par_iter().map(lane).collect::<Result<_, _>>()?
        } else {
            (0..lanes).map(lane).collect::<Result<_, _>>()?
        };
        let mut total: Option<Gradients<T>> = None;
        let mut kept = Vec::with_capacity(micro.len());
        for (grads, results) in results {
            match &mut total {
                None => total = Some(grads),
                Some(total) => total.add(&grads),
            }
            kept.extend(results);
        }
        kept.sort_by_key(|(i, _)| *i);
        let total = total.unwrap_or_else(|| Gradients::zeros(policy));
        Ok((total, kept.into_iter().map(|(_, result)| result).collect()))
    })
}

/// Forward, `loss` and backward of one micro-batch through candle's graph: one gradient for each variable.
pub(crate) fn backward_graph<R>(
    policy: &TrainerPolicy,
    batch: &Packed,
    temperature: f64,
    loss: impl FnOnce(TokenStats) -> Result<(TokenGradients, R), TrainerError>,
) -> Result<(Vec<Tensor>, R), TrainerError> {
    let stats = policy.graph(batch, temperature, true)?;
    let (grads, kept) = loss(read(&stats)?)?;
    // d loss / d weights = d (stats . G) / d weights with G = d loss / d stats held constant.
    let flat: Vec<f64> = grads
        .logprobs
        .iter()
        .zip(&grads.entropies)
        .flat_map(|(&l, &e)| [l, e])
        .collect();
    let seed = Tensor::from_vec(flat, stats.shape(), &Device::Cpu)?
        .to_dtype(stats.dtype())?
        .to_device(stats.device())?;
    let grads = (stats * seed)?.sum_all()?.backward()?;
    let missing = |name: &String| TrainerError::MissingGradient { name: name.clone() };
    let all = policy
        .vars()
        .iter()
        .map(|(name, var)| grads.get(var).cloned().ok_or_else(|| missing(name)));
    Ok((all.collect::<Result<_, _>>()?, kept))
}

fn read(stats: &Tensor) -> Result<TokenStats, TrainerError> {
    let rows = stats.to_dtype(DType::F64)?.to_vec2::<f64>()?;
    Ok(TokenStats {
        logprobs: rows.iter().map(|row| row[0]).collect(),
        entropies: rows.iter().map(|row| row[1]).collect(),
    })
}

fn stats<T: Real>(pairs: &[(T, T)]) -> TokenStats {
    TokenStats {
        logprobs: pairs.iter().map(|p| p.0.to_f64()).collect(),
        entropies: pairs.iter().map(|p| p.1.to_f64()).collect(),
    }
}

/// Calls `f` with the policy's weights as slices; they are locked for reading meanwhile.
fn with_cpu<T: Real, R>(
    policy: &TrainerPolicy,
    micro: &[Packed],
    exec: Exec,
    f: impl FnOnce(&Cpu<'_, T>) -> Result<R, TrainerError>,
) -> Result<R, TrainerError> {
    let guards: Vec<_> = policy
        .vars
        .iter()
        .map(|(_, var)| var.storage_and_layout())
        .collect();
    let mut weights = Vec::with_capacity(guards.len());
    for (storage, layout) in &guards {
        let (Storage::Cpu(storage), Some((start, end))) = (&**storage, layout.contiguous_offsets()) else {
            return Err(
                candle_core::Error::Msg("a CPU policy holds contiguous CPU tensors".to_owned()).into(),
            );
        };
        weights.push(&T::cpu_storage_as_slice(storage)?[start..end]);
    }
    let longest = micro.iter().map(Packed::longest).max().unwrap_or(0);
    let rope = RopeTable::new(policy.config.head_dim, policy.config.rope_theta, longest);
    f(&Cpu {
        config: &policy.config,
        layout: &policy.layout,
        weights,
        rope: &rope,
        exec,
    })
}

fn exec(policy: &TrainerPolicy, micro_batches: usize) -> Exec {
    if micro_batches > 1 && policy.parameters() <= SIDE_BY_SIDE_PARAMETERS {
        Exec::Serial
    } else {
        Exec::Parallel
    }
}

impl TrainerPolicy {
    /// Tokens of a micro-batch that suit the model: few enough for activations to stay in cache and for lanes to be even, or enough for
    /// matrix products to dominate the traffic of weight gradients.
    pub(crate) fn tokens_per_pass(&self) -> usize {
        if self.parameters() <= SIDE_BY_SIDE_PARAMETERS {
            256
        } else {
            1024
        }
    }
}
