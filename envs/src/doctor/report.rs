//! What the doctor says: findings, worst first, rows with one cause together.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::path::PathBuf;

use serde::Serialize;

/// Rows named in a finding; the rest is counted.
const EXAMPLES: usize = 3;

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// For information.
    Note,
    /// Training will work, perhaps not as meant.
    Warning,
    /// The task must not be trained on.
    Error,
}

/// One thing found, in the file or in any number of rows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// The check: `schema`, `data`, `splits`, `solution`, `baseline`, `attack`, `reward`, `determinism`, `flaky`, `slow`, `leak`, `length`.
    pub check: &'static str,
    /// What was expected and found.
    pub message: String,
    /// Rows it was found in; 0 if it is not about rows.
    pub rows: usize,
    /// The first of these rows.
    pub examples: Vec<String>,
    /// What happened in the first of them.
    pub detail: Option<String>,
    /// What to do about it.
    pub hint: Option<String>,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let severity = match self.severity {
            Severity::Note => "note",
            Severity::Warning => "warning",
            Severity::Error => "error",
        };
        write!(f, "{severity}: {}: ", self.check)?;
        match (self.rows, self.examples.as_slice()) {
            (0, _) | (_, []) => {}
            (1, [only, ..]) => write!(f, "{only}: ")?,
            (rows, examples) => {
                let more = if rows > examples.len() { ", .." } else { "" };
                write!(f, "{rows} rows ({}{more}): ", examples.join(", "))?;
            }
        }
        f.write_str(&self.message)?;
        if let Some(detail) = &self.detail {
            write!(f, "; {detail}")?;
        }
        match &self.hint {
            Some(hint) => write!(f, "\nhint: {hint}"),
            None => Ok(()),
        }
    }
}

/// What the reference solution did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Reference {
    /// Rows played.
    pub episodes: usize,
    /// Rows on which it earned all there is to earn.
    pub solved: usize,
    /// Mean reward of a row.
    pub mean_reward: f64,
    /// Episodes lost because injected failures used up the turns; they were replayed with another seed.
    pub lost_to_failures: usize,
    /// Tool failures injected.
    pub tool_failures: usize,
    /// Mean turns of an episode.
    pub mean_turns: f64,
    /// Mean host time of an episode in milliseconds (not reproducible).
    pub episode_ms: f64,
    /// Bytes of the longest episode: opening, turns and observations.
    pub longest_bytes: usize,
}

/// The result of a check.
#[derive(Clone, Debug, Serialize)]
pub struct DoctorReport {
    /// The file.
    pub path: PathBuf,
    /// The task's name, if the file could be read.
    pub name: Option<String>,
    /// Rows by split: train, validation, test.
    pub rows: [usize; 3],
    /// Longest instruction and system text together, in bytes.
    pub longest_prompt_bytes: usize,
    /// blake3 of file and rows.
    pub content_hash: Option<String>,
    /// What the reference solution did.
    pub reference: Reference,
    /// Mean reward of answers that do no work.
    pub baselines: BTreeMap<&'static str, f64>,
    /// Attacks of the suite that were carried out; 0 where no answer is code.
    pub attacks: usize,
    /// Everything found, worst first.
    pub findings: Vec<Finding>,
    /// Rows counted, by severity, check and cause.
    #[serde(skip)]
    counted: HashSet<(Severity, &'static str, String, String)>,
}

impl DoctorReport {
    /// An empty report.
    pub(super) fn new(path: PathBuf) -> Self {
        Self {
            path,
            name: None,
            rows: [0; 3],
            longest_prompt_bytes: 0,
            content_hash: None,
            reference: Reference::default(),
            baselines: BTreeMap::new(),
            attacks: 0,
            findings: Vec::new(),
            counted: HashSet::new(),
        }
    }

    /// True without errors.
    pub fn passed(&self) -> bool {
        self.findings
            .iter()
            .all(|finding| finding.severity != Severity::Error)
    }

    /// Adds something about the file.
    pub(super) fn add(
        &mut self,
        severity: Severity,
        check: &'static str,
        message: impl Into<String>,
        hint: &str,
    ) {
        self.push(severity, check, message.into(), None, None, hint);
    }

    /// Adds something about a row; rows with the same cause share a finding.
    pub(super) fn add_row(
        &mut self,
        severity: Severity,
        check: &'static str,
        row: &str,
        message: impl Into<String>,
        detail: Option<String>,
        hint: &str,
    ) {
        self.push(severity, check, message.into(), Some(row), detail, hint);
    }

    fn push(
        &mut self,
        severity: Severity,
        check: &'static str,
        message: String,
        row: Option<&str>,
        detail: Option<String>,
        hint: &str,
    ) {
        if let Some(row) = row {
            let cause = cause(&message);
            if !self
                .counted
                .insert((severity, check, cause.clone(), row.to_owned()))
            {
                return;
            }
            let same = |finding: &&mut Finding| {
                finding.rows > 0
                    && (finding.severity, finding.check) == (severity, check)
                    && self::cause(&finding.message) == cause
            };
            if let Some(finding) = self.findings.iter_mut().find(same) {
                finding.rows += 1;
                if finding.examples.len() < EXAMPLES {
                    finding.examples.push(row.to_owned());
                }
                return;
            }
        }
        self.findings.push(Finding {
            severity,
            check,
            message,
            rows: usize::from(row.is_some()),
            examples: row.iter().map(|row| (*row).to_owned()).collect(),
            detail,
            hint: (!hint.is_empty()).then(|| hint.to_owned()),
        });
    }
}

/// A message without its numbers and quoted texts, which differ from row to row.
fn cause(message: &str) -> String {
    let mut cause = String::with_capacity(message.len());
    let mut quote = None;
    for c in message.chars() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (Some(_), _) => continue,
            (None, '"' | '\'') => quote = Some(c),
            (None, c) if c.is_ascii_digit() => {
                if !cause.ends_with('#') {
                    cause.push('#');
                }
            }
            (None, c) => cause.push(c),
        }
    }
    cause
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_with_one_cause_are_one_finding() {
        let mut report = DoctorReport::new(PathBuf::from("t.yaml"));
        for row in 0..24 {
            let detail = Some(format!("detail {row}"));
            let message = format!("the expected {:?} is not a number, {row}", format!("it's {row}"));
            report.add_row(
                Severity::Error,
                "solution",
                &format!("t/{row}"),
                message,
                detail,
                "write numbers",
            );
        }
        report.add_row(Severity::Error, "solution", "t/0", "another cause", None, "");
        report.add_row(Severity::Warning, "solution", "t/0", "another cause", None, "");
        report.add(Severity::Note, "data", "another cause", "");
        let shown: Vec<String> = report.findings.iter().map(ToString::to_string).collect();
        assert_eq!(
            shown,
            [
                "error: solution: 24 rows (t/0, t/1, t/2, ..): the expected \"it's 0\" is not a number, 0; detail 0\nhint: write numbers",
                "error: solution: t/0: another cause",
                "warning: solution: t/0: another cause",
                "note: data: another cause",
            ]
        );
    }
}
