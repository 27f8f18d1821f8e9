//! The container: metadata by key, and where each tensor's bytes lie. Versions 2 and 3, little-endian.
//!
//! Total over arbitrary bytes: a length is believed only as far as the file reaches.

use std::collections::BTreeMap;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use super::blocks::Encoding;
use crate::model::ModelError;

/// Tensors start at a multiple of this, unless `general.alignment` says otherwise.
const ALIGNMENT: u64 = 32;

/// Lists in lists; real files have none.
const MAX_DEPTH: usize = 3;

/// More dimensions than this is not a tensor of any model.
const MAX_DIMENSIONS: u32 = 4;

/// A metadata value. 32-bit floats are kept as the shortest decimal that names them: `1e-5` is not 9.99999974e-6.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Field {
    Integer(i128),
    Float(f64),
    Bool(bool),
    Text(String),
    List(Vec<Field>),
}

impl Field {
    fn kind(&self) -> &'static str {
        match self {
            Self::Integer(_) => "an integer",
            Self::Float(_) => "a number",
            Self::Bool(_) => "a boolean",
            Self::Text(_) => "a string",
            Self::List(_) => "a list",
        }
    }

    pub(super) fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    pub(super) fn as_integer(&self) -> Option<i128> {
        match self {
            Self::Integer(n) => Some(*n),
            _ => None,
        }
    }
}

/// Where a tensor lies.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    /// Row-major, outermost first (the file lists the innermost first).
    pub(super) shape: Vec<usize>,
    pub(super) encoding: &'static Encoding,
    /// From the start of the file.
    offset: u64,
    bytes: u64,
}

/// An open file whose header was read.
pub(super) struct Gguf<R> {
    path: PathBuf,
    source: R,
    fields: BTreeMap<String, Field>,
    tensors: BTreeMap<String, Entry>,
}

impl<R: Read + Seek> Gguf<R> {
    /// Reads the header and checks that every tensor's bytes are there.
    pub(super) fn open(path: &Path, mut source: R) -> Result<Self, ModelError> {
        let io = |e| ModelError::io(path)(e);
        let len = source.seek(SeekFrom::End(0)).map_err(io)?;
        source.seek(SeekFrom::Start(0)).map_err(io)?;
        let mut cursor = Cursor { source, at: 0, len };
        let (fields, entries) = header(&mut cursor).map_err(|reason| ModelError::file(path, reason))?;
        let alignment = match fields.get("general.alignment") {
            None => ALIGNMENT,
            Some(Field::Integer(n)) if (1..=1 << 20).contains(n) => *n as u64,
            Some(other) => {
                let reason = format!("`general.alignment` must lie in 1..=1048576; got {other:?}");
                return Err(ModelError::file(path, reason));
            }
        };
        let start = cursor.at.next_multiple_of(alignment);
        let mut tensors = BTreeMap::new();
        for Declared {
            name,
            shape,
            code,
            offset,
        } in entries
        {
            let entry = locate(shape, code, offset.checked_add(start), len)
                .map_err(|reason| ModelError::tensor(path, &name, reason))?;
            if tensors.insert(name.clone(), entry).is_some() {
                return Err(ModelError::tensor(path, &name, "stored twice"));
            }
        }
        Ok(Self {
            path: path.to_owned(),
            source: cursor.source,
            fields,
            tensors,
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn field(&self, key: &str) -> Option<&Field> {
        self.fields.get(key)
    }

    pub(super) fn tensors(&self) -> &BTreeMap<String, Entry> {
        &self.tensors
    }

    /// A tensor's values, row-major.
    pub(super) fn read(&mut self, name: &str) -> Result<Vec<f32>, ModelError> {
        let missing = || ModelError::tensor(&self.path, name, "missing");
        let entry = self.tensors.get(name).ok_or_else(missing)?;
        let mut raw = vec![0; entry.bytes as usize];
        let read = self.source.seek(SeekFrom::Start(entry.offset));
        read.and_then(|_| self.source.read_exact(&mut raw))
            .map_err(ModelError::io(&self.path))?;
        Ok(entry.encoding.decode(&raw))
    }

    pub(super) fn refuse(&self, reason: impl std::fmt::Display) -> ModelError {
        ModelError::file(&self.path, reason)
    }

    fn wrong(&self, key: &str, wanted: &str) -> ModelError {
        match self.field(key) {
            None => self.refuse(format!("`{key}` is missing (expected {wanted})")),
            Some(Field::Integer(n)) => self.refuse(format!("`{key}` must be {wanted}; got {n}")),
            Some(other) => self.refuse(format!("`{key}` must be {wanted}; got {}", other.kind())),
        }
    }

    /// A count or width.
    pub(super) fn size(&self, key: &str) -> Result<usize, ModelError> {
        match self.field(key) {
            Some(Field::Integer(n)) if (0..=i128::from(u32::MAX)).contains(n) => Ok(*n as usize),
            _ => Err(self.wrong(key, "a size")),
        }
    }

    /// [`Gguf::size`], or `default` where the key is absent.
    pub(super) fn size_or(&self, key: &str, default: usize) -> Result<usize, ModelError> {
        self.field(key).map_or(Ok(default), |_| self.size(key))
    }

    pub(super) fn number(&self, key: &str) -> Result<f64, ModelError> {
        match self.field(key) {
            Some(Field::Float(x)) => Ok(*x),
            Some(Field::Integer(n)) => Ok(*n as f64),
            _ => Err(self.wrong(key, "a number")),
        }
    }

    pub(super) fn text(&self, key: &str) -> Result<&str, ModelError> {
        self.field(key)
            .and_then(Field::as_text)
            .ok_or_else(|| self.wrong(key, "a string"))
    }

    /// False where the key is absent.
    pub(super) fn flag(&self, key: &str) -> bool {
        self.field(key) == Some(&Field::Bool(true))
    }

    pub(super) fn list(&self, key: &str) -> Result<&[Field], ModelError> {
        match self.field(key) {
            Some(Field::List(list)) => Ok(list),
            _ => Err(self.wrong(key, "a list")),
        }
    }
}

/// A tensor as the header declares it.
struct Declared {
    name: String,
    shape: Vec<usize>,
    code: u32,
    offset: u64,
}

/// Checks a declared tensor against its encoding and the file's length.
fn locate(shape: Vec<usize>, code: u32, offset: Option<u64>, len: u64) -> Result<Entry, String> {
    let encoding = Encoding::of(code).ok_or_else(|| {
        let known: Vec<&str> = Encoding::all().map(|e| e.name).collect();
        format!(
            "its encoding {code} is not read\nhint: requantise the file to one of {}",
            known.join(", ")
        )
    })?;
    let width = shape.last().copied().unwrap_or(0);
    if !width.is_multiple_of(encoding.values) {
        let (name, per) = (encoding.name, encoding.values);
        return Err(format!(
            "a row of {width} values is not made of {name} blocks of {per}"
        ));
    }
    let values = shape.iter().try_fold(1usize, |n, size| n.checked_mul(*size));
    let bytes = values.and_then(|n| (n / encoding.values).checked_mul(encoding.bytes));
    let end = bytes
        .zip(offset)
        .and_then(|(bytes, offset)| offset.checked_add(bytes as u64));
    match (bytes, offset, end) {
        (Some(bytes), Some(offset), Some(end)) if end <= len => Ok(Entry {
            shape,
            encoding,
            offset,
            bytes: bytes as u64,
        }),
        _ => {
            let need = end.map_or("an impossible number of".to_owned(), |end| end.to_string());
            Err(format!(
                "the file is truncated: its bytes end at {need} of {len} bytes"
            ))
        }
    }
}

/// Position in the header, with the file's length as the bound of every claim.
struct Cursor<R> {
    source: R,
    at: u64,
    len: u64,
}

impl<R: Read> Cursor<R> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let mut bytes = [0; N];
        self.source.read_exact(&mut bytes).map_err(|_| self.short())?;
        self.at += N as u64;
        Ok(bytes)
    }

    fn short(&self) -> String {
        format!(
            "the file is truncated: its header goes on behind {} of {} bytes",
            self.at, self.len
        )
    }

    fn u32(&mut self) -> Result<u32, String> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, String> {
        self.take().map(u64::from_le_bytes)
    }

    /// A count of things that take at least `least` bytes each.
    fn count(&mut self, least: u64) -> Result<u64, String> {
        let count = self.u64()?;
        if count > (self.len - self.at) / least {
            return Err(self.short());
        }
        Ok(count)
    }

    fn text(&mut self) -> Result<String, String> {
        let mut bytes = vec![0; self.count(1)? as usize];
        self.source.read_exact(&mut bytes).map_err(|_| self.short())?;
        self.at += bytes.len() as u64;
        String::from_utf8(bytes).map_err(|e| format!("a string before byte {} is not UTF-8: {e}", self.at))
    }

    fn value(&mut self, kind: u32, depth: usize) -> Result<Field, String> {
        Ok(match kind {
            0 => Field::Integer(self.take::<1>()?[0].into()),
            1 => Field::Integer(i8::from_le_bytes(self.take()?).into()),
            2 => Field::Integer(u16::from_le_bytes(self.take()?).into()),
            3 => Field::Integer(i16::from_le_bytes(self.take()?).into()),
            4 => Field::Integer(self.u32()?.into()),
            5 => Field::Integer(i32::from_le_bytes(self.take()?).into()),
            6 => {
                let x = f32::from_le_bytes(self.take()?);
                Field::Float(x.to_string().parse().unwrap_or(f64::from(x)))
            }
            7 => Field::Bool(self.take::<1>()?[0] != 0),
            8 => Field::Text(self.text()?),
            9 if depth < MAX_DEPTH => {
                let kind = self.u32()?;
                let least = match kind {
                    0 | 1 | 7 => 1,
                    2 | 3 => 2,
                    4..=6 => 4,
                    _ => 8,
                };
                let count = self.count(least)?;
                Field::List(
                    (0..count)
                        .map(|_| self.value(kind, depth + 1))
                        .collect::<Result<_, _>>()?,
                )
            }
            9 => return Err(format!("lists are nested deeper than {MAX_DEPTH}")),
            10 => Field::Integer(self.u64()?.into()),
            11 => Field::Integer(i64::from_le_bytes(self.take()?).into()),
            12 => Field::Float(f64::from_le_bytes(self.take()?)),
            other => {
                return Err(format!(
                    "metadata of the unknown type {other} before byte {}",
                    self.at
                ));
            }
        })
    }
}

type Header = (BTreeMap<String, Field>, Vec<Declared>);

fn header<R: Read>(cursor: &mut Cursor<R>) -> Result<Header, String> {
    if cursor.take().ok() != Some(*b"GGUF") {
        return Err("not a GGUF file".to_owned());
    }
    match cursor.u32()? {
        2 | 3 => (),
        big if matches!(big.swap_bytes(), 1..=3) => {
            return Err(
                "a big-endian GGUF file is not read\nhint: convert it with gguf-convert-endian".to_owned(),
            );
        }
        other => return Err(format!("GGUF version {other} is not read (2 and 3 are)")),
    }
    // A tensor takes at least 24 bytes of header (name length, dimensions, type, offset), a field at least 13.
    let (tensors, fields) = (cursor.count(24)?, cursor.count(13)?);
    let mut metadata = BTreeMap::new();
    for _ in 0..fields {
        let key = cursor.text()?;
        let kind = cursor.u32()?;
        let value = cursor
            .value(kind, 0)
            .map_err(|reason| format!("`{key}`: {reason}"))?;
        metadata.insert(key, value);
    }
    let mut entries = Vec::new();
    for _ in 0..tensors {
        let name = cursor.text()?;
        let dimensions = cursor.u32()?;
        if dimensions > MAX_DIMENSIONS {
            return Err(format!(
                "tensor `{name}` has {dimensions} dimensions (at most {MAX_DIMENSIONS})"
            ));
        }
        let mut shape = Vec::new();
        for _ in 0..dimensions {
            let size = cursor.u64()?;
            shape.push(
                usize::try_from(size).map_err(|_| format!("tensor `{name}` has a dimension of {size}"))?,
            );
        }
        shape.reverse();
        entries.push(Declared {
            name,
            shape,
            code: cursor.u32()?,
            offset: cursor.u64()?,
        });
    }
    Ok((metadata, entries))
}
