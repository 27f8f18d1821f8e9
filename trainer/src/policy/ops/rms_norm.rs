//! RMSNorm: `y = w * x / sqrt(mean(x^2) + eps)` over the last dimension.

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CustomOp2, D, Layout, Result, Shape, Tensor};

use super::super::kernels::{Real, rows};
use super::{Exec, for_float, for_row_pieces, operand, with_values};

/// RMSNorm of each row of `x: [rows, width]` with weight `w: [width]`.
///
/// # Errors
/// On a shape or dtype mismatch.
pub(crate) fn rms_norm(x: &Tensor, w: &Tensor, eps: f64, exec: Exec) -> Result<Tensor> {
    if x.device().is_cpu() {
        x.apply_op2(w, RmsNorm { eps, exec })
    } else {
        composed(x, w, eps)
    }
}

fn composed(x: &Tensor, w: &Tensor, eps: f64) -> Result<Tensor> {
    let inverse = (x.sqr()?.mean_keepdim(D::Minus1)? + eps)?.sqrt()?.recip()?;
    x.broadcast_mul(&inverse)?.broadcast_mul(w)
}

struct RmsNorm {
    eps: f64,
    exec: Exec,
}

impl RmsNorm {
    fn forward<T: Real>(&self, x: &[T], w: &[T]) -> CpuStorage {
        let width = w.len();
        let mut out = vec![T::ZERO; x.len()];
        for_row_pieces(self.exec, &mut out, width, |row, out| {
            rows::rms_norm(&x[row * width..][..out.len()], w, T::of(self.eps), out);
        });
        T::to_cpu_storage_owned(out)
    }

    fn backward<T: Real>(&self, x: &Tensor, w: &Tensor, g: &Tensor) -> Result<(Tensor, Tensor)> {
        let width = w.dim(0)?;
        let mut dx = vec![T::ZERO; x.elem_count()];
        let mut dw = vec![T::ZERO; width];
        let partial = with_values::<T, _>(x, |x| {
            with_values::<T, _>(w, |w| {
                with_values::<T, _>(g, |g| {
                    Ok(for_row_pieces(self.exec, &mut dx, width, |row, dx| {
                        let mut dw = vec![T::ZERO; width];
                        let (from, len) = (row * width, dx.len());
                        rows::rms_norm_backward(
                            &x[from..][..len],
                            w,
                            T::of(self.eps),
                            &g[from..][..len],
                            dx,
                            &mut dw,
                        );
                        dw
                    }))
                })
            })
        })?;
        for piece in partial {
            for (sum, value) in dw.iter_mut().zip(piece) {
                *sum += value;
            }
        }
        Ok((
            Tensor::from_vec(dx, x.shape(), x.device())?,
            Tensor::from_vec(dw, width, w.device())?,
        ))
    }
}

impl CustomOp2 for RmsNorm {
    fn name(&self) -> &'static str {
        "rms-norm"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        xl: &Layout,
        w: &CpuStorage,
        wl: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (_, width) = xl.shape().dims2()?;
        if wl.shape().dims1()? != width {
            candle_core::bail!(
                "rms-norm: rows of {width} values for a weight of {:?}",
                wl.shape()
            )
        }
        let out = for_float!(x.dtype(), T => self.forward::<T>(operand("rms-norm", x, xl)?, operand("rms-norm", w, wl)?));
        Ok((out, xl.shape().clone()))
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

#[cfg(test)]
mod tests {

    use super::*;
    use crate::policy::ops::testing::{check_gradients, wave};

    #[test]
    fn equals_the_composed_form_and_has_its_gradient() {
        let rows = 2 * crate::policy::ops::ROWS + 3;
        let (x, w) = (wave((rows, 21), 0.3), wave(21, 0.7));
        check_gradients(
            &[x, w],
            |v| rms_norm(&v[0], &v[1], 1e-6, Exec::Parallel),
            |v| composed(&v[0], &v[1], 1e-6),
        );
    }
}
