//! `mipu model`.

use std::process::ExitCode;

use mipu_agent::model::ModelInfo;

use super::shared::load_model;
use crate::cli::Model;
use crate::output;

pub(crate) fn run(args: &Model) -> anyhow::Result<ExitCode> {
    let Model::Info { path, json } = args;
    let info = ModelInfo::of(&load_model(path)?);
    output::report(*json, &info)
}
