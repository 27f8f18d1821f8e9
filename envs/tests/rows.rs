//! Rows: deduplicated, split by content, ordered by seed.

use std::collections::BTreeSet;

use mipu_envs::{Split, TaskSet};
use proptest::prelude::*;

use crate::{TaskFile, sandbox};

fn ids(set: &TaskSet, split: Split) -> BTreeSet<String> {
    set.split(split).iter().map(|task| task.id.clone()).collect()
}

fn inline(rows: &[u32], shares: (f64, f64)) -> TaskFile {
    let rows: Vec<String> = rows.iter().map(|row| format!("{{n: {row}}}")).collect();
    TaskFile::new(&format!(
        "version: 1\nname: t\ninstruction: '{{{{ n }}}}'\nreward: {{exact: x}}\ndata: {{rows: [{}]}}\nsplit: {{validation: {}, test: {}}}\n",
        rows.join(", "),
        shares.0,
        shares.1
    ))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Whatever rows a file has, the splits are disjoint and together hold each distinct row once; a row's split depends neither on
    /// the other rows nor on the seed.
    #[test]
    fn splits_are_disjoint_and_stable(
        rows in proptest::collection::vec(0u32..60, 1..60),
        validation in 0.0f64..0.45,
        test in 0.0f64..0.45,
        seed in any::<u64>(),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (all, half) = runtime.block_on(async {
            let all = inline(&rows, (validation, test)).load(seed).await.unwrap();
            let half = inline(&rows[..rows.len().div_ceil(2)], (validation, test)).load(seed ^ 1).await.unwrap();
            (all, half)
        });
        let distinct: BTreeSet<u32> = rows.iter().copied().collect();
        let splits = [Split::Train, Split::Validation, Split::Test];
        let total: usize = splits.iter().map(|&split| all.split(split).len()).sum();
        prop_assert_eq!(total, distinct.len());
        let union: BTreeSet<String> = splits.iter().flat_map(|&split| ids(&all, split)).collect();
        prop_assert_eq!(union.len(), total);
        for split in splits {
            prop_assert!(ids(&half, split).is_subset(&ids(&all, split)));
        }
    }
}

#[tokio::test]
async fn shares_are_met_and_order_follows_the_seed() {
    let rows: Vec<u32> = (0..2000).collect();
    let file = inline(&rows, (0.2, 0.1));
    let (a, b, c) = (
        file.load(1).await.unwrap(),
        file.load(1).await.unwrap(),
        file.load(2).await.unwrap(),
    );
    // 2000 rows: 4 standard deviations of a share of 0.2 are 0.036, of 0.1 are 0.027.
    assert!(
        (a.validation.len() as f64 / 2000.0 - 0.2).abs() < 0.036,
        "{}",
        a.validation.len()
    );
    assert!(
        (a.test.len() as f64 / 2000.0 - 0.1).abs() < 0.027,
        "{}",
        a.test.len()
    );
    let order = |set: &TaskSet| set.train.iter().map(|task| task.id.clone()).collect::<Vec<_>>();
    assert_eq!(order(&a), order(&b));
    assert_ne!(order(&a), order(&c));
    assert_eq!(ids(&a, Split::Train), ids(&c, Split::Train));
    assert_eq!(a.content_hash, c.content_hash);
}

#[tokio::test]
async fn rows_that_look_the_same_share_a_split() {
    // The prompt is one and the same, the hidden field differs: all 40 rows must land together.
    let rows: Vec<String> = (0..40).map(|n| format!("{{hidden: {n}}}")).collect();
    let yaml = format!(
        "version: 1\nname: t\ninstruction: same\nreward: {{exact: x}}\nsplit: {{validation: 0.3, test: 0.3}}\ndata: {{rows: [{}]}}",
        rows.join(", ")
    );
    let set = TaskFile::new(&yaml).load(0).await.unwrap();
    let sizes = [set.train.len(), set.validation.len(), set.test.len()];
    assert_eq!(sizes.iter().filter(|&&size| size == 40).count(), 1, "{sizes:?}");
}

#[tokio::test]
async fn files_whose_splits_overlap_are_refused() {
    let rows: Vec<u32> = (0..50).collect();
    let (a, b) = (inline(&rows, (0.0, 0.0)), inline(&rows, (0.4, 0.4)));
    let other = b.directory.path().join("other.yaml");
    std::fs::write(
        &other,
        std::fs::read_to_string(b.path())
            .unwrap()
            .replace("name: t", "name: u"),
    )
    .unwrap();
    let error = TaskSet::load(&[a.path(), other], sandbox(), 0)
        .await
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("splits overlap") && error.contains("hint: give the task files the same `split`"),
        "{error}"
    );
    let twice = TaskSet::load(&[a.path(), a.path()], sandbox(), 0)
        .await
        .unwrap_err()
        .to_string();
    assert!(
        twice.contains("the name `t` is that of another task file"),
        "{twice}"
    );
}

fn generated(body: &str, count: usize) -> TaskFile {
    TaskFile::new(&format!(
        "version: 1\nname: t\ninstruction: '{{{{ n }}}}'\nreward: {{exact: x}}\ndata:\n  count: {count}\n  python: |\n    def generate(rng, count):\n      {body}\n"
    ))
}

#[tokio::test]
async fn endless_duplicates_end_with_a_warning() {
    let file = generated("while True: yield {'n': rng.randint(1, 5)}", 50);
    let set = file.load(3).await.unwrap();
    assert_eq!(set.train.len() + set.validation.len() + set.test.len(), 5);
    assert!(
        set.warnings
            .iter()
            .any(|w| w.contains("5 distinct rows of the 50 asked")),
        "{:?}",
        set.warnings
    );
    assert!(
        set.warnings
            .iter()
            .any(|w| w.contains("duplicate rows were dropped")),
        "{:?}",
        set.warnings
    );
}

#[tokio::test]
async fn generators_follow_the_seed_and_the_count() {
    let file = generated("while True: yield {'n': rng.randint(1, 10**9)}", 700);
    let (a, b, c) = (
        file.load(1).await.unwrap(),
        file.load(1).await.unwrap(),
        file.load(2).await.unwrap(),
    );
    assert_eq!(a.train.len() + a.validation.len() + a.test.len(), 700);
    assert_eq!(a.content_hash, b.content_hash);
    assert_ne!(a.content_hash, c.content_hash);
}

#[tokio::test]
async fn json_lines_are_rows() {
    let file = TaskFile::new(
        "version: 1\nname: t\ninstruction: '{{ q }}'\nreward: {exact: '{{ a }}'}\ndata: {jsonl: rows.jsonl}\nsplit: {validation: 0, test: 0}",
    );
    std::fs::write(
        file.directory.path().join("rows.jsonl"),
        "{\"q\": \"x\", \"a\": 1}\n\n{\"a\": 1, \"q\": \"x\"}\n{\"q\": \"y\", \"a\": 2}\n",
    )
    .unwrap();
    let set = file.load(0).await.unwrap();
    assert_eq!(set.train.len(), 2);
    assert!(set.warnings[0].contains("1 duplicate rows"), "{:?}", set.warnings);
}
