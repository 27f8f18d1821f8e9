//! One line per attempted step in `metrics.jsonl`: a flat map of canonical keys, the truth every plot is drawn from.
//!
//! A value that is not finite is written as `null` (JSON has no NaN) and read back as absent. A line is written whole or not at all; a torn last
//! line (a crash) is cut when the file is opened again, as are the lines of steps that will be replayed.

pub mod keys;

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Map, Value};

pub use keys::{Declared, Key, Unit};

/// A metrics file could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum MetricsError {
    /// The file system said no.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A complete line is not a metrics line.
    #[error("{}: line {line} is not a metrics line: {reason}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// 1-based.
        line: usize,
        /// What is wrong.
        reason: String,
    },
}

/// The metrics of one attempted step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepMetrics {
    step: u64,
    values: BTreeMap<Key, f64>,
}

impl StepMetrics {
    /// No values yet.
    pub fn new(step: u64) -> Self {
        Self {
            step,
            values: BTreeMap::new(),
        }
    }

    /// Attempted step, 0-based.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// Sets a value, replacing an earlier one.
    pub fn set(&mut self, key: Key, value: f64) {
        self.values.insert(key, value);
    }

    /// Sets a value when there is one.
    pub fn set_some(&mut self, key: Key, value: Option<f64>) {
        if let Some(value) = value {
            self.set(key, value);
        }
    }

    /// A value set before.
    pub fn get(&self, key: &Key) -> Option<f64> {
        self.values.get(key).copied()
    }

    /// All values by key.
    pub fn values(&self) -> impl Iterator<Item = (&Key, f64)> {
        self.values.iter().map(|(k, v)| (k, *v))
    }

    /// The values a replay reproduces bit for bit and that are finite: what may enter the ledger.
    pub fn replayable(&self) -> BTreeMap<String, f64> {
        let kept = self
            .values()
            .filter(|(key, value)| key.replayable() && value.is_finite());
        kept.map(|(key, value)| (key.as_str().to_owned(), value))
            .collect()
    }

    /// The line written for this step, newline included.
    pub fn line(&self) -> String {
        let mut map = Map::new();
        map.insert("step".into(), self.step.into());
        for (key, value) in self.values() {
            // `Value::from` turns NaN and infinities into null.
            map.insert(key.as_str().into(), Value::from(value));
        }
        format!("{}\n", Value::Object(map))
    }
}

impl Extend<(Key, f64)> for StepMetrics {
    fn extend<T: IntoIterator<Item = (Key, f64)>>(&mut self, values: T) {
        self.values.extend(values);
    }
}

/// Appends to `metrics.jsonl`.
#[derive(Debug)]
pub struct MetricsWriter {
    path: PathBuf,
    file: File,
}

impl MetricsWriter {
    /// Opens (or creates) the file for steps from `next_step` on: lines of that step and later ones are cut, and so is a torn last line.
    ///
    /// # Errors
    /// On I/O, or when a line before the cut is not a metrics line.
    pub fn open(path: &Path, next_step: u64) -> Result<Self, MetricsError> {
        let io = |source| MetricsError::Io {
            path: path.to_owned(),
            source,
        };
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(io)?;
        let mut text = Vec::new();
        file.read_to_end(&mut text).map_err(io)?;
        let mut keep = 0;
        for (index, line) in text.split_inclusive(|b| *b == b'\n').enumerate() {
            if line.last() != Some(&b'\n') {
                break;
            }
            let row: RecordedStep = serde_json::from_slice(line).map_err(|e| MetricsError::Line {
                path: path.to_owned(),
                line: index + 1,
                reason: e.to_string(),
            })?;
            if row.step >= next_step {
                break;
            }
            keep += line.len() as u64;
        }
        file.set_len(keep).map_err(io)?;
        file.seek(SeekFrom::Start(keep)).map_err(io)?;
        Ok(Self {
            path: path.to_owned(),
            file,
        })
    }

    /// Appends one line with one write.
    ///
    /// # Errors
    /// On I/O.
    pub fn append(&mut self, metrics: &StepMetrics) -> Result<(), MetricsError> {
        self.file
            .write_all(metrics.line().as_bytes())
            .map_err(|source| MetricsError::Io {
                path: self.path.clone(),
                source,
            })
    }

    /// Makes what was appended durable; called before a checkpoint that relies on it.
    ///
    /// # Errors
    /// On I/O.
    pub fn sync(&self) -> Result<(), MetricsError> {
        self.file.sync_data().map_err(|source| MetricsError::Io {
            path: self.path.clone(),
            source,
        })
    }
}

/// A line read back.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct RecordedStep {
    /// Attempted step.
    pub step: u64,
    /// Values by key; `None` where the value was not finite.
    #[serde(flatten)]
    pub values: BTreeMap<String, Option<f64>>,
}

impl RecordedStep {
    /// A finite value.
    pub fn get(&self, key: &Key) -> Option<f64> {
        self.values.get(key.as_str()).copied().flatten()
    }
}

/// Reads a metrics file, also one that is being written: a torn last line is left out. Returns the steps, and how many complete lines could
/// not be read as metrics (0 unless the file was tampered with).
///
/// # Errors
/// On I/O.
pub fn read(path: &Path) -> Result<(Vec<RecordedStep>, usize), MetricsError> {
    let bytes = std::fs::read(path).map_err(|source| MetricsError::Io {
        path: path.to_owned(),
        source,
    })?;
    let complete = bytes
        .iter()
        .rposition(|b| *b == b'\n')
        .map_or(&[][..], |end| &bytes[..end]);
    let lines: Vec<&[u8]> = complete
        .split(|b| *b == b'\n')
        .filter(|l| !l.is_empty())
        .collect();
    let steps: Vec<RecordedStep> = lines
        .iter()
        .filter_map(|line| serde_json::from_slice(line).ok())
        .collect();
    let unreadable = lines.len() - steps.len();
    Ok((steps, unreadable))
}

#[cfg(test)]
mod tests {
    use mipu_envs::StopReason;

    use super::*;

    fn row(step: u64, reward: f64) -> StepMetrics {
        let mut row = StepMetrics::new(step);
        row.set(keys::REWARD_MEAN, reward);
        row.set(keys::TIME_STEP, 1.5);
        row
    }

    #[test]
    fn key_table() {
        insta::assert_snapshot!(keys::table());
    }

    #[test]
    fn keys_are_area_slash_name_and_unique() {
        let mut names: Vec<_> = keys::FIXED.iter().chain(keys::FAMILIES).map(|d| d.name).collect();
        assert!(names.iter().all(|n| {
            n.split_once('/')
                .is_some_and(|(a, b)| !a.is_empty() && !b.is_empty())
        }));
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn families_build_clean_keys() {
        assert_eq!(keys::stop(StopReason::MaxTurns).as_str(), "stop/max_turns");
        assert_eq!(keys::env("tool/fail \"x\"").as_str(), "env/tool/fail__x_");
        assert_eq!(keys::k3_turn(7).unwrap().as_str(), "mismatch/k3_turn_7");
        assert_eq!(keys::k3_turn(8), None);
    }

    #[test]
    fn a_value_that_is_not_finite_is_null_and_stays_out_of_the_ledger() {
        let mut row = row(3, f64::NAN);
        row.set(keys::ACTOR_GRAD_NORM, f64::INFINITY);
        row.set(keys::GATE_T_HAT, -1e-4);
        assert_eq!(
            row.line(),
            "{\"step\":3,\"actor/grad_norm\":null,\"gate/t_hat\":-0.0001,\"reward/mean\":null,\"time/step\":1.5}\n"
        );
        assert_eq!(
            row.replayable().into_iter().collect::<Vec<_>>(),
            [("gate/t_hat".to_owned(), -1e-4)]
        );
    }

    #[test]
    fn resume_cuts_replayed_steps_and_a_torn_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.jsonl");
        let mut writer = MetricsWriter::open(&path, 0).unwrap();
        for step in 0..4 {
            writer.append(&row(step, step as f64)).unwrap();
        }
        drop(writer);
        let whole = std::fs::read(&path).unwrap();
        std::fs::write(&path, &whole[..whole.len() - 9]).unwrap();
        assert_eq!(read(&path).unwrap().0.len(), 3);
        let mut writer = MetricsWriter::open(&path, 2).unwrap();
        writer.append(&row(2, 2.0)).unwrap();
        writer.append(&row(3, 3.0)).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), whole);
        assert_eq!(read(&path).unwrap().0[3].get(&keys::REWARD_MEAN), Some(3.0));
    }

    #[test]
    fn a_foreign_line_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.jsonl");
        std::fs::write(&path, "{\"step\":0}\nnot json\n").unwrap();
        let error = MetricsWriter::open(&path, 9).unwrap_err().to_string();
        assert!(error.contains("line 2 is not a metrics line"), "{error}");
        let (steps, unreadable) = read(&path).unwrap();
        assert_eq!((steps.len(), unreadable), (1, 1));
    }
}
