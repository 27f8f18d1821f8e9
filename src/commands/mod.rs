//! One module a command: load, call one library function, print.

mod bench;
mod eval;
mod ledger;
mod model;
mod play;
mod report;
mod rollout;
mod sft;
mod shared;
mod task;
mod train;

use std::process::ExitCode;

use crate::cli::Command;

/// Runs a command.
pub(crate) async fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Train(args) => train::run(args).await,
        Command::Eval(args) => eval::run(args).await,
        Command::Rollout(args) => rollout::run(args).await,
        Command::Sft(args) => sft::run(args).await,
        Command::Report(args) => report::run(&args),
        Command::Task(args) => task::run(args).await,
        Command::Ledger(args) => ledger::run(&args),
        Command::Model(args) => model::run(&args),
        Command::Bench(args) => bench::run(args).await,
    }
}
