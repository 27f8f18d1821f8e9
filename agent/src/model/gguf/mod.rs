//! GGUF files of llama.cpp: a Llama, Qwen2 or Qwen3 becomes a model directory, tokenizer and chat template included.
//!
//! Values are dequantised exactly as llama.cpp defines them; what the file stores is what the directory holds.

mod blocks;
mod header;
mod shape;
#[cfg(test)]
mod tests;
mod vocabulary;

use std::collections::BTreeMap;
use std::io::{BufReader, Read, Seek};
use std::path::Path;

use serde::Serialize;

use super::{LoadedModel, ModelError, WeightFormat};
use header::Gguf;

/// What an import read and wrote.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ImportReport {
    /// `llama`, `qwen2` or `qwen3`.
    pub model_type: String,
    /// Parameters, tied weights counted once.
    pub parameters: usize,
    /// Tensors by the file's encoding (`Q4_1`, `F32`, ..).
    pub encodings: BTreeMap<String, usize>,
    /// GGUF's name of the pre-tokenizer.
    pub pre_tokenizer: String,
    /// Entries of the tokenizer, added tokens included.
    pub tokenizer_size: usize,
    /// The file had a chat template.
    pub chat_template: bool,
    /// Ids that end a turn.
    pub stop_ids: Vec<u64>,
    /// blake3 of the dequantised f32 weights.
    pub weights_hash: String,
}

/// Reads a GGUF file into a model: weights dequantised to f32, tokenizer rebuilt from vocabulary and merges.
///
/// # Errors
/// When the file is not GGUF, is truncated, or holds another architecture, encoding or tokenizer than those known; names the
/// tensor that is missing, extra, mis-shaped or not finite.
pub fn read_gguf(path: &Path) -> Result<(LoadedModel, ImportReport), ModelError> {
    let file = std::fs::File::open(path).map_err(ModelError::io(path))?;
    read(Gguf::open(path, BufReader::new(file))?)
}

/// [`read_gguf`], written to the directory `out` as Hugging Face tools read it. `F32` keeps every bit of the file's values.
///
/// # Errors
/// As [`read_gguf`], and on a file-system failure.
pub fn import_gguf(path: &Path, out: &Path, format: WeightFormat) -> Result<ImportReport, ModelError> {
    let (model, report) = read_gguf(path)?;
    model.save_as(out, format)?;
    Ok(report)
}

fn read<R: Read + Seek>(mut file: Gguf<R>) -> Result<(LoadedModel, ImportReport), ModelError> {
    let config = shape::config(&file)?;
    let text = vocabulary::read(&file, config.vocab_size)?;
    let mut encodings = BTreeMap::new();
    for entry in file.tensors().values() {
        *encodings.entry(entry.encoding.name.to_owned()).or_insert(0) += 1;
    }
    let weights = shape::weights(&mut file, config)?;
    let stops = text.generation_config["eos_token_id"].as_array();
    let report = ImportReport {
        model_type: weights.config.model_type.clone(),
        parameters: weights.config.parameters(),
        encodings,
        pre_tokenizer: text.pre_tokenizer,
        tokenizer_size: text.tokenizer.size(),
        chat_template: text.chat_template.is_some(),
        stop_ids: stops
            .into_iter()
            .flatten()
            .filter_map(serde_json::Value::as_u64)
            .collect(),
        weights_hash: weights.hash(),
    };
    let model = LoadedModel {
        weights,
        tokenizer: text.tokenizer,
        chat_template: text.chat_template,
        tokenizer_config: text.tokenizer_config,
        generation_config: text.generation_config,
        dialect: None,
    };
    Ok((model, report))
}

/// Reads GGUF bytes held in memory: for fuzzing, total over any input.
///
/// # Errors
/// As [`read_gguf`].
pub fn parse_gguf(bytes: &[u8]) -> Result<LoadedModel, ModelError> {
    let file = Gguf::open(Path::new("memory"), std::io::Cursor::new(bytes))?;
    Ok(read(file)?.0)
}
