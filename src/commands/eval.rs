//! `mipu eval`.

use std::process::ExitCode;

use mipu_trainer::eval::{compare, evaluate};
use serde_json::json;

use super::shared::{cancel_on_ctrl_c, stage as stage_of};
use crate::cli::{Eval, Sampled};
use crate::output;

pub(crate) async fn run(args: Eval) -> anyhow::Result<ExitCode> {
    let stage = stage_of(&args.sampled).await?;
    let cancel = cancel_on_ctrl_c();
    let (report, groups) = evaluate(&stage.context, &stage.tasks, &stage.rollout, &cancel, &|| ()).await?;
    let other = match args.against {
        None => None,
        Some(model) => {
            let sampled = Sampled {
                model,
                ..args.sampled.clone()
            };
            let stage = stage_of(&sampled).await?;
            let (other, other_groups) =
                evaluate(&stage.context, &stage.tasks, &stage.rollout, &cancel, &|| ()).await?;
            let comparison = compare(&groups, &other_groups, args.sampled.seed);
            Some((other, comparison))
        }
    };
    if args.sampled.json {
        match other {
            None => output::json(&report)?,
            Some((other, comparison)) => {
                output::json(&json!({"first": report, "second": other, "comparison": comparison}))?;
            }
        }
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
    for (turns, bucket) in &report.by_turns {
        output::data(&format!(
            "  turns/{turns:<14} {:.3} over {} episodes",
            bucket.mean_return, bucket.episodes
        ));
    }
    for (stop, count) in &report.stop {
        output::data(&format!("  stop/{stop:<15} {count}"));
    }
    if let Some((other, c)) = other {
        output::data(&format!(
            "against    {:.3}  difference {:+.3}  95 % interval [{:+.3}, {:+.3}]  p {:.4}\n           better on {} of {} rows, worse on {}",
            other.mean_return,
            c.difference,
            c.interval[0],
            c.interval[1],
            c.p_value,
            c.better,
            c.rows,
            c.worse
        ));
    }
    Ok(ExitCode::SUCCESS)
}
