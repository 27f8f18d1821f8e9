//! The page of the accumulation benchmark: several engines against one trainer policy.

use maud::{Markup, html};

use super::page::document;
use super::plot::{Color, Dot, Plot, Style, number};
use crate::mismatch::{AccumulationReport, Fit, Point};

/// The page comparing engines.
pub(super) fn page(reports: &[AccumulationReport]) -> Markup {
    let body = html! {
        header {
            p.brand { "mipu" }
            h1 { "Mismatch accumulation" }
        }
        p.lead {
            "S" sub { "n" } " is the sum of log pi - log mu over the first n generated tokens of an episode sampled by the engine mu and scored by the "
            "trainer pi at the same weights, so every difference is the engine's arithmetic."
        }
        section { h2 { "Engines" } (table(reports)) }
        section {
            h2 { "Along an episode" }
            div.grid { @for plot in plots(reports) { (plot.figure()) } }
        }
        section { h2 { "Against theory" } (bounds(reports)) }
    };
    document("Mismatch accumulation · mipu", &body)
}

fn table(reports: &[AccumulationReport]) -> Markup {
    let with_error = |value: f64, se: Option<f64>| match se {
        Some(se) => format!("{} ± {}", number(value), number(se)),
        None => number(value),
    };
    let exponent = |fit: &Option<Fit>| {
        fit.as_ref()
            .map_or("-".into(), |f| format!("{:.2} ± {:.2}", f.exponent, f.se))
    };
    html! {
        div.scroll {
            table {
                thead {
                    tr {
                        th { "engine" } th.n { "episodes" } th.n { "tokens" } th.n { "drift per token" } th.n { "2H by token" } th.n { "2H by turn" }
                        th.n { "k3, first turn" } th.n { "k3, last turn" } th.n { "mean weight" } th.n { "effective share" } th.n { "outside [0.5, 2]" }
                    }
                }
                tbody {
                    @for (report, color) in reports.iter().zip(colors()) {
                        @let last = report.by_token.last();
                        tr {
                            td { i class={ "key line " (color.name()) } {} (report.label) }
                            td.n { (report.episodes) @if report.left_out > 0 { small { " (" (report.left_out) " left out)" } } }
                            td.n { (report.tokens) }
                            td.n { (with_error(report.drift_per_token, report.drift_per_token_se)) }
                            td.n { (exponent(&report.fit_by_token)) }
                            td.n { (exponent(&report.fit_by_turn)) }
                            td.n { (report.turns.first().map_or("-".into(), |t| number(t.k3))) }
                            td.n { (report.turns.last().map_or("-".into(), |t| number(t.k3))) }
                            td.n { (last.map_or("-".into(), |p| with_error(p.weight_mean, p.weight_mean_se))) }
                            td.n { (last.and_then(|p| p.ess).map_or("-".into(), number)) }
                            td.n { (last.map_or("-".into(), |p| format!("{:.1} %", 100.0 * p.share_outside))) }
                        }
                    }
                }
            }
        }
        p.facts {
            "2H: exponent of Var(S) over the horizon, with a jackknife error over episodes; 1 is a random walk, 2 a gap that persists. "
            "Weights e" sup { "S" } " are those of whole episodes; their mean is 1 in expectation whatever the engine."
        }
    }
}

fn colors() -> impl Iterator<Item = Color> {
    Color::SERIES.into_iter().cycle()
}

fn plots(reports: &[AccumulationReport]) -> Vec<Plot> {
    let curve = |title: &str, about: &str, by_turn: bool, f: &dyn Fn(&Point) -> Option<f64>| {
        let mut plot = Plot::new(title, about, if by_turn { "turns" } else { "generated tokens n" });
        for (report, color) in reports.iter().zip(colors()) {
            let points = if by_turn {
                &report.by_turn
            } else {
                &report.by_token
            };
            let dot = |p: &Point| {
                let y = f(p)?;
                let unit = if by_turn { "turn" } else { "token" };
                let title = format!(
                    "{}, {unit} {}: {} ({} episodes)",
                    report.label,
                    p.n,
                    number(y),
                    p.alive
                );
                Some(Dot {
                    x: p.n as f64,
                    y,
                    title: Some(title),
                })
            };
            plot = plot.with(
                &report.label,
                color,
                Style::Line,
                points.iter().filter_map(dot).collect(),
            );
        }
        plot
    };
    // A handful of survivors says nothing.
    let enough = |p: &Point| p.alive >= crate::mismatch::MIN_ALIVE;
    let spread = |p: &Point| p.variance.filter(|_| enough(p));
    let mut mean = curve(
        "Drift: mean of S",
        "Linear by construction: minus the summed KL. Over episodes that reach n.",
        false,
        &|p| enough(p).then_some(p.mean),
    );
    mean.y_include = vec![0.0];
    let mut variance = curve(
        "Spread: variance of S",
        "Dashed: fitted power law; its slope is 2H (exponents in the table). Independent gaps give 1, a gap that persists through the episode 2.",
        false,
        &spread,
    );
    for (report, color) in reports.iter().zip(colors()) {
        if let Some(fit) = &report.fit_by_token {
            let line = [fit.range.0, fit.range.1].map(|n| n as f64);
            let dots = line.map(|n| Dot {
                x: n,
                y: fit.scale * n.powf(fit.exponent),
                title: None,
            });
            variance = variance.with("", color, Style::Dashed, dots.to_vec());
        }
    }
    variance.log_x = true;
    variance.log_y = true;
    let mut ess = curve(
        "Effective share of sequence weights",
        "What e^S leaves of the sample. All episodes, each stopped at its own end.",
        false,
        &|p| p.ess,
    );
    ess.y_include = vec![0.0, 1.0];
    let mut outside = curve(
        "Episodes outside [0.5, 2]",
        "Share of episodes a sequence-level mask would drop by then.",
        false,
        &|p| Some(p.share_outside),
    );
    outside.y_include = vec![0.0];
    let mut weight = curve(
        "Invariant: mean of e^S",
        "1 in expectation whatever the engine. Far from 1 by many standard errors (table) is a bug; noise grows as the effective share falls.",
        false,
        &|p| Some(p.weight_mean),
    );
    weight.y_include = vec![1.0];
    let mut by_turn = curve(
        "Spread by turn: variance of S",
        "The same variance against finished turns.",
        true,
        &spread,
    );
    by_turn.log_y = true;
    vec![
        mean,
        variance,
        ess,
        outside,
        k3_by_turn(reports),
        weight,
        by_turn,
        surprise_by_turn(reports),
    ]
}

fn turns(
    reports: &[AccumulationReport],
    title: &str,
    about: &str,
    f: &dyn Fn(&crate::mismatch::Slice) -> f64,
) -> Plot {
    let mut plot = Plot::new(title, about, "turn");
    for (report, color) in reports.iter().zip(colors()) {
        let dot = |s: &crate::mismatch::Slice| {
            let title = format!(
                "{}, turn {}: {} ({} tokens)",
                report.label,
                s.from + 1,
                number(f(s)),
                s.tokens
            );
            Dot {
                x: s.from as f64 + 1.0,
                y: f(s),
                title: Some(title),
            }
        };
        plot = plot.with(
            &report.label,
            color,
            Style::Line,
            report.turns.iter().map(dot).collect(),
        );
    }
    plot
}

fn k3_by_turn(reports: &[AccumulationReport]) -> Plot {
    let mut plot = turns(
        reports,
        "k3 by turn",
        "Mismatch of the tokens of each turn alone.",
        &|s| s.k3,
    );
    plot.log_y = true;
    plot
}

fn surprise_by_turn(reports: &[AccumulationReport]) -> Plot {
    let about = "Mean -log mu of the sampled tokens (an entropy): mismatch is only comparable between turns where this is.";
    let mut plot = turns(reports, "Surprise by turn", about, &|s| s.surprise_mean);
    plot.y_include = vec![0.0];
    plot
}

/// How the known bounds grow over the horizon of the fits, next to what was measured.
fn bounds(reports: &[AccumulationReport]) -> Markup {
    let fits: Vec<(&str, &Fit)> = reports
        .iter()
        .filter_map(|r| Some((r.label.as_str(), r.fit_by_token.as_ref()?)))
        .collect();
    let Some(horizon) = fits.iter().map(|(_, fit)| fit.range.1).max() else {
        return html! { p.empty { "too few or too short episodes to fit a power law" } };
    };
    let grows = |exponent: f64| number((horizon as f64).powf(exponent));
    html! {
        p {
            "With a per-token divergence of fixed size, bounds on the error of the surrogate objective grow with the horizon T. From T = 1 to T = "
            (horizon) ", the last horizon of the fits:"
        }
        ul {
            li { "O(T" sup { "2" } "), the classic trust-region bound: × " (grows(2.0)) }
            li { "O(T" sup { "1.5" } ") and O(T), the bounds of arXiv 2512.23075: × " (grows(1.5)) " and × " (grows(1.0)) }
            @for (label, fit) in &fits {
                li { (label) ", measured: Var(S) as n" sup { (format!("{:.2}", fit.exponent)) } ": × " (grows(fit.exponent)) }
            }
        }
        p.facts { "The bounds are worst cases over policies; the measured lines are what these engines do to this model on these episodes." }
    }
}
