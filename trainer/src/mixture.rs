//! Which training rows a step's prompts are drawn from, when task files are weighted or a curriculum is on.
//!
//! A *bucket* is a task file, or the rows of a file that share a value of the curriculum's field (`by: turns`). A bucket's chance is
//! its weight, times, under a curriculum, how much there is to learn in it: `floor + (1 - floor) 4 p (1 - p)` with its measured pass
//! rate `p`. `p (1 - p)` is the variance of a success, hence the share of groups with a gradient ("learnability", Foerster et al.,
//! arXiv:2502.12272). Rows of a bucket come in shuffled epochs, so that none is drawn twice before every one was drawn once.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use mipu_agent::Group;
use mipu_envs::Task;
use mipu_envs::seed::{self, Purpose};
use rand::RngExt;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::sft::epoch_indices;

/// A task file of a run: its path, or `{path: .., weight: ..}`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(try_from = "Value", into = "Value")]
pub struct TaskSource {
    /// The file.
    pub path: PathBuf,
    /// Share of the prompts, relative to the other files' weights; 1 where only others have one.
    pub weight: Option<f64>,
}

impl TryFrom<Value> for TaskSource {
    type Error = String;

    fn try_from(value: Value) -> Result<Self, String> {
        let expected = || {
            "a task is a path, or a map with `path` and `weight`\nhint: {path: ../tasks/calc.yaml, weight: 2}"
                .to_owned()
        };
        let mut map = match value {
            Value::String(path) => {
                return Ok(Self {
                    path: path.into(),
                    weight: None,
                });
            }
            Value::Object(map) => map,
            _ => return Err(expected()),
        };
        let (Some(Value::String(path)), weight) = (map.remove("path"), map.remove("weight")) else {
            return Err(expected());
        };
        if let Some(key) = map.keys().next() {
            return Err(format!(
                "unknown key `{key}` of a task\nhint: its keys are `path` and `weight`"
            ));
        }
        let weight = weight.map(|weight| match weight.as_f64() {
            Some(weight) if weight.is_finite() && weight > 0.0 => Ok(weight),
            _ => Err(format!(
                "a weight is a positive number; got {weight}\nhint: leave the task out instead of giving it no weight"
            )),
        });
        Ok(Self {
            path: path.into(),
            weight: weight.transpose()?,
        })
    }
}

impl From<TaskSource> for Value {
    fn from(source: TaskSource) -> Self {
        let path = source.path.to_string_lossy().into_owned();
        match source.weight {
            None => Self::String(path),
            Some(weight) => serde_json::json!({"path": path, "weight": weight}),
        }
    }
}

impl JsonSchema for TaskSource {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "TaskSource".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "description": "A task file, with the share of the prompts it gets",
            "anyOf": [{ "type": "string" }, {
                "type": "object", "required": ["path"], "additionalProperties": false,
                "properties": { "path": { "type": "string" }, "weight": { "type": "number", "exclusiveMinimum": 0 } }
            }]
        })
    }
}

impl AsRef<Path> for TaskSource {
    fn as_ref(&self) -> &Path {
        &self.path
    }
}

/// Draws more prompts where the policy succeeds sometimes, fewer where it always or never does.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CurriculumConfig {
    /// Row field whose values divide a task file into buckets (`turns`, `level`). Default: a file is one bucket.
    pub by: Option<String>,
    /// Chance of a bucket with nothing to learn, relative to one with pass rate 1/2; in (0, 1]. Default 0.1.
    pub floor: Floor,
    /// Share of the old pass rate kept at each new group; in [0, 1). Default 0.9.
    pub decay: Decay,
}

impl Default for CurriculumConfig {
    fn default() -> Self {
        Self {
            by: None,
            floor: Floor(0.1),
            decay: Decay(0.9),
        }
    }
}

/// A share in (0, 1]: no bucket is ever given up.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(try_from = "f64")]
pub struct Floor(f64);

impl TryFrom<f64> for Floor {
    type Error = String;

    fn try_from(value: f64) -> Result<Self, String> {
        if value > 0.0 && value <= 1.0 {
            Ok(Self(value))
        } else {
            Err(format!("`floor` lies in (0, 1]; got {value}"))
        }
    }
}

/// A share in [0, 1).
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(try_from = "f64")]
pub struct Decay(f64);

impl TryFrom<f64> for Decay {
    type Error = String;

    fn try_from(value: f64) -> Result<Self, String> {
        if (0.0..1.0).contains(&value) {
            Ok(Self(value))
        } else {
            Err(format!("`decay` lies in [0, 1); got {value}"))
        }
    }
}

/// What a run knows of a bucket; part of a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BucketState {
    /// `task`, or `task/value` with a curriculum's field.
    pub key: String,
    /// Prompts drawn so far.
    pub drawn: u64,
    /// Moving mean of the groups' returns, clipped to [0, 1].
    pub pass_rate: Option<f64>,
}

/// Each bucket needs groups of its own to have a pass rate.
const MAX_BUCKETS: usize = 64;

/// A pass rate nothing is known of yet: where most is to be learned.
const UNKNOWN_PASS_RATE: f64 = 0.5;

/// The buckets of a run.
#[derive(Clone, Debug)]
pub(crate) struct Mixture {
    buckets: Vec<Bucket>,
    curriculum: Option<CurriculumConfig>,
}

#[derive(Clone, Debug)]
struct Bucket {
    key: String,
    rows: Vec<usize>,
    /// Of its file, divided among the file's buckets.
    weight: f64,
}

/// A drawn prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Drawn {
    /// Index into the training rows.
    pub row: usize,
    bucket: usize,
}

impl Mixture {
    /// The buckets of `rows`; `None` without weights and curriculum, when all rows form one pool.
    ///
    /// # Errors
    /// When the curriculum's field is in no row, or has too many values.
    pub(crate) fn new(
        sources: &[TaskSource],
        curriculum: Option<&CurriculumConfig>,
        rows: &[Arc<Task>],
    ) -> Result<Option<Self>, String> {
        if curriculum.is_none() && sources.iter().all(|source| source.weight.is_none()) {
            return Ok(None);
        }
        let field = curriculum.and_then(|c| c.by.as_deref());
        let mut buckets: Vec<Bucket> = Vec::new();
        for (index, task) in rows.iter().enumerate() {
            let value = field.and_then(|field| task.row.get(field));
            let key = match value {
                None => task.spec.name.clone(),
                Some(Value::String(text)) => format!("{}/{text}", task.spec.name),
                Some(value) => format!("{}/{value}", task.spec.name),
            };
            match buckets.iter_mut().find(|bucket| bucket.key == key) {
                Some(bucket) => bucket.rows.push(index),
                None => buckets.push(Bucket {
                    key,
                    rows: vec![index],
                    weight: 0.0,
                }),
            }
        }
        if let Some(field) = field
            && !rows.iter().any(|task| task.row.contains_key(field))
        {
            return Err(format!(
                "`curriculum.by` names `{field}`, which no row has\nhint: name a field of the rows, or leave `by` out for one bucket a task file"
            ));
        }
        if buckets.len() > MAX_BUCKETS {
            return Err(format!(
                "the curriculum makes {} buckets; at most {MAX_BUCKETS} can be told apart by their pass rates\nhint: `by` wants a field with few values, such as a level",
                buckets.len()
            ));
        }
        buckets.sort_by(|a, b| a.key.cmp(&b.key));
        let file = |bucket: &Bucket| rows[bucket.rows[0]].spec.path();
        for source in sources {
            let of_file = |bucket: &&mut Bucket| file(bucket) == source.path;
            let count = buckets.iter_mut().filter(of_file).count();
            for bucket in buckets.iter_mut().filter(of_file) {
                bucket.weight = source.weight.unwrap_or(1.0) / count as f64;
            }
        }
        Ok(Some(Self {
            buckets,
            curriculum: curriculum.cloned(),
        }))
    }

    /// Draws the prompts of attempt `attempted` and counts them in `states`.
    ///
    /// Systematic sampling: one seeded offset for all prompts, so a bucket of chance `q` gets `floor(n q)` or `ceil(n q)` of `n` prompts
    /// and `n q` in expectation.
    pub(crate) fn draw(
        &self,
        states: &mut Vec<BucketState>,
        run_seed: u64,
        attempted: u64,
        prompts: usize,
    ) -> Vec<Drawn> {
        self.align(states);
        let chances = self.chances(states);
        let total: f64 = chances.iter().sum();
        let offset: f64 = seed::stream(run_seed, Purpose::Order, &[u64::MAX, attempted]).random();
        let mut drawn = Vec::with_capacity(prompts);
        let mut reached = 0.0;
        let mut next = 0;
        for (index, chance) in chances.iter().enumerate() {
            reached += chance / total * prompts as f64;
            let last = index + 1 == chances.len();
            let first = next;
            while next < prompts && (last || (next as f64 + offset) < reached) {
                next += 1;
            }
            let (bucket, state) = (&self.buckets[index], &mut states[index]);
            let order = seed::derive(run_seed, Purpose::Order, &[u64::MAX - 1, index as u64]);
            let places = epoch_indices(bucket.rows.len(), order, state.drawn, next - first);
            drawn.extend(places.into_iter().map(|place| Drawn {
                row: bucket.rows[place],
                bucket: index,
            }));
            state.drawn += (next - first) as u64;
        }
        drawn
    }

    /// Takes the returns of the groups of `drawn`, in the same order, into the pass rates. A group without a scored episode says nothing.
    pub(crate) fn learn(&self, states: &mut [BucketState], drawn: &[Drawn], groups: &[Group]) {
        let decay = self.curriculum.as_ref().map_or(0.9, |c| c.decay.0);
        for (drawn, group) in drawn.iter().zip(groups) {
            let count = group.trajectories.len();
            if count == 0 {
                continue;
            }
            let success: f64 = group.trajectories.iter().map(|t| t.ret().clamp(0.0, 1.0)).sum();
            let rate = success / count as f64;
            let state = &mut states[drawn.bucket];
            state.pass_rate = Some(match state.pass_rate {
                None => rate,
                Some(old) => decay * old + (1.0 - decay) * rate,
            });
        }
    }

    /// Each bucket's share of the prompts, by key.
    pub(crate) fn shares(&self, states: &[BucketState]) -> Vec<(String, f64)> {
        let mut states = states.to_vec();
        self.align(&mut states);
        let chances = self.chances(&states);
        let total: f64 = chances.iter().sum();
        let keys = self.buckets.iter().map(|bucket| bucket.key.clone());
        keys.zip(chances.iter().map(|chance| chance / total)).collect()
    }

    fn chances(&self, states: &[BucketState]) -> Vec<f64> {
        let buckets = self.buckets.iter().zip(states);
        buckets
            .map(|(bucket, state)| match &self.curriculum {
                None => bucket.weight,
                Some(curriculum) => {
                    let p = state.pass_rate.unwrap_or(UNKNOWN_PASS_RATE);
                    let floor = curriculum.floor.0;
                    bucket.weight * (floor + (1.0 - floor) * 4.0 * p * (1.0 - p))
                }
            })
            .collect()
    }

    /// Gives `states` one entry for each bucket, in order; what is known of a bucket stays.
    fn align(&self, states: &mut Vec<BucketState>) {
        if states.len() == self.buckets.len() {
            return;
        }
        *states = self
            .buckets
            .iter()
            .map(|bucket| {
                let known = states.iter().find(|state| state.key == bucket.key);
                known.cloned().unwrap_or_else(|| BucketState {
                    key: bucket.key.clone(),
                    ..BucketState::default()
                })
            })
            .collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mixture(weights: &[f64], rows: usize, curriculum: Option<CurriculumConfig>) -> Mixture {
        let bucket = |(index, &weight): (usize, &f64)| Bucket {
            key: format!("task-{index}"),
            rows: (index * rows..(index + 1) * rows).collect(),
            weight,
        };
        Mixture {
            buckets: weights.iter().enumerate().map(bucket).collect(),
            curriculum,
        }
    }

    #[test]
    fn a_step_follows_the_weights_to_within_one_prompt() {
        let mixture = mixture(&[1.0, 2.0, 5.0], 50, None);
        let mut states = Vec::new();
        let mut totals = [0; 3];
        for attempt in 0..40 {
            let drawn = mixture.draw(&mut states, 3, attempt, 12);
            assert_eq!(drawn.len(), 12);
            for bucket in 0..3 {
                let count = drawn.iter().filter(|d| d.bucket == bucket).count();
                let expected = 12.0 * [1.0, 2.0, 5.0][bucket] / 8.0;
                assert!(
                    (count as f64 - expected).abs() < 1.0,
                    "{bucket}: {count} of {expected}"
                );
                totals[bucket] += count;
            }
        }
        // In expectation 60, 120 and 300 of 480; a step deviates by less than 1, without bias.
        for (total, expected) in totals.into_iter().zip([60.0, 120.0, 300.0]) {
            assert!(
                (total as f64 - expected).abs() < 4.0 * 0.5 * 40f64.sqrt(),
                "{totals:?}"
            );
        }
    }

    #[test]
    fn rows_of_a_bucket_come_in_whole_epochs() {
        let mixture = mixture(&[1.0, 1.0], 9, None);
        let mut states = Vec::new();
        let mut seen: Vec<usize> = (0..3)
            .flat_map(|attempt| mixture.draw(&mut states, 5, attempt, 6))
            .map(|drawn| drawn.row)
            .collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..18).collect::<Vec<_>>());
    }

    #[test]
    fn shares_follow_the_pass_rates_as_computed_by_hand() {
        let mixture = mixture(&[1.0, 1.0, 2.0], 5, Some(CurriculumConfig::default()));
        let state = |pass_rate| BucketState {
            pass_rate,
            ..BucketState::default()
        };
        let states = [state(Some(0.5)), state(Some(1.0)), state(Some(0.9))];
        // 0.1 + 0.9 * 4 p (1 - p): 1, 0.1, and twice 0.424.
        let total = 1.0 + 0.1 + 0.848;
        let shares = mixture.shares(&states);
        for ((_, share), expected) in shares.iter().zip([1.0, 0.1, 0.848]) {
            assert!((share - expected / total).abs() < 1e-12, "{shares:?}");
        }
    }

    #[test]
    fn a_draw_depends_on_seed_and_attempt_alone() {
        let mixture = mixture(&[1.0, 3.0], 20, None);
        let draw = |seed| {
            let mut states = Vec::new();
            (0..5)
                .flat_map(|attempt| mixture.draw(&mut states, seed, attempt, 7))
                .map(|drawn| drawn.row)
                .collect::<Vec<_>>()
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
    }

    #[test]
    fn a_task_source_is_a_path_or_a_map() {
        let read = |yaml: &str| serde_saphyr::from_str::<TaskSource>(yaml).map_err(|e| e.to_string());
        assert_eq!(read("a.yaml").unwrap().weight, None);
        assert_eq!(read("{path: a.yaml, weight: 2}").unwrap().weight, Some(2.0));
        for (yaml, expected) in [
            ("{path: a.yaml, weight: 0}", "a weight is a positive number"),
            ("{path: a.yaml, wieght: 1}", "unknown key `wieght`"),
            ("{weight: 1}", "a task is a path"),
            ("3", "a task is a path"),
        ] {
            let error = read(yaml).unwrap_err();
            assert!(error.contains(expected), "{yaml}: {error}");
        }
    }
}
