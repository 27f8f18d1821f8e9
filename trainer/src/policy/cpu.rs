//! Forward and backward on the CPU, written out: no graph is recorded, buffers are reused, weight gradients accumulate where they end up.
//!
//! After the last attention only the rows that predict a sampled token are computed.

use mipu_agent::ModelConfig;

use super::kernels::attention::{Attention, Heads};
use super::kernels::head::Head;
use super::kernels::{self, Exec, Real, RopeTable, rope, rows};
use super::layout::{LayerLayout, Layout};
use crate::batch::Packed;

/// A model's weights as slices, and how to run them.
pub(crate) struct Cpu<'a, T> {
    pub(crate) config: &'a ModelConfig,
    pub(crate) layout: &'a Layout,
    /// In canonical order.
    pub(crate) weights: Vec<&'a [T]>,
    pub(crate) rope: &'a RopeTable<T>,
    pub(crate) exec: Exec,
}

/// What the backward pass needs of a layer; `[tokens, _]`, or `[targets, _]` after the last attention.
#[derive(Default)]
struct LayerTrace<T> {
    x: Vec<T>,
    normed: Vec<T>,
    /// Before the head norm; unused without one.
    q_raw: Vec<T>,
    k_raw: Vec<T>,
    q: Vec<T>,
    k: Vec<T>,
    v: Vec<T>,
    mixed: Vec<T>,
    x_mid: Vec<T>,
    mid_normed: Vec<T>,
    gate: Vec<T>,
    up: Vec<T>,
    act: Vec<T>,
}

/// Buffers of one forward and backward pass; reuse them to save allocations.
#[derive(Default)]
pub(crate) struct Trace<T> {
    layers: Vec<LayerTrace<T>>,
    /// Output of the last layer.
    x: Vec<T>,
    normed: Vec<T>,
    attended: Vec<T>,
    dx: Vec<T>,
    dh: Vec<T>,
    dact: Vec<T>,
    dmixed: Vec<T>,
    dq: Vec<T>,
    dk: Vec<T>,
    dv: Vec<T>,
    draw: Vec<T>,
}

/// Gives a buffer a length; its values are whatever they were.
fn fit<T: Real>(buffer: &mut Vec<T>, len: usize) -> &mut [T] {
    buffer.resize(len, T::ZERO);
    buffer
}

/// Gives a buffer a length and fills it with zeros.
fn zero<T: Real>(buffer: &mut Vec<T>, len: usize) -> &mut [T] {
    buffer.clear();
    buffer.resize(len, T::ZERO);
    buffer
}

fn gather<T: Real>(source: &[T], rows: &[u32], width: usize, out: &mut Vec<T>) {
    out.clear();
    rows.iter()
        .for_each(|&row| out.extend_from_slice(&source[row as usize * width..][..width]));
}

/// Writes `rows` of `values` into zeros of `count` rows.
fn scatter<T: Real>(values: &[T], rows: &[u32], count: usize, width: usize, out: &mut Vec<T>) {
    zero(out, count * width);
    for (value, &row) in values.chunks_exact(width).zip(rows) {
        out[row as usize * width..][..width].copy_from_slice(value);
    }
}

impl<T: Real> Cpu<'_, T> {
    fn heads(&self) -> Heads {
        let c = self.config;
        Heads {
            heads: c.num_attention_heads,
            kv_heads: c.num_key_value_heads,
            head_dim: c.head_dim,
        }
    }

    fn head<'b>(&'b self, batch: &'b Packed, temperature: f64) -> Head<'b, T> {
        Head {
            weight: self.weights[self.layout.head],
            width: self.config.hidden_size,
            targets: &batch.targets,
            inv_temperature: 1.0 / temperature,
            exec: self.exec,
        }
    }

    fn norm(&self, x: &[T], weight: usize, out: &mut [T]) {
        kernels::rms_norm(x, self.weights[weight], self.config.rms_norm_eps, out, self.exec);
    }

    /// Log-prob of each sampled token under `log_softmax(logits / temperature)`, and the entropy of that distribution.
    ///
    /// The batch must hold a target. With `keep` the trace serves [`Self::backward`].
    pub(crate) fn forward(
        &self,
        batch: &Packed,
        temperature: f64,
        trace: &mut Trace<T>,
        keep: bool,
    ) -> Vec<(T, T)> {
        let hidden = self.config.hidden_size;
        gather(
            self.weights[self.layout.embedding],
            &batch.ids,
            hidden,
            &mut trace.x,
        );
        let layers = self.layout.layers.len();
        trace
            .layers
            .resize_with(if keep { layers } else { 1 }, LayerTrace::default);
        for (index, layout) in self.layout.layers.iter().enumerate() {
            let layer = &mut trace.layers[if keep { index } else { 0 }];
            std::mem::swap(&mut layer.x, &mut trace.x);
            let rows = (index + 1 == layers).then_some(batch.rows.as_slice());
            self.layer(layout, batch, rows, layer, &mut trace.attended, &mut trace.x);
        }
        self.norm(&trace.x, self.layout.norm, fit(&mut trace.normed, trace.x.len()));
        self.head(batch, temperature).forward(&trace.normed)
    }

    /// One layer from `layer.x` to `out`; with `rows`, only these rows of the output.
    fn layer(
        &self,
        layout: &LayerLayout,
        batch: &Packed,
        rows: Option<&[u32]>,
        layer: &mut LayerTrace<T>,
        attended: &mut Vec<T>,
        out: &mut Vec<T>,
    ) {
        let (exec, hidden, tokens) = (self.exec, self.config.hidden_size, batch.ids.len());
        let Heads {
            heads,
            kv_heads,
            head_dim,
        } = self.heads();
        self.norm(&layer.x, layout.input_norm, fit(&mut layer.normed, layer.x.len()));
        let widths = [heads * head_dim, kv_heads * head_dim, kv_heads * head_dim];
        for (i, out) in [&mut layer.q, &mut layer.k, &mut layer.v].into_iter().enumerate() {
            let out = fit(out, tokens * widths[i]);
            kernels::linear(
                &layer.normed,
                self.weights[layout.qkv[i]],
                tokens,
                out,
                false,
                exec,
            );
            if let Some(bias) = layout.qkv_bias {
                kernels::add_bias(out, self.weights[bias[i]]);
            }
        }
        if let Some([q_norm, k_norm]) = layout.qk_norm {
            for (x, raw, weight) in [
                (&mut layer.q, &mut layer.q_raw, q_norm),
                (&mut layer.k, &mut layer.k_raw, k_norm),
            ] {
                std::mem::swap(x, raw);
                self.norm(raw, weight, fit(x, raw.len()));
            }
        }
        rope(&mut layer.q, self.rope, &batch.positions, 1.0, exec);
        rope(&mut layer.k, self.rope, &batch.positions, 1.0, exec);
        let attention = Attention {
            offsets: &batch.offsets,
            shape: self.heads(),
            exec,
        };
        match rows {
            None => {
                attention.forward(&layer.q, &layer.k, &layer.v, fit(&mut layer.mixed, layer.q.len()));
                layer.x_mid.clone_from(&layer.x);
            }
            Some(rows) => {
                attention.forward(&layer.q, &layer.k, &layer.v, fit(attended, layer.q.len()));
                gather(attended, rows, heads * head_dim, &mut layer.mixed);
                gather(&layer.x, rows, hidden, &mut layer.x_mid);
            }
        }
        let count = rows.map_or(tokens, <[u32]>::len);
        let inner = self.config.intermediate_size;
        kernels::linear(
            &layer.mixed,
            self.weights[layout.o],
            count,
            &mut layer.x_mid,
            true,
            exec,
        );
        self.norm(
            &layer.x_mid,
            layout.post_norm,
            fit(&mut layer.mid_normed, layer.x_mid.len()),
        );
        let normed = &layer.mid_normed;
        kernels::linear(
            normed,
            self.weights[layout.gate],
            count,
            fit(&mut layer.gate, count * inner),
            false,
            exec,
        );
        kernels::linear(
            normed,
            self.weights[layout.up],
            count,
            fit(&mut layer.up, count * inner),
            false,
            exec,
        );
        kernels::swiglu(
            &layer.gate,
            &layer.up,
            inner,
            fit(&mut layer.act, count * inner),
            exec,
        );
        out.clone_from(&layer.x_mid);
        kernels::linear(&layer.act, self.weights[layout.down], count, out, true, exec);
    }

    /// Adds to `grads` (in canonical order) the derivative for gradients `g` of log-prob and entropy of each target. The trace is that of
    /// [`Self::forward`] on the same batch, and is used up.
    pub(crate) fn backward(
        &self,
        batch: &Packed,
        temperature: f64,
        trace: &mut Trace<T>,
        g: &[(T, T)],
        grads: &mut [Vec<T>],
    ) {
        let (hidden, eps, exec) = (self.config.hidden_size, self.config.rms_norm_eps, self.exec);
        let len = trace.x.len();
        let dh = fit(&mut trace.dh, len);
        self.head(batch, temperature)
            .backward(&trace.normed, g, dh, &mut grads[self.layout.head]);
        let (w, dx) = (self.weights[self.layout.norm], zero(&mut trace.dx, len));
        kernels::rms_norm_backward(&trace.x, w, eps, dh, dx, &mut grads[self.layout.norm], exec);
        let layers = self.layout.layers.len();
        for index in (0..layers).rev() {
            let rows = (index + 1 == layers).then_some(batch.rows.as_slice());
            self.layer_backward(index, batch, rows, trace, grads);
        }
        let embedding = &mut grads[self.layout.embedding];
        for (dx, &id) in trace.dx.chunks_exact(hidden).zip(&batch.ids) {
            rows::add(&mut embedding[id as usize * hidden..][..hidden], dx);
        }
    }

    /// Turns `trace.dx` from the gradient of the layer's output into that of its input.
    fn layer_backward(
        &self,
        index: usize,
        batch: &Packed,
        rows: Option<&[u32]>,
        trace: &mut Trace<T>,
        grads: &mut [Vec<T>],
    ) {
        let Trace {
            layers,
            dx,
            dh,
            dact,
            dmixed,
            dq,
            dk,
            dv,
            draw,
            ..
        } = trace;
        let (layer, layout) = (&mut layers[index], &self.layout.layers[index]);
        let (exec, eps, hidden, tokens) = (
            self.exec,
            self.config.rms_norm_eps,
            self.config.hidden_size,
            batch.ids.len(),
        );
        let count = rows.map_or(tokens, <[u32]>::len);
        let Heads { heads, head_dim, .. } = self.heads();
        let w = |i: usize| self.weights[i];

        kernels::linear_weight(dx, &layer.act, count, &mut grads[layout.down], exec);
        let inner = self.config.intermediate_size;
        kernels::linear_input(dx, w(layout.down), count, fit(dact, count * inner), false, exec);
        kernels::swiglu_backward(&mut layer.gate, &mut layer.up, dact, inner, exec);
        kernels::linear_weight(
            &layer.gate,
            &layer.mid_normed,
            count,
            &mut grads[layout.gate],
            exec,
        );
        kernels::linear_weight(&layer.up, &layer.mid_normed, count, &mut grads[layout.up], exec);
        kernels::linear_input(
            &layer.gate,
            w(layout.gate),
            count,
            fit(dh, count * hidden),
            false,
            exec,
        );
        kernels::linear_input(&layer.up, w(layout.up), count, dh, true, exec);
        kernels::rms_norm_backward(
            &layer.x_mid,
            w(layout.post_norm),
            eps,
            dh,
            dx,
            &mut grads[layout.post_norm],
            exec,
        );

        kernels::linear_weight(dx, &layer.mixed, count, &mut grads[layout.o], exec);
        kernels::linear_input(
            dx,
            w(layout.o),
            count,
            fit(dmixed, layer.mixed.len()),
            false,
            exec,
        );
        if let Some(rows) = rows {
            scatter(dmixed, rows, tokens, heads * head_dim, draw);
            std::mem::swap(dmixed, draw);
            scatter(dx, rows, tokens, hidden, draw);
            std::mem::swap(dx, draw);
        }
        let attention = Attention {
            offsets: &batch.offsets,
            shape: self.heads(),
            exec,
        };
        let out = [
            fit(dq, layer.q.len()),
            fit(dk, layer.k.len()),
            fit(dv, layer.v.len()),
        ];
        attention.backward(&layer.q, &layer.k, &layer.v, dmixed, out);
        rope(dq, self.rope, &batch.positions, -1.0, exec);
        rope(dk, self.rope, &batch.positions, -1.0, exec);
        if let Some([q_norm, k_norm]) = layout.qk_norm {
            for (d, raw, weight) in [(&mut *dq, &layer.q_raw, q_norm), (&mut *dk, &layer.k_raw, k_norm)] {
                zero(draw, d.len());
                kernels::rms_norm_backward(raw, w(weight), eps, d, draw, &mut grads[weight], exec);
                std::mem::swap(d, draw);
            }
        }
        for (i, d) in [dq, dk, dv].into_iter().enumerate() {
            if let Some(bias) = layout.qkv_bias {
                kernels::bias_backward(d, &mut grads[bias[i]]);
            }
            kernels::linear_weight(d, &layer.normed, tokens, &mut grads[layout.qkv[i]], exec);
            kernels::linear_input(d, w(layout.qkv[i]), tokens, fit(dh, tokens * hidden), i > 0, exec);
        }
        kernels::rms_norm_backward(
            &layer.x,
            w(layout.input_norm),
            eps,
            dh,
            dx,
            &mut grads[layout.input_norm],
            exec,
        );
    }
}
