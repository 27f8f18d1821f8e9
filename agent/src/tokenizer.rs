//! Text to ids: byte-level for tiny models, Hugging Face `tokenizers` for the rest.

/// A tokenizer; ids of special tokens are never produced from plain text.
pub struct Tokenizer {}
