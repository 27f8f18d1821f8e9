//! Causal softmax attention over sequences packed end to end, with grouped key and value heads.

use rayon::prelude::*;

use super::{Exec, Mat, MatMut, Real, matmul};

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

/// `softmax(q k^T / sqrt(head_dim)) v` where a token sees itself and the earlier tokens of its own sequence: sequence `i` is rows
/// `offsets[i]..offsets[i + 1]`.
pub(crate) struct Attention<'a> {
    pub(crate) offsets: &'a [usize],
    pub(crate) shape: Heads,
    pub(crate) exec: Exec,
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
        super::rows::causal_softmax(tile, keys, first);
    }
}

fn blocks(len: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..len)
        .step_by(BLOCK)
        .map(move |first| (first, BLOCK.min(len - first)))
}

impl Attention<'_> {
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

    /// Writes `[tokens, heads * head_dim]`; `q` has that shape, `k` and `v` are `[tokens, kv_heads * head_dim]`.
    pub(crate) fn forward<T: Real>(&self, q: &[T], k: &[T], v: &[T], out: &mut [T]) {
        let Heads { heads, head_dim, .. } = self.shape;
        let width = heads * head_dim;
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
    }

    /// For the gradient `g` of the output, writes those of `q`, `k` and `v`. Probabilities are computed again, not kept.
    pub(crate) fn backward<T: Real>(&self, q: &[T], k: &[T], v: &[T], g: &[T], [dq, dk, dv]: [&mut [T]; 3]) {
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
                    super::rows::softmax_backward(&tile, &mut ds, keys, scale);
                    let ds = Mat::new(&ds, count, keys, keys);
                    let dst = MatMut::new(&mut dq[first * head_dim..], count, head_dim, head_dim);
                    matmul(dst, ds, views.keys(keys), T::ONE, false, false);
                    let dst = MatMut::new(&mut dk, keys, head_dim, head_dim);
                    matmul(dst, ds.t(), views.queries(first, count), T::ONE, true, false);
                }
            }
            [dq, dk, dv]
        };
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
    }
}

/// Copies dense rows of `dim` values to rows `width` apart.
fn scatter<T: Copy>(rows: &[T], out: &mut [T], dim: usize, width: usize) {
    for (row, out) in rows.chunks_exact(dim).zip(out.chunks_mut(width)) {
        out[..dim].copy_from_slice(row);
    }
}
