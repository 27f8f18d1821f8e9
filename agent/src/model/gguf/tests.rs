use proptest::prelude::*;
use serde_json::Value;

use super::blocks::Encoding;
use super::*;

fn golden(name: &str) -> Vec<u8> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/gguf");
    std::fs::read(dir.join(name)).unwrap()
}

#[test]
fn blocks_decode_as_ggml_defines_them() {
    let all: Value = serde_json::from_slice(&golden("blocks.json")).unwrap();
    let all = all.as_object().unwrap();
    for encoding in Encoding::all().filter(|e| !matches!(e.name, "F32" | "F64")) {
        let blocks = &all[encoding.name];
        let hex = blocks["hex"].as_str().unwrap();
        let raw: Vec<u8> = (0..hex.len() / 2)
            .map(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).unwrap())
            .collect();
        let got: Vec<u64> = encoding
            .decode(&raw)
            .iter()
            .map(|x| u64::from(x.to_bits()))
            .collect();
        let want: Vec<u64> = blocks["bits"]
            .as_array()
            .unwrap()
            .iter()
            .map(|v| v.as_u64().unwrap())
            .collect();
        assert_eq!(got, want, "{}", encoding.name);
    }
    assert_eq!(all.len() + 2, Encoding::all().count());
}

/// Where `text` stands in the file.
fn at(bytes: &[u8], text: &str) -> usize {
    bytes
        .windows(text.len())
        .position(|w| w == text.as_bytes())
        .unwrap()
}

/// Overwrites bytes `offset` behind `text`.
fn patch(bytes: &mut [u8], text: &str, offset: usize, with: &[u8]) {
    let from = at(bytes, text) + text.len() + offset;
    bytes[from..from + with.len()].copy_from_slice(with);
}

/// The error for the Llama golden after an edit.
fn refused(edit: impl FnOnce(&mut Vec<u8>)) -> String {
    let mut bytes = golden("llama.gguf");
    edit(&mut bytes);
    parse_gguf(&bytes)
        .err()
        .expect("the edit is a mistake")
        .to_string()
}

#[test]
fn mistakes_name_the_tensor_or_the_key() {
    // A value follows its key's name and four bytes of type; a string's text eight further bytes of length.
    let number = |key: &'static str, n: u32| move |b: &mut Vec<u8>| patch(b, key, 4, &n.to_le_bytes());
    let text =
        |key: &'static str, text: &'static str| move |b: &mut Vec<u8>| patch(b, key, 12, text.as_bytes());
    let rename = |from: &'static str, to: &'static str| {
        move |b: &mut Vec<u8>| {
            let from = at(b, from);
            b[from..from + to.len()].copy_from_slice(to.as_bytes());
        }
    };
    let cases = [
        (
            refused(rename("blk.1.attn_q.", "blk.1.attn_z.")),
            "tensor `blk.1.attn_q.weight`: missing (expected [64, 64])",
        ),
        (
            refused(rename("blk.1.attn_q.weight", "blk.0.attn_q.weight")),
            "tensor `blk.0.attn_q.weight`: stored twice",
        ),
        (
            refused(number("llama.block_count", 1)),
            "tensor `blk.1.attn_k.weight`: not part of a llama model of this shape",
        ),
        (
            refused(number("llama.block_count", u32::MAX)),
            "`llama.block_count` 4294967295 is more than the file's",
        ),
        (
            refused(number("llama.feed_forward_length", 64)),
            "tensor `blk.0.ffn_gate.weight`: expected shape [64, 64]; got [96, 64]",
        ),
        (
            refused(number("llama.attention.head_count_kv", 3)),
            "multiple of `num_key_value_heads`; got 4 and 3",
        ),
        (
            refused(|b| {
                let end = b.len();
                b[end - 4..].copy_from_slice(&f32::NAN.to_le_bytes());
            }),
            "tensor `output_norm.weight`: value NaN at index 63 is not finite",
        ),
        (
            refused(|b| b.truncate(b.len() - 1)),
            "tensor `output_norm.weight`: the file is truncated",
        ),
        (
            refused(|b| b.truncate(1000)),
            "the file is truncated: its header goes on",
        ),
        (refused(|b| b[0] = b'X'), "not a GGUF file"),
        (
            refused(|b| b[4..8].copy_from_slice(&3u32.to_be_bytes())),
            "big-endian",
        ),
        (
            refused(|b| b[4..8].copy_from_slice(&9u32.to_le_bytes())),
            "version 9 is not read",
        ),
        (
            refused(text("general.architecture", "gemma")),
            "must be llama, qwen2 or qwen3; got `gemma`",
        ),
        (
            refused(text("tokenizer.ggml.pre", "smollX")),
            "`tokenizer.ggml.pre` `smollX` is not known",
        ),
        (
            refused(text("tokenizer.ggml.model", "bert")),
            "byte-level BPE); got `bert`",
        ),
        (
            refused(number("tokenizer.ggml.eos_token_id", 900)),
            "`tokenizer.ggml.eos_token_id` 900 is not one of 900 tokens",
        ),
        // Dimensions (4 bytes), two sizes, then the encoding.
        (
            refused(|b| patch(b, "blk.0.attn_q.weight", 20, &99u32.to_le_bytes())),
            "tensor `blk.0.attn_q.weight`: its encoding 99 is not read\nhint: requantise",
        ),
        (
            refused(|b| patch(b, "blk.0.attn_q.weight", 20, &12u32.to_le_bytes())),
            "a row of 64 values is not made of Q4_K blocks of 256",
        ),
    ];
    for (error, expected) in cases {
        assert!(error.contains(expected), "expected {expected}\ngot {error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Damaged files give an error or a model, never a panic.
    #[test]
    fn damaged_files_are_read_or_refused(
        edits in prop::collection::vec((0usize..60_000, any::<u8>()), 0..12), keep in 0usize..200_000,
    ) {
        let mut bytes = golden("llama.gguf");
        for (at, byte) in edits {
            bytes[at] = byte;
        }
        bytes.truncate(keep);
        let _ = parse_gguf(&bytes);
    }

    #[test]
    fn any_bytes_are_refused(tail in prop::collection::vec(any::<u8>(), 0..200)) {
        let bytes = [b"GGUF\x03\0\0\0".as_slice(), &tail].concat();
        prop_assert!(parse_gguf(&bytes).is_err());
    }
}
