//! `mipu sft`.

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Instant;

use indicatif::{ProgressBar, ProgressStyle};
use mipu_trainer::sft::{self, SftConfig, SftProgress};
use serde_json::json;

use super::shared::{cancel_on_ctrl_c, open_sandbox};
use crate::cli::Sft;
use crate::output;
use crate::progress::duration;

pub(crate) async fn run(args: Sft) -> anyhow::Result<ExitCode> {
    let mut overrides = args.overrides;
    if let Some(seed) = args.seed {
        overrides.push(format!("seed={seed}"));
    }
    let config = SftConfig::load(&args.config, &overrides)?;
    let sandbox = open_sandbox()?;
    let cancel = cancel_on_ctrl_c();
    let started = Instant::now();
    let terminal = std::io::stderr().is_terminal();
    let bar = if terminal {
        ProgressBar::new(config.steps.get())
    } else {
        ProgressBar::hidden()
    };
    bar.set_style(
        ProgressStyle::with_template("{bar:24.cyan/dim} {pos}/{len} {msg}  ETA {eta}")
            .unwrap_or_else(|_| ProgressStyle::default_bar()),
    );
    let every = (config.steps.get() / 20).max(1);
    let on_step = |p: SftProgress| {
        bar.set_position(p.step);
        bar.set_message(format!(
            "loss {:.4}  {:.0} tok/s",
            p.loss,
            p.tokens as f64 / started.elapsed().as_secs_f64()
        ));
        if !terminal && (p.step.is_multiple_of(every) || p.step == p.steps) {
            output::say(&format!(
                "step {:>5}/{}  loss {:.4}  grad norm {:.3}  {} tokens  {}",
                p.step,
                p.steps,
                p.loss,
                p.grad_norm,
                p.tokens,
                duration(started.elapsed())
            ));
        }
    };
    let (model, report) = sft::sft(&config, &sandbox, &cancel, &on_step).await?;
    bar.finish_and_clear();
    model.save(&args.out)?;
    if args.json {
        output::json(&json!({
            "model": args.out, "loss": report.loss, "tokens": report.tokens, "eval": report.eval,
            "demonstration_return": report.demonstration_return, "weights_hash": report.weights_hash,
            "wall_s": started.elapsed().as_secs_f64(),
        }))?;
    } else {
        output::data(&format!(
            "cloned demonstrations of mean return {:.3}: loss {:.4}, J(mu) {:.3} [{:.3}, {:.3}], {} tokens, {}\nmodel   {}\nweights {}",
            report.demonstration_return,
            report.loss,
            report.eval.mean_return,
            report.eval.interval[0],
            report.eval.interval[1],
            report.tokens,
            duration(started.elapsed()),
            args.out.display(),
            report.weights_hash
        ));
    }
    Ok(ExitCode::SUCCESS)
}
