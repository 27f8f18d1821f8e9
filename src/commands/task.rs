//! `mipu task`.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use comfy_table::{Table, presets};
use mipu_agent::{Renderer, dialect};
use mipu_envs::doctor::{self, DoctorOptions, DoctorReport};
use mipu_envs::import::Options;
use mipu_envs::json_schema;
use mipu_trainer::sft::play;
use serde_json::json;

use super::shared::{load_model, open_sandbox, row_of};
use crate::cli::{Task, TaskKind};
use crate::output;

pub(crate) async fn run(command: Task) -> anyhow::Result<ExitCode> {
    match command {
        Task::Check {
            paths,
            rows,
            seed,
            json,
        } => check(&paths, rows, seed, json).await,
        Task::New { path, kind } => new(&path, kind),
        Task::Show {
            path,
            row,
            model,
            seed,
            json,
        } => show(&path, row, model.as_deref(), seed, json).await,
        Task::Play { path, row, seed } => super::play::run(&path, row, seed).await,
        Task::Import {
            format,
            source,
            out,
            name,
            instruction,
            answer,
            compare,
            verifier,
            json,
        } => {
            let options = Options {
                name,
                instruction,
                answer,
                comparison: compare,
                verifier,
                ..Options::new(format, source, out)
            };
            import(&options, json)
        }
        Task::Schema { markdown } => {
            output::data(&match markdown {
                true => crate::reference::markdown(&json_schema(), "Task file"),
                false => serde_json::to_string_pretty(&json_schema())?,
            });
            Ok(ExitCode::SUCCESS)
        }
    }
}

async fn check(paths: &[std::path::PathBuf], rows: usize, seed: u64, json: bool) -> anyhow::Result<ExitCode> {
    let sandbox = open_sandbox()?;
    let options = DoctorOptions {
        rows,
        seed,
        ..DoctorOptions::default()
    };
    let mut reports = Vec::new();
    for path in paths {
        reports.push(doctor::check(path, &sandbox, &options).await);
    }
    let ok = reports.iter().all(DoctorReport::passed);
    if json {
        output::json(&json!({"ok": ok, "reports": reports}))?;
    } else {
        let mut table = Table::new();
        table.load_style(presets::UTF8_HORIZONTAL_ONLY);
        table.set_header([
            "task",
            "rows",
            "solution",
            "best cheat",
            "turns",
            "ms an episode",
            "verdict",
        ]);
        for report in &reports {
            let r = &report.reference;
            let cheat = report.baselines.values().copied().fold(0.0, f64::max);
            table.add_row([
                report
                    .name
                    .clone()
                    .unwrap_or_else(|| report.path.display().to_string()),
                report.rows.map(|n| n.to_string()).join(" / "),
                format!("{} of {}", r.solved, r.episodes),
                format!("{cheat:.3}"),
                format!("{:.1}", r.mean_turns),
                format!("{:.1}", r.episode_ms),
                if report.passed() { "pass" } else { "FAIL" }.to_owned(),
            ]);
        }
        output::data(&table.to_string());
        for report in &reports {
            for finding in &report.findings {
                output::data(&format!("{}: {finding}", report.path.display()));
            }
        }
    }
    Ok(if ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn new(path: &Path, kind: TaskKind) -> anyhow::Result<ExitCode> {
    let text = match kind {
        TaskKind::Tool => include_str!("../templates/tool.yaml"),
        TaskKind::Code => include_str!("../templates/code.yaml"),
        TaskKind::Repo => include_str!("../templates/repo.yaml"),
        TaskKind::World => include_str!("../templates/world.yaml"),
        TaskKind::Search => include_str!("../templates/search.yaml"),
        TaskKind::ChatUser => include_str!("../templates/chat-user.yaml"),
        TaskKind::Python => include_str!("../templates/python.yaml"),
    };
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(path)
        .with_context(|| {
            format!(
                "cannot write {}: it exists already, or its directory does not",
                path.display()
            )
        })?;
    file.write_all(text.as_bytes())?;
    output::data(&format!("wrote {0}\nnext: mipu task check {0}", path.display()));
    Ok(ExitCode::SUCCESS)
}

fn import(options: &Options, json: bool) -> anyhow::Result<ExitCode> {
    let report = mipu_envs::import::run(options)?;
    if json {
        output::json(&report)?;
    } else {
        for refused in &report.refused {
            output::data(&format!("refused {}: {}", refused.task, refused.reason));
        }
        for task in &report.tasks {
            output::data(&format!("wrote {0}\nnext: mipu task check {0}", task.display()));
        }
        output::data(&format!("{} rows, {} refused", report.rows, report.refused.len()));
    }
    // Something was imported, or there was nothing to refuse.
    let ok = !report.tasks.is_empty();
    Ok(if ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn show(
    path: &Path,
    row: usize,
    model: Option<&Path>,
    seed: u64,
    json: bool,
) -> anyhow::Result<ExitCode> {
    let sandbox = open_sandbox()?;
    let task = &row_of(path, row, &sandbox, seed).await?;
    let Some(model) = model else {
        let mut env = task.env(&sandbox, seed);
        let messages = env.start().await?;
        if json {
            output::json(
                &json!({"id": task.id, "split": task.split, "row": task.row, "messages": messages, "tools": env.tools()}),
            )?;
        } else {
            output::data(&format!("{} ({:?})", task.id, task.split));
            for message in &messages {
                output::data(&format!("[{:?}] {}", message.role, message.content));
            }
            for tool in env.tools() {
                output::data(&format!("tool {}: {}", tool.name, tool.description));
            }
            output::data(
                "hint: with --model DIR the ids and the loss mask of the reference solution are shown too",
            );
        }
        return Ok(ExitCode::SUCCESS);
    };
    let loaded = load_model(model)?;
    let renderer: Arc<dyn Renderer> = dialect::renderer(&loaded)?;
    let played = play(task, task.solution(&sandbox, seed), &sandbox, &*renderer, seed).await?;
    if json {
        output::json(&json!({
            "id": task.id, "split": task.split, "row": task.row,
            "messages": played.messages, "tokens": played.tokens, "return": played.ret,
        }))?;
        return Ok(ExitCode::SUCCESS);
    }
    output::data(&format!(
        "{} ({:?}), reference solution, return {}",
        task.id, task.split, played.ret
    ));
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY);
    table.set_header(["from", "ids", "in the loss", "text"]);
    let (ids, mask) = (played.tokens.ids(), played.tokens.loss_mask());
    let mut start = 0;
    while start < ids.len() {
        let end = (start..ids.len())
            .find(|&i| mask[i] != mask[start])
            .unwrap_or(ids.len());
        let who = if mask[start] { "yes" } else { "no" };
        table.add_row([
            start.to_string(),
            (end - start).to_string(),
            who.to_owned(),
            renderer.decode(&ids[start..end]),
        ]);
        start = end;
    }
    output::data(&table.to_string());
    output::data(&format!("ids {ids:?}"));
    Ok(ExitCode::SUCCESS)
}
