//! `y = x W^T`.

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CustomOp2, Layout, Result, Shape, Tensor};

use super::super::kernels::{Mat, MatMut, Real, matmul};
use super::{Exec, for_float, operand, with_values};

/// `x W^T` for `x: [rows, in]` and `w: [out, in]`; returns `[rows, out]`.
///
/// # Errors
/// On a shape or dtype mismatch.
pub(crate) fn linear(x: &Tensor, w: &Tensor, exec: Exec) -> Result<Tensor> {
    if x.device().is_cpu() {
        x.apply_op2(w, Linear { exec })
    } else {
        x.matmul(&w.t()?)
    }
}

struct Linear {
    exec: Exec,
}

impl Linear {
    fn forward<T: Real>(&self, x: &[T], w: &[T], rows: usize, inner: usize, out: usize) -> CpuStorage {
        let mut y = vec![T::ZERO; rows * out];
        matmul(
            MatMut::new(&mut y, rows, out, out),
            Mat::new(x, rows, inner, inner),
            Mat::new(w, out, inner, inner).t(),
            T::ONE,
            false,
            self.exec.is_parallel(),
        );
        T::to_cpu_storage_owned(y)
    }

    fn backward<T: Real>(&self, x: &Tensor, w: &Tensor, g: &Tensor) -> Result<(Tensor, Tensor)> {
        let (rows, inner) = x.dims2()?;
        let out = w.dim(0)?;
        let parallel = self.exec.is_parallel();
        let (mut dx, mut dw) = (vec![T::ZERO; rows * inner], vec![T::ZERO; out * inner]);
        with_values::<T, _>(g, |g| {
            let g = Mat::new(g, rows, out, out);
            with_values::<T, _>(w, |w| {
                let w = Mat::new(w, out, inner, inner);
                matmul(
                    MatMut::new(&mut dx, rows, inner, inner),
                    g,
                    w,
                    T::ONE,
                    false,
                    parallel,
                );
                Ok(())
            })?;
            with_values::<T, _>(x, |x| {
                let x = Mat::new(x, rows, inner, inner);
                matmul(
                    MatMut::new(&mut dw, out, inner, inner),
                    g.t(),
                    x,
                    T::ONE,
                    false,
                    parallel,
                );
                Ok(())
            })
        })?;
        Ok((
            Tensor::from_vec(dx, x.shape(), x.device())?,
            Tensor::from_vec(dw, w.shape(), w.device())?,
        ))
    }
}

impl CustomOp2 for Linear {
    fn name(&self) -> &'static str {
        "linear"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        xl: &Layout,
        w: &CpuStorage,
        wl: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (rows, inner) = xl.shape().dims2()?;
        let (out, w_inner) = wl.shape().dims2()?;
        if inner != w_inner {
            candle_core::bail!("linear: rows of {inner} values for a weight of [{out}, {w_inner}]")
        }
        let y = for_float!(x.dtype(), T => {
            self.forward::<T>(operand("linear", x, xl)?, operand("linear", w, wl)?, rows, inner, out)
        });
        Ok((y, (rows, out).into()))
    }

    fn bwd(
        &self,
        x: &Tensor,
        w: &Tensor,
        _y: &Tensor,
        g: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let g = g.contiguous()?;
        let (dx, dw) = for_float!(x.dtype(), T => self.backward::<T>(x, w, &g)?);
        Ok((Some(dx), Some(dw)))
    }
}
