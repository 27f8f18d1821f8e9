//! The line format: `{"index":N,"prev":"<64 hex>","entry":{..},"hash":"<64 hex>"}` and a newline.
//!
//! `hash` is the blake3 of the line's bytes without the `hash` member (`{"index":..,"prev":..,"entry":{..}}`), so a verifier needs no JSON
//! canonicalisation: the bytes in the file are the canonical ones (compact, fields in declaration order, maps sorted by key, shortest
//! round-trip numbers). `prev` is the hash of the line before, and 64 zeros on the first.

use serde::{Deserialize, Serialize};

use super::entry::Entry;

/// `prev` of the first line.
pub const GENESIS: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// Bytes of `,"hash":"<64 hex>"}`.
const SUFFIX: usize = 9 + 64 + 2;

/// A parsed line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Line {
    /// Position in the ledger, 0-based.
    pub index: u64,
    /// Hash of the line before.
    pub prev: String,
    /// What happened.
    pub entry: Entry,
    /// Hash of this line.
    pub hash: String,
}

/// What is wrong with a line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// No newline at its end: the write was torn.
    #[error("it does not end in a newline: a torn write, or a ledger cut short")]
    Torn,
    /// It does not end in a hash member.
    #[error("it does not end in `,\"hash\":\"<64 hex digits>\"}}`")]
    NoHash,
    /// Its hash is not that of its bytes.
    #[error("its bytes do not match its hash: recorded {recorded}, computed {computed}")]
    Hash {
        /// Hash on the line.
        recorded: String,
        /// Hash of its bytes.
        computed: String,
    },
    /// It does not continue the line before.
    #[error("it does not continue the line before: prev is {recorded}, the hash before is {expected}")]
    Chain {
        /// `prev` on the line.
        recorded: String,
        /// Hash of the line before.
        expected: String,
    },
    /// Its index is not its position.
    #[error("its index is {recorded}, expected {expected}")]
    Index {
        /// Index on the line.
        recorded: u64,
        /// Its position.
        expected: u64,
    },
    /// Its bytes are not a ledger line, although its hash matches: written by another version, or by hand.
    #[error("it is not a ledger line: {0}")]
    Json(String),
}

/// The line of an entry (newline included) and its hash.
pub(super) fn write(index: u64, prev: &str, entry: &Entry) -> Result<(String, String), serde_json::Error> {
    #[derive(Serialize)]
    struct Body<'a> {
        index: u64,
        prev: &'a str,
        entry: &'a Entry,
    }
    let mut line = serde_json::to_string(&Body { index, prev, entry })?;
    let hash = blake3::hash(line.as_bytes()).to_hex().to_string();
    line.pop();
    line.push_str(",\"hash\":\"");
    line.push_str(&hash);
    line.push_str("\"}\n");
    Ok((line, hash))
}

/// Checks one line (newline included) against its position and the hash before it.
pub(super) fn check(bytes: &[u8], index: u64, prev: &str) -> Result<Line, Fault> {
    let Some(bytes) = bytes.strip_suffix(b"\n") else {
        return Err(Fault::Torn);
    };
    let split = bytes.len().checked_sub(SUFFIX).ok_or(Fault::NoHash)?;
    let (body, suffix) = bytes.split_at(split);
    let recorded = suffix
        .strip_prefix(b",\"hash\":\"")
        .and_then(|s| s.strip_suffix(b"\"}"))
        .filter(|hex| {
            hex.iter()
                .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(b))
        })
        .and_then(|hex| std::str::from_utf8(hex).ok())
        .ok_or(Fault::NoHash)?;
    let mut hasher = blake3::Hasher::new();
    hasher.update(body);
    hasher.update(b"}");
    let computed = hasher.finalize().to_hex();
    if computed.as_str() != recorded {
        return Err(Fault::Hash {
            recorded: recorded.to_owned(),
            computed: computed.to_string(),
        });
    }
    let line: Line = serde_json::from_slice(bytes).map_err(|e| Fault::Json(e.to_string()))?;
    if line.index != index {
        return Err(Fault::Index {
            recorded: line.index,
            expected: index,
        });
    }
    if line.prev != prev {
        return Err(Fault::Chain {
            recorded: line.prev,
            expected: prev.to_owned(),
        });
    }
    Ok(line)
}
