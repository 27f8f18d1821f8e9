//! Plain data that may cross between a guest and the host: exact builtin types only.

use serde::{Deserialize, Serialize};

/// A Python value of an exact builtin type (`type(x) is int`, never a subclass), size-capped.
///
/// On the wire (JSON): `null`, `true`, `{"i": "123"}` for int, `{"f": "0x1.8p+1"}` for float (`float.hex`, `nan`, `inf`),
/// `"text"` for str, `{"b": "<hex>"}` for bytes, `[..]` for list, `{"t": [..]}` for tuple, `{"s": [..]}` for set and frozenset
/// (sorted by wire form), `{"d": [[k, v], ..]}` for dict in insertion order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Plain {
    /// `None`.
    None,
    /// `bool`.
    Bool(bool),
    /// `int`, decimal digits (unbounded up to the size cap).
    Int(String),
    /// `float`.
    Float(f64),
    /// `str`.
    Str(String),
    /// `bytes`.
    Bytes(Vec<u8>),
    /// `list`.
    List(Vec<Plain>),
    /// `tuple`.
    Tuple(Vec<Plain>),
    /// `set` or `frozenset`, elements in a canonical order.
    Set(Vec<Plain>),
    /// `dict`, in insertion order.
    Dict(Vec<(Plain, Plain)>),
}
