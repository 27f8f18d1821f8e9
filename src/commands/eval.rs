//! `mipu eval`.

use std::process::ExitCode;

use mipu_trainer::eval::evaluate;

use super::shared::{cancel_on_ctrl_c, stage};
use crate::cli::Eval;
use crate::output;

pub(crate) async fn run(args: Eval) -> anyhow::Result<ExitCode> {
    let stage = stage(&args.sampled).await?;
    let cancel = cancel_on_ctrl_c();
    let (report, _) = evaluate(&stage.context, &stage.tasks, &stage.rollout, &cancel, &|| ()).await?;
    if args.sampled.json {
        output::json(&report)?;
        return Ok(ExitCode::SUCCESS);
    }
    output::data(&format!(
        "J(mu)      {:.3}  95 % interval [{:.3}, {:.3}]\npass@1     {:.3}\npass@{}     {:.3}\nepisodes   {} of {} rows, {} unscored\nturns      {:.2}, {:.1} sampled tokens",
        report.mean_return,
        report.interval[0],
        report.interval[1],
        report.pass_at_1,
        report.k,
        report.pass_at_k,
        report.episodes,
        report.prompts,
        report.unscored,
        report.turns,
        report.response_tokens
    ));
    for (task, mean) in &report.by_task {
        output::data(&format!("  {task:<20} {mean:.3}"));
    }
    for (stop, count) in &report.stop {
        output::data(&format!("  stop/{stop:<15} {count}"));
    }
    Ok(ExitCode::SUCCESS)
}
