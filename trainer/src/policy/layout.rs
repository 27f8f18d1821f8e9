//! Where each weight is in the canonical order of [`ModelConfig::tensor_shapes`].

use mipu_agent::ModelConfig;

/// Indices of the model's tensors.
pub(crate) struct Layout {
    pub(crate) embedding: usize,
    pub(crate) layers: Vec<LayerLayout>,
    pub(crate) norm: usize,
    /// The embedding when tied.
    pub(crate) head: usize,
}

/// Indices of one layer's tensors.
pub(crate) struct LayerLayout {
    pub(crate) input_norm: usize,
    /// q, k, v.
    pub(crate) qkv: [usize; 3],
    pub(crate) qkv_bias: Option<[usize; 3]>,
    /// q, k.
    pub(crate) qk_norm: Option<[usize; 2]>,
    pub(crate) o: usize,
    pub(crate) post_norm: usize,
    pub(crate) gate: usize,
    pub(crate) up: usize,
    pub(crate) down: usize,
}

impl Layout {
    pub(crate) fn new(config: &ModelConfig) -> Self {
        let mut indices = 0..;
        let mut next = || indices.next().expect("the range has no end");
        let embedding = next();
        let layers = (0..config.num_hidden_layers)
            .map(|_| LayerLayout {
                input_norm: next(),
                qkv: [next(), next(), next()],
                qkv_bias: config.attention_bias.then(|| [next(), next(), next()]),
                qk_norm: config.qk_norm.then(|| [next(), next()]),
                o: next(),
                post_norm: next(),
                gate: next(),
                up: next(),
                down: next(),
            })
            .collect();
        let norm = next();
        let head = if config.tie_word_embeddings {
            embedding
        } else {
            next()
        };
        Self {
            embedding,
            layers,
            norm,
            head,
        }
    }
}
