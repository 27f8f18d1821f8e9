//! `mipu bench`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use comfy_table::{Table, presets};
use mipu_agent::EngineConfig;
use mipu_trainer::bench::{BenchSize, bench_trainer};
use mipu_trainer::ladder::{self, RungReport};
use mipu_trainer::report::write_mismatch_report;
use serde_json::json;

use super::shared::{cancel_on_ctrl_c, engine_config, load_model, open_sandbox, stage};
use crate::cli::{Bench, Sampled};
use crate::output;

/// Model of the quick start, for benches without `--model`.
const DEFAULT_MODEL: &str = "configs/base-tiny";

pub(crate) async fn run(command: Bench) -> anyhow::Result<ExitCode> {
    match command {
        Bench::Sandbox { runs, json } => sandbox(runs, json).await,
        Bench::Sampler { model, threads, json } => sampler(model, threads, json).await,
        Bench::Trainer { model, json } => trainer(model, json),
        Bench::Mismatch { sampled, out } => mismatch(&sampled, &out).await,
    }
}

async fn sandbox(runs: usize, json: bool) -> anyhow::Result<ExitCode> {
    anyhow::ensure!(runs > 0, "--runs must be positive");
    let sandbox = open_sandbox()?;
    let report = mipu_sandbox::bench::bench_sandbox(&sandbox, runs).await?;
    output::report(json, &report)
}

async fn sampler(model: Option<PathBuf>, threads: usize, json: bool) -> anyhow::Result<ExitCode> {
    let model = load_model(&model.unwrap_or_else(|| DEFAULT_MODEL.into()))?;
    let config = EngineConfig {
        threads,
        ..EngineConfig::default()
    };
    let report = mipu_agent::bench::sampler(&model.weights, config, &[1, 8, 32], 48).await?;
    output::report(json, &report)
}

fn trainer(model: Option<PathBuf>, json: bool) -> anyhow::Result<ExitCode> {
    let model = load_model(&model.unwrap_or_else(|| DEFAULT_MODEL.into()))?;
    let report = bench_trainer(&model.weights, BenchSize::default())?;
    output::report(json, &report)
}

async fn mismatch(args: &Sampled, out: &Path) -> anyhow::Result<ExitCode> {
    anyhow::ensure!(
        args.temperature > 0.0,
        "--temperature must be positive here: a greedy policy has no log-ratio"
    );
    let stage = stage(args).await?;
    let cancel = cancel_on_ctrl_c();
    let rungs = ladder::rungs(&engine_config(args.precision));
    let told = |r: &RungReport| output::say(&format!("{:<14} done: {} tokens", r.name, r.diagnostics.tokens));
    let reports = ladder::climb(
        &stage.model,
        &stage.context,
        &stage.tasks,
        &stage.rollout,
        &rungs,
        &cancel,
        &told,
    )
    .await?;
    let curves: Vec<_> = reports.iter().map(|r| r.accumulation.clone()).collect();
    write_mismatch_report(out, &curves)?;
    if args.json {
        output::json(&json!({"page": out, "reference": "f32 trainer", "ladder": reports}))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY);
    table.set_header([
        "engine",
        "J(mu)",
        "k3 (nats)",
        "mean |d|",
        "drift / token",
        "2H",
        "outside [.5, 2]",
    ]);
    for report in &reports {
        let totals = report.diagnostics.totals.as_ref();
        let number = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |v| format!("{v:.2e}"));
        let exponent = report.accumulation.fit_by_token.as_ref();
        table.add_row([
            report.name.clone(),
            format!("{:.3}", report.mean_return),
            number(totals.map(|t| t.k3)),
            number(totals.map(|t| t.abs_logp_diff_mean)),
            format!("{:.2e}", report.accumulation.drift_per_token),
            exponent.map_or_else(|| "-".to_owned(), |f| format!("{:.2} +- {:.2}", f.exponent, f.se)),
            number(report.accumulation.by_token.last().map(|p| p.share_outside)),
        ]);
    }
    output::data(&table.to_string());
    output::data(&format!("page  {}", out.display()));
    Ok(ExitCode::SUCCESS)
}
