//! A safe matrix product over strided views of slices.

use gemm::Parallelism;

/// A strided matrix to read; element `(i, j)` is `data[i * row_stride + j * col_stride]`.
#[derive(Clone, Copy)]
pub(crate) struct Mat<'a, T> {
    data: &'a [T],
    rows: usize,
    cols: usize,
    row_stride: usize,
    col_stride: usize,
}

impl<'a, T> Mat<'a, T> {
    /// `rows` rows of `cols` values, `row_stride` apart.
    ///
    /// # Panics
    /// When the slice is too short.
    pub(crate) fn new(data: &'a [T], rows: usize, cols: usize, row_stride: usize) -> Self {
        assert_extent(data.len(), rows, cols, row_stride);
        Self {
            data,
            rows,
            cols,
            row_stride,
            col_stride: 1,
        }
    }

    /// The transpose.
    pub(crate) fn t(self) -> Self {
        Self {
            rows: self.cols,
            cols: self.rows,
            row_stride: self.col_stride,
            col_stride: self.row_stride,
            ..self
        }
    }
}

/// A row-major matrix to write.
pub(crate) struct MatMut<'a, T> {
    data: &'a mut [T],
    rows: usize,
    cols: usize,
    row_stride: usize,
}

impl<'a, T> MatMut<'a, T> {
    /// `rows` rows of `cols` values, `row_stride` apart.
    ///
    /// # Panics
    /// When the slice is too short or rows overlap.
    pub(crate) fn new(data: &'a mut [T], rows: usize, cols: usize, row_stride: usize) -> Self {
        assert_extent(data.len(), rows, cols, row_stride);
        Self {
            data,
            rows,
            cols,
            row_stride,
        }
    }
}

fn assert_extent(len: usize, rows: usize, cols: usize, row_stride: usize) {
    assert!(
        row_stride >= cols,
        "rows of {cols} overlap at a stride of {row_stride}"
    );
    let needed = if rows == 0 || cols == 0 {
        0
    } else {
        (rows - 1) * row_stride + cols
    };
    assert!(
        len >= needed,
        "a view of {rows} x {cols} at stride {row_stride} needs {needed} values, got {len}"
    );
}

/// `dst = scale * a b`, added to what is there when `accumulate`.
///
/// Every output element sums over the inner dimension in an order that does not depend on `parallel` or the number of threads.
///
/// # Panics
/// When shapes disagree.
pub(crate) fn matmul<T: super::Real>(
    dst: MatMut<'_, T>,
    a: Mat<'_, T>,
    b: Mat<'_, T>,
    scale: T,
    accumulate: bool,
    parallel: bool,
) {
    let MatMut {
        data,
        rows: m,
        cols: n,
        row_stride,
    } = dst;
    let k = a.cols;
    assert!(
        a.rows == m && b.cols == n && b.rows == k,
        "cannot write [{}, {k}] x [{}, {}] into [{m}, {n}]",
        a.rows,
        b.rows,
        b.cols
    );
    let parallelism = if parallel {
        Parallelism::Rayon(0)
    } else {
        Parallelism::None
    };
    // SAFETY: `Mat` and `MatMut` checked at construction that every `(i, j)` within their extents lies inside their slices (transposing
    // keeps the extent), the shapes agree, `dst` is borrowed mutably so it aliases neither input, and its rows do not overlap. `T` is f32 or
    // f64 (`Real` is implemented for no other type), both of which `gemm` accepts. Strides fit in isize since slices do.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            data.as_mut_ptr(),
            1,
            row_stride as isize,
            accumulate,
            a.data.as_ptr(),
            a.col_stride as isize,
            a.row_stride as isize,
            b.data.as_ptr(),
            b.col_stride as isize,
            b.row_stride as isize,
            T::ONE,
            scale,
            false,
            false,
            false,
            parallelism,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn naive(m: usize, n: usize, k: usize, a: &[f64], b: &[f64]) -> Vec<f64> {
        let mut out = vec![0.0; m * n];
        for i in 0..m {
            for j in 0..n {
                out[i * n + j] = (0..k).map(|p| a[i * k + p] * b[p * n + j]).sum();
            }
        }
        out
    }

    #[test]
    fn agrees_with_the_triple_loop_at_odd_shapes() {
        for (m, n, k) in [
            (1, 1, 1),
            (3, 5, 7),
            (17, 16, 2),
            (70, 33, 24),
            (1, 40, 600),
            (40, 1, 9),
        ] {
            let a: Vec<f64> = (0..m * k).map(|i| (i as f64 * 0.37).sin()).collect();
            let b: Vec<f64> = (0..k * n).map(|i| (i as f64 * 0.11).cos()).collect();
            let mut out = vec![1.0; m * n];
            matmul(
                MatMut::new(&mut out, m, n, n),
                Mat::new(&a, m, k, k),
                Mat::new(&b, k, n, n),
                2.0,
                true,
                false,
            );
            for (got, want) in out.iter().zip(naive(m, n, k, &a, &b)) {
                assert!((got - (1.0 + 2.0 * want)).abs() < 1e-12 * k as f64, "{m}x{n}x{k}");
            }
        }
    }

    #[test]
    fn parallel_and_serial_products_have_the_same_bits() {
        let (m, n, k) = (513, 96, 1100);
        let a: Vec<f32> = (0..m * k).map(|i| (i as f32 * 0.37).sin()).collect();
        let b: Vec<f32> = (0..k * n).map(|i| (i as f32 * 0.11).cos()).collect();
        let run = |parallel: bool, threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new()
                .num_threads(threads)
                .build()
                .unwrap();
            let mut out = vec![0f32; m * n];
            pool.install(|| {
                matmul(
                    MatMut::new(&mut out, m, n, n),
                    Mat::new(&a, m, k, k),
                    Mat::new(&b, k, n, n),
                    1.0,
                    false,
                    parallel,
                );
            });
            out.iter().map(|x| x.to_bits()).collect::<Vec<_>>()
        };
        let serial = run(false, 1);
        for threads in [1, 2, 3, 8] {
            assert_eq!(serial, run(true, threads), "{threads} threads");
        }
    }

    #[test]
    #[should_panic(expected = "needs 12 values")]
    fn a_short_slice_is_refused() {
        let data = [0f32; 11];
        let _ = Mat::new(&data, 3, 4, 4);
    }
}
