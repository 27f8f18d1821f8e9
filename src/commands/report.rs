//! `mipu report`.

use std::process::ExitCode;

use mipu_agent::{LoadedModel, dialect};
use mipu_trainer::{checkpoint, report};
use serde_json::json;

use crate::cli::Report;
use crate::output;

pub(crate) fn run(args: &Report) -> anyhow::Result<ExitCode> {
    anyhow::ensure!(
        args.run.join("config.yaml").exists(),
        "{} is not a run directory\nhint: it holds config.yaml, metrics.jsonl and ledger.jsonl; see `ls runs`",
        args.run.display()
    );
    // Transcripts are decoded with the run's own tokenizer, which every checkpoint carries.
    let newest = checkpoint::steps(&args.run.join("checkpoints"))?.pop();
    let renderer = match newest {
        Some((_, path)) => Some(dialect::renderer(&LoadedModel::load(&path)?)?),
        None => None,
    };
    let decode = move |ids: &[u32]| {
        renderer
            .as_ref()
            .map_or_else(|| format!("{ids:?}"), |r| r.decode(ids))
    };
    let page = report::write_report(&args.run, &decode)?;
    if args.json {
        output::json(&json!({"report": page}))?;
    } else {
        output::data(&page.display().to_string());
    }
    Ok(ExitCode::SUCCESS)
}
