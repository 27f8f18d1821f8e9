//! `mipu ledger`.

use std::process::ExitCode;

use mipu_trainer::ledger;

use crate::cli::Ledger;
use crate::output;

pub(crate) fn run(args: &Ledger) -> anyhow::Result<ExitCode> {
    let Ledger::Verify { path, json } = args;
    let file = if path.is_dir() {
        path.join("ledger.jsonl")
    } else {
        path.clone()
    };
    anyhow::ensure!(
        file.exists(),
        "{} does not exist\nhint: name a run directory, e.g. runs/quickstart-001",
        file.display()
    );
    let summary = ledger::verify(&file)?;
    if *json {
        output::json(&summary)?;
    } else {
        output::data(&format!(
            "{} entries hold: {} steps ({} accepted, {} rolled back), {} checkpoints, {}\nhead {}",
            summary.entries,
            summary.steps,
            summary.accepted,
            summary.rejected,
            summary.checkpoints,
            if summary.finished {
                "finished"
            } else {
                "not finished"
            },
            summary.head
        ));
    }
    Ok(ExitCode::SUCCESS)
}
