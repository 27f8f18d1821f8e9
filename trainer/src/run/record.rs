//! What a run leaves on disk: configuration, episodes, metrics, checkpoints, ledger.
//!
//! Order of a step: episodes and metrics, then the checkpoint, then the ledger. A ledger line therefore never speaks of a state
//! that a crash could lose; a checkpoint whose ledger lines were not yet written carries them in its manifest.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use mipu_agent::Group;

use super::RunError;
use super::directory::RunDirectory;
use super::setup::Run;
use super::step::Attempt;
use crate::checkpoint::{self, Checkpoint};
use crate::eval::EvalReport;
use crate::ledger::{self, Entry, Ledger};
use crate::metrics::{MetricsWriter, keys};

/// Open files of a run.
pub(super) struct Records<'a> {
    directory: &'a RunDirectory,
    ledger: Ledger,
    metrics: MetricsWriter,
}

impl<'a> Records<'a> {
    /// Opens them where the run stands, and completes what a crash cut off between a checkpoint and its ledger lines.
    pub(super) fn open(
        directory: &'a RunDirectory,
        run: &Run,
        resumed: Option<&Checkpoint>,
    ) -> Result<Self, RunError> {
        let path = directory.path();
        write_config(&path.join("config.yaml"), run)?;
        let metrics = MetricsWriter::open(&path.join("metrics.jsonl"), run.state.step)?;
        let file = path.join("ledger.jsonl");
        let position = resumed.map_or(0, |c| c.state.ledger_entries);
        let ledger = if file.exists() {
            Ledger::open(&file, position)?
        } else {
            Ledger::create(&file)?
        };
        let mut records = Self {
            directory,
            ledger,
            metrics,
        };
        if let Some(found) = resumed {
            for entry in &found.ledger {
                records.ledger.record(entry)?;
            }
            let entry = checkpoint_entry(&found.path, found.state.step)?;
            records.ledger.record(&entry)?;
        }
        Ok(records)
    }

    /// Writes down what a run starts from.
    pub(super) fn start(&mut self, run: &Run) -> Result<(), RunError> {
        self.ledger.record(&Entry::RunStart(ledger::RunStart {
            config_hash: run.state.config_hash.clone(),
            task_hash: run.tasks.content_hash.clone(),
            weights_hash: run.state.weights_hash.clone(),
            seed: run.config.seed,
        }))?;
        Ok(())
    }

    /// Writes down a finished step.
    pub(super) fn step(
        &mut self,
        run: &mut Run,
        attempt: &Attempt,
        evaluated: Option<&EvalReport>,
        elapsed: Duration,
    ) -> Result<(), RunError> {
        let step = run.state.step;
        write_trajectories(&self.directory.trajectories("train", step), &attempt.groups)?;
        if !attempt.validation.is_empty() {
            write_trajectories(
                &self.directory.trajectories("validation", step),
                &attempt.validation,
            )?;
        }
        if let Some(report) = evaluated {
            self.evaluated(step, report)?;
        }

        let mut metrics = attempt.metrics(run, evaluated);
        let entry = Entry::Step(Box::new(ledger::Step {
            attempt: step - 1,
            decision: attempt.decision.clone(),
            hashes: hashes(run, attempt),
            metrics: metrics.replayable(),
        }));
        let config = &run.config.checkpoint;
        let due = step.is_multiple_of(config.every.get()) || step == run.config.steps.get();
        let clock = Instant::now();
        let written = if due {
            run.state.ledger_entries = self.ledger.position();
            let model = run.base.with_weights(run.policy.to_weights()?);
            let optimizer = run.optim.state().to_tensors();
            let path = checkpoint::write(
                &self.directory.checkpoints(),
                &model,
                &optimizer,
                &run.state,
                std::slice::from_ref(&entry),
            )?;
            Some(path)
        } else {
            None
        };
        let saving = clock.elapsed();
        metrics.set(keys::TIME_CHECKPOINT, saving.as_secs_f64());
        metrics.set(keys::TIME_STEP, (elapsed + saving).as_secs_f64());
        self.metrics.append(&metrics)?;
        self.ledger.record(&entry)?;
        if let Some(path) = written {
            self.ledger.record(&checkpoint_entry(&path, step)?)?;
            let best = run.state.best.map(|(_, step)| step);
            checkpoint::prune(&self.directory.checkpoints(), config.keep_last.get(), best)?;
        }
        Ok(())
    }

    /// Writes down an evaluation.
    pub(super) fn evaluated(&self, step: u64, report: &EvalReport) -> Result<(), RunError> {
        let path = self
            .directory
            .path()
            .join("eval")
            .join(format!("step-{step:06}.json"));
        write_atomically(
            &path,
            &serde_json::to_vec_pretty(report).expect("a report serialises"),
        )
    }

    /// Closes the ledger; returns its head.
    pub(super) fn finish(&mut self, run: &Run) -> Result<String, RunError> {
        self.ledger.record(&Entry::RunEnd(ledger::RunEnd {
            steps: run.state.step,
            accepted: run.state.accepted,
            rejected: run.state.rejected,
            mu_before: run.state.eval_before,
            mu_after: run.state.eval_last,
            weights_hash: run.state.weights_hash.clone(),
        }))?;
        self.metrics.sync()?;
        Ok(self.ledger.head().to_owned())
    }
}

/// The state besides the weights that a rollback restores, by name.
fn hashes(run: &Run, attempt: &Attempt) -> BTreeMap<String, String> {
    BTreeMap::from([
        (
            "optimizer".to_owned(),
            checkpoint::tensors_hash(&run.optim.state().to_tensors()),
        ),
        ("sampler".to_owned(), attempt.sampler_hash.clone()),
        ("schedule_step".to_owned(), run.state.schedule_step.to_string()),
    ])
}

fn checkpoint_entry(path: &Path, step: u64) -> Result<Entry, RunError> {
    let name = path
        .file_name()
        .map(|n| n.to_string_lossy().into_owned())
        .unwrap_or_default();
    let manifest_hash = checkpoint::manifest_hash(path)?;
    Ok(Entry::Checkpoint(ledger::Checkpoint {
        attempt: step,
        name: format!("checkpoints/{name}"),
        manifest_hash,
    }))
}

/// The resolved configuration, refused when the directory was made by another one.
fn write_config(path: &Path, run: &Run) -> Result<(), RunError> {
    let mark = "# configuration ";
    if let Ok(text) = fs::read_to_string(path) {
        let first = text
            .lines()
            .next()
            .and_then(|l| l.strip_prefix(mark))
            .unwrap_or_default();
        if first == run.state.config_hash {
            return Ok(());
        }
        return Err(RunError::OtherConfiguration {
            path: path.parent().unwrap_or(path).to_owned(),
            expected: first.to_owned(),
            found: run.state.config_hash.clone(),
        });
    }
    let yaml = serde_saphyr::to_string(&run.config).unwrap_or_else(|e| format!("# not representable: {e}\n"));
    let text = format!(
        "{mark}{}\n# Resolved: every default written out. Start it again with: mipu train config.yaml\n{yaml}",
        run.state.config_hash
    );
    write_atomically(path, text.as_bytes())
}

fn write_trajectories(path: &Path, groups: &[Group]) -> Result<(), RunError> {
    let io = RunError::io;
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(io(parent))?;
    }
    let mut out = BufWriter::new(File::create(path).map_err(io(path))?);
    for trajectory in groups.iter().flat_map(|g| &g.trajectories) {
        serde_json::to_writer(&mut out, trajectory).map_err(|e| RunError::io(path)(e.into()))?;
        out.write_all(b"\n").map_err(io(path))?;
    }
    out.flush().map_err(io(path))
}

/// Whole or absent: temporary file, sync, rename.
fn write_atomically(path: &Path, bytes: &[u8]) -> Result<(), RunError> {
    let parent = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(parent).map_err(RunError::io(parent))?;
    let mut file = tempfile::NamedTempFile::new_in(parent).map_err(RunError::io(path))?;
    file.write_all(bytes)
        .and_then(|()| file.as_file().sync_all())
        .map_err(RunError::io(path))?;
    file.persist(path).map_err(|e| RunError::io(path)(e.error))?;
    Ok(())
}
