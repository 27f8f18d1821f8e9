//! Logs to standard error; `RUST_LOG` or `-v` choose what is said.

use tracing_subscriber::EnvFilter;

/// Starts logging: warnings by default, `-v` adds the project's own steps, `-vv` its details.
pub(crate) fn start(verbose: u8) {
    let default = match verbose {
        0 => "warn",
        1 => "warn,mipu=info,mipu_agent=info,mipu_envs=info,mipu_sandbox=info,mipu_trainer=info",
        _ => "info,mipu=debug,mipu_agent=debug,mipu_envs=debug,mipu_sandbox=debug,mipu_trainer=debug",
    };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_target(false)
        .without_time()
        .with_ansi(
            std::env::var_os("NO_COLOR").is_none() && std::io::IsTerminal::is_terminal(&std::io::stderr()),
        )
        .init();
}
