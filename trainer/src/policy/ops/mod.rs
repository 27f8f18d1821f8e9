//! Differentiable operations: each is a candle custom op with its own backward on the CPU, and a composition of candle's operations on any
//! other device.
//!
//! Candle's fused CPU ops (`rms_norm`, `rope`, `softmax_last_dim`, flash attention) record nothing for `backward`, which then succeeds
//! without a gradient. None of them is used here, and a test asks every trainable tensor for its gradient.
//!
//! All ops are deterministic: work is cut into pieces of a fixed size, and partial sums are added in the order of the pieces.

mod attention;
mod linear;
mod rms_norm;
mod rope;
mod swiglu;
mod token_stats;

use candle_core::{CpuStorage, Layout, Result, Storage, Tensor};

pub(crate) use attention::{Heads, attention};
pub(crate) use linear::linear;
pub(crate) use rms_norm::rms_norm;
pub(crate) use rope::{RopeTable, rope};
pub(crate) use swiglu::swiglu;
pub(crate) use token_stats::token_stats;

use super::kernels::Real;

/// Whether an op may use the thread pool itself. Bits do not depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exec {
    /// One thread: the caller already runs micro-batches side by side.
    Serial,
    /// All threads.
    Parallel,
}

impl Exec {
    fn is_parallel(self) -> bool {
        self == Self::Parallel
    }
}

/// Values of a contiguous operand inside a custom op.
fn operand<'a, T: Real>(op: &str, storage: &'a CpuStorage, layout: &Layout) -> Result<&'a [T]> {
    let Some((start, end)) = layout.contiguous_offsets() else {
        candle_core::bail!("{op} needs contiguous operands, got {layout:?}")
    };
    Ok(&T::cpu_storage_as_slice(storage)?[start..end])
}

/// Calls `f` with the values of a contiguous CPU tensor.
pub(super) fn with_values<T: Real, R>(tensor: &Tensor, f: impl FnOnce(&[T]) -> Result<R>) -> Result<R> {
    let (storage, layout) = tensor.storage_and_layout();
    match &*storage {
        Storage::Cpu(storage) => f(operand("a CPU op", storage, layout)?),
        _ => candle_core::bail!("expected a tensor on the CPU, found one on {:?}", tensor.device()),
    }
}

/// Runs `$body` with `$t` bound to the float type of `$dtype`.
macro_rules! for_float {
    ($dtype:expr, $t:ident => $body:expr) => {
        match $dtype {
            candle_core::DType::F32 => {
                type $t = f32;
                $body
            }
            candle_core::DType::F64 => {
                type $t = f64;
                $body
            }
            other => candle_core::bail!("the trainer computes in f32 (or f64), not {other:?}"),
        }
    };
}
use for_float;

/// Rows handed to one thread at a time; fixed, so that partial sums do not depend on the number of threads.
const ROWS: usize = 128;

/// Calls `f(piece, first_row, rows_of_out)` for pieces of [`ROWS`] rows, on the pool when `exec` allows, and returns the results in order.
fn for_row_pieces<T: Send, R: Send>(
    exec: Exec,
    out: &mut [T],
    width: usize,
    f: impl Fn(usize, &mut [T]) -> R + Sync,
) -> Vec<R> {
    use rayon::prelude::*;
    let piece = ROWS * width.max(1);
    if exec.is_parallel() && out.len() > piece {
        out.par_chunks_mut(piece)
            .enumerate()
            .map(|(i, chunk)| f(i * ROWS, chunk))
            .collect()
    } else {
        out.chunks_mut(piece)
            .enumerate()
            .map(|(i, chunk)| f(i * ROWS, chunk))
            .collect()
    }
}

#[cfg(test)]
mod testing {
    use candle_core::{DType, Device, Result, Shape, Tensor, Var};

    /// A deterministic f64 tensor.
    pub(super) fn wave(shape: impl Into<Shape>, frequency: f64) -> Tensor {
        let shape = shape.into();
        let values: Vec<f64> = (0..shape.elem_count())
            .map(|i| (i as f64 * frequency + 0.2).sin() * 1.3)
            .collect();
        Tensor::from_vec(values, shape, &Device::Cpu).unwrap()
    }

    /// In f64 and f32: the op's value and gradients equal those of candle's composed operations (whose gradients are checked by central
    /// differences in the policy's own tests), and every input has a gradient.
    pub(super) fn check_gradients(
        inputs: &[Tensor],
        op: impl Fn(&[Tensor]) -> Result<Tensor>,
        reference: impl Fn(&[Tensor]) -> Result<Tensor>,
    ) {
        for (dtype, tolerance) in [(DType::F64, 1e-11), (DType::F32, 3e-4)] {
            let run = |f: &dyn Fn(&[Tensor]) -> Result<Tensor>| {
                let vars: Vec<Var> = inputs
                    .iter()
                    .map(|t| Var::from_tensor(&t.to_dtype(dtype).unwrap()).unwrap())
                    .collect();
                let tensors: Vec<Tensor> = vars.iter().map(|v| v.as_tensor().clone()).collect();
                let out = f(&tensors).unwrap();
                let weight = wave(out.shape().clone(), 0.77).to_dtype(dtype).unwrap();
                let grads = (&out * weight).unwrap().sum_all().unwrap().backward().unwrap();
                let mut all = vec![out];
                all.extend(vars.iter().map(|v| grads.get(v).expect("a gradient").clone()));
                all
            };
            for (i, (got, want)) in run(&op).iter().zip(run(&reference)).enumerate() {
                let flat = |t: &Tensor| {
                    t.flatten_all()
                        .unwrap()
                        .to_dtype(DType::F64)
                        .unwrap()
                        .to_vec1::<f64>()
                        .unwrap()
                };
                let (got, want) = (flat(got), flat(&want));
                assert!(want.iter().any(|x| x.abs() > 1e-6), "output {i} is trivial");
                let worst = got
                    .iter()
                    .zip(&want)
                    .map(|(a, b)| (a - b).abs() / (1.0 + b.abs()))
                    .fold(0.0, f64::max);
                assert!(
                    worst < tolerance,
                    "{dtype:?}: output {i} (0 is the value) differs by {worst}"
                );
            }
        }
    }
}
