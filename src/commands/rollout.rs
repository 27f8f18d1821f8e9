//! `mipu rollout`.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::process::ExitCode;

use anyhow::Context;
use mipu_agent::{Renderer, Trajectory, rollout_groups};
use serde_json::json;

use super::shared::{cancel_on_ctrl_c, stage};
use crate::cli::Rollout;
use crate::output;

pub(crate) async fn run(args: Rollout) -> anyhow::Result<ExitCode> {
    let stage = stage(&args.sampled).await?;
    let cancel = cancel_on_ctrl_c();
    let groups = rollout_groups(&stage.context, &stage.tasks, &stage.rollout, &cancel, &|| ()).await?;
    let out = args.out.display().to_string();
    let mut file = BufWriter::new(File::create(&args.out).with_context(|| format!("cannot write {out}"))?);
    let (mut episodes, mut unscored, mut sum, mut shown) = (0usize, 0usize, 0.0, 0usize);
    for group in &groups {
        unscored += group.unscored.len();
        for trajectory in &group.trajectories {
            serde_json::to_writer(&mut file, trajectory)?;
            file.write_all(b"\n")?;
            episodes += 1;
            sum += trajectory.ret();
            if shown < args.show {
                output::say(&transcript(trajectory, &*stage.renderer));
                shown += 1;
            }
        }
    }
    file.flush().with_context(|| format!("cannot write {out}"))?;
    let mean = if episodes == 0 { 0.0 } else { sum / episodes as f64 };
    if args.sampled.json {
        output::json(&json!({"out": out, "episodes": episodes, "unscored": unscored, "mean_return": mean}))?;
    } else {
        output::data(&format!(
            "{episodes} episodes ({unscored} unscored), mean return {mean:.3}, in {out}"
        ));
    }
    Ok(ExitCode::SUCCESS)
}

/// An episode as people read it; what the policy sampled stands between guillemets.
pub(crate) fn transcript(trajectory: &Trajectory, renderer: &dyn Renderer) -> String {
    let (ids, mask) = (trajectory.tokens.ids(), trajectory.tokens.loss_mask());
    let mut text = format!(
        "--- {} sample {} return {}\n",
        trajectory.task_id,
        trajectory.sample,
        trajectory.ret()
    );
    let mut start = 0;
    while start < ids.len() {
        let end = (start..ids.len())
            .find(|&i| mask[i] != mask[start])
            .unwrap_or(ids.len());
        let part = renderer.decode(&ids[start..end]);
        if mask[start] {
            text.push_str(&format!("«{part}»"));
        } else {
            text.push_str(&part);
        }
        start = end;
    }
    text.push_str(&format!(
        "\n--- {}",
        mipu_trainer::eval::stop_name(trajectory.stop)
    ));
    text
}
