//! A training run: the outer loop, which reads like the diagram of the architecture.
//!
//! `tasks -> rollout (mu_k) -> update (pi_k+1) -> sync (mu_k+1) -> validate -> accept or roll back -> checkpoint -> ledger`.
//!
//! Every step is a function of the configuration, the seed and the state before it, so that a run that was killed and resumed
//! writes the same ledger and the same weights as one that was not.

mod audit;
mod directory;
mod error;
mod measure;
mod observer;
mod plan;
mod record;
mod resample;
mod setup;
mod step;

use std::path::{Path, PathBuf};
use std::time::Instant;

use mipu_sandbox::Sandbox;
use tokio_util::sync::CancellationToken;

pub use audit::Audit;
pub use directory::{Resume, RunDirectory};
pub use error::RunError;
pub use observer::{Observer, Phase, Silent, StepSummary};
pub use plan::Plan;

use crate::checkpoint;
use crate::config::RunConfig;
use crate::report;
use record::Records;
use setup::Run;

/// Where a run goes.
#[derive(Clone, Debug, Default)]
pub struct TrainOptions {
    /// Directory of numbered runs (`runs`).
    pub root: PathBuf,
    /// Run directory; `None` takes the next number below `root`.
    pub out: Option<PathBuf>,
    /// Whether to continue an earlier run.
    pub resume: Resume,
}

/// What a run came to.
#[derive(Clone, Debug)]
pub struct RunSummary {
    /// Run directory.
    pub directory: PathBuf,
    /// J(mu) before the first step, on held-out rows.
    pub eval_before: f64,
    /// J(mu) after the last step.
    pub eval_after: f64,
    /// Attempted steps.
    pub steps: u64,
    /// Accepted steps.
    pub accepted: u64,
    /// Rolled-back steps.
    pub rejected: u64,
    /// blake3 of the final weights.
    pub weights_hash: String,
    /// Hash of the ledger's last line.
    pub ledger_head: String,
    /// The HTML report.
    pub report: PathBuf,
}

/// The arithmetic of a run, without doing anything else.
///
/// # Errors
/// When the model or a task cannot be loaded.
pub async fn plan(config: &RunConfig, sandbox: &Sandbox) -> Result<Plan, RunError> {
    setup::plan(config, sandbox).await
}

/// Runs (or continues) a training run to its last step and writes its report.
///
/// # Errors
/// [`RunError::Interrupted`] when cancelled: the step in progress is abandoned, everything recorded stays and can be resumed.
pub async fn train(
    config: &RunConfig,
    options: &TrainOptions,
    sandbox: &Sandbox,
    observer: &dyn Observer,
    cancel: &CancellationToken,
) -> Result<RunSummary, RunError> {
    let directory = RunDirectory::select(
        &options.root,
        &config.name,
        options.out.as_deref(),
        &options.resume,
    )?;
    let resumed = checkpoint::latest(&directory.checkpoints())?;
    let mut run = Run::start(config, sandbox, resumed.as_ref()).await?;
    observer.planned(&run.plan);
    let mut records = Records::open(&directory, &run, resumed.as_ref())?;
    if run.state.step > 0 {
        observer.resumed(run.state.step);
    }

    if run.state.eval_before.is_none() {
        let report = step::evaluate(&run, 0, observer, cancel).await?;
        run.state.eval_before = Some(report.mean_return);
        run.state.eval_last = Some(report.mean_return);
        records.evaluated(0, &report)?;
        records.start(&run)?;
    }
    while run.state.step < config.steps.get() {
        let started = Instant::now();
        let attempt = step::attempt(&mut run, observer, cancel).await?;
        let step = run.state.step;
        let last = step == config.steps.get();
        let due = last || (config.eval.every > 0 && step.is_multiple_of(config.eval.every));
        let evaluated = if due {
            Some(step::evaluate(&run, step, observer, cancel).await?)
        } else {
            None
        };
        if let Some(report) = &evaluated {
            run.note_eval(report.mean_return);
        }
        observer.phase(step, Phase::Checkpoint, 0);
        records.step(&mut run, &attempt, evaluated.as_ref(), started.elapsed())?;
        observer.step(&attempt.summary(&run, started.elapsed()));
    }

    let ledger_head = records.finish(&run)?;
    directory.finish()?;
    let report = write_report(directory.path(), &run)?;
    Ok(RunSummary {
        directory: directory.path().to_owned(),
        eval_before: run.state.eval_before.unwrap_or_default(),
        eval_after: run.state.eval_last.unwrap_or_default(),
        steps: run.state.step,
        accepted: run.state.accepted,
        rejected: run.state.rejected,
        weights_hash: run.state.weights_hash.clone(),
        ledger_head,
        report,
    })
}

fn write_report(directory: &Path, run: &Run) -> Result<PathBuf, RunError> {
    let renderer = run.context.renderer.clone();
    Ok(report::write_report(directory, &move |ids| renderer.decode(ids))?)
}
