//! Attention of one token over its episode's cache.

use super::kv::{KvCache, KvShape, PAGE};
use super::math;
use crate::quant::{Isa, LANES, multiply};

/// Buffers of [`attend`], reused between tokens.
#[derive(Default)]
pub(crate) struct Buffers {
    scores: Vec<f32>,
    tile: Vec<f32>,
    sums: Vec<f32>,
}

/// Causal attention of the token at `position`: `softmax(q k^T / sqrt(head_dim)) v` for every head.
///
/// - `query`: `[heads][head_dim]`; `out`: the same shape. Query head `h` reads key head `h / (heads / kv_heads)`.
///
/// Scores are summed over channels, weights over positions, each in ascending order, so pages do not matter.
pub(crate) fn attend(
    cache: &KvCache,
    shape: &KvShape,
    layer: usize,
    position: usize,
    query: &[f32],
    out: &mut [f32],
    buffers: &mut Buffers,
) {
    let isa = Isa::best();
    let dim = shape.head_dim;
    let group = query.len() / (shape.heads * dim);
    let (seen, pages) = (position + 1, (position + 1).div_ceil(PAGE));
    let stride = pages * PAGE;
    let scale = 1.0 / (dim as f32).sqrt();
    let Buffers { scores, tile, sums } = buffers;
    scores.resize(group * stride, 0.0);
    tile.resize(shape.value_panels() * group * LANES, 0.0);
    for head in 0..shape.heads {
        let queries = &query[head * group * dim..][..group * dim];
        for page in 0..pages {
            let (keys, scales) = cache.keys(shape, layer, head, page);
            let tile = &mut tile[..group * LANES];
            multiply(isa, keys, dim, queries, dim, group, tile, false);
            for (row, tile) in tile.chunks_exact(LANES).enumerate() {
                let scores = &mut scores[row * stride + page * PAGE..][..PAGE];
                math::scale(tile, scales, scale, scores);
            }
        }
        sums.clear();
        sums.extend(
            scores
                .chunks_exact_mut(stride)
                .map(|row| math::softmax_unscaled(&mut row[..seen])),
        );
        for page in 0..pages {
            let known = PAGE.min(seen - page * PAGE);
            let (_, scales) = cache.values(shape, layer, head, page, 0);
            for row in scores.chunks_exact_mut(stride) {
                for (weight, scale) in row[page * PAGE..][..known].iter_mut().zip(scales) {
                    *weight *= scale;
                }
            }
            for (panel, tile) in tile.chunks_exact_mut(group * LANES).enumerate() {
                let (values, _) = cache.values(shape, layer, head, page, panel);
                multiply(
                    isa,
                    values,
                    known,
                    &scores[page * PAGE..],
                    stride,
                    group,
                    tile,
                    page > 0,
                );
            }
        }
        for (row, sum) in sums.iter().enumerate() {
            let out = &mut out[(head * group + row) * dim..][..dim];
            for (panel, out) in out.chunks_mut(LANES).enumerate() {
                let tile = &tile[(panel * group + row) * LANES..];
                for (out, value) in out.iter_mut().zip(tile) {
                    *out = value / sum;
                }
            }
        }
    }
}
