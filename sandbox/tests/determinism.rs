//! Same seed, same bytes: across sessions, processes and load.

use mipu_sandbox::{Plain, Policy};
use proptest::prelude::*;

use crate::sandbox;

const PROBE: &str = r"
import asyncio, datetime, os, random, secrets, time, uuid
from random import SystemRandom
print(random.random(), random.randint(0, 10 ** 9), SystemRandom().random(), secrets.token_hex(8), uuid.uuid4())
print(os.urandom(8).hex(), hash('a string'), {'x', 'y', 'z', 'w'}, id(object()), object())
print(time.time(), time.monotonic(), time.perf_counter_ns(), datetime.datetime.now())
time.sleep(1.5)
open('a.txt', 'w').write('x')
print(time.time(), os.stat('a.txt'), os.listdir('/'))
asyncio.run(asyncio.sleep(2))
print(time.time(), sum(1 for _ in range(1000)))
";

async fn probe(seed: u64) -> String {
    let outcome = sandbox()
        .run(PROBE, b"", &Policy::default(), seed)
        .await
        .expect("the host is well");
    assert!(outcome.status.is_success(), "{outcome:?}");
    outcome.stdout
}

#[tokio::test]
async fn same_seed_same_bytes() {
    let first = probe(11).await;
    let busy: Vec<_> = (0..4).map(|_| tokio::spawn(probe(11))).collect();
    for other in busy {
        assert_eq!(other.await.unwrap(), first);
    }
    assert_ne!(probe(12).await, first);
}

#[test]
fn same_seed_same_bytes_in_another_process() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    let here = runtime.block_on(probe(11));
    if std::env::var_os("MIPU_PROBE").is_some() {
        println!("probe<{here}>probe");
        return;
    }
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "determinism::same_seed_same_bytes_in_another_process",
            "--nocapture",
        ])
        .env("MIPU_PROBE", "1")
        .env("PYTHONHASHSEED", "77")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let there = text
        .split_once("probe<")
        .and_then(|(_, rest)| rest.split_once(">probe"))
        .map(|(probe, _)| probe);
    assert_eq!(there, Some(here.as_str()), "{text}");
}

#[tokio::test]
async fn a_session_is_a_function_of_its_seed_and_turns() {
    let mut transcripts = Vec::new();
    for _ in 0..2 {
        let mut session = sandbox().session(&Policy::default(), 9).await.unwrap();
        let mut transcript = String::new();
        for code in [
            "import random, time\nprint(random.random())",
            "1 / 0",
            "print(random.random(), time.time())",
            "print(id([]))",
        ] {
            let outcome = session.exec(code, b"").await.unwrap();
            transcript += &(outcome.stdout + &outcome.stderr);
        }
        transcripts.push(transcript);
    }
    assert_eq!(transcripts[0], transcripts[1]);
}

/// Plain values whose sets and dicts have the hashable, distinct members that Python demands.
fn plain() -> impl Strategy<Value = Plain> {
    let atom = prop_oneof![
        Just(Plain::None),
        any::<bool>().prop_map(Plain::Bool),
        any::<i128>().prop_map(|n| Plain::Int(n.to_string())),
        "[1-9][0-9]{60,90}".prop_map(Plain::Int),
        any::<f64>()
            .prop_filter("nan is not equal to itself", |x| !x.is_nan())
            .prop_map(Plain::Float),
        "\\PC{0,12}".prop_map(Plain::Str),
        Just(Plain::Str("\0\n\"\\\u{7f}\u{2028}\u{10ffff}".to_owned())),
        prop::collection::vec(any::<u8>(), 0..12).prop_map(Plain::Bytes),
    ];
    let key = prop_oneof![
        "[a-z]{1,6}".prop_map(Plain::Str),
        (2i64..1000).prop_map(|n| Plain::Int(n.to_string()))
    ];
    atom.prop_recursive(4, 40, 5, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Plain::List),
            prop::collection::vec(inner.clone(), 0..5).prop_map(Plain::Tuple),
            prop::collection::vec((key.clone(), inner), 0..5).prop_map(|pairs| {
                let mut seen = Vec::new();
                Plain::Dict(
                    pairs
                        .into_iter()
                        .filter(|(k, _)| {
                            !seen.contains(k) && {
                                seen.push(k.clone());
                                true
                            }
                        })
                        .collect(),
                )
            }),
            prop::collection::vec(key.clone(), 0..5).prop_map(|mut keys| {
                keys.sort_by_key(|key| key.to_wire().to_string());
                keys.dedup();
                Plain::Set(keys)
            }),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn plain_data_survives_the_guest(values in prop::collection::vec(plain(), 1..20)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let back = runtime.block_on(async {
            let mut session = sandbox().session(&Policy::default(), 1).await.expect("it opens");
            session.exec("def same(*args): return list(args)", b"").await.expect("it runs");
            session.call("same", &values).await.expect("it runs")
        });
        prop_assert_eq!(back.value, Some(Plain::List(values)), "{:?}", back.status);
    }

    #[test]
    fn the_host_parser_takes_anything(text in "\\PC{0,60}") {
        if let Ok(wire) = serde_json::from_str(&text)
            && let Ok(plain) = Plain::from_wire(&wire)
        {
            prop_assert_eq!(plain.to_wire(), wire);
        }
    }
}
