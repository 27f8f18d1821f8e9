//! Shows a run: a bar on a terminal, one plain line a step elsewhere.

use std::io::IsTerminal;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use mipu_trainer::eval::EvalReport;
use mipu_trainer::run::{Observer, Phase, Plan, StepSummary};

use crate::output;

/// Watches a training run for a person.
pub(crate) struct Progress {
    bar: ProgressBar,
    terminal: bool,
    started: Mutex<Option<(u64, Instant)>>,
}

impl Progress {
    /// A bar on a terminal, lines elsewhere.
    pub(crate) fn new() -> Self {
        let terminal = std::io::stderr().is_terminal();
        let bar = if terminal {
            ProgressBar::new(0)
        } else {
            ProgressBar::hidden()
        };
        if terminal {
            bar.set_draw_target(ProgressDrawTarget::stderr_with_hz(8));
            bar.set_style(
                ProgressStyle::with_template("{bar:24.cyan/dim} {pos}/{len} {msg}  {prefix:.dim}")
                    .unwrap_or_else(|_| ProgressStyle::default_bar()),
            );
        }
        Self {
            bar,
            terminal,
            started: Mutex::new(None),
        }
    }

    /// Prints a line above the bar.
    pub(crate) fn line(&self, text: &str) {
        if self.terminal {
            self.bar.suspend(|| output::say(text));
        } else {
            output::say(text);
        }
    }

    /// Removes the bar.
    pub(crate) fn clear(&self) {
        self.bar.finish_and_clear();
    }

    fn eta(&self, step: u64, steps: u64) -> Option<Duration> {
        let started = self
            .started
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let (first, at) = (*started)?;
        let done = step.checked_sub(first)?;
        (done > 0).then(|| at.elapsed().mul_f64((steps - step) as f64 / done as f64))
    }
}

impl Observer for Progress {
    fn planned(&self, plan: &Plan) {
        self.line(&plan.to_string());
        self.bar.set_length(plan.steps);
    }

    fn resumed(&self, step: u64) {
        self.line(&format!("resuming after step {step}"));
        self.bar.set_position(step);
    }

    fn phase(&self, step: u64, phase: Phase, episodes: usize) {
        let mut started = self
            .started
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        if phase == Phase::Rollout && started.is_none() {
            *started = Some((step - 1, Instant::now()));
        }
        drop(started);
        let what = match phase {
            Phase::Rollout => "sampling",
            Phase::Update => "updating",
            Phase::Gate => "validating",
            Phase::Eval => "evaluating",
            Phase::Checkpoint => "saving",
        };
        let count = if episodes > 0 {
            format!(" {episodes} episodes")
        } else {
            String::new()
        };
        self.bar.set_prefix(format!("{what}{count}"));
    }

    fn episode(&self) {
        self.bar.tick();
    }

    fn step(&self, s: &StepSummary) {
        let verdict = if s.decision.accepted {
            "accept"
        } else {
            "ROLL BACK"
        };
        let t_hat = s
            .decision
            .t_hat
            .map_or_else(|| "undefined".to_owned(), |t| format!("{t:+.2e}"));
        let c = s
            .decision
            .c_t
            .map_or_else(String::new, |c| format!(" vs {:+.1e}", -c));
        let held = s
            .validation_reward
            .map_or_else(String::new, |v| format!("  validation {v:.3}"));
        let eta = self
            .eta(s.step, s.steps)
            .map_or_else(String::new, |d| format!("  ETA {}", duration(d)));
        let line = format!(
            "step {:>4}/{}  reward {:.3}{held}  T {t_hat}{c}  {verdict:<9}  k3 {:.1e}  {:.0} tok/s{eta}",
            s.step, s.steps, s.reward, s.k3, s.tokens_per_second
        );
        if self.terminal {
            self.bar.set_position(s.step);
            let rate = s.accepted as f64 / (s.accepted + s.rejected).max(1) as f64;
            self.bar.set_message(format!(
                "reward {:.3}{held}  accepted {:.0} %  {:.0} tok/s{eta}",
                s.reward,
                100.0 * rate,
                s.tokens_per_second
            ));
            if !s.decision.accepted {
                self.line(&line);
            }
        } else {
            self.line(&line);
        }
    }

    fn evaluated(&self, step: u64, report: &EvalReport) {
        self.line(&format!(
            "J(mu) after step {step}: {:.3} [{:.3}, {:.3}] over {} held-out episodes",
            report.mean_return, report.interval[0], report.interval[1], report.episodes
        ));
    }

    fn warn(&self, message: &str) {
        self.line(&format!("warning: {message}"));
    }
}

/// `1 m 20 s`.
pub(crate) fn duration(d: Duration) -> String {
    match d.as_secs() {
        s @ 0..=59 => format!("{s} s"),
        s @ 60..=3599 => format!("{} m {} s", s / 60, s % 60),
        s => format!("{} h {} m", s / 3600, s / 60 % 60),
    }
}
