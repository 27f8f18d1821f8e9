//! One step of the packed model over tokens of several episodes.
//!
//! Every row (one token of one episode) is computed on its own: norms, quantisation, linear layers, attention and sampling read
//! nothing of other rows except their episode's cache. So a row's bits do not depend on the batch, and rows may be split among
//! threads in any way.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;

use super::attention::{Buffers, attend};
use super::kv::{KvCache, KvShape};
use super::math;
use super::sampling::Distribution;
use super::{EngineConfig, Precision};
use crate::model::{ModelConfig, Weights};
use crate::policy::Sampling;
use crate::quant::{Linear, Team, fake_quantise};

/// Rows whose logits are held at once.
const LOGIT_ROWS: usize = 64;

/// The weights as the sampler runs them.
pub(crate) struct Packed {
    pub(crate) config: Arc<ModelConfig>,
    pub(crate) kv: KvShape,
    /// Pages alive, in every cache of this model.
    pub(crate) live_pages: Arc<AtomicUsize>,
    activations: Precision,
    head_precision: Precision,
    embedding: Arc<Vec<f32>>,
    layers: Vec<Layer>,
    norm: Arc<Vec<f32>>,
    head: Linear,
    cos: Vec<f32>,
    sin: Vec<f32>,
}

struct Layer {
    input_norm: Vec<f32>,
    qkv: Linear,
    qkv_bias: Vec<f32>,
    /// Query and key norms, empty without.
    qk_norm: [Vec<f32>; 2],
    o: Linear,
    post_norm: Vec<f32>,
    gate_up: Linear,
    down: Linear,
}

/// What to do with the logits of a work's tokens.
pub(crate) enum Want<'a> {
    /// Nothing: more of the context follows.
    Nothing,
    /// Draw the next token after the last one.
    Draw {
        sampling: Sampling,
        rng: &'a mut ChaCha8Rng,
    },
    /// Log-probs of the given next tokens, from the first token on.
    Score { temperature: f32, targets: &'a [u32] },
}

/// Tokens of one episode to run, after those in its cache.
pub(crate) struct Work<'a> {
    pub(crate) cache: &'a mut KvCache,
    pub(crate) tokens: &'a [u32],
    pub(crate) want: Want<'a>,
    /// Drawn or scored ids with their log-probs, after and before filters.
    pub(crate) out: Vec<(u32, [f32; 2])>,
    /// A logit was not finite.
    pub(crate) broken: bool,
}

/// One token of one work.
#[derive(Clone, Copy)]
struct Row {
    work: usize,
    position: usize,
}

/// Buffers of [`Packed::run`], one set for each thread.
pub(crate) struct Scratch {
    x: Vec<f32>,
    h: Vec<f32>,
    wide: Vec<f32>,
    inner: Vec<f32>,
    scales: Vec<f32>,
    tile: Vec<f32>,
    logits: Vec<f32>,
    attention: Buffers,
    distribution: Distribution,
}

impl Default for Scratch {
    fn default() -> Self {
        Self {
            x: Vec::new(),
            h: Vec::new(),
            wide: Vec::new(),
            inner: Vec::new(),
            scales: Vec::new(),
            tile: Vec::new(),
            logits: Vec::new(),
            attention: Buffers::default(),
            distribution: Distribution::new(),
        }
    }
}

impl Packed {
    /// Quantises and packs `weights`.
    pub(crate) fn new(weights: &Weights, engine: &EngineConfig) -> Self {
        let config = weights.config.clone();
        let (hidden, inner) = (config.hidden_size, config.intermediate_size);
        let attention = config.num_attention_heads * config.head_dim;
        let layers = (0..config.num_hidden_layers).into_par_iter().map(|l| {
            let get = |name: &str| weights.values(&format!("model.layers.{l}.{name}"));
            let pack = |names: &[&str], inputs| {
                let round = |name: &&str| match engine.weight_rounding.apply(get(name), inputs) {
                    Some(rounded) => Cow::Owned(rounded),
                    None => Cow::Borrowed(get(name)),
                };
                let matrices: Vec<Cow<'_, [f32]>> = names.iter().map(round).collect();
                let matrices: Vec<&[f32]> = matrices.iter().map(Cow::as_ref).collect();
                Linear::pack(&matrices, inputs, engine.weights)
            };
            let norm_of = |on: bool, name: &str| if on { get(name).to_vec() } else { Vec::new() };
            Layer {
                input_norm: get("input_layernorm.weight").to_vec(),
                qkv: pack(
                    &[
                        "self_attn.q_proj.weight",
                        "self_attn.k_proj.weight",
                        "self_attn.v_proj.weight",
                    ],
                    hidden,
                ),
                qkv_bias: if config.attention_bias {
                    ["q", "k", "v"]
                        .iter()
                        .flat_map(|p| get(&format!("self_attn.{p}_proj.bias")))
                        .copied()
                        .collect()
                } else {
                    Vec::new()
                },
                qk_norm: ["q", "k"].map(|p| norm_of(config.qk_norm, &format!("self_attn.{p}_norm.weight"))),
                o: pack(&["self_attn.o_proj.weight"], attention),
                post_norm: get("post_attention_layernorm.weight").to_vec(),
                gate_up: pack(&["mlp.gate_proj.weight", "mlp.up_proj.weight"], hidden),
                down: pack(&["mlp.down_proj.weight"], inner),
            }
        });
        let layers = layers.collect();
        let shared = |name: &str| weights.get(name).map(|t| t.2.clone()).unwrap_or_default();
        let embedding = shared("model.embed_tokens.weight");
        let head = if config.tie_word_embeddings {
            embedding.clone()
        } else {
            shared("lm_head.weight")
        };
        let (cos, sin) = config.rope_table(config.max_position_embeddings);
        Self {
            kv: KvShape::new(&config, engine.kv_cache),
            live_pages: Arc::default(),
            activations: engine.activations,
            head_precision: engine.lm_head,
            head: Linear::pack(&[&head], hidden, engine.lm_head),
            embedding,
            layers,
            norm: shared("model.norm.weight"),
            cos,
            sin,
            config,
        }
    }

    /// blake3 over everything the sampler computes with.
    pub(crate) fn hash(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        let floats = |hasher: &mut blake3::Hasher, values: &[f32]| {
            hasher.update(bytemuck::cast_slice(values));
        };
        floats(&mut hasher, &self.embedding);
        for layer in &self.layers {
            for linear in [&layer.qkv, &layer.o, &layer.gate_up, &layer.down] {
                linear.state().iter().for_each(|bytes| {
                    hasher.update(bytes);
                });
            }
            for values in [
                &layer.input_norm,
                &layer.qkv_bias,
                &layer.post_norm,
                &layer.qk_norm[0],
                &layer.qk_norm[1],
            ] {
                floats(&mut hasher, values);
            }
        }
        floats(&mut hasher, &self.norm);
        self.head.state().iter().for_each(|bytes| {
            hasher.update(bytes);
        });
        hasher.finalize().to_hex().to_string()
    }

    /// Runs the tokens of every work after its cache, extends the caches, and draws or scores what is wanted.
    pub(crate) fn run(&self, works: &mut [Work<'_>], scratch: &mut Scratch, team: Team) {
        let mut rows = Vec::new();
        for (i, work) in works.iter_mut().enumerate() {
            let start = work.cache.ids().len();
            work.cache.extend(work.tokens, &self.kv, &self.live_pages);
            rows.extend((start..start + work.tokens.len()).map(|position| Row { work: i, position }));
        }
        let hidden = self.config.hidden_size;
        scratch.x.clear();
        for work in works.iter() {
            for &id in work.tokens {
                scratch
                    .x
                    .extend_from_slice(&self.embedding[id as usize * hidden..][..hidden]);
            }
        }
        for (index, layer) in self.layers.iter().enumerate() {
            self.attention(layer, index, works, &rows, scratch, team);
            self.feed_forward(layer, rows.len(), scratch, team);
        }
        self.finish(works, scratch, team);
    }

    fn eps(&self) -> f32 {
        self.config.rms_norm_eps as f32
    }

    /// Quantises `rows` rows of `x` in place; their scales go to `scales`.
    fn quantise(&self, x: &mut [f32], rows: usize, scales: &mut Vec<f32>) {
        let width = x.len() / rows;
        scales.clear();
        scales.extend(
            x.chunks_exact_mut(width)
                .map(|row| fake_quantise(row, self.activations)),
        );
    }

    /// `x += o(attention(qkv(norm(x))))`.
    fn attention(
        &self,
        layer: &Layer,
        index: usize,
        works: &mut [Work<'_>],
        rows: &[Row],
        scratch: &mut Scratch,
        team: Team,
    ) {
        let config = &self.config;
        let Scratch {
            x,
            h,
            wide,
            inner,
            scales,
            tile,
            attention,
            ..
        } = scratch;
        let (n, hidden, dim) = (rows.len(), config.hidden_size, config.head_dim);
        let (q_width, kv_width) = (config.num_attention_heads * dim, config.num_key_value_heads * dim);
        h.resize(n * hidden, 0.0);
        for (x, h) in x.chunks_exact(hidden).zip(h.chunks_exact_mut(hidden)) {
            math::rms_norm(x, &layer.input_norm, self.eps(), h);
        }
        self.quantise(h, n, scales);
        let width = layer.qkv.outputs();
        wide.resize(n * width, 0.0);
        layer.qkv.forward(h, scales, wide, tile, team);
        for (qkv, &Row { work, position }) in wide.chunks_exact_mut(width).zip(rows) {
            if !layer.qkv_bias.is_empty() {
                math::add(qkv, &layer.qkv_bias);
            }
            let half = position * dim / 2..(position + 1) * dim / 2;
            let (cos, sin) = (&self.cos[half.clone()], &self.sin[half]);
            for (i, head) in qkv[..q_width + kv_width].chunks_exact_mut(dim).enumerate() {
                if config.qk_norm {
                    let which = usize::from(i >= config.num_attention_heads);
                    math::rms_norm_mut(head, &layer.qk_norm[which], self.eps());
                }
                math::rotate(head, cos, sin);
            }
            let (keys, values) = qkv[q_width..].split_at(kv_width);
            for (head, (k, v)) in keys.chunks_exact(dim).zip(values.chunks_exact(dim)).enumerate() {
                works[work].cache.write(&self.kv, index, head, position, [k, v]);
            }
        }
        inner.resize(n * q_width, 0.0);
        let caches: Vec<&KvCache> = works.iter().map(|w| &*w.cache).collect();
        let one = |buffers: &mut Buffers, out: &mut [f32], qkv: &[f32], row: &Row| {
            attend(
                caches[row.work],
                &self.kv,
                index,
                row.position,
                &qkv[..q_width],
                out,
                buffers,
            );
        };
        match team {
            Team::Solo => {
                let all = inner
                    .chunks_exact_mut(q_width)
                    .zip(wide.chunks_exact(width))
                    .zip(rows);
                all.for_each(|((out, qkv), row)| one(attention, out, qkv, row));
            }
            Team::Pool => {
                let all = inner
                    .par_chunks_exact_mut(q_width)
                    .zip(wide.par_chunks_exact(width))
                    .zip(rows);
                all.for_each_init(Buffers::default, |buffers, ((out, qkv), row)| {
                    one(buffers, out, qkv, row)
                });
            }
        }
        self.quantise(inner, n, scales);
        h.resize(n * hidden, 0.0);
        layer.o.forward(inner, scales, h, tile, team);
        math::add(x, h);
    }

    /// `x += down(silu(gate(norm(x))) * up(norm(x)))`.
    fn feed_forward(&self, layer: &Layer, n: usize, scratch: &mut Scratch, team: Team) {
        let Scratch {
            x,
            h,
            wide,
            inner,
            scales,
            tile,
            ..
        } = scratch;
        let (hidden, middle) = (self.config.hidden_size, self.config.intermediate_size);
        for (x, h) in x.chunks_exact(hidden).zip(h.chunks_exact_mut(hidden)) {
            math::rms_norm(x, &layer.post_norm, self.eps(), h);
        }
        self.quantise(h, n, scales);
        wide.resize(n * 2 * middle, 0.0);
        layer.gate_up.forward(h, scales, wide, tile, team);
        inner.resize(n * middle, 0.0);
        for (gate_up, out) in wide.chunks_exact(2 * middle).zip(inner.chunks_exact_mut(middle)) {
            math::swiglu(gate_up, out);
        }
        self.quantise(inner, n, scales);
        layer.down.forward(inner, scales, h, tile, team);
        math::add(x, h);
    }

    /// Logits of the rows that are wanted, and what is wanted of them.
    fn finish(&self, works: &mut [Work<'_>], scratch: &mut Scratch, team: Team) {
        let Scratch {
            x,
            h,
            scales,
            tile,
            logits,
            distribution,
            ..
        } = scratch;
        let (hidden, vocab) = (self.config.hidden_size, self.config.vocab_size);
        // (work, index in its targets) of every wanted row, and the row.
        let mut wanted: Vec<(usize, usize, usize)> = Vec::new();
        let mut first = 0;
        for (i, work) in works.iter().enumerate() {
            match &work.want {
                Want::Nothing => (),
                Want::Draw { .. } => wanted.push((i, 0, first + work.tokens.len() - 1)),
                Want::Score { targets, .. } => wanted.extend((0..targets.len()).map(|t| (i, t, first + t))),
            }
            first += work.tokens.len();
        }
        for chunk in wanted.chunks(LOGIT_ROWS) {
            h.resize(chunk.len() * hidden, 0.0);
            scales.clear();
            for (&(_, _, row), h) in chunk.iter().zip(h.chunks_exact_mut(hidden)) {
                math::rms_norm(&x[row * hidden..][..hidden], &self.norm, self.eps(), h);
                scales.push(fake_quantise(h, self.head_precision));
            }
            logits.resize(chunk.len() * vocab, 0.0);
            self.head.forward(h, scales, logits, tile, team);
            for (&(i, target, _), logits) in chunk.iter().zip(logits.chunks_exact(vocab)) {
                let work = &mut works[i];
                let id = match &mut work.want {
                    Want::Nothing => continue,
                    Want::Draw { sampling, rng } => {
                        work.broken |= !distribution.set(logits, sampling.temperature);
                        if sampling.temperature > 0.0 {
                            if !work.broken {
                                distribution.filter(sampling);
                            }
                            distribution.draw(rng)
                        } else {
                            distribution.argmax()
                        }
                    }
                    Want::Score { temperature, targets } => {
                        work.broken |= !distribution.set(logits, *temperature);
                        targets[target]
                    }
                };
                let logprobs = [distribution.logprob(id), distribution.unfiltered_logprob(id)];
                work.out.push((id, logprobs));
            }
        }
    }
}
