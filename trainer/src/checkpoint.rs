//! Durable state of a run: written beside, synced, renamed, and verified by hash before it is believed.
//!
//! A checkpoint is a directory `step-<n>` that is also a Hugging Face style model directory, so that `mipu eval --model` reads
//! it. `manifest.json` is written last and names every other file with its length and blake3; a directory without a matching
//! manifest does not count. A crash at any moment therefore leaves either the old set of checkpoints or the new one.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mipu_agent::{LoadedModel, ModelError};
use serde::{Deserialize, Serialize};

use crate::gate::Estimate;
use crate::ledger::Entry;
use crate::mixture::BucketState;
use crate::run::Audit;

/// A named f32 tensor: `(name, shape, row-major values)`.
pub type NamedTensor = (String, Vec<usize>, Arc<Vec<f32>>);

const MANIFEST: &str = "manifest.json";
const OPTIMIZER: &str = "optimizer.safetensors";
const PREFIX: &str = "step-";
const TEMPORARY: &str = ".writing-";

/// A checkpoint could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The file system failed.
    #[error("{}: {source}", path.display())]
    Io {
        /// File or directory.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// A file differs from what the manifest says.
    #[error("{}: {message}\nhint: the checkpoint is damaged; an earlier one in the same directory can be resumed from", path.display())]
    Damaged {
        /// File.
        path: PathBuf,
        /// What differs.
        message: String,
    },
    /// The model part could not be read or written.
    #[error(transparent)]
    Model(#[from] ModelError),
}

/// Where a run stands after a step. Everything the next step depends on, apart from the tensors.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunState {
    /// Attempted steps.
    pub step: u64,
    /// Accepted steps.
    pub accepted: u64,
    /// Rejected steps.
    pub rejected: u64,
    /// Position of the learning-rate schedule (restored by a rollback).
    pub schedule_step: u64,
    /// Updates the optimizer has applied.
    pub optimizer_step: u64,
    /// Version of the deployed weights.
    pub policy_version: u64,
    /// blake3 of the weights.
    pub weights_hash: String,
    /// blake3 of the resolved configuration.
    pub config_hash: String,
    /// Best held-out reward so far and its step.
    pub best: Option<(f64, u64)>,
    /// Ledger lines before those of this step.
    pub ledger_entries: u64,
    /// J(mu) before the first step.
    pub eval_before: Option<f64>,
    /// J(mu) at the last evaluation.
    pub eval_last: Option<f64>,
    /// Validation reward of the last accepted sampler, for the `reward_drop` gate.
    pub reward_before: Option<Estimate>,
    /// What the audits of the gate found.
    #[serde(default)]
    pub audits: Vec<Audit>,
    /// What is known of each bucket, with weights or a curriculum.
    #[serde(default)]
    pub buckets: Vec<BucketState>,
}

#[derive(Serialize, Deserialize)]
struct Manifest {
    format: u32,
    state: RunState,
    /// Ledger lines of this step, appended only once the checkpoint is durable.
    ledger: Vec<Entry>,
    files: BTreeMap<String, FileEntry>,
}

#[derive(Serialize, Deserialize, PartialEq)]
struct FileEntry {
    bytes: u64,
    blake3: String,
}

/// A verified checkpoint in memory.
pub struct Checkpoint {
    /// Directory it was read from.
    pub path: PathBuf,
    /// Weights, tokenizer, template.
    pub model: LoadedModel,
    /// Optimizer tensors.
    pub optimizer: Vec<NamedTensor>,
    /// Counters and hashes.
    pub state: RunState,
    /// Ledger entries that belong to the step.
    pub ledger: Vec<Entry>,
}

/// Writes `dir/step-<n>` so that it is whole or absent.
///
/// # Errors
/// On a file-system failure (a full disk leaves the earlier checkpoints as they were).
pub fn write(
    dir: &Path,
    model: &LoadedModel,
    optimizer: &[NamedTensor],
    state: &RunState,
    ledger: &[Entry],
) -> Result<PathBuf, CheckpointError> {
    let name = format!("{PREFIX}{:06}", state.step);
    let (target, temporary) = (dir.join(&name), dir.join(format!("{TEMPORARY}{name}")));
    create(dir)?;
    remove(&temporary)?;
    create(&temporary)?;
    let written = (|| {
        model.save(&temporary)?;
        let path = temporary.join(OPTIMIZER);
        write_tensors(&path, optimizer)?;
        let mut files = BTreeMap::new();
        for entry in list(&temporary)? {
            let path = temporary.join(&entry);
            sync(&path)?;
            files.insert(entry, digest(&path)?);
        }
        let manifest = Manifest {
            format: 1,
            state: state.clone(),
            ledger: ledger.to_vec(),
            files,
        };
        let path = temporary.join(MANIFEST);
        let text = serde_json::to_vec_pretty(&manifest).expect("a manifest serialises");
        fs::write(&path, text).map_err(at(&path))?;
        sync(&path)?;
        sync(&temporary)?;
        // A leftover of the same step can only be the product of the same deterministic step.
        remove(&target)?;
        fs::rename(&temporary, &target).map_err(at(&target))?;
        sync(dir)
    })();
    if written.is_err() {
        let _ = fs::remove_dir_all(&temporary);
    }
    written.map(|()| target)
}

/// Reads and verifies one checkpoint.
///
/// # Errors
/// Names the first file that is missing, truncated or altered.
pub fn read(path: &Path) -> Result<Checkpoint, CheckpointError> {
    let file = path.join(MANIFEST);
    let text = fs::read(&file).map_err(at(&file))?;
    let damaged = |path: &Path, message: String| CheckpointError::Damaged {
        path: path.to_owned(),
        message,
    };
    let manifest: Manifest =
        serde_json::from_slice(&text).map_err(|e| damaged(&file, format!("not a manifest: {e}")))?;
    for (name, expected) in &manifest.files {
        let file = path.join(name);
        let found = digest(&file)?;
        if found.bytes != expected.bytes {
            return Err(damaged(
                &file,
                format!("expected {} bytes, found {}", expected.bytes, found.bytes),
            ));
        }
        if found != *expected {
            return Err(damaged(
                &file,
                format!("expected blake3 {}, found {}", expected.blake3, found.blake3),
            ));
        }
    }
    let model = LoadedModel::load(path)?;
    let optimizer = read_tensors(&path.join(OPTIMIZER))?;
    let hash = model.weights.hash();
    if hash != manifest.state.weights_hash {
        return Err(damaged(
            path,
            format!("expected weights {}, found {hash}", manifest.state.weights_hash),
        ));
    }
    Ok(Checkpoint {
        path: path.to_owned(),
        model,
        optimizer,
        state: manifest.state,
        ledger: manifest.ledger,
    })
}

/// Steps that have a directory, oldest first (not yet verified).
///
/// # Errors
/// When the directory cannot be listed; a missing one is empty.
pub fn steps(dir: &Path) -> Result<Vec<(u64, PathBuf)>, CheckpointError> {
    if !dir.exists() {
        return Ok(Vec::new());
    }
    let mut found: Vec<_> = list(dir)?
        .into_iter()
        .filter_map(|name| Some((name.strip_prefix(PREFIX)?.parse().ok()?, dir.join(&name))))
        .collect();
    found.sort();
    Ok(found)
}

/// The newest checkpoint that verifies; a damaged one is passed over with a warning.
///
/// # Errors
/// When the directory cannot be listed.
pub fn latest(dir: &Path) -> Result<Option<Checkpoint>, CheckpointError> {
    for (_, path) in steps(dir)?.into_iter().rev() {
        match read(&path) {
            Ok(checkpoint) => return Ok(Some(checkpoint)),
            Err(error) => tracing::warn!("passing over {}: {error}", path.display()),
        }
    }
    Ok(None)
}

/// Removes all but the newest `keep_last` checkpoints and the one of step `best`; also what a crash left half written.
///
/// # Errors
/// When a directory cannot be removed.
pub fn prune(dir: &Path, keep_last: usize, best: Option<u64>) -> Result<(), CheckpointError> {
    for name in list(dir)?.into_iter().filter(|n| n.starts_with(TEMPORARY)) {
        remove(&dir.join(name))?;
    }
    let all = steps(dir)?;
    let old = all.len().saturating_sub(keep_last);
    for (step, path) in all.into_iter().take(old) {
        if Some(step) != best {
            remove(&path)?;
        }
    }
    Ok(())
}

/// blake3 of a checkpoint's manifest, which names the hash of every other file: the identity of the checkpoint.
///
/// # Errors
/// When the manifest cannot be read.
pub fn manifest_hash(path: &Path) -> Result<String, CheckpointError> {
    Ok(digest(&path.join(MANIFEST))?.blake3)
}

/// blake3 over names, shapes and little-endian values, in order.
pub fn tensors_hash(tensors: &[NamedTensor]) -> String {
    let mut hasher = blake3::Hasher::new();
    for (name, shape, values) in tensors {
        hasher.update(name.as_bytes());
        for dim in shape {
            hasher.update(&(*dim as u64).to_le_bytes());
        }
        for value in values.iter() {
            hasher.update(&value.to_le_bytes());
        }
    }
    hasher.finalize().to_hex().to_string()
}

fn write_tensors(path: &Path, tensors: &[NamedTensor]) -> Result<(), CheckpointError> {
    let views: Vec<(&str, safetensors::tensor::TensorView<'_>)> = tensors
        .iter()
        .map(|(name, shape, values)| {
            let bytes = bytemuck::cast_slice::<f32, u8>(values);
            let view = safetensors::tensor::TensorView::new(safetensors::Dtype::F32, shape.clone(), bytes)
                .expect("a tensor's values fill its shape");
            (name.as_str(), view)
        })
        .collect();
    safetensors::serialize_to_file(views, None, path).map_err(|e| CheckpointError::Io {
        path: path.to_owned(),
        source: io::Error::other(e),
    })
}

fn read_tensors(path: &Path) -> Result<Vec<NamedTensor>, CheckpointError> {
    let bytes = fs::read(path).map_err(at(path))?;
    let damaged = |message: String| CheckpointError::Damaged {
        path: path.to_owned(),
        message,
    };
    let file = safetensors::SafeTensors::deserialize(&bytes).map_err(|e| damaged(e.to_string()))?;
    let mut out = Vec::new();
    for (name, view) in file.tensors() {
        if view.dtype() != safetensors::Dtype::F32 {
            return Err(damaged(format!(
                "tensor `{name}`: expected F32, found {:?}",
                view.dtype()
            )));
        }
        let values = view
            .data()
            .chunks_exact(4)
            .map(|b| f32::from_le_bytes(b.try_into().expect("4 bytes")))
            .collect();
        out.push((name, view.shape().to_vec(), Arc::new(values)));
    }
    Ok(out)
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> CheckpointError + '_ {
    move |source| CheckpointError::Io {
        path: path.to_owned(),
        source,
    }
}

fn create(dir: &Path) -> Result<(), CheckpointError> {
    fs::create_dir_all(dir).map_err(at(dir))
}

fn remove(dir: &Path) -> Result<(), CheckpointError> {
    match fs::remove_dir_all(dir) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(at(dir)(e)),
        _ => Ok(()),
    }
}

fn sync(path: &Path) -> Result<(), CheckpointError> {
    File::open(path).and_then(|f| f.sync_all()).map_err(at(path))
}

fn list(dir: &Path) -> Result<Vec<String>, CheckpointError> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir).map_err(at(dir))? {
        let entry = entry.map_err(at(dir))?;
        if let Ok(name) = entry.file_name().into_string() {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

fn digest(path: &Path) -> Result<FileEntry, CheckpointError> {
    let mut file = File::open(path).map_err(at(path))?;
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0; 1 << 20];
    let mut bytes = 0;
    loop {
        let n = file.read(&mut buffer).map_err(at(path))?;
        if n == 0 {
            break;
        }
        hasher.update(&buffer[..n]);
        bytes += n as u64;
    }
    Ok(FileEntry {
        bytes,
        blake3: hasher.finalize().to_hex().to_string(),
    })
}
