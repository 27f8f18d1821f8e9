//! `mipu`: train, evaluate and benchmark agents in one binary.
//!
//! The command line only loads a configuration, calls one library function and prints what came back. Data goes to standard
//! output, everything said on the way to standard error.
#![forbid(unsafe_code)]

mod cli;
mod commands;
mod output;
mod progress;
mod reference;
mod telemetry;

use std::process::ExitCode;

use clap::Parser;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let cli = cli::Cli::parse();
    telemetry::start(cli.verbose);
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            output::say(&format!("error: cannot start the async runtime: {error}"));
            return ExitCode::FAILURE;
        }
    };
    let result = runtime.block_on(commands::run(cli.command));
    // Background work (an epoch ticker, a cancelled guest) must not keep a finished command alive.
    runtime.shutdown_timeout(std::time::Duration::from_millis(200));
    match result {
        Ok(code) => code,
        Err(error) => {
            output::say(&output::error_text(&error));
            ExitCode::FAILURE
        }
    }
}
