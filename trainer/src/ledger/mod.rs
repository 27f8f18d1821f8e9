//! The ledger: an append-only, hash-chained record of every attempted step, in `ledger.jsonl`.
//!
//! Data flow: an [`Entry`] becomes one line ([`chain`] describes the bytes) written with one write and an fsync, *after* the checkpoint it speaks
//! of is durable. Resuming replays: [`Ledger::record`] compares with the entry already there, byte for byte, and appends only past the end.
//!
//! Invariants: lines are never rewritten; only a torn last line (a crash inside a write) is cut, on opening. [`verify`] finds any changed, lost,
//! moved or inserted byte between the first and the last line. What it cannot see is a ledger cut at a line's end: compare [`Summary::head`]
//! with the head a checkpoint or a run's output names.

pub mod chain;
pub mod entry;

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::Value;

pub use chain::{Fault, GENESIS, Line};
pub use entry::{Checkpoint, Entry, RunEnd, RunStart, Step};

/// A ledger could not be written, read, or does not hold.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// The file system said no.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Another process writes this ledger.
    #[error("{}: another process is writing this ledger\nhint: only one `mipu train` may use a run directory", .0.display())]
    Locked(PathBuf),
    /// A new run would overwrite an old one.
    #[error("{}: a ledger is already there\nhint: resume the run, or choose another run directory", .0.display())]
    Exists(PathBuf),
    /// The chain breaks.
    #[error("{}: line {line}: {fault}\nhint: the {} before it hold; nothing from it on can be trusted", path.display(), line - 1)]
    Broken {
        /// The file.
        path: PathBuf,
        /// First bad line, 1-based.
        line: u64,
        /// What is wrong with it.
        fault: Fault,
    },
    /// A replayed step did not reproduce the recorded one.
    #[error("{}: line {line}: the replay differs from what was recorded, at {at}\n  recorded: {recorded}\n  replayed: {replayed}\nhint: the run is not deterministic here, or its configuration, tasks or binary changed since", path.display())]
    NotDeterministic {
        /// The file.
        path: PathBuf,
        /// The line, 1-based.
        line: u64,
        /// Dotted path of the first value that differs.
        at: String,
        /// The value recorded.
        recorded: String,
        /// The value replayed.
        replayed: String,
    },
    /// A resume asks for more entries than there are.
    #[error("{}: the checkpoint was written after {expected} ledger entries, but only {found} are there\nhint: entries were lost; resume from an earlier checkpoint", path.display())]
    TooShort {
        /// The file.
        path: PathBuf,
        /// Entries wanted.
        expected: u64,
        /// Entries found.
        found: u64,
    },
    /// An entry is not representable (a number that is not finite).
    #[error("a ledger entry cannot be written: {0}")]
    Entry(String),
}

/// What `verify` found in a ledger that holds.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Summary {
    /// Lines.
    pub entries: u64,
    /// Attempted steps.
    pub steps: u64,
    /// Updates kept.
    pub accepted: u64,
    /// Updates rolled back.
    pub rejected: u64,
    /// Checkpoints.
    pub checkpoints: u64,
    /// Whether the run reached its end.
    pub finished: bool,
    /// Hash of the last line, [`GENESIS`] without lines.
    pub head: String,
}

/// Whether an entry was new.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recorded {
    /// Written and durable.
    Appended,
    /// Already there, byte for byte.
    Replayed,
}

/// An open ledger; holds an advisory lock on its file.
#[derive(Debug)]
pub struct Ledger {
    path: PathBuf,
    file: File,
    /// Lines from the resume position on, to be met again, oldest first.
    replay: std::collections::VecDeque<String>,
    position: u64,
    head: String,
}

impl Ledger {
    /// Starts a new ledger.
    ///
    /// # Errors
    /// When one is already there, or on I/O.
    pub fn create(path: &Path) -> Result<Self, LedgerError> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(path)
            .map_err(|source| {
                if source.kind() == std::io::ErrorKind::AlreadyExists {
                    LedgerError::Exists(path.to_owned())
                } else {
                    LedgerError::Io {
                        path: path.to_owned(),
                        source,
                    }
                }
            })?;
        lock(&file, path)?;
        if let Some(parent) = path.parent().filter(|p| !p.as_os_str().is_empty()) {
            // A new file is durable once its directory is.
            File::open(parent)
                .and_then(|dir| dir.sync_all())
                .map_err(|source| LedgerError::Io {
                    path: parent.to_owned(),
                    source,
                })?;
        }
        Ok(Self {
            path: path.to_owned(),
            file,
            replay: Default::default(),
            position: 0,
            head: GENESIS.into(),
        })
    }

    /// Opens an existing ledger to resume after its first `position` entries (the number a checkpoint carries): later entries are expected to
    /// be recorded again, byte for byte. A torn last line is cut.
    ///
    /// # Errors
    /// When the chain breaks, fewer than `position` entries are there, another process writes it, or on I/O.
    pub fn open(path: &Path, position: u64) -> Result<Self, LedgerError> {
        let io = |source| LedgerError::Io {
            path: path.to_owned(),
            source,
        };
        let mut file = OpenOptions::new().read(true).write(true).open(path).map_err(io)?;
        lock(&file, path)?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(io)?;
        let whole = bytes.iter().rposition(|b| *b == b'\n').map_or(0, |end| end + 1);
        if whole < bytes.len() {
            bytes.truncate(whole);
            file.set_len(whole as u64)
                .and_then(|()| file.sync_all())
                .map_err(io)?;
        }
        file.seek(SeekFrom::Start(whole as u64)).map_err(io)?;
        let mut ledger = Self {
            path: path.to_owned(),
            file,
            replay: Default::default(),
            position,
            head: GENESIS.into(),
        };
        let lines = check_all(path, &bytes)?;
        if (lines.len() as u64) < position {
            return Err(LedgerError::TooShort {
                path: path.to_owned(),
                expected: position,
                found: lines.len() as u64,
            });
        }
        for (line, text) in lines.into_iter().zip(bytes.split_inclusive(|b| *b == b'\n')) {
            if line.index < position {
                ledger.head = line.hash;
            } else {
                ledger
                    .replay
                    .push_back(String::from_utf8_lossy(text).into_owned());
            }
        }
        Ok(ledger)
    }

    /// Entries recorded so far in this process and before it: what a checkpoint stores to resume from.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Hash of the last of those entries.
    pub fn head(&self) -> &str {
        &self.head
    }

    /// Whether entries of an earlier process are still to be met.
    pub fn is_replaying(&self) -> bool {
        !self.replay.is_empty()
    }

    /// Records an entry: appends it durably, or, during a replay, checks that it is the one already there.
    ///
    /// # Errors
    /// When a replay differs, the entry holds a number that is not finite, or on I/O.
    pub fn record(&mut self, entry: &Entry) -> Result<Recorded, LedgerError> {
        let (line, hash) =
            chain::write(self.position, &self.head, entry).map_err(|e| LedgerError::Entry(e.to_string()))?;
        // JSON writes NaN as null, which would not read back.
        let readable: Result<Line, _> = serde_json::from_str(&line);
        readable
            .map_err(|e| LedgerError::Entry(format!("a {} entry does not read back: {e}", entry.kind())))?;
        let recorded = match self.replay.front() {
            Some(there) if *there != line => {
                let (at, recorded, replayed) = first_difference(there, &line);
                let (path, line) = (self.path.clone(), self.position + 1);
                return Err(LedgerError::NotDeterministic {
                    path,
                    line,
                    at,
                    recorded,
                    replayed,
                });
            }
            Some(_) => {
                self.replay.pop_front();
                Recorded::Replayed
            }
            None => {
                self.append(&line)?;
                Recorded::Appended
            }
        };
        self.position += 1;
        self.head = hash;
        Ok(recorded)
    }

    fn append(&mut self, line: &str) -> Result<(), LedgerError> {
        let written = self
            .file
            .write_all(line.as_bytes())
            .and_then(|()| self.file.sync_all());
        written.map_err(|source| LedgerError::Io {
            path: self.path.clone(),
            source,
        })
    }
}

fn lock(file: &File, path: &Path) -> Result<(), LedgerError> {
    match file.try_lock() {
        Ok(()) => Ok(()),
        Err(std::fs::TryLockError::WouldBlock) => Err(LedgerError::Locked(path.to_owned())),
        Err(std::fs::TryLockError::Error(source)) => Err(LedgerError::Io {
            path: path.to_owned(),
            source,
        }),
    }
}

fn check_all(path: &Path, bytes: &[u8]) -> Result<Vec<Line>, LedgerError> {
    let mut prev = GENESIS.to_owned();
    let mut lines = Vec::new();
    for (index, text) in bytes.split_inclusive(|b| *b == b'\n').enumerate() {
        let index = index as u64;
        let line = chain::check(text, index, &prev).map_err(|fault| LedgerError::Broken {
            path: path.to_owned(),
            line: index + 1,
            fault,
        })?;
        prev.clone_from(&line.hash);
        lines.push(line);
    }
    Ok(lines)
}

/// Checks every line and the chain through them.
///
/// # Errors
/// At the first bad line, named with its fault; or on I/O.
pub fn verify(path: &Path) -> Result<Summary, LedgerError> {
    let bytes = std::fs::read(path).map_err(|source| LedgerError::Io {
        path: path.to_owned(),
        source,
    })?;
    let mut summary = Summary {
        head: GENESIS.into(),
        ..Summary::default()
    };
    for line in check_all(path, &bytes)? {
        summary.entries += 1;
        summary.head = line.hash;
        match line.entry {
            Entry::RunStart(_) => {}
            Entry::Step(step) => {
                summary.steps += 1;
                summary.accepted += u64::from(step.decision.accepted);
                summary.rejected += u64::from(!step.decision.accepted);
            }
            Entry::Checkpoint(_) => summary.checkpoints += 1,
            Entry::RunEnd(_) => summary.finished = true,
        }
    }
    Ok(summary)
}

/// The lines up to the first bad one, and what is wrong with that one: for readers of a run in progress.
///
/// # Errors
/// On I/O.
pub fn read(path: &Path) -> Result<(Vec<Line>, Option<Fault>), LedgerError> {
    let bytes = std::fs::read(path).map_err(|source| LedgerError::Io {
        path: path.to_owned(),
        source,
    })?;
    let mut lines: Vec<Line> = Vec::new();
    for (index, text) in bytes.split_inclusive(|b| *b == b'\n').enumerate() {
        let prev = lines.last().map_or(GENESIS, |l| l.hash.as_str());
        match chain::check(text, index as u64, prev) {
            Ok(line) => lines.push(line),
            Err(fault) => return Ok((lines, Some(fault))),
        }
    }
    Ok((lines, None))
}

/// Path and values of the first difference between two lines, hashes aside (they always follow).
fn first_difference(recorded: &str, replayed: &str) -> (String, String, String) {
    fn walk(path: &str, a: &Value, b: &Value) -> Option<(String, String, String)> {
        match (a, b) {
            (Value::Object(x), Value::Object(y)) => {
                let keys = x.keys().chain(y.keys().filter(|k| !x.contains_key(*k)));
                keys.filter(|k| !(path.is_empty() && *k == "hash")).find_map(|k| {
                    let at = if path.is_empty() {
                        k.clone()
                    } else {
                        format!("{path}.{k}")
                    };
                    walk(
                        &at,
                        x.get(k).unwrap_or(&Value::Null),
                        y.get(k).unwrap_or(&Value::Null),
                    )
                })
            }
            (a, b) => (a != b).then(|| (path.to_owned(), a.to_string(), b.to_string())),
        }
    }
    let parse = |line: &str| serde_json::from_str(line).unwrap_or(Value::Null);
    walk("", &parse(recorded), &parse(replayed)).unwrap_or_else(|| {
        (
            "its bytes".into(),
            recorded.trim_end().into(),
            replayed.trim_end().into(),
        )
    })
}

#[cfg(test)]
mod tests;
