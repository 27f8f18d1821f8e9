//! Causal softmax attention over sequences packed end to end, with grouped key and value heads.

use std::sync::Arc;

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CustomOp3, D, Layout, Result, Shape, Tensor};
use rayon::prelude::*;

use super::super::kernels::{Mat, MatMut, Real, matmul, rows};
use super::{Exec, for_float, operand, with_values};

/// Query rows whose scores are alive at a time; keys after a block's last query are never multiplied.
const BLOCK: usize = 64;

/// Widths of the heads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Heads {
    /// Query heads.
    pub(crate) heads: usize,
    /// Key and value heads; each serves `heads / kv_heads` query heads.
    pub(crate) kv_heads: usize,
    /// Width of a head.
    pub(crate) head_dim: usize,
}

/// `softmax(q k^T / sqrt(head_dim)) v` where a token sees itself and the earlier tokens of its own sequence.
///
/// - `q`: `[tokens, heads * head_dim]`; `k`, `v`: `[tokens, kv_heads * head_dim]`.
/// - `offsets`: sequence `i` is rows `offsets[i]..offsets[i + 1]`.
/// - returns `[tokens, heads * head_dim]`.
///
/// # Errors
/// On a shape or dtype mismatch.
pub(crate) fn attention(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    offsets: &Arc<Vec<usize>>,
    shape: Heads,
    exec: Exec,
) -> Result<Tensor> {
    if q.device().is_cpu() {
        q.apply_op3(
            k,
            v,
            Attention {
                offsets: Arc::clone(offsets),
                shape,
                exec,
            },
        )
    } else {
        composed(q, k, v, offsets, shape)
    }
}

fn composed(q: &Tensor, k: &Tensor, v: &Tensor, offsets: &[usize], shape: Heads) -> Result<Tensor> {
    let Heads {
        heads,
        kv_heads,
        head_dim,
    } = shape;
    let mut out = Vec::new();
    for pair in offsets.windows(2) {
        let (start, len) = (pair[0], pair[1] - pair[0]);
        let split = |x: &Tensor, n: usize| -> Result<Tensor> {
            x.narrow(0, start, len)?
                .reshape((len, n, head_dim))?
                .transpose(0, 1)?
                .contiguous()
        };
        let repeat = |x: Tensor| -> Result<Tensor> {
            let r = heads / kv_heads;
            x.unsqueeze(1)?
                .broadcast_as((kv_heads, r, len, head_dim))?
                .reshape((heads, len, head_dim))
        };
        let (q, k, v) = (
            split(q, heads)?,
            repeat(split(k, kv_heads)?)?,
            repeat(split(v, kv_heads)?)?,
        );
        let unseen: Vec<f64> = (0..len * len)
            .map(|i| if i % len > i / len { f64::NEG_INFINITY } else { 0.0 })
            .collect();
        let unseen = Tensor::from_vec(unseen, (1, len, len), q.device())?.to_dtype(q.dtype())?;
        let scores = (q.matmul(&k.t()?)? * (1.0 / (head_dim as f64).sqrt()))?.broadcast_add(&unseen)?;
        let exp = scores
            .broadcast_sub(&scores.max_keepdim(D::Minus1)?.detach())?
            .exp()?;
        let p = exp.broadcast_div(&exp.sum_keepdim(D::Minus1)?)?;
        out.push(p.matmul(&v)?.transpose(0, 1)?.reshape((len, heads * head_dim))?);
    }
    Tensor::cat(&out, 0)
}

struct Attention {
    offsets: Arc<Vec<usize>>,
    shape: Heads,
    exec: Exec,
}

/// One sequence and one key-value head: the unit of work.
#[derive(Clone, Copy)]
struct Task {
    start: usize,
    len: usize,
    kv: usize,
}

/// Query, key and value rows of one sequence and pair of heads, as views into the packed arrays.
struct Views<'a, T> {
    q: &'a [T],
    k: &'a [T],
    v: &'a [T],
    q_width: usize,
    kv_width: usize,
    dim: usize,
}

impl<T: Real> Views<'_, T> {
    fn keys(&self, count: usize) -> Mat<'_, T> {
        Mat::new(self.k, count, self.dim, self.kv_width)
    }

    fn values(&self, count: usize) -> Mat<'_, T> {
        Mat::new(self.v, count, self.dim, self.kv_width)
    }

    fn queries(&self, first: usize, count: usize) -> Mat<'_, T> {
        Mat::new(&self.q[first * self.q_width..], count, self.dim, self.q_width)
    }

    /// Attention probabilities of `count` queries from `first` on over the `first + count` keys they may see.
    fn probabilities(&self, first: usize, count: usize, tile: &mut Vec<T>) {
        let keys = first + count;
        tile.resize(count * keys, T::ZERO);
        let scale = T::of(1.0 / (self.dim as f64).sqrt());
        matmul(
            MatMut::new(tile, count, keys, keys),
            self.queries(first, count),
            self.keys(keys).t(),
            scale,
            false,
            false,
        );
        rows::causal_softmax(tile, keys, first);
    }
}

fn blocks(len: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..len)
        .step_by(BLOCK)
        .map(move |first| (first, BLOCK.min(len - first)))
}

impl Attention {
    fn tasks(&self) -> Vec<Task> {
        let pairs = self.offsets.windows(2).filter(|w| w[1] > w[0]);
        pairs
            .flat_map(|w| {
                (0..self.shape.kv_heads).map(move |kv| Task {
                    start: w[0],
                    len: w[1] - w[0],
                    kv,
                })
            })
            .collect()
    }

    fn views<'a, T>(&self, q: &'a [T], k: &'a [T], v: &'a [T], task: Task, head: usize) -> Views<'a, T> {
        let Heads {
            heads,
            kv_heads,
            head_dim,
        } = self.shape;
        let (q_width, kv_width) = (heads * head_dim, kv_heads * head_dim);
        let kv = task.start * kv_width + task.kv * head_dim;
        Views {
            q: &q[task.start * q_width + head * head_dim..],
            k: &k[kv..],
            v: &v[kv..],
            q_width,
            kv_width,
            dim: head_dim,
        }
    }

    fn query_heads(&self, kv: usize) -> std::ops::Range<usize> {
        let group = self.shape.heads / self.shape.kv_heads;
        kv * group..(kv + 1) * group
    }

    /// Runs `f` for every task and hands its result to `store`, in order.
    fn run<R: Send>(&self, f: impl Fn(Task) -> R + Sync, mut store: impl FnMut(Task, R)) {
        let tasks = self.tasks();
        if self.exec.is_parallel() {
            let results: Vec<R> = tasks.par_iter().map(|&task| f(task)).collect();
            tasks
                .into_iter()
                .zip(results)
                .for_each(|(task, result)| store(task, result));
        } else {
            tasks.into_iter().for_each(|task| store(task, f(task)));
        }
    }

    fn forward<T: Real>(&self, q: &[T], k: &[T], v: &[T]) -> Vec<T> {
        let Heads { heads, head_dim, .. } = self.shape;
        let width = heads * head_dim;
        let mut out = vec![T::ZERO; q.len()];
        let one = |task: Task| -> Vec<T> {
            let group = self.query_heads(task.kv);
            let mut local = vec![T::ZERO; group.len() * task.len * head_dim];
            let mut tile = Vec::new();
            for (head, local) in group.zip(local.chunks_exact_mut(task.len * head_dim)) {
                let views = self.views(q, k, v, task, head);
                for (first, count) in blocks(task.len) {
                    views.probabilities(first, count, &mut tile);
                    let keys = first + count;
                    let dst = MatMut::new(&mut local[first * head_dim..], count, head_dim, head_dim);
                    matmul(
                        dst,
                        Mat::new(&tile, count, keys, keys),
                        views.values(keys),
                        T::ONE,
                        false,
                        false,
                    );
                }
            }
            local
        };
        self.run(one, |task, local| {
            for (head, rows) in self
                .query_heads(task.kv)
                .zip(local.chunks_exact(task.len * head_dim))
            {
                scatter(
                    rows,
                    &mut out[task.start * width + head * head_dim..],
                    head_dim,
                    width,
                );
            }
        });
        out
    }

    fn backward<T: Real>(&self, q: &[T], k: &[T], v: &[T], g: &[T]) -> [Vec<T>; 3] {
        let Heads {
            heads,
            kv_heads,
            head_dim,
        } = self.shape;
        let (q_width, kv_width) = (heads * head_dim, kv_heads * head_dim);
        let scale = T::of(1.0 / (head_dim as f64).sqrt());
        let one = |task: Task| -> [Vec<T>; 3] {
            let group = self.query_heads(task.kv);
            let rows_of_head = task.len * head_dim;
            let mut dq = vec![T::ZERO; group.len() * rows_of_head];
            let (mut dk, mut dv) = (vec![T::ZERO; rows_of_head], vec![T::ZERO; rows_of_head]);
            let (mut tile, mut ds) = (Vec::new(), Vec::new());
            for (head, dq) in group.zip(dq.chunks_exact_mut(rows_of_head)) {
                let views = self.views(q, k, v, task, head);
                let g = &g[task.start * q_width + head * head_dim..];
                for (first, count) in blocks(task.len) {
                    let keys = first + count;
                    views.probabilities(first, count, &mut tile);
                    let p = Mat::new(&tile, count, keys, keys);
                    let g = Mat::new(&g[first * q_width..], count, head_dim, q_width);
                    matmul(
                        MatMut::new(&mut dv, keys, head_dim, head_dim),
                        p.t(),
                        g,
                        T::ONE,
                        true,
                        false,
                    );
                    ds.resize(count * keys, T::ZERO);
                    matmul(
                        MatMut::new(&mut ds, count, keys, keys),
                        g,
                        views.values(keys).t(),
                        T::ONE,
                        false,
                        false,
                    );
                    rows::softmax_backward(&tile, &mut ds, keys, scale);
                    let ds = Mat::new(&ds, count, keys, keys);
                    let dst = MatMut::new(&mut dq[first * head_dim..], count, head_dim, head_dim);
                    matmul(dst, ds, views.keys(keys), T::ONE, false, false);
                    let dst = MatMut::new(&mut dk, keys, head_dim, head_dim);
                    matmul(dst, ds.t(), views.queries(first, count), T::ONE, true, false);
                }
            }
            [dq, dk, dv]
        };
        let (mut dq, mut dk, mut dv) = (
            vec![T::ZERO; q.len()],
            vec![T::ZERO; k.len()],
            vec![T::ZERO; v.len()],
        );
        self.run(one, |task, [q_rows, k_rows, v_rows]| {
            for (head, rows) in self
                .query_heads(task.kv)
                .zip(q_rows.chunks_exact(task.len * head_dim))
            {
                scatter(
                    rows,
                    &mut dq[task.start * q_width + head * head_dim..],
                    head_dim,
                    q_width,
                );
            }
            let at = task.start * kv_width + task.kv * head_dim;
            scatter(&k_rows, &mut dk[at..], head_dim, kv_width);
            scatter(&v_rows, &mut dv[at..], head_dim, kv_width);
        });
        [dq, dk, dv]
    }
}

/// Copies dense rows of `dim` values to rows `width` apart.
fn scatter<T: Copy>(rows: &[T], out: &mut [T], dim: usize, width: usize) {
    for (row, out) in rows.chunks_exact(dim).zip(out.chunks_mut(width)) {
        out[..dim].copy_from_slice(row);
    }
}

impl CustomOp3 for Attention {
    fn name(&self) -> &'static str {
        "causal-attention"
    }

    fn cpu_fwd(
        &self,
        q: &CpuStorage,
        ql: &Layout,
        k: &CpuStorage,
        kl: &Layout,
        v: &CpuStorage,
        vl: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let Heads {
            heads,
            kv_heads,
            head_dim,
        } = self.shape;
        let (tokens, width) = ql.shape().dims2()?;
        let kv = (tokens, kv_heads * head_dim);
        let end = self.offsets.last().copied().unwrap_or(0);
        let sorted = self.offsets.first() == Some(&0) && self.offsets.is_sorted();
        if width != heads * head_dim
            || kl.shape().dims2()? != kv
            || vl.shape().dims2()? != kv
            || end != tokens
            || !sorted
        {
            candle_core::bail!(
                "attention: {:?} does not fit {:?} and sequences ending at {end}",
                self.shape,
                ql.shape()
            )
        }
        let out = for_float!(q.dtype(), T => {
            let name = "attention";
            let out = self.forward::<T>(operand(name, q, ql)?, operand(name, k, kl)?, operand(name, v, vl)?);
            <T as candle_core::WithDType>::to_cpu_storage_owned(out)
        });
        Ok((out, ql.shape().clone()))
    }

    fn bwd(
        &self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        _y: &Tensor,
        g: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let g = g.contiguous()?;
        let [dq, dk, dv] = for_float!(q.dtype(), T => {
            let [dq, dk, dv] = with_values::<T, _>(q, |q| {
                with_values::<T, _>(k, |k| {
                    with_values::<T, _>(v, |v| with_values::<T, _>(&g, |g| Ok(self.backward(q, k, v, g))))
                })
            })?;
            [
                Tensor::from_vec(dq, q.shape(), q.device())?,
                Tensor::from_vec(dk, k.shape(), k.device())?,
                Tensor::from_vec(dv, v.shape(), v.device())?,
            ]
        });
        Ok((Some(dq), Some(dk), Some(dv)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::ops::testing::{check_gradients, wave};

    #[test]
    fn equals_the_composed_form_and_has_its_gradient() {
        for (heads, kv_heads) in [(4, 2), (3, 1), (2, 2)] {
            let shape = Heads {
                heads,
                kv_heads,
                head_dim: 6,
            };
            // Lengths around a block's edge, one token, and an empty sequence.
            let offsets = Arc::new(vec![0, 1, 1, 1 + BLOCK, 2 * BLOCK + 2, 2 * BLOCK + 9]);
            let tokens = 2 * BLOCK + 9;
            let full: Vec<usize> = offsets
                .iter()
                .copied()
                .collect::<std::collections::BTreeSet<_>>()
                .into_iter()
                .collect();
            let inputs = [
                wave((tokens, heads * 6), 0.3),
                wave((tokens, kv_heads * 6), 0.7),
                wave((tokens, kv_heads * 6), 1.1),
            ];
            check_gradients(
                &inputs,
                |v| attention(&v[0], &v[1], &v[2], &offsets, shape, Exec::Parallel),
                |v| composed(&v[0], &v[1], &v[2], &full, shape),
            );
        }
    }
}
