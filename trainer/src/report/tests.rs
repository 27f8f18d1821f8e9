//! The pages: well-formed, self-contained, safe, and honest about what is missing.

use std::fmt::Write as _;

use mipu_agent::{PROMPT_TURN, Tokens};
use mipu_envs::StopReason;
use mipu_envs::seed::{Purpose, stream};
use rand::RngExt;
use serde_json::json;

use super::*;
use crate::gate::{Decision, Estimate, Reason};
use crate::ledger::{Checkpoint, Entry, Ledger, RunEnd, RunStart, Step};
use crate::metrics::{MetricsWriter, StepMetrics, keys};
use crate::mismatch::{Scored, accumulate};

const SPECIALS: [&str; 10] = [
    "<pad>",
    "<bos>",
    "<python>",
    "<run_tests>",
    "<call>",
    "<end_call>",
    "<obs>",
    "<end_obs>",
    "<answer>",
    "<end>",
];

/// The byte-level tokenizer of the tiny models, as far as a page needs it.
fn decode(ids: &[u32]) -> String {
    let mut bytes = Vec::new();
    for id in ids {
        match u8::try_from(*id) {
            Ok(byte) => bytes.push(byte),
            Err(_) => bytes.extend(SPECIALS[*id as usize - 256].bytes()),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn ids(text: &str) -> Vec<u32> {
    let mut out = Vec::new();
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let special = SPECIALS.iter().position(|s| rest.starts_with(s));
        let len = special.map_or(c.len_utf8(), |s| SPECIALS[s].len());
        match special {
            Some(s) => out.push(256 + s as u32),
            None => out.extend(rest[..len].bytes().map(u32::from)),
        }
        rest = &rest[len..];
    }
    out
}

/// One line of a trajectories file. `turns` are `(sampled, observation)` pairs.
fn episode(task: &str, prompt: &str, turns: &[(&str, &str)], ret: f64, stop: StopReason) -> String {
    let mut rng = stream(11, Purpose::Eval, &[]);
    let mut tokens = Tokens::default();
    tokens.push_context(&ids(prompt), PROMPT_TURN);
    for (turn, (sampled, observation)) in turns.iter().enumerate() {
        let sampled = ids(sampled);
        let surprise = |rng: &mut rand_chacha::ChaCha8Rng| {
            let draw: f32 = rng.random();
            if draw < 0.7 {
                -0.02 * rng.random::<f32>()
            } else {
                -3.5 * rng.random::<f32>()
            }
        };
        let logprobs: Vec<f32> = sampled.iter().map(|_| surprise(&mut rng)).collect();
        tokens.push_sampled(&sampled, &logprobs, turn as u16);
        tokens.push_context(&ids(observation), turn as u16);
    }
    let mut rewards = vec![0.0; turns.len()];
    rewards[turns.len() - 1] = ret;
    json!({
        "task_id": task, "sample": 3, "seed": 7, "policy_version": 38, "weights_hash": "ab", "tokens": tokens, "messages": [],
        "turn_rewards": rewards, "stop": stop, "metrics": [], "malformed_turns": 0, "latency_ms": 0.0,
    })
    .to_string()
}

fn hash(n: u64) -> String {
    blake3::hash(&n.to_le_bytes()).to_hex().to_string()
}

/// Writes a run directory that looks like the quick start: 40 attempted steps, a few rolled back.
fn write_run(dir: &Path, steps: u64, finished: bool) {
    let mut rng = stream(7, Purpose::Eval, &[1]);
    let mut noise = |sd: f64| sd * ((0..12).map(|_| rng.random::<f64>()).sum::<f64>() - 6.0);
    std::fs::write(
        dir.join("config.yaml"),
        "seed: 7\nmodel: models/tiny\ntasks: [tasks/calc.yaml]\nalgorithm:\n  gate: { mipu: { c: { start: 1.5e-3, end: 5.0e-4, anneal_steps: 100 } } }\n  correction: tis\n",
    )
    .unwrap();
    std::fs::create_dir(dir.join("eval")).unwrap();
    std::fs::write(
        dir.join("eval/step-000000.json"),
        r#"{"mean_return": 0.547, "standard_error": 0.02}"#,
    )
    .unwrap();
    let mut ledger = Ledger::create(&dir.join("ledger.jsonl")).unwrap();
    let mut metrics = MetricsWriter::open(&dir.join("metrics.jsonl"), 0).unwrap();
    let (mut weights, mut accepted) = (0, 0);
    ledger
        .record(&Entry::RunStart(RunStart {
            config_hash: hash(1000),
            task_hash: hash(1001),
            weights_hash: hash(0),
            seed: 7,
        }))
        .unwrap();
    for t in 0..steps {
        let progress = 1.0 - (-(accepted as f64) / 9.0).exp();
        let j = 0.55 + 0.4 * progress;
        let c = 1.5e-3 - 1e-5 * t as f64;
        let t_hat = -4e-4 + noise(7e-4);
        let keep = t_hat >= -c;
        let mut row = StepMetrics::new(t);
        let clamp = |v: f64| v.clamp(0.0, 1.0);
        row.set(keys::REWARD_MEAN, clamp(j + noise(0.03)));
        row.set(keys::REWARD_VALIDATION, clamp(j + noise(0.035)));
        if t % 10 == 9 {
            row.set(keys::REWARD_HELD_OUT, clamp(j + noise(0.01)));
        }
        let k3 = 5e-4 * noise(0.25).exp();
        row.set(keys::MISMATCH_K3, k3);
        row.set(keys::MISMATCH_K2, k3 * (1.0 + noise(0.02)));
        row.set(keys::MISMATCH_ABS_LOGP_DIFF_MEAN, 0.015 * noise(0.1).exp());
        row.set(keys::MISMATCH_ABS_LOGP_DIFF_P99, 0.11 * noise(0.1).exp());
        row.set(keys::MISMATCH_ABS_LOGP_DIFF_MAX, 0.4 * noise(0.3).exp());
        row.set(keys::MISMATCH_RATIO_MEAN, 1.0 + noise(3e-4));
        row.set(keys::MISMATCH_RATIO_MEAN_SE, 3e-4);
        row.set(keys::MISMATCH_ESS, 0.999 + noise(1e-4));
        row.set(keys::MISMATCH_ESS_SEQ, 0.97 + noise(0.004));
        row.set(keys::MISMATCH_ALARM, 0.0);
        row.set(keys::MISMATCH_PROB_DIFF_MEAN, 0.004 * noise(0.1).exp());
        row.set(keys::MISMATCH_PROB_DIFF_MAX, 0.07 * noise(0.2).exp());
        row.set(keys::THROUGHPUT_TOKENS_PER_S, 9800.0 + noise(300.0));
        for turn in 0..4 {
            row.set(
                keys::k3_turn(turn).unwrap(),
                k3 * (0.7 + 0.25 * turn as f64) * noise(0.1).exp(),
            );
        }
        row.set(keys::ACTOR_ENTROPY, 0.32 - 0.2 * progress + noise(0.008));
        row.set(keys::ACTOR_GRAD_NORM, 0.9 * noise(0.3).exp());
        row.set(keys::RESPONSE_LENGTH_MEAN, 21.0 + 6.0 * progress + noise(0.6));
        row.set(keys::RESPONSE_LENGTH_MAX, (48.0 + noise(6.0)).round());
        row.set(keys::NUM_TURNS_MEAN, 1.9 + 0.4 * progress + noise(0.04));
        row.set(keys::NUM_TURNS_MAX, 4.0);
        row.set(
            keys::GROUP_FRAC_ZERO_STD,
            clamp(0.2 + 0.5 * progress + noise(0.06)),
        );
        let answered = clamp(0.9 + 0.08 * progress + noise(0.01));
        row.set(keys::stop(StopReason::Answered), answered);
        row.set(keys::stop(StopReason::MaxTurns), (1.0 - answered) * 0.7);
        row.set(keys::stop(StopReason::MaxTokens), (1.0 - answered) * 0.3);
        for (key, seconds) in [
            (keys::TIME_ROLLOUT, 0.42),
            (keys::TIME_SCORE, 0.05),
            (keys::TIME_UPDATE, 0.46),
            (keys::TIME_SYNC, 0.02),
            (keys::TIME_GATE, 0.21),
            (keys::TIME_CHECKPOINT, 0.04),
            (keys::TIME_STEP, 1.24),
        ] {
            row.set(key, seconds * noise(0.06).exp());
        }
        metrics.append(&row).unwrap();
        let after = if keep { t + 1 } else { weights };
        let decision = Decision {
            t_hat: Some(t_hat),
            t_hat_informative: Some(t_hat * 1.4),
            se: Some(7e-4),
            p_value: Some(clamp(0.5 + t_hat * 300.0)),
            null_sd: Some(6.8e-4),
            c_t: Some(c),
            reward: Some(Estimate {
                mean: j,
                se: Some(0.03),
            }),
            n_episodes: 128,
            n_groups: 16,
            n_informative: 11,
            accepted: keep,
            reason: if keep {
                Reason::WithinTolerance
            } else {
                Reason::BelowTolerance
            },
            undefined: false,
            non_finite: false,
            hash_before: hash(weights),
            hash_candidate: hash(t + 1),
            hash_after: hash(after),
        };
        ledger
            .record(&Entry::Step(Box::new(Step {
                attempt: t,
                decision,
                hashes: Default::default(),
                metrics: row.replayable(),
            })))
            .unwrap();
        weights = after;
        accepted += u64::from(keep);
        if t % 20 == 19 {
            let name = format!("step-{:06}", t + 1);
            ledger
                .record(&Entry::Checkpoint(Checkpoint {
                    attempt: t + 1,
                    name,
                    manifest_hash: hash(2000 + t),
                }))
                .unwrap();
        }
    }
    if finished {
        let end = RunEnd {
            steps,
            accepted,
            rejected: steps - accepted,
            mu_before: Some(0.547),
            mu_after: Some(0.941),
            weights_hash: hash(weights),
        };
        ledger.record(&Entry::RunEnd(end)).unwrap();
    }
    let trajectories = dir.join("trajectories");
    std::fs::create_dir(&trajectories).unwrap();
    let mut lines = String::new();
    for line in [
        episode(
            "calc/00a1",
            "<bos>37+48*2?",
            &[
                ("<python>print(37+48*2)<end_call>", "<obs>busy<end_obs>"),
                ("<python>print(37+48*2)<end_call>", "<obs>133<end_obs>"),
                ("<answer>133<end>", ""),
            ],
            1.0,
            StopReason::Answered,
        ),
        episode(
            "calc/00a2",
            "<bos>91-6*7?",
            &[
                (
                    "<python>print(91-6*7)\nx<end_call>",
                    "<obs>NameError: <script>alert('x')</script> & \"x\"<end_obs>",
                ),
                ("<answer>53<end>", ""),
            ],
            0.0,
            StopReason::Answered,
        ),
    ] {
        let _ = writeln!(lines, "{line}");
    }
    std::fs::write(trajectories.join("train-000040.jsonl"), lines).unwrap();
}

/// Fails unless every tag is closed in order and every attribute is quoted.
fn assert_well_formed(html: &str) {
    const VOID: [&str; 4] = ["meta", "br", "hr", "link"];
    let mut open: Vec<&str> = Vec::new();
    let mut rest = html.strip_prefix("<!DOCTYPE html>").expect("a doctype");
    while let Some(start) = rest.find('<') {
        assert!(!rest[..start].contains('>'), "a stray > in {:?}", &rest[..start]);
        rest = &rest[start..];
        let end = rest.find('>').expect("a tag ends");
        let tag = &rest[1..end];
        assert_eq!(tag.matches('"').count() % 2, 0, "quotes of <{tag}>");
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name), "closing {name}");
        } else {
            let name = tag.split_whitespace().next().unwrap().trim_end_matches('/');
            assert!(name.chars().all(|c| c.is_ascii_alphanumeric()), "<{tag}>");
            if !tag.ends_with('/') && !VOID.contains(&name) {
                open.push(name);
            }
            if name == "style" {
                rest = &rest[rest.find("</style>").expect("the style ends")..];
                continue;
            }
        }
        rest = &rest[end + 1..];
    }
    assert!(open.is_empty(), "left open: {open:?}");
}

/// Fails when the page would load anything or run anything.
fn assert_self_contained(html: &str) {
    for attribute in [
        "src=",
        "href=",
        "@import",
        "url(",
        "<script",
        "<iframe",
        "<link",
        "onload=",
        "onerror=",
        "javascript:",
    ] {
        assert!(!html.contains(attribute), "{attribute}");
    }
    let addresses: Vec<_> = html
        .match_indices("http")
        .map(|(at, _)| &html[at..(at + 26).min(html.len())])
        .collect();
    assert!(
        addresses.iter().all(|a| *a == "http://www.w3.org/2000/svg"),
        "{addresses:?}"
    );
}

fn report(dir: &Path) -> String {
    let path = write_report(dir, &decode).unwrap();
    assert_eq!(path, dir.join(REPORT_FILE));
    std::fs::read_to_string(path).unwrap()
}

#[test]
fn the_page_of_a_finished_run_shows_what_happened() {
    let dir = tempfile::tempdir().unwrap();
    write_run(dir.path(), 40, true);
    let html = report(dir.path());
    assert_well_formed(&html);
    assert_self_contained(&html);
    for told in [
        "0.547",
        "0.941",
        "finished",
        "chain intact",
        "rolled back",
        "below tolerance",
        "agent, turn 3",
        "busy",
        "step-000040",
        "seed: 7",
    ] {
        assert!(html.contains(told), "{told}");
    }
    let ledger = crate::ledger::verify(&dir.path().join("ledger.jsonl")).unwrap();
    assert!(ledger.rejected > 0);
    // One hover title for every judged step.
    assert_eq!(
        html.matches("groups informative</title>").count() as u64,
        ledger.steps
    );
    assert_eq!(
        html.matches("rolled back (below tolerance)").count() as u64,
        ledger.rejected
    );
    assert!(html.matches("<svg").count() >= 12 && !html.contains("no data yet"));
    assert!(
        !html.contains("class=\"notes\""),
        "nothing to note about a whole run"
    );
}

#[test]
fn hostile_text_is_shown_not_run() {
    let dir = tempfile::tempdir().unwrap();
    write_run(dir.path(), 3, true);
    let mut config = std::fs::read_to_string(dir.path().join("config.yaml")).unwrap();
    config.push_str("# </pre><script>alert(1)</script>\n");
    std::fs::write(dir.path().join("config.yaml"), config).unwrap();
    let html = report(dir.path());
    assert_well_formed(&html);
    assert_self_contained(&html);
    assert!(html.contains("&lt;script&gt;alert('x')&lt;/script&gt; &amp; &quot;x&quot;"));
    assert!(html.contains("&lt;/pre&gt;&lt;script&gt;alert(1)&lt;/script&gt;"));
}

#[test]
fn masked_and_sampled_tokens_are_told_apart() {
    let dir = tempfile::tempdir().unwrap();
    write_run(dir.path(), 3, true);
    let html = report(dir.path());
    let success = &html[html.find("A success").unwrap()..html.find("A failure").unwrap()];
    // 3 sampled turns: every token a span of its own with its log-prob; prompt and tool text in one piece.
    let sampled = ids("<python>print(37+48*2)<end_call>").len() * 2 + ids("<answer>133<end>").len();
    assert_eq!(success.matches("log-prob").count(), sampled);
    assert!(success.contains("37+48*2?") && success.contains("133"));
    assert!(success.contains(">&lt;bos&gt;</span>") && success.contains(">&lt;end_obs&gt;</span>"));
    assert_eq!(success.matches("class=\"segment context\"").count(), 3);
}

#[test]
fn a_run_in_progress_or_crashed_gets_a_page_with_notes() {
    let dir = tempfile::tempdir().unwrap();
    write_run(dir.path(), 5, false);
    std::fs::remove_file(dir.path().join("config.yaml")).unwrap();
    let torn = |name: &str| {
        let bytes = std::fs::read(dir.path().join(name)).unwrap();
        std::fs::write(dir.path().join(name), &bytes[..bytes.len() - 7]).unwrap();
    };
    torn("metrics.jsonl");
    torn("ledger.jsonl");
    torn("trajectories/train-000040.jsonl");
    let html = report(dir.path());
    assert_well_formed(&html);
    for told in [
        "config.yaml",
        "it does not end in a newline",
        "The run has not ended",
        "A success",
    ] {
        assert!(html.contains(told), "{told}");
    }
    assert!(!html.contains("A failure"), "the torn line is left out");
}

#[test]
fn an_empty_run_says_so_and_another_directory_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    assert!(matches!(
        write_report(dir.path(), &decode),
        Err(ReportError::NotARun(_))
    ));
    std::fs::write(dir.path().join("config.yaml"), "seed: 1\n").unwrap();
    let html = report(dir.path());
    assert_well_formed(&html);
    for told in [
        "metrics.jsonl: not there yet",
        "ledger.jsonl: not there yet",
        "no recorded episode",
        "no data yet",
    ] {
        assert!(html.contains(told), "{told}");
    }
}

#[test]
fn a_broken_ledger_is_not_hidden() {
    let dir = tempfile::tempdir().unwrap();
    write_run(dir.path(), 4, true);
    let path = dir.path().join("ledger.jsonl");
    let text = std::fs::read_to_string(&path)
        .unwrap()
        .replacen("\"attempt\":2", "\"attempt\":9", 1);
    std::fs::write(&path, text).unwrap();
    let html = report(dir.path());
    assert!(html.contains("ledger broken") && html.contains("line 4: its bytes do not match its hash"));
}

/// Teacher-forced gaps of an engine: independent noise of size `sd` per token, `spread` more or less of it in a whole episode. Given an
/// episode's noise `s`, `d ~ N(-s^2 / 2, s^2)`, so that `E[e^d] = 1` as for any real engine.
fn engine(label: &str, sd: f32, spread: f32, seed: u64) -> AccumulationReport {
    let mut rng = stream(seed, Purpose::Eval, &[2]);
    let mut owned = Vec::new();
    for _ in 0..96 {
        let tokens = rng.random_range(60..=240usize);
        let mut normal = |sd: f32| sd * ((0..12).map(|_| rng.random::<f32>()).sum::<f32>() - 6.0);
        let noise = sd * normal(spread).exp();
        let sampler: Vec<f32> = (0..tokens).map(|_| normal(0.4) - 0.7).collect();
        let trainer: Vec<f32> = sampler
            .iter()
            .map(|m| m + normal(noise) - noise * noise / 2.0)
            .collect();
        let turn: Vec<u16> = (0..tokens).map(|t| (t / 24) as u16).collect();
        owned.push((sampler, trainer, turn));
    }
    let episodes: Vec<Scored<'_>> = owned
        .iter()
        .map(|(sampler, trainer, turn)| Scored {
            sampler_logprobs: sampler,
            trainer_logprobs: trainer,
            turn,
        })
        .collect();
    accumulate(label, &episodes)
}

#[test]
fn engines_are_compared_on_one_page() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("mismatch.html");
    let reports = [
        engine("bf16", 0.008, 0.1, 1),
        engine("fp8 weights", 0.02, 0.3, 2),
        engine("fp8 weights + activations <b>", 0.045, 0.4, 3),
    ];
    write_mismatch_report(&path, &reports).unwrap();
    let html = std::fs::read_to_string(path).unwrap();
    assert_well_formed(&html);
    assert_self_contained(&html);
    assert!(html.contains("activations &lt;b&gt;") && html.contains("arXiv 2512.23075"));
    assert!(html.matches("<svg").count() == 8 && !html.contains("no data yet"));
    write_mismatch_report(&dir.path().join("none.html"), &[]).unwrap();
}
