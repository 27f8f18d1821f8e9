//! The page of a run.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::charts;
use super::load::RunData;
use super::plot::number;
use super::transcript::{Decode, transcript};
use crate::ledger::{Entry, Line};
use crate::metrics::keys;

/// Ledger rows shown; the file itself has them all.
const LEDGER_ROWS: usize = 2_000;

/// A whole page around `body`; nothing in it refers to another file or host.
pub(super) fn document(title: &str, body: &Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) }
                style { (PreEscaped(include_str!("style.css"))) }
            }
            body { main { (body) } }
        }
    }
}

/// The report of a run.
pub(super) fn page(data: &RunData, decode: Decode<'_>) -> Markup {
    let (status, word) = status(data);
    let body = html! {
        header {
            p.brand { "mipu" }
            h1 { (data.name) " " span class={ "pill " (status) } { (word) } }
        }
        @if !data.notes.is_empty() {
            aside.notes { ul { @for note in &data.notes { li { (note) } } } }
        }
        (headline(data))
        @for section in charts::sections(data) {
            section {
                h2 { (section.title) }
                div.grid { @for plot in &section.plots { (plot.figure()) } }
            }
        }
        (episodes(data, decode))
        (ledger(data))
        @if let Some(config) = &data.config {
            section {
                h2 { "Configuration" }
                details { summary { "config.yaml, as resolved" } pre { (config) } }
            }
        }
        footer { p { "mu: the sampler that is deployed. pi: the trainer policy. Drawn from metrics.jsonl, ledger.jsonl and trajectories/ beside this file." } }
    };
    document(&format!("{} · mipu", data.name), &body)
}

fn status(data: &RunData) -> (&'static str, &'static str) {
    match (data.fault.is_some(), data.end().is_some()) {
        (true, _) => ("bad", "ledger broken"),
        (false, true) => ("good", "finished"),
        (false, false) => ("open", "not finished"),
    }
}

/// A number with its name and a line of context.
fn card(name: &str, value: &Markup, context: &str, class: &str) -> Markup {
    html! { div class={ "card " (class) } { p.name { (name) } p.value { (value) } p.context { (context) } } }
}

fn headline(data: &RunData) -> Markup {
    let accepted = data.decided().filter(|s| s.decision.accepted).count();
    let attempted = data.decided().count();
    let rejected = attempted - accepted;
    let wall: f64 = data.steps.iter().filter_map(|s| s.get(&keys::TIME_STEP)).sum();
    let last_k3 = data.steps.iter().rev().find_map(|s| s.get(&keys::MISMATCH_K3));
    let alarms = data
        .steps
        .iter()
        .filter(|s| s.get(&keys::MISMATCH_ALARM).is_some_and(|a| a > 0.0))
        .count();
    html! {
        section.cards {
            (gain(data))
            (card("Attempted steps", &html! { (attempted) }, &format!("{accepted} accepted"), ""))
            (card(
                "Rolled back",
                &html! { (rejected) },
                &if attempted == 0 { "no step yet".into() } else { format!("{:.0} % of the steps", 100.0 * rejected as f64 / attempted as f64) },
                "",
            ))
            (card("Wall time of the steps", &html! { (duration(wall)) }, &per_step(wall, data.steps.len()), ""))
            (card(
                "Mismatch k3, last step",
                &html! { (last_k3.map_or("-".into(), number)) },
                &match alarms { 0 => "no invariant alarm".into(), n => format!("{n} steps raised the invariant alarm") },
                if alarms > 0 { "bad" } else { "" },
            ))
            (card(
                "Ledger",
                &html! { (data.ledger.len()) },
                if data.fault.is_some() { "entries, then the chain breaks" } else { "entries, chain intact" },
                if data.fault.is_some() { "bad" } else { "" },
            ))
        }
    }
}

/// J(mu) before and after: on the held-out split when it was evaluated twice, else on what there is, saying so.
fn gain(data: &RunData) -> Markup {
    let train: Vec<f64> = data
        .steps
        .iter()
        .filter_map(|s| s.get(&keys::REWARD_MEAN))
        .collect();
    let (first, last) = (data.held_out.first_key_value(), data.held_out.last_key_value());
    let (pair, context) = match first.zip(last) {
        Some(((first, before), (last, after))) if first < last => (
            Some((*before, *after)),
            "held-out reward of the sampler, before and after",
        ),
        _ => (
            train.first().copied().zip(train.last().copied()),
            "training reward, first and last step",
        ),
    };
    let value = html! {
        @if let Some((before, after)) = pair {
            span.from { (number(before)) } span.arrow { " → " } (number(after))
        } @else { "-" }
    };
    card("J(mu)", &value, context, "gain")
}

fn duration(seconds: f64) -> String {
    match seconds {
        s if s < 100.0 => format!("{s:.1} s"),
        s if s < 6000.0 => format!("{:.0} min {:02.0} s", (s / 60.0).floor(), (s % 60.0).floor()),
        s => format!(
            "{:.0} h {:02.0} min",
            (s / 3600.0).floor(),
            (s % 3600.0 / 60.0).floor()
        ),
    }
}

fn per_step(wall: f64, steps: usize) -> String {
    if steps == 0 {
        "no step yet".into()
    } else {
        format!("{:.2} s a step", wall / steps as f64)
    }
}

fn episodes(data: &RunData, decode: Decode<'_>) -> Markup {
    html! {
        @if data.success.is_some() || data.failure.is_some() {
            section {
                h2 { "Two episodes" }
                p.lead {
                    "Coloured tokens were sampled by the policy and are in the loss; hover for the log-prob they were sampled with. "
                    span.t.p0 { "p ≥ .9" } " " span.t.p1 { "≥ .5" } " " span.t.p2 { "≥ .1" } " " span.t.p3 { "below" }
                    ". Grey tokens (prompt, tool output) are masked: never in a ratio, a loss or an entropy."
                }
                @if let Some(episode) = &data.success { (transcript("A success", episode, decode)) }
                @if let Some(episode) = &data.failure { (transcript("A failure", episode, decode)) }
            }
        }
    }
}

fn ledger(data: &RunData) -> Markup {
    let shown = &data.ledger[data.ledger.len().saturating_sub(LEDGER_ROWS)..];
    html! {
        @if !data.ledger.is_empty() {
            section {
                h2 { "Ledger" }
                p.lead {
                    "Every attempted step, chained by hash. "
                    code { "mipu ledger verify" } " recomputes the chain"
                    @if let Some(last) = data.ledger.last() { "; its head is " code title=(last.hash) { (short(&last.hash)) } }
                    "."
                }
                details {
                    summary {
                        (data.ledger.len()) " entries"
                        @if shown.len() < data.ledger.len() { " (the last " (shown.len()) " are shown)" }
                    }
                    div.scroll {
                        table {
                            thead {
                                tr {
                                    th { "#" } th { "entry" } th { "decision" } th.n { "T_hat" } th.n { "± SE" } th.n { "c_t" } th.n { "p" }
                                    th.n { "informative" } th { "weights before → candidate → after" } th { "line hash" }
                                }
                            }
                            tbody { @for line in shown { (row(line)) } }
                        }
                    }
                }
            }
        }
    }
}

fn row(line: &Line) -> Markup {
    let cell = |value: Option<f64>| html! { td.n { (value.map_or("-".into(), number)) } };
    let hash = |hash: &str| html! { code title=(hash) { (short(hash)) } };
    html! {
        tr {
            td.n { (line.index) }
            @match &line.entry {
                Entry::Step(step) => {
                    @let d = &step.decision;
                    td { "step " (step.attempt) }
                    td {
                        span class={ "mark " (if d.accepted { "good" } else { "bad" }) } { (if d.accepted { "accepted" } else { "rolled back" }) }
                        " " small { (charts::reason(d.reason)) }
                    }
                    (cell(d.t_hat)) (cell(d.se)) (cell(d.c_t)) (cell(d.p_value))
                    td.n { (d.n_informative) " / " (d.n_groups) }
                    td { (hash(&d.hash_before)) " → " (hash(&d.hash_candidate)) " → " (hash(&d.hash_after)) }
                }
                Entry::RunStart(start) => {
                    td { "run start" }
                    td colspan="6" { "seed " (start.seed) ", config " (hash(&start.config_hash)) ", tasks " (hash(&start.task_hash)) }
                    td { (hash(&start.weights_hash)) }
                }
                Entry::Checkpoint(checkpoint) => {
                    td { "checkpoint" }
                    td colspan="6" { (checkpoint.name) ", after " (checkpoint.attempt) " steps" }
                    td { "manifest " (hash(&checkpoint.manifest_hash)) }
                }
                Entry::RunEnd(end) => {
                    td { "run end" }
                    td colspan="6" { (end.steps) " steps, " (end.accepted) " accepted, " (end.rejected) " rolled back" }
                    td { (hash(&end.weights_hash)) }
                }
            }
            td { (hash(&line.hash)) }
        }
    }
}

/// The first eight digits of a hash.
fn short(hash: &str) -> String {
    hash.chars().take(8).collect()
}
