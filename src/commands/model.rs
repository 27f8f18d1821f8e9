//! `mipu model`.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use mipu_agent::model::{Hub, ModelInfo, WeightFormat, import_gguf, pull};
use serde::Serialize;

use super::shared::load_model;
use crate::cli::{FormatArg, Model};
use crate::output;

pub(crate) fn run(args: &Model) -> anyhow::Result<ExitCode> {
    match args {
        Model::Info { path, json } => {
            let info = ModelInfo::of(&load_model(path)?);
            output::report(*json, &info)
        }
        Model::Import {
            path,
            out,
            format,
            json,
        } => {
            fresh(out)?;
            let report = import_gguf(path, out, weight_format(*format))?;
            output::report(*json, &report)
        }
        Model::Export {
            path,
            out,
            format,
            json,
        } => {
            fresh(out)?;
            let model = load_model(path)?;
            let format = weight_format(*format);
            model.save_as(out, format)?;
            let report = Exported {
                format,
                parameters: model.weights.config.parameters(),
                bytes: bytes_of(out)?,
            };
            output::report(*json, &report)
        }
        Model::Pull {
            repo,
            revision,
            out,
            json,
        } => {
            let name = repo.rsplit('/').next().unwrap_or(repo);
            let out = out.clone().unwrap_or_else(|| PathBuf::from("models").join(name));
            let hub = Hub {
                token: std::env::var("HF_TOKEN").ok().filter(|token| !token.is_empty()),
                ..Hub::default()
            };
            let told = Cell::new(u64::MAX);
            let report = pull(&hub, repo, revision, &out, &|file, done, size| {
                let tenth = done.saturating_mul(10) / size.max(1);
                if told.replace(tenth) != tenth {
                    output::say(&format!("{file}: {done} of {size} bytes"));
                }
            })?;
            output::report(*json, &report)
        }
    }
}

#[derive(Serialize)]
struct Exported {
    format: WeightFormat,
    parameters: usize,
    bytes: u64,
}

fn weight_format(format: FormatArg) -> WeightFormat {
    match format {
        FormatArg::F32 => WeightFormat::F32,
        FormatArg::Bf16 => WeightFormat::Bf16,
        FormatArg::Fp8Channel => WeightFormat::Fp8Channel,
        FormatArg::Fp8Block => WeightFormat::Fp8Block,
    }
}

/// Refuses a directory that already holds a model.
fn fresh(out: &Path) -> anyhow::Result<()> {
    anyhow::ensure!(
        !out.join("config.json").exists(),
        "{} already holds a model\nhint: choose another directory with --out, or delete it",
        out.display()
    );
    Ok(())
}

fn bytes_of(dir: &Path) -> anyhow::Result<u64> {
    let mut total = 0;
    for entry in std::fs::read_dir(dir)? {
        total += entry?.metadata()?.len();
    }
    Ok(total)
}
