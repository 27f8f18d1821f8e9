//! Text to ids over the `tokenizers` crate: byte-level for tiny models, a directory's `tokenizer.json` for the rest.
//!
//! Invariant: [`Tokenizer::encode`] never yields an added token (special or not), whatever the text says. Added tokens are
//! placed by id, by a dialect or a template's glue, and by the policy itself.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::model::ModelError;

/// Special tokens of the compact dialect, from id 256 on.
pub const COMPACT_SPECIALS: [&str; 10] = [
    "<pad>",
    "<bos>",
    "<python>",
    "<run_tests>",
    "<call>",
    "<end_call>",
    "<obs>",
    "<end_obs>",
    "<answer>",
    "<end>",
];

/// Vocabulary of the compact models: 256 bytes and the specials, padded to a multiple of 16.
pub const COMPACT_VOCAB: usize = 272;

/// A tokenizer; ids of added tokens are never produced from plain text.
#[derive(Clone)]
pub struct Tokenizer {
    inner: Arc<Inner>,
}

struct Inner {
    /// The tokenizer without its added tokens and post-processor.
    plain: tokenizers::Tokenizer,
    /// Added tokens `(text, id)`, longest text first.
    added: Vec<(String, u32)>,
    json: String,
    size: usize,
    max_id: u32,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "Tokenizer({} entries, {} added)",
            self.inner.size,
            self.inner.added.len()
        )
    }
}

impl Tokenizer {
    /// Reads a HF `tokenizer.json`.
    ///
    /// # Errors
    /// When the file is unreadable or not a tokenizer.
    pub fn read(path: &Path) -> Result<Self, ModelError> {
        let text = std::fs::read_to_string(path).map_err(ModelError::io(path))?;
        Self::from_json(text).map_err(|e| ModelError::file(path, e))
    }

    /// The byte-level tokenizer of the compact dialect: bytes are ids 0..=255 in byte order, then [`COMPACT_SPECIALS`].
    ///
    /// # Errors
    /// When the `tokenizers` crate refuses it (it does not).
    pub fn compact() -> Result<Self, ModelError> {
        let vocab: serde_json::Map<String, Value> = (0..=255u8)
            .map(|byte| (byte_symbol(byte).to_string(), json!(byte)))
            .collect();
        let added: Vec<Value> = (256u32..)
            .zip(COMPACT_SPECIALS)
            .map(|(id, content)| {
                json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
                       "normalized": false, "special": true})
            })
            .collect();
        let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false});
        let tokenizer = json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null,
            "pre_tokenizer": byte_level, "post_processor": null, "decoder": byte_level,
            "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                      "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
                      "vocab": vocab, "merges": []},
        });
        Self::from_json(tokenizer.to_string()).map_err(ModelError::Tokenizer)
    }

    pub(crate) fn from_json(json: String) -> Result<Self, String> {
        let mut value: Value = serde_json::from_str(&json).map_err(|e| e.to_string())?;
        let map = value.as_object_mut().ok_or("expected an object")?;
        let mut added = Vec::new();
        for token in map
            .insert("added_tokens".to_owned(), json!([]))
            .iter()
            .flat_map(Value::as_array)
            .flatten()
        {
            let id = token
                .get("id")
                .and_then(Value::as_u64)
                .and_then(|id| u32::try_from(id).ok());
            match (token.get("content").and_then(Value::as_str), id) {
                (Some(content), Some(id)) if !content.is_empty() => added.push((content.to_owned(), id)),
                _ => return Err(format!("`added_tokens` entry without content or id: {token}")),
            }
        }
        added.sort_by_key(|(text, _)| std::cmp::Reverse(text.len()));
        map.insert("post_processor".to_owned(), Value::Null);
        map.insert("truncation".to_owned(), Value::Null);
        map.insert("padding".to_owned(), Value::Null);
        let plain: tokenizers::Tokenizer = value.to_string().parse().map_err(|e| format!("{e}"))?;
        let vocab = plain.get_vocab(false);
        let extra = added.iter().filter(|(text, _)| !vocab.contains_key(text)).count();
        let max_id = vocab
            .values()
            .chain(added.iter().map(|(_, id)| id))
            .max()
            .copied()
            .unwrap_or(0);
        let size = vocab.len() + extra;
        Ok(Self {
            inner: Arc::new(Inner {
                plain,
                added,
                json,
                size,
                max_id,
            }),
        })
    }

    /// Ids of `text`, taken literally: an added token's name in it is ordinary characters.
    ///
    /// # Errors
    /// When the tokenizer has no id for a character.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, ModelError> {
        if text.is_empty() {
            return Ok(Vec::new());
        }
        let encoding = self
            .inner
            .plain
            .encode_fast(text, false)
            .map_err(|e| ModelError::Tokenizer(e.to_string()))?;
        let ids = encoding.get_ids().to_vec();
        match ids.iter().find(|&&id| self.added_text(id).is_some()) {
            Some(id) => Err(ModelError::Tokenizer(format!(
                "plain text became the added token {id}"
            ))),
            None => Ok(ids),
        }
    }

    /// The first added token in `text`: its byte range and id. At one place the longest wins.
    pub(crate) fn find_added(&self, text: &str) -> Option<(std::ops::Range<usize>, u32)> {
        let hits = self
            .inner
            .added
            .iter()
            .filter_map(|(name, id)| text.find(name.as_str()).map(|at| (at, name.len(), *id)));
        hits.min_by_key(|&(at, len, _)| (at, std::cmp::Reverse(len)))
            .map(|(at, len, id)| (at..at + len, id))
    }

    /// Ids as text; added tokens are shown by name, invalid UTF-8 as replacement characters.
    pub fn decode(&self, ids: &[u32]) -> String {
        let mut out = String::new();
        for run in ids.chunk_by(|&a, &b| self.added_text(a).is_none() && self.added_text(b).is_none()) {
            match self.added_text(run[0]) {
                Some(name) => out.push_str(name),
                None => out.push_str(&self.inner.plain.decode(run, false).unwrap_or_default()),
            }
        }
        out
    }

    /// Name of an added token.
    pub fn added_text(&self, id: u32) -> Option<&str> {
        self.inner
            .added
            .iter()
            .find(|(_, i)| *i == id)
            .map(|(text, _)| text.as_str())
    }

    /// Id of an added token.
    pub fn added_id(&self, text: &str) -> Option<u32> {
        self.inner
            .added
            .iter()
            .find(|(t, _)| t == text)
            .map(|(_, id)| *id)
    }

    /// Texts and ids of the added tokens, by id.
    pub fn added(&self) -> impl Iterator<Item = (&str, u32)> {
        let mut all: Vec<_> = self
            .inner
            .added
            .iter()
            .map(|(text, id)| (text.as_str(), *id))
            .collect();
        all.sort_by_key(|(_, id)| *id);
        all.into_iter()
    }

    /// Entries, added tokens included.
    pub fn size(&self) -> usize {
        self.inner.size
    }

    /// Largest id.
    pub fn max_id(&self) -> u32 {
        self.inner.max_id
    }

    /// The `tokenizer.json` it was read from.
    pub fn json(&self) -> &str {
        &self.inner.json
    }
}

/// The printable character that stands for a byte in byte-level BPE files (GPT-2's table): printable Latin-1 is itself, the
/// others take the characters from U+0100 on, in byte order.
fn byte_symbol(byte: u8) -> char {
    let printable = |b: u8| matches!(b, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    if printable(byte) {
        char::from(byte)
    } else {
        let rank = (0..byte).filter(|&b| !printable(b)).count() as u32;
        char::from_u32(256 + rank).expect("at most 68 bytes are not printable")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn bytes_are_ids_and_specials_follow() {
        let t = Tokenizer::compact().unwrap();
        let every: String = (0..128u8).map(char::from).collect();
        assert_eq!(t.encode(&every).unwrap(), (0..128).collect::<Vec<u32>>());
        assert_eq!(t.encode("é ").unwrap(), [0xc3, 0xa9, 0x20]);
        assert_eq!((t.added_id("<pad>"), t.added_id("<end>")), (Some(256), Some(265)));
        assert_eq!((t.size(), t.max_id()), (266, 265));
        assert_eq!(t.decode(&[257, 104, 105, 265]), "<bos>hi<end>");
    }

    #[test]
    fn names_of_special_tokens_in_text_are_bytes() {
        let t = Tokenizer::compact().unwrap();
        let text = "say <end> or <answer>";
        assert_eq!(
            t.encode(text).unwrap(),
            text.bytes().map(u32::from).collect::<Vec<_>>()
        );
    }

    proptest! {
        #[test]
        fn any_text_round_trips_without_specials(text in ".{0,60}") {
            let t = Tokenizer::compact().unwrap();
            let ids = t.encode(&text).unwrap();
            prop_assert!(ids.iter().all(|&id| id < 256));
            prop_assert_eq!(t.decode(&ids), text);
        }

        #[test]
        fn any_ids_decode(ids in prop::collection::vec(0u32..300, 0..40)) {
            Tokenizer::compact().unwrap().decode(&ids);
        }
    }
}
