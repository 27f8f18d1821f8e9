//! Plain loops behind the differentiable ops: matrix product, row-wise functions and their derivatives.

mod gemm;
pub(crate) mod rows;
mod simd;

pub(crate) use gemm::{Mat, MatMut, matmul};
pub(crate) use simd::Real;
