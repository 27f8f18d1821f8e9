//! Loops behind the CPU forward and backward: matrix product, row-wise functions, attention, head; each with its derivative.
//!
//! Deterministic at any number of threads: work is cut into pieces of a fixed size, and partial sums are added in the order of the pieces.

pub(crate) mod attention;
mod gemm;
pub(crate) mod head;
mod rope;
pub(crate) mod rows;
mod simd;

pub(crate) use gemm::{Mat, MatMut, matmul};
pub(crate) use rope::{RopeTable, rope};
pub(crate) use simd::Real;

use rayon::prelude::*;

/// Whether a kernel may use the thread pool itself. Bits do not depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exec {
    /// One thread: the caller already runs micro-batches side by side.
    Serial,
    /// All threads.
    Parallel,
}

impl Exec {
    pub(crate) fn is_parallel(self) -> bool {
        self == Self::Parallel
    }
}

/// Rows handed to one thread at a time; fixed, so that partial sums do not depend on the number of threads.
const ROWS: usize = 128;

/// `y = x w^T` for `rows` rows of `x`, added to `y` when `accumulate`.
pub(crate) fn linear<T: Real>(x: &[T], w: &[T], rows: usize, y: &mut [T], accumulate: bool, exec: Exec) {
    let (inner, out) = (x.len() / rows, y.len() / rows);
    let (x, w) = (Mat::new(x, rows, inner, inner), Mat::new(w, out, inner, inner));
    matmul(
        MatMut::new(y, rows, out, out),
        x,
        w.t(),
        T::ONE,
        accumulate,
        exec.is_parallel(),
    );
}

/// Derivative of [`linear`] in `x`: `dx = g w`, added to `dx` when `accumulate`.
pub(crate) fn linear_input<T: Real>(
    g: &[T],
    w: &[T],
    rows: usize,
    dx: &mut [T],
    accumulate: bool,
    exec: Exec,
) {
    let (inner, out) = (dx.len() / rows, g.len() / rows);
    let (g, w) = (Mat::new(g, rows, out, out), Mat::new(w, out, inner, inner));
    matmul(
        MatMut::new(dx, rows, inner, inner),
        g,
        w,
        T::ONE,
        accumulate,
        exec.is_parallel(),
    );
}

/// Derivative of [`linear`] in `w`: `dw += g^T x`.
pub(crate) fn linear_weight<T: Real>(g: &[T], x: &[T], rows: usize, dw: &mut [T], exec: Exec) {
    let (inner, out) = (x.len() / rows, g.len() / rows);
    let (g, x) = (Mat::new(g, rows, out, out), Mat::new(x, rows, inner, inner));
    matmul(
        MatMut::new(dw, out, inner, inner),
        g.t(),
        x,
        T::ONE,
        true,
        exec.is_parallel(),
    );
}

/// Calls `f(first_row, rows)` for pieces of [`ROWS`] rows, on the pool when `exec` allows, and returns the results in order.
pub(crate) fn for_row_pieces<T: Send, R: Send>(
    exec: Exec,
    out: &mut [T],
    width: usize,
    f: impl Fn(usize, &mut [T]) -> R + Sync,
) -> Vec<R> {
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

/// RMSNorm of each row of `w.len()` values.
pub(crate) fn rms_norm<T: Real>(x: &[T], w: &[T], eps: f64, out: &mut [T], exec: Exec) {
    let width = w.len();
    for_row_pieces(exec, out, width, |row, out| {
        rows::rms_norm(&x[row * width..][..out.len()], w, T::of(eps), out)
    });
}

/// Derivative of [`rms_norm`] for the gradient `g` of its output: adds to `dx` and `dw`.
pub(crate) fn rms_norm_backward<T: Real>(
    x: &[T],
    w: &[T],
    eps: f64,
    g: &[T],
    dx: &mut [T],
    dw: &mut [T],
    exec: Exec,
) {
    let width = w.len();
    let pieces = for_row_pieces(exec, dx, width, |row, dx| {
        let mut dw = vec![T::ZERO; width];
        let (from, len) = (row * width, dx.len());
        rows::rms_norm_backward(&x[from..][..len], w, T::of(eps), &g[from..][..len], dx, &mut dw);
        dw
    });
    pieces.iter().for_each(|piece| rows::add(dw, piece));
}

/// `out = silu(gate) * up`.
pub(crate) fn swiglu<T: Real>(gate: &[T], up: &[T], width: usize, out: &mut [T], exec: Exec) {
    for_row_pieces(exec, out, width, |row, out| {
        let (from, len) = (row * width, out.len());
        rows::swiglu(&gate[from..][..len], &up[from..][..len], out);
    });
}

/// Derivative of [`swiglu`] for the gradient `g` of its output, written over `gate` and `up`.
pub(crate) fn swiglu_backward<T: Real>(gate: &mut [T], up: &mut [T], g: &[T], width: usize, exec: Exec) {
    let piece = ROWS * width;
    if exec.is_parallel() {
        let pairs = gate
            .par_chunks_mut(piece)
            .zip(up.par_chunks_mut(piece))
            .zip(g.par_chunks(piece));
        pairs.for_each(|((gate, up), g)| rows::swiglu_backward(gate, up, g));
    } else {
        rows::swiglu_backward(gate, up, g);
    }
}

/// Adds a bias to each row.
pub(crate) fn add_bias<T: Real>(y: &mut [T], bias: &[T]) {
    y.chunks_exact_mut(bias.len())
        .for_each(|row| rows::add(row, bias));
}

/// Derivative of [`add_bias`]: `db +=` the sum of the rows of `g`.
pub(crate) fn bias_backward<T: Real>(g: &[T], db: &mut [T]) {
    let width = db.len();
    g.chunks_exact(width).for_each(|row| rows::add(db, row));
}
