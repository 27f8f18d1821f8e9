//! A HF `tokenizer.json` and its companions from a GGUF's vocabulary.
//!
//! GGUF names the pre-tokenizer instead of storing it. Only byte-level BPE with a known name is taken: a guess would give other
//! ids than the model was trained with.

use std::io::{Read, Seek};

use serde_json::{Map, Value, json};

use super::header::{Field, Gguf};
use crate::model::ModelError;
use crate::tokenizer::Tokenizer;

/// Token types of GGUF.
const NORMAL: i128 = 1;
const CONTROL: i128 = 3;
const USER_DEFINED: i128 = 4;
const UNUSED: i128 = 5;

/// Tokens that end a turn or a text in one of the families, whatever single end token the file names.
const ENDS: [&str; 6] = [
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<\u{ff5c}end\u{2581}of\u{2581}sentence\u{ff5c}>",
];

/// Qwen's GGUFs mark these as control tokens; its own tokenizer keeps them when special tokens are skipped.
const QWEN_PLAIN: [&str; 12] = [
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|fim_suffix|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
];

/// How text is cut before BPE, by GGUF's name.
struct PreTokenizer {
    name: &'static str,
    split: Split,
    /// Unicode is composed first.
    nfc: bool,
    /// A piece that is a token as a whole is taken without merging.
    ignore_merges: bool,
}

enum Split {
    /// GPT-2's pattern.
    Gpt2,
    /// GPT-2's pattern, every digit on its own.
    Digits,
    /// A pattern of its own.
    Regex(&'static str),
}

const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

const PRE_TOKENIZERS: [PreTokenizer; 5] = [
    pre("smollm", Split::Digits, false, false),
    pre("gpt-2", Split::Gpt2, false, false),
    pre("llama-bpe", Split::Regex(LLAMA3), false, true),
    pre("qwen2", Split::Regex(QWEN2), true, false),
    pre("deepseek-r1-qwen", Split::Regex(QWEN2), true, false),
];

const fn pre(name: &'static str, split: Split, nfc: bool, ignore_merges: bool) -> PreTokenizer {
    PreTokenizer {
        name,
        split,
        nfc,
        ignore_merges,
    }
}

/// What a directory says of text.
pub(super) struct Vocabulary {
    pub(super) tokenizer: Tokenizer,
    pub(super) tokenizer_config: Value,
    pub(super) generation_config: Value,
    pub(super) chat_template: Option<String>,
    /// GGUF's name of the pre-tokenizer.
    pub(super) pre_tokenizer: String,
}

/// Rebuilds the tokenizer of an open file.
///
/// # Errors
/// When it is not byte-level BPE, its pre-tokenizer is unknown, or its tokens and merges contradict each other.
pub(super) fn read<R: Read + Seek>(file: &Gguf<R>, vocab_size: usize) -> Result<Vocabulary, ModelError> {
    let model = file.text("tokenizer.ggml.model")?;
    if model != "gpt2" {
        return Err(file.refuse(format!(
            "`tokenizer.ggml.model` must be gpt2 (byte-level BPE); got `{model}`\nhint: take the model's own Hugging Face directory"
        )));
    }
    let name = file.text("tokenizer.ggml.pre")?;
    let pre = PRE_TOKENIZERS.iter().find(|p| p.name == name).ok_or_else(|| {
        let known = PRE_TOKENIZERS.each_ref().map(|p| p.name).join(", ");
        file.refuse(format!(
            "`tokenizer.ggml.pre` `{name}` is not known (known: {known})"
        ))
    })?;
    let tokens = Tokens::read(file, vocab_size)?;
    let roles = Roles::read(file, &tokens)?;
    let merges = merges(file)?;
    let added = tokens.added(name);
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added,
        "normalizer": if pre.nfc { json!({"type": "NFC"}) } else { Value::Null },
        "pre_tokenizer": pre_tokenizer(&pre.split),
        "post_processor": roles.post_processor(&pre.split),
        "decoder": byte_level(true, true),
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                  "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
                  "ignore_merges": pre.ignore_merges, "vocab": tokens.vocabulary(), "merges": merges},
    });
    let tokenizer = Tokenizer::from_json(tokenizer.to_string())
        .map_err(|e| file.refuse(format!("the vocabulary gives no tokenizer: {e}")))?;
    Ok(Vocabulary {
        tokenizer,
        tokenizer_config: roles.tokenizer_config(file),
        generation_config: roles.generation_config(&tokens),
        chat_template: template(file),
        pre_tokenizer: name.to_owned(),
    })
}

/// The file's tokens and their types.
struct Tokens<'a> {
    texts: Vec<&'a str>,
    types: Vec<i128>,
    /// Ids below stand in the BPE vocabulary, those from here on are added tokens only.
    in_model: usize,
}

impl<'a> Tokens<'a> {
    fn read<R: Read + Seek>(file: &'a Gguf<R>, vocab_size: usize) -> Result<Self, ModelError> {
        let key = "tokenizer.ggml.tokens";
        let texts = file
            .list(key)?
            .iter()
            .map(Field::as_text)
            .collect::<Option<Vec<_>>>();
        let texts = texts.ok_or_else(|| file.refuse(format!("`{key}` must hold strings")))?;
        if texts.len() > vocab_size {
            return Err(file.refuse(format!(
                "`{key}` has {} entries, more than the {vocab_size} rows of token_embd.weight",
                texts.len()
            )));
        }
        let key = "tokenizer.ggml.token_type";
        let types = file
            .list(key)?
            .iter()
            .map(Field::as_integer)
            .collect::<Option<Vec<_>>>();
        let types = types.ok_or_else(|| file.refuse(format!("`{key}` must hold integers")))?;
        if types.len() != texts.len() {
            let (got, want) = (types.len(), texts.len());
            return Err(file.refuse(format!("`{key}` has {got} entries for {want} tokens")));
        }
        let added = |kind: &i128| matches!(*kind, CONTROL | USER_DEFINED);
        // Added tokens get the ids that follow the vocabulary's, so one behind an unused place needs that place filled.
        let last_added = types.iter().rposition(added).unwrap_or(0);
        let needed = |(id, kind): (usize, &i128)| *kind == NORMAL || (*kind == UNUSED && id < last_added);
        let in_model = types.iter().enumerate().rev().find(|place| needed(*place));
        let in_model = in_model.map_or(0, |(id, _)| id + 1);
        Ok(Self {
            texts,
            types,
            in_model,
        })
    }

    fn vocabulary(&self) -> Map<String, Value> {
        let model = self.texts.iter().take(self.in_model).enumerate();
        model.map(|(id, text)| ((*text).to_owned(), json!(id))).collect()
    }

    fn added(&self, pre: &str) -> Vec<Value> {
        let all = self.texts.iter().zip(&self.types).enumerate();
        let added = all.filter(|(_, (_, kind))| matches!(**kind, CONTROL | USER_DEFINED));
        added
            .map(|(id, (text, kind))| {
                let plain = pre == "qwen2" && QWEN_PLAIN.contains(text);
                json!({"id": id, "content": text, "single_word": false, "lstrip": false, "rstrip": false,
                       "normalized": false, "special": *kind == CONTROL && !plain})
            })
            .collect()
    }

    fn is_added(&self, id: usize) -> bool {
        self.types
            .get(id)
            .is_some_and(|kind| matches!(*kind, CONTROL | USER_DEFINED))
    }
}

/// Ids with a role, and their texts.
struct Roles {
    bos: Option<(usize, String)>,
    eos: Option<(usize, String)>,
    pad: Option<(usize, String)>,
    unknown: Option<(usize, String)>,
    adds_bos: bool,
    adds_eos: bool,
    /// Every id that ends a turn, the file's own first.
    ends: Vec<usize>,
}

impl Roles {
    fn read<R: Read + Seek>(file: &Gguf<R>, tokens: &Tokens<'_>) -> Result<Self, ModelError> {
        let role = |name: &str| -> Result<Option<(usize, String)>, ModelError> {
            let key = format!("tokenizer.ggml.{name}_token_id");
            if file.field(&key).is_none() {
                return Ok(None);
            }
            let id = file.size(&key)?;
            match tokens.texts.get(id) {
                Some(text) => Ok(Some((id, (*text).to_owned()))),
                None => Err(file.refuse(format!(
                    "`{key}` {id} is not one of {} tokens",
                    tokens.texts.len()
                ))),
            }
        };
        let eos = role("eos")?;
        let mut ends: Vec<usize> = Vec::new();
        for (id, _) in [eos.clone(), role("eot")?, role("eom")?].into_iter().flatten() {
            ends.push(id);
        }
        ends.extend(
            (0..tokens.texts.len()).filter(|&id| ENDS.contains(&tokens.texts[id]) && tokens.is_added(id)),
        );
        let mut seen = std::collections::BTreeSet::new();
        ends.retain(|id| seen.insert(*id));
        Ok(Self {
            bos: role("bos")?,
            pad: role("padding")?,
            unknown: role("unknown")?,
            // Llama 3's files that do not say mean yes, as llama.cpp reads them.
            adds_bos: match file.field("tokenizer.ggml.add_bos_token") {
                None => file.text("tokenizer.ggml.pre")? == "llama-bpe",
                Some(flag) => *flag == Field::Bool(true),
            },
            adds_eos: file.flag("tokenizer.ggml.add_eos_token"),
            eos,
            ends,
        })
    }

    /// What encoding a whole text puts around it.
    fn post_processor(&self, split: &Split) -> Value {
        let bos = self.bos.as_ref().filter(|_| self.adds_bos);
        let eos = self.eos.as_ref().filter(|_| self.adds_eos);
        let offsets = byte_level(false, matches!(split, Split::Gpt2 | Split::Digits));
        if bos.is_none() && eos.is_none() {
            return offsets;
        }
        let special = |token: Option<&(usize, String)>, kind: u8| {
            token.map(|(_, text)| json!({"SpecialToken": {"id": text, "type_id": kind}}))
        };
        let around = |name: &str, kind: u8| -> Vec<Value> {
            let text = json!({"Sequence": {"id": name, "type_id": kind}});
            [special(bos, kind), Some(text), special(eos, kind)]
                .into_iter()
                .flatten()
                .collect()
        };
        let named: Map<String, Value> = [bos, eos]
            .into_iter()
            .flatten()
            .map(|(id, text)| (text.clone(), json!({"id": text, "ids": [id], "tokens": [text]})))
            .collect();
        let pair = [around("A", 0), around("B", 1)].concat();
        let template = json!({"type": "TemplateProcessing", "single": around("A", 0), "pair": pair,
                              "special_tokens": named});
        json!({"type": "Sequence", "processors": [offsets, template]})
    }

    fn tokenizer_config<R: Read + Seek>(&self, file: &Gguf<R>) -> Value {
        let text = |role: &Option<(usize, String)>| role.as_ref().map(|(_, text)| text.clone());
        let family = file.text("general.architecture").unwrap_or_default();
        let positions = file.size(&format!("{family}.context_length")).ok();
        json!({"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": text(&self.bos), "eos_token": text(&self.eos),
               "pad_token": text(&self.pad), "unk_token": text(&self.unknown), "add_prefix_space": false,
               "clean_up_tokenization_spaces": false, "model_max_length": positions})
    }

    fn generation_config(&self, tokens: &Tokens<'_>) -> Value {
        let id = |role: &Option<(usize, String)>| role.as_ref().map(|(id, _)| *id);
        let ends: Vec<usize> = self
            .ends
            .iter()
            .copied()
            .filter(|&id| tokens.is_added(id))
            .collect();
        json!({"bos_token_id": id(&self.bos), "eos_token_id": ends, "pad_token_id": id(&self.pad)})
    }
}

fn merges<R: Read + Seek>(file: &Gguf<R>) -> Result<Vec<[&str; 2]>, ModelError> {
    let key = "tokenizer.ggml.merges";
    let list = file.list(key)?;
    let mut merges = Vec::with_capacity(list.len());
    for field in list {
        match field.as_text().and_then(|text| text.split_once(' ')) {
            Some((left, right)) => merges.push([left, right]),
            None => return Err(file.refuse(format!("`{key}` must hold pairs of tokens; got {field:?}"))),
        }
    }
    Ok(merges)
}

fn byte_level(trim_offsets: bool, use_regex: bool) -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": trim_offsets, "use_regex": use_regex})
}

fn pre_tokenizer(split: &Split) -> Value {
    match split {
        Split::Gpt2 => byte_level(true, true),
        Split::Digits => json!({"type": "Sequence", "pretokenizers": [
            {"type": "Digits", "individual_digits": true}, byte_level(true, true)]}),
        Split::Regex(pattern) => json!({"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false},
            byte_level(false, false)]}),
    }
}

/// The file's chat template; one for tools is preferred.
fn template<R: Read + Seek>(file: &Gguf<R>) -> Option<String> {
    ["tokenizer.chat_template.tool_use", "tokenizer.chat_template"]
        .iter()
        .find_map(|key| file.field(key)?.as_text())
        .map(str::to_owned)
}
