//! Runs Python in the sandbox: `cargo run --release --example python -- 'print(1 + 1)'`, each argument a turn of one session.

use mipu_sandbox::{Policy, Sandbox, SandboxOptions};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let on_progress = Some(Box::new(|line: &str| tracing::info!("{line}")) as mipu_sandbox::Progress);
    let cache_dir = std::env::var_os("MIPU_GUESTS").map(Into::into);
    let sandbox = Sandbox::open(SandboxOptions {
        cache_dir,
        on_progress,
    })?;
    let mut session = sandbox.session(&Policy::default(), 1).await?;
    for code in std::env::args().skip(1) {
        let outcome = session.exec(&code, &[]).await?;
        #[expect(clippy::print_stdout, reason = "an example that shows its result")]
        {
            println!(
                "{}{}{:?} in {:?}",
                outcome.stdout, outcome.stderr, outcome.status, outcome.wall
            );
        }
    }
    Ok(())
}
