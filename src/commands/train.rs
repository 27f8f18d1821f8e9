//! `mipu train`.

use std::process::ExitCode;
use std::time::Instant;

use mipu_trainer::config::RunConfig;
use mipu_trainer::run::{self, Resume, RunError, TrainOptions};
use serde_json::json;

use super::shared::{cancel_on_ctrl_c, open_sandbox};
use crate::cli::Train;
use crate::output;
use crate::progress::{Progress, duration};

pub(crate) async fn run(args: Train) -> anyhow::Result<ExitCode> {
    let path = args
        .path
        .or(args.config)
        .ok_or_else(|| anyhow::anyhow!("name a configuration file"))?;
    let mut overrides = args.overrides;
    if let Some(seed) = args.seed {
        overrides.push(format!("seed={seed}"));
    }
    let config = RunConfig::load(&path, &overrides)?;
    let sandbox = open_sandbox()?;
    if args.dry_run {
        let plan = run::plan(&config, &sandbox).await?;
        if args.json {
            output::json(&plan)?;
        } else {
            output::data(&plan.to_string());
            output::data("dry run: nothing was sampled, trained or written");
        }
        return Ok(ExitCode::SUCCESS);
    }
    let options = TrainOptions {
        root: "runs".into(),
        out: args.out,
        resume: args.resume.as_deref().map(Resume::from).unwrap_or_default(),
    };
    let started = Instant::now();
    let cancel = cancel_on_ctrl_c();
    let progress = Progress::new();
    let result = run::train(&config, &options, &sandbox, &progress, &cancel).await;
    progress.clear();
    let summary = match result {
        Ok(summary) => summary,
        Err(RunError::Interrupted) => {
            output::say("stopped; continue with: mipu train <the same arguments> --resume auto");
            return Ok(ExitCode::from(130));
        }
        Err(error) => return Err(error.into()),
    };
    let wall = started.elapsed();
    if args.json {
        output::json(&json!({
            "run": summary.directory,
            "eval": {"mu_before": summary.eval_before, "mu_after": summary.eval_after},
            "accepted": summary.accepted,
            "rejected": summary.rejected,
            "steps": summary.steps,
            "weights_hash": summary.weights_hash,
            "ledger_head": summary.ledger_head,
            "wall_s": wall.as_secs_f64(),
        }))?;
    } else {
        output::data(&format!(
            "J(mu) {:.3} -> {:.3}; {} steps accepted, {} rolled back; {}\nreport  {}",
            summary.eval_before,
            summary.eval_after,
            summary.accepted,
            summary.rejected,
            duration(wall),
            summary.report.display()
        ));
    }
    Ok(ExitCode::SUCCESS)
}
