//! Laws of the ledger: durable order, any changed byte found, replays compared.

use proptest::prelude::*;

use super::*;
use crate::gate::{Decision, Reason};

fn step(attempt: u64, t_hat: f64) -> Entry {
    let accepted = t_hat >= -1e-3;
    Entry::Step(Box::new(Step {
        attempt,
        decision: Decision {
            t_hat: Some(t_hat),
            t_hat_informative: Some(t_hat * 1.5),
            se: Some(4e-4),
            p_value: Some(0.25),
            null_sd: Some(3.9e-4),
            c_t: Some(1e-3),
            reward: None,
            n_episodes: 128,
            n_groups: 16,
            n_informative: 9,
            accepted,
            reason: if accepted {
                Reason::WithinTolerance
            } else {
                Reason::BelowTolerance
            },
            undefined: false,
            non_finite: false,
            hash_before: "aa".into(),
            hash_candidate: "bb".into(),
            hash_after: if accepted { "bb" } else { "aa" }.into(),
        },
        hashes: [("optimizer".to_owned(), "cc".to_owned())].into(),
        metrics: [
            ("mismatch/k3".to_owned(), 4.5e-4),
            ("reward/mean".to_owned(), 0.5),
        ]
        .into(),
    }))
}

fn entries() -> Vec<Entry> {
    vec![
        Entry::RunStart(RunStart {
            config_hash: "c0".into(),
            task_hash: "7a".into(),
            weights_hash: "aa".into(),
            seed: 7,
        }),
        step(0, -2e-4),
        Entry::Checkpoint(Checkpoint {
            attempt: 1,
            name: "step-000001".into(),
            manifest_hash: "dd".into(),
        }),
        step(1, -2e-3),
        Entry::RunEnd(RunEnd {
            steps: 2,
            accepted: 1,
            rejected: 1,
            mu_before: Some(0.5),
            mu_after: Some(0.75),
            weights_hash: "bb".into(),
        }),
    ]
}

fn written() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ledger.jsonl");
    let mut ledger = Ledger::create(&path).unwrap();
    for entry in entries() {
        assert_eq!(ledger.record(&entry).unwrap(), Recorded::Appended);
    }
    (dir, path)
}

/// The error's text without the directory of this test.
fn told(dir: &tempfile::TempDir, error: LedgerError) -> String {
    error
        .to_string()
        .replace(&format!("{}/", dir.path().display()), "")
}

#[test]
fn a_whole_ledger_verifies_and_says_what_it_holds() {
    let (_dir, path) = written();
    let summary = verify(&path).unwrap();
    let expected = Summary {
        entries: 5,
        steps: 2,
        accepted: 1,
        rejected: 1,
        checkpoints: 1,
        finished: true,
        head: summary.head.clone(),
    };
    assert_eq!(summary, expected);
    assert!(
        std::fs::read_to_string(&path)
            .unwrap()
            .ends_with(&format!("\"hash\":\"{}\"}}\n", summary.head))
    );
}

#[test]
fn the_first_line_is_what_an_outside_tool_computes() {
    // The hash was checked with `b3sum` over the bytes without the hash member.
    let (_dir, path) = written();
    let text = std::fs::read_to_string(path).unwrap();
    let first = text.lines().next().unwrap();
    insta::assert_snapshot!(first);
}

#[test]
fn faults_are_told_by_line() {
    let mut report = String::new();
    let mut tamper = |name: &str, change: &dyn Fn(&mut Vec<String>)| {
        let (dir, path) = written();
        let mut lines: Vec<String> = std::fs::read_to_string(&path)
            .unwrap()
            .split_inclusive('\n')
            .map(str::to_owned)
            .collect();
        change(&mut lines);
        std::fs::write(&path, lines.concat()).unwrap();
        report.push_str(&format!(
            "# {name}\n{}\n\n",
            told(&dir, verify(&path).unwrap_err())
        ));
    };
    tamper("a changed number", &|l| l[1] = l[1].replace("-0.0002", "-0.0001"));
    tamper("a removed line", &|l| drop(l.remove(2)));
    tamper("swapped lines", &|l| l.swap(1, 3));
    tamper("a torn last line", &|l| l[4].truncate(100));
    tamper("a line without its hash", &|l| l[3] = "{}\n".into());
    tamper("a foreign entry with a right hash", &|l| {
        let body = format!(
            "{{\"index\":1,\"prev\":\"{}\",\"entry\":{{\"note\":1}}}}",
            &l[0][l[0].len() - 67..][..64]
        );
        let hash = blake3::hash(body.as_bytes()).to_hex();
        l[1] = format!("{},\"hash\":\"{hash}\"}}\n", body.strip_suffix('}').unwrap());
    });
    insta::assert_snapshot!(report);
}

#[test]
fn a_torn_last_line_is_cut_on_opening_and_written_again() {
    let (_dir, path) = written();
    let whole = std::fs::read(&path).unwrap();
    for cut in [1, 10, 200] {
        std::fs::write(&path, &whole[..whole.len() - cut]).unwrap();
        let mut ledger = Ledger::open(&path, 3).unwrap();
        assert!(ledger.is_replaying());
        assert_eq!(ledger.record(&entries()[3]).unwrap(), Recorded::Replayed);
        assert_eq!(ledger.record(&entries()[4]).unwrap(), Recorded::Appended);
        assert_eq!(std::fs::read(&path).unwrap(), whole);
    }
}

#[test]
fn a_replay_that_differs_is_told_by_field() {
    let (dir, path) = written();
    let mut ledger = Ledger::open(&path, 1).unwrap();
    assert_eq!(ledger.position(), 1);
    let error = ledger.record(&step(0, -2.0000000001e-4)).unwrap_err();
    insta::assert_snapshot!(told(&dir, error), @r"
    ledger.jsonl: line 2: the replay differs from what was recorded, at entry.step.decision.t_hat
      recorded: -0.0002
      replayed: -0.00020000000001
    hint: the run is not deterministic here, or its configuration, tasks or binary changed since
    ");
    // The failed entry left nothing behind.
    assert_eq!(ledger.record(&step(0, -2e-4)).unwrap(), Recorded::Replayed);
}

#[test]
fn a_resume_past_the_end_a_second_writer_and_a_second_start_are_refused() {
    let (dir, path) = written();
    insta::assert_snapshot!(told(&dir, Ledger::open(&path, 9).unwrap_err()), @r"
    ledger.jsonl: the checkpoint was written after 9 ledger entries, but only 5 are there
    hint: entries were lost; resume from an earlier checkpoint
    ");
    let _first = Ledger::open(&path, 5).unwrap();
    insta::assert_snapshot!(told(&dir, Ledger::open(&path, 5).unwrap_err()), @r"
    ledger.jsonl: another process is writing this ledger
    hint: only one `mipu train` may use a run directory
    ");
    insta::assert_snapshot!(told(&dir, Ledger::create(&path).unwrap_err()), @r"
    ledger.jsonl: a ledger is already there
    hint: resume the run, or choose another run directory
    ");
}

#[test]
fn a_number_that_is_not_finite_never_enters() {
    let (_dir, path) = written();
    let before = std::fs::read(&path).unwrap();
    let mut ledger = Ledger::open(&path, 5).unwrap();
    let Entry::Step(mut bad) = step(2, 0.0) else {
        panic!("a step")
    };
    bad.metrics.insert("reward/mean".into(), f64::NAN);
    assert!(matches!(
        ledger.record(&Entry::Step(bad)),
        Err(LedgerError::Entry(_))
    ));
    assert_eq!(std::fs::read(&path).unwrap(), before);
}

/// The bytes of [`written`], made once: every record is an fsync.
fn whole() -> &'static [u8] {
    static WHOLE: std::sync::OnceLock<Vec<u8>> = std::sync::OnceLock::new();
    WHOLE.get_or_init(|| {
        let (_dir, path) = written();
        std::fs::read(path).unwrap()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn any_flipped_bit_is_found(position in any::<prop::sample::Index>(), bit in 0u8..8) {
        let mut bytes = whole().to_vec();
        let at = position.index(bytes.len());
        bytes[at] ^= 1 << bit;
        let line = bytes[..at].iter().filter(|b| **b == b'\n').count() as u64 + 1;
        match check_all(Path::new("ledger.jsonl"), &bytes) {
            Err(LedgerError::Broken { line: named, .. }) => prop_assert_eq!(named, line),
            other => prop_assert!(false, "byte {} bit {}: {:?}", at, bit, other),
        }
    }

    #[test]
    fn entries_read_back_as_written(t_hat in -1.0f64..1.0, attempt in any::<u64>()) {
        let (line, _) = chain::write(0, GENESIS, &step(attempt, t_hat)).unwrap();
        let Entry::Step(read) = chain::check(line.as_bytes(), 0, GENESIS).unwrap().entry else { panic!("a step") };
        prop_assert_eq!(read.attempt, attempt);
        // JSON readers may be off by one unit in the last place; hashes never are, being taken over the bytes.
        prop_assert!((read.decision.t_hat.unwrap() - t_hat).abs() <= 4.0 * f64::EPSILON * t_hat.abs());
    }
}
