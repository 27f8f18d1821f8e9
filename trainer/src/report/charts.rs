//! The charts of a run, from its recorded steps.

use super::load::RunData;
use super::plot::{Bars, Color, Dot, Plot, Style, number};
use crate::gate::Reason;
use crate::ledger::Step;
use crate::metrics::{Key, RecordedStep, keys};

/// Bars of a stacked chart; longer runs are averaged into this many spans.
const BARS: usize = 100;

const STEP: &str = "attempted step";

/// A titled group of charts.
pub(super) struct Section {
    pub(super) title: &'static str,
    pub(super) plots: Vec<Plot>,
}

/// All charts, in reading order.
pub(super) fn sections(data: &RunData) -> Vec<Section> {
    vec![
        Section {
            title: "Learning",
            plots: vec![reward(data), gate(data)],
        },
        Section {
            title: "Mismatch between trainer and sampler",
            plots: mismatch(data),
        },
        Section {
            title: "Policy",
            plots: vec![entropy(data), grad_norm(data)],
        },
        Section {
            title: "Episodes",
            plots: vec![length(data), turns(data), stops(data), groups(data)],
        },
        Section {
            title: "Time",
            plots: vec![time(data), throughput(data)],
        },
    ]
}

/// A metric over steps, moved right by `shift` (a value measured after step k belongs at k + 1).
fn metric(data: &RunData, key: &Key, shift: f64) -> Vec<Dot> {
    let dot = |step: &RecordedStep| {
        let y = step.get(key)?;
        let x = step.step as f64 + shift;
        Some(Dot {
            x,
            y,
            title: Some(format!("step {}: {key} {}", step.step, number(y))),
        })
    };
    data.steps.iter().filter_map(dot).collect()
}

fn reward(data: &RunData) -> Plot {
    let held_out = data.held_out.iter().map(|(step, y)| {
        let title = format!("after {step} attempted steps: held out {}", number(*y));
        Dot {
            x: *step as f64,
            y: *y,
            title: Some(title),
        }
    });
    Plot::new(
        "Reward of mu",
        "Mean return of episodes sampled by the quantised engine that would be deployed. Validation is that of each step's candidate, kept or not.",
        STEP,
    )
    .with("train", Color::Blue, Style::Line, metric(data, &keys::REWARD_MEAN, 0.0))
    .with("validation", Color::Gray, Style::Thin, metric(data, &keys::REWARD_VALIDATION, 1.0))
    .with("held out", Color::Orange, Style::LineDots, held_out.collect())
}

fn gate(data: &RunData) -> Plot {
    let title = |step: &Step| {
        let d = &step.decision;
        let optional = |value: Option<f64>| value.map_or("-".into(), number);
        format!(
            "step {}: {} ({})\nT_hat {} ± {}, c_t {}, p {}\n{} episodes, {} of {} groups informative",
            step.attempt,
            if d.accepted { "accepted" } else { "rolled back" },
            reason(d.reason),
            optional(d.t_hat),
            optional(d.se),
            optional(d.c_t),
            optional(d.p_value),
            d.n_episodes,
            d.n_informative,
            d.n_groups
        )
    };
    let marks = |accepted: bool| -> Vec<Dot> {
        let steps = data.decided().filter(|s| s.decision.accepted == accepted);
        steps
            .filter_map(|s| {
                Some(Dot {
                    x: s.attempt as f64,
                    y: s.decision.t_hat?,
                    title: Some(title(s)),
                })
            })
            .collect()
    };
    let line = |f: &dyn Fn(&Step) -> Option<f64>| -> Vec<Dot> {
        data.decided()
            .filter_map(|s| {
                Some(Dot {
                    x: s.attempt as f64,
                    y: f(s)?,
                    title: None,
                })
            })
            .collect()
    };
    let mut plot = Plot::new(
        "Gate: T_hat against its tolerance",
        "T_hat estimates J(mu) - J(pi) of the candidate. Below -c_t the trainer's gain is not realised by the engine, and the update is rolled back. Bars: one standard error; under pure noise half of the points lie below 0.",
        STEP,
    )
    .with("T_hat", Color::Gray, Style::Thin, line(&|s| s.decision.t_hat))
    .with("-c_t", Color::Purple, Style::Dashed, line(&|s| s.decision.c_t.filter(|_| s.decision.t_hat.is_some()).map(|c| -c)))
    .with("accepted", Color::Green, Style::Dots, marks(true))
    .with("rolled back", Color::Red, Style::Crosses, marks(false));
    plot.y_include = vec![0.0];
    plot.whiskers = data
        .decided()
        .filter_map(|s| {
            let (t, se) = (s.decision.t_hat?, s.decision.se?);
            Some((s.attempt as f64, t - se, t + se))
        })
        .collect();
    plot
}

/// A gate's reason in words.
pub(super) fn reason(reason: Reason) -> &'static str {
    match reason {
        Reason::WithinTolerance => "within tolerance",
        Reason::BelowTolerance => "below tolerance",
        Reason::NotSignificant => "below tolerance, not significant",
        Reason::Undefined => "undefined: no informative group",
        Reason::NonFinite => "not finite",
        Reason::RewardHeld => "reward held",
        Reason::RewardFell => "reward fell",
        Reason::Coin => "coin of the random gate",
        Reason::Unjudged => "not judged",
    }
}

fn mismatch(data: &RunData) -> Vec<Plot> {
    let mut kl = Plot::new(
        "KL(mu || pi) per token",
        "Two estimates of the divergence between sampler and trainer at equal weights, from raw log-probs. k3 is the stable one.",
        STEP,
    )
    .with("k3", Color::Blue, Style::Line, metric(data, &keys::MISMATCH_K3, 0.0))
    .with("k2", Color::Gray, Style::Thin, metric(data, &keys::MISMATCH_K2, 0.0));
    kl.log_y = true;
    let mut gap = Plot::new("Log-prob gap", "Size of log pi - log mu on sampled tokens.", STEP)
        .with(
            "mean",
            Color::Blue,
            Style::Line,
            metric(data, &keys::MISMATCH_ABS_LOGP_DIFF_MEAN, 0.0),
        )
        .with(
            "99th percentile",
            Color::Orange,
            Style::Line,
            metric(data, &keys::MISMATCH_ABS_LOGP_DIFF_P99, 0.0),
        )
        .with(
            "largest",
            Color::Gray,
            Style::Thin,
            metric(data, &keys::MISMATCH_ABS_LOGP_DIFF_MAX, 0.0),
        );
    gap.log_y = true;
    let mut ratio = Plot::new(
        "Invariant: mean pi / mu = 1",
        "Exactly 1 in expectation whatever the precision. Leaving it by several standard errors (bars) is a bug alarm: temperature, top-p, shifted tokens.",
        STEP,
    )
    .with("mean ratio", Color::Teal, Style::Line, metric(data, &keys::MISMATCH_RATIO_MEAN, 0.0));
    ratio.y_include = vec![1.0];
    ratio.whiskers = data
        .steps
        .iter()
        .filter_map(|s| {
            let (mean, se) = (
                s.get(&keys::MISMATCH_RATIO_MEAN)?,
                s.get(&keys::MISMATCH_RATIO_MEAN_SE)?,
            );
            Some((s.step as f64, mean - se, mean + se))
        })
        .collect();
    let mut ess = Plot::new(
        "Effective sample share",
        "What importance weights leave of the sample. Sequence weights multiply over an episode, so they collapse first.",
        STEP,
    )
    .with("token weights", Color::Blue, Style::Line, metric(data, &keys::MISMATCH_ESS, 0.0))
    .with("sequence weights", Color::Orange, Style::Line, metric(data, &keys::MISMATCH_ESS_SEQ, 0.0));
    ess.y_include = vec![1.0];
    let probability = Plot::new(
        "Probability gap",
        "Size of the difference between the probabilities that trainer and sampler give a sampled token.",
        STEP,
    )
    .with(
        "mean",
        Color::Blue,
        Style::Line,
        metric(data, &keys::MISMATCH_PROB_DIFF_MEAN, 0.0),
    )
    .with(
        "largest",
        Color::Gray,
        Style::Thin,
        metric(data, &keys::MISMATCH_PROB_DIFF_MAX, 0.0),
    );
    vec![kl, by_turn(data), gap, probability, ratio, ess]
}

/// k3 by turn in the first, middle and last third of the run.
fn by_turn(data: &RunData) -> Plot {
    let third = data.steps.len().div_ceil(3).max(1);
    let names = ["first third", "middle third", "last third"];
    let mut plot = Plot::new(
        "k3 by turn",
        "Whether mismatch grows along an episode, and over the run.",
        "turn",
    );
    for ((steps, name), color) in
        data.steps
            .chunks(third)
            .zip(names)
            .zip([Color::Gray, Color::Teal, Color::Blue])
    {
        let mut dots = Vec::new();
        for (turn, key) in (0..keys::TURN_KEYS).filter_map(|t| Some((t, keys::k3_turn(t)?))) {
            let values: Vec<f64> = steps.iter().filter_map(|s| s.get(&key)).collect();
            if let Some(y) = crate::statistics::mean(&values) {
                let title = format!("turn {}, {name}: k3 {}", turn + 1, number(y));
                dots.push(Dot {
                    x: turn as f64 + 1.0,
                    y,
                    title: Some(title),
                });
            }
        }
        plot = plot.with(name, color, Style::Line, dots);
    }
    plot.log_y = true;
    plot
}

fn entropy(data: &RunData) -> Plot {
    let mut plot = Plot::new(
        "Entropy",
        "Mean entropy of pi over generated tokens, in nats.",
        STEP,
    )
    .with(
        "entropy",
        Color::Purple,
        Style::Line,
        metric(data, &keys::ACTOR_ENTROPY, 0.0),
    );
    plot.y_include = vec![0.0];
    plot
}

fn grad_norm(data: &RunData) -> Plot {
    let mut plot = Plot::new(
        "Gradient norm",
        "Before clipping, mean over the step's updates.",
        STEP,
    )
    .with(
        "norm",
        Color::Teal,
        Style::Line,
        metric(data, &keys::ACTOR_GRAD_NORM, 0.0),
    );
    plot.log_y = true;
    plot
}

fn length(data: &RunData) -> Plot {
    let mut plot = Plot::new("Response length", "Generated tokens of an episode.", STEP)
        .with(
            "mean",
            Color::Blue,
            Style::Line,
            metric(data, &keys::RESPONSE_LENGTH_MEAN, 0.0),
        )
        .with(
            "largest",
            Color::Gray,
            Style::Thin,
            metric(data, &keys::RESPONSE_LENGTH_MAX, 0.0),
        );
    plot.y_include = vec![0.0];
    plot
}

fn turns(data: &RunData) -> Plot {
    let mut plot = Plot::new("Turns", "Turns of an episode.", STEP)
        .with(
            "mean",
            Color::Blue,
            Style::Line,
            metric(data, &keys::NUM_TURNS_MEAN, 0.0),
        )
        .with(
            "largest",
            Color::Gray,
            Style::Thin,
            metric(data, &keys::NUM_TURNS_MAX, 0.0),
        );
    plot.y_include = vec![0.0];
    plot
}

fn groups(data: &RunData) -> Plot {
    let mut plot = Plot::new(
        "Groups without signal",
        "Share of training groups whose returns were all equal: they give no gradient.",
        STEP,
    )
    .with(
        "equal returns",
        Color::Orange,
        Style::Line,
        metric(data, &keys::GROUP_FRAC_ZERO_STD, 0.0),
    );
    plot.y_include = vec![0.0, 1.0];
    plot
}

fn stops(data: &RunData) -> Plot {
    use mipu_envs::StopReason::{Answered, Cancelled, MaxTokens, MaxTurns, Terminal};
    let parts = [
        ("answered", Answered, Color::Green),
        ("terminal state", Terminal, Color::Teal),
        ("turn limit", MaxTurns, Color::Orange),
        ("token limit", MaxTokens, Color::Red),
        ("cancelled", Cancelled, Color::Gray),
    ];
    let parts = parts.map(|(label, stop, color)| (label, keys::stop(stop), color));
    stacked(
        data,
        "Why episodes ended",
        "Share of training episodes by stop reason.",
        &parts,
        None,
    )
}

fn time(data: &RunData) -> Plot {
    let parts = [
        ("rollout", keys::TIME_ROLLOUT, Color::Blue),
        ("score", keys::TIME_SCORE, Color::Teal),
        ("update", keys::TIME_UPDATE, Color::Green),
        ("sync", keys::TIME_SYNC, Color::Purple),
        ("gate", keys::TIME_GATE, Color::Orange),
        ("checkpoint", keys::TIME_CHECKPOINT, Color::Pink),
        ("evaluation", keys::TIME_EVAL, Color::Red),
    ];
    stacked(
        data,
        "Where the time goes",
        "Wall-clock seconds of each attempted step.",
        &parts,
        Some(("rest", keys::TIME_STEP, Color::Gray)),
    )
}

fn throughput(data: &RunData) -> Plot {
    let mut plot = Plot::new("Throughput", "Generated tokens per second of rollout.", STEP).with(
        "tokens/s",
        Color::Blue,
        Style::Line,
        metric(data, &keys::THROUGHPUT_TOKENS_PER_S, 0.0),
    );
    plot.y_include = vec![0.0];
    plot
}

/// Stacked bars of several metrics; `whole` adds what they leave of another one.
fn stacked(
    data: &RunData,
    title: &str,
    about: &str,
    parts: &[(&str, Key, Color)],
    whole: Option<(&str, Key, Color)>,
) -> Plot {
    let mut plot = Plot::new(title, about, STEP);
    let width = data.steps.len().div_ceil(BARS).max(1);
    let mut columns = vec![Vec::new(); parts.len() + 1];
    for steps in data.steps.chunks(width) {
        let mean = |key: &Key| steps.iter().filter_map(|s| s.get(key)).sum::<f64>() / steps.len() as f64;
        let (from, to) = (
            steps[0].step as f64 - 0.5,
            steps[steps.len() - 1].step as f64 + 0.5,
        );
        let gap = 0.08 * (to - from);
        let mut top = 0.0;
        let mut push = |column: &mut Vec<_>, value: f64| {
            if value > 0.0 {
                column.push((from + gap, to - gap, top, top + value));
                top += value;
            }
        };
        for ((_, key, _), column) in parts.iter().zip(&mut columns) {
            push(column, mean(key));
        }
        if let Some((_, key, _)) = &whole {
            let rest = mean(key) - parts.iter().map(|(_, key, _)| mean(key)).sum::<f64>();
            push(&mut columns[parts.len()], rest);
        }
    }
    let labels = parts
        .iter()
        .map(|(label, _, color)| (*label, *color))
        .chain(whole.map(|(label, _, color)| (label, color)));
    let bars = labels.zip(columns).filter(|(_, spans)| !spans.is_empty());
    plot.bars = bars
        .map(|((label, color), spans)| Bars {
            label: label.into(),
            color,
            spans,
        })
        .collect();
    plot
}
