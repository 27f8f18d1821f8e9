//! Pages for people: one self-contained HTML file, no script, no outside asset, light and dark, readable on a phone.
//!
//! [`write_report`] reads what a run directory holds (`config.yaml`, `metrics.jsonl`, `ledger.jsonl`, `trajectories/*.jsonl`). A run that is in
//! progress or has crashed gets a page too: what is missing or torn is said in a note. All text from episodes is escaped.

mod axis;
mod charts;
mod load;
mod mismatch_page;
mod page;
mod plot;
#[cfg(test)]
mod tests;
mod transcript;

use std::io::Write;
use std::path::{Path, PathBuf};

pub use transcript::Decode;

use crate::mismatch::AccumulationReport;

/// File name of a run's page.
pub const REPORT_FILE: &str = "report.html";

/// A page could not be written.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// There is no such run directory.
    #[error("{}: not a run directory\nhint: give the directory that holds metrics.jsonl and ledger.jsonl", .0.display())]
    NotARun(PathBuf),
    /// The file system said no.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

/// Writes `report.html` into a run directory and returns its path. `decode` turns token ids into text, special tokens included.
///
/// # Errors
/// When the directory holds nothing of a run, or the page cannot be written.
pub fn write_report(run_dir: &Path, decode: Decode<'_>) -> Result<PathBuf, ReportError> {
    let known = ["config.yaml", "metrics.jsonl", "ledger.jsonl", "trajectories"];
    if !known.iter().any(|name| run_dir.join(name).exists()) {
        return Err(ReportError::NotARun(run_dir.to_owned()));
    }
    let path = run_dir.join(REPORT_FILE);
    write(
        &path,
        &page::page(&load::RunData::read(run_dir), decode).into_string(),
    )?;
    Ok(path)
}

/// Writes the page of the accumulation benchmark, all engines overlaid.
///
/// # Errors
/// When it cannot be written.
pub fn write_mismatch_report(path: &Path, reports: &[AccumulationReport]) -> Result<(), ReportError> {
    write(path, &mismatch_page::page(reports).into_string())
}

/// Replaces the file in one rename, so that a reader never sees half a page.
fn write(path: &Path, text: &str) -> Result<(), ReportError> {
    let io = |source| ReportError::Io {
        path: path.to_owned(),
        source,
    };
    let parent = path
        .parent()
        .filter(|p| !p.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    let mut file = tempfile::Builder::new()
        .prefix(".report")
        .tempfile_in(parent)
        .map_err(io)?;
    file.write_all(text.as_bytes()).map_err(io)?;
    file.persist(path).map_err(|e| io(e.error))?;
    Ok(())
}
