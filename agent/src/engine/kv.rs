//! Key and value caches: pages of 32 positions, shared between episodes and copied on write.
//!
//! Keys lie as panels whose lanes are positions, values as panels whose lanes are channels, so attention runs on the kernels of
//! the linear layers. A page holds every layer and head of its positions.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::engine::Precision;
use crate::model::ModelConfig;
use crate::quant::{Codes, LANES, Store};

/// Positions of a page.
pub(crate) const PAGE: usize = LANES;

/// Sizes of the cache.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KvShape {
    pub(crate) layers: usize,
    pub(crate) heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) precision: Precision,
}

impl KvShape {
    pub(crate) fn new(config: &ModelConfig, precision: Precision) -> Self {
        Self {
            layers: config.num_hidden_layers,
            heads: config.num_key_value_heads,
            head_dim: config.head_dim,
            precision,
        }
    }

    /// Panels of a value head.
    pub(crate) fn value_panels(&self) -> usize {
        self.head_dim.div_ceil(LANES)
    }

    fn slot(&self, layer: usize, head: usize) -> usize {
        layer * self.heads + head
    }

    /// Values a page stores: keys, and values padded to whole panels.
    fn page_values(&self) -> (usize, usize) {
        let slots = self.layers * self.heads;
        (
            slots * self.head_dim * PAGE,
            slots * self.value_panels() * LANES * PAGE,
        )
    }

    /// Bytes of one position, scales included.
    pub(crate) fn bytes_per_token(&self) -> usize {
        let (k, v) = self.page_values();
        let width = match self.precision {
            Precision::F32 => 4,
            Precision::Bf16 | Precision::F16 => 2,
            Precision::Fp8 => 1,
        };
        (k + v) * width / PAGE + 2 * self.layers * self.heads * 4
    }
}

/// 32 positions of every layer and head.
struct Page {
    keys: Store,
    values: Store,
    /// `[slot][2][32]`: what a kernel's result over keys, and a weight over values, is multiplied by.
    scales: Vec<f32>,
    live: Arc<AtomicUsize>,
}

impl Page {
    fn new(shape: &KvShape, live: &Arc<AtomicUsize>) -> Self {
        let (keys, values) = shape.page_values();
        live.fetch_add(1, Ordering::Relaxed);
        Self {
            keys: Store::zeros(shape.precision, keys),
            values: Store::zeros(shape.precision, values),
            scales: vec![0.0; shape.layers * shape.heads * 2 * PAGE],
            live: live.clone(),
        }
    }
}

impl Clone for Page {
    fn clone(&self) -> Self {
        self.live.fetch_add(1, Ordering::Relaxed);
        Self {
            keys: self.keys.clone(),
            values: self.values.clone(),
            scales: self.scales.clone(),
            live: self.live.clone(),
        }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        self.live.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The cache of one episode: the ids whose keys and values are known, and their pages.
#[derive(Clone, Default)]
pub(crate) struct KvCache {
    ids: Vec<u32>,
    pages: Vec<Arc<Page>>,
}

impl KvCache {
    /// Ids whose keys and values are stored.
    pub(crate) fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// Makes room for more ids and takes them as stored; `write` must follow for each.
    pub(crate) fn extend(&mut self, ids: &[u32], shape: &KvShape, live: &Arc<AtomicUsize>) {
        self.ids.extend_from_slice(ids);
        while self.pages.len() < self.ids.len().div_ceil(PAGE) {
            self.pages.push(Arc::new(Page::new(shape, live)));
        }
    }

    /// Pages it takes to come to `len` ids, one for a shared page that is written to included.
    pub(crate) fn growth(&self, len: usize) -> usize {
        let shared = !self.ids.len().is_multiple_of(PAGE)
            && self.pages.last().is_some_and(|page| Arc::strong_count(page) > 1);
        len.div_ceil(PAGE).saturating_sub(self.pages.len()) + usize::from(shared)
    }

    /// Forgets all but the first `len` ids.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.ids.truncate(len);
        self.pages.truncate(self.ids.len().div_ceil(PAGE));
    }

    /// The first `len` ids, sharing pages with this cache.
    pub(crate) fn share(&self, len: usize) -> Self {
        Self {
            ids: self.ids[..len].to_vec(),
            pages: self.pages[..len.div_ceil(PAGE)].to_vec(),
        }
    }

    /// Stores the key and value of one head at one position.
    pub(crate) fn write(
        &mut self,
        shape: &KvShape,
        layer: usize,
        head: usize,
        position: usize,
        kv: [&[f32]; 2],
    ) {
        let (slot, at) = (shape.slot(layer, head), position % PAGE);
        let page = Arc::make_mut(&mut self.pages[position / PAGE]);
        let first = slot * shape.head_dim * PAGE + at;
        let key_scale = page
            .keys
            .put(kv[0], (0..shape.head_dim).map(|i| first + i * PAGE));
        let first = slot * shape.value_panels() * LANES * PAGE + at * LANES;
        let places = (0..shape.head_dim).map(|i| first + i / LANES * LANES * PAGE + i % LANES);
        let value_scale = page.values.put(kv[1], places);
        page.scales[slot * 2 * PAGE + at] = key_scale;
        page.scales[(slot * 2 + 1) * PAGE + at] = value_scale;
    }

    /// Keys of a head in one page, `[head_dim][32]`, and their scales.
    pub(crate) fn keys(
        &self,
        shape: &KvShape,
        layer: usize,
        head: usize,
        page: usize,
    ) -> (Codes<'_>, &[f32]) {
        let (slot, page) = (shape.slot(layer, head), &self.pages[page]);
        let len = shape.head_dim * PAGE;
        (
            page.keys.codes(slot * len..(slot + 1) * len),
            &page.scales[slot * 2 * PAGE..][..PAGE],
        )
    }

    /// One panel of a head's values in one page, `[32 positions][32 channels]`, and the positions' scales.
    pub(crate) fn values(
        &self,
        shape: &KvShape,
        layer: usize,
        head: usize,
        page: usize,
        panel: usize,
    ) -> (Codes<'_>, &[f32]) {
        let (slot, page) = (shape.slot(layer, head), &self.pages[page]);
        let len = LANES * PAGE;
        let first = (slot * shape.value_panels() + panel) * len;
        (
            page.values.codes(first..first + len),
            &page.scales[(slot * 2 + 1) * PAGE..][..PAGE],
        )
    }
}

/// Length of the longest common prefix.
pub(crate) fn common_prefix(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(x, y)| x == y).count()
}
