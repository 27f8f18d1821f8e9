//! SwiGLU's gate: `silu(gate) * up`.

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CustomOp2, Layout, Result, Shape, Tensor};

use super::super::kernels::{Real, rows};
use super::{Exec, for_float, for_row_pieces, operand, with_values};

/// `silu(gate) * up`, element-wise over `[rows, width]`.
///
/// # Errors
/// On a shape or dtype mismatch.
pub(crate) fn swiglu(gate: &Tensor, up: &Tensor, exec: Exec) -> Result<Tensor> {
    if gate.device().is_cpu() {
        gate.apply_op2(up, SwiGlu { exec })
    } else {
        gate.silu()? * up
    }
}

struct SwiGlu {
    exec: Exec,
}

impl SwiGlu {
    fn forward<T: Real>(&self, gate: &[T], up: &[T], width: usize) -> CpuStorage {
        let mut out = vec![T::ZERO; gate.len()];
        for_row_pieces(self.exec, &mut out, width, |row, out| {
            let (from, len) = (row * width, out.len());
            rows::swiglu(&gate[from..][..len], &up[from..][..len], out);
        });
        T::to_cpu_storage_owned(out)
    }

    fn backward<T: Real>(&self, gate: &Tensor, up: &Tensor, g: &Tensor) -> Result<(Tensor, Tensor)> {
        let (_, width) = gate.dims2()?;
        let n = gate.elem_count();
        let (mut dgate, mut dup) = (vec![T::ZERO; n], vec![T::ZERO; n]);
        with_values::<T, _>(gate, |gate| {
            with_values::<T, _>(up, |up| {
                with_values::<T, _>(g, |g| {
                    let piece = super::ROWS * width;
                    let one = |i: usize, dgate: &mut [T], dup: &mut [T]| {
                        let (from, len) = (i * piece, dgate.len());
                        rows::swiglu_backward(
                            &gate[from..][..len],
                            &up[from..][..len],
                            &g[from..][..len],
                            dgate,
                            dup,
                        );
                    };
                    if self.exec.is_parallel() {
                        use rayon::prelude::*;
                        let pairs = dgate.par_chunks_mut(piece).zip(dup.par_chunks_mut(piece));
                        pairs.enumerate().for_each(|(i, (a, b))| one(i, a, b));
                    } else {
                        let pairs = dgate.chunks_mut(piece).zip(dup.chunks_mut(piece));
                        pairs.enumerate().for_each(|(i, (a, b))| one(i, a, b));
                    }
                    Ok(())
                })
            })
        })?;
        Ok((
            Tensor::from_vec(dgate, gate.shape(), gate.device())?,
            Tensor::from_vec(dup, up.shape(), up.device())?,
        ))
    }
}

impl CustomOp2 for SwiGlu {
    fn name(&self) -> &'static str {
        "swiglu"
    }

    fn cpu_fwd(
        &self,
        gate: &CpuStorage,
        gl: &Layout,
        up: &CpuStorage,
        ul: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (_, width) = gl.shape().dims2()?;
        if gl.shape() != ul.shape() {
            candle_core::bail!("swiglu: gate {:?} and up {:?} differ", gl.shape(), ul.shape())
        }
        let out = for_float!(gate.dtype(), T => {
            self.forward::<T>(operand("swiglu", gate, gl)?, operand("swiglu", up, ul)?, width)
        });
        Ok((out, gl.shape().clone()))
    }

    fn bwd(
        &self,
        gate: &Tensor,
        up: &Tensor,
        _y: &Tensor,
        g: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let g = g.contiguous()?;
        let (dgate, dup) = for_float!(gate.dtype(), T => self.backward::<T>(gate, up, &g)?);
        Ok((Some(dgate), Some(dup)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::ops::testing::{check_gradients, wave};

    #[test]
    fn equals_the_composed_form_and_has_its_gradient() {
        check_gradients(
            &[wave((300, 5), 0.3), wave((300, 5), 0.9)],
            |v| swiglu(&v[0], &v[1], Exec::Parallel),
            |v| v[0].silu()? * &v[1],
        );
    }
}
