//! `mipu model`.

use std::process::ExitCode;

use super::shared::load_model;
use crate::cli::Model;
use crate::output;

pub(crate) fn run(args: &Model) -> anyhow::Result<ExitCode> {
    let Model::Info { path, json } = args;
    let info = load_model(path)?.info();
    if *json {
        output::json(&info)?;
    } else {
        output::data(&info.to_string());
    }
    Ok(ExitCode::SUCCESS)
}
