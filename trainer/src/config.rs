//! Configuration of a training run: the sections of the YAML file, their defaults and what they mean.
//!
//! Paths inside a file are relative to that file. Every default is the vetted setting; unknown keys are errors.

use std::num::{NonZeroU32, NonZeroU64, NonZeroUsize};
use std::path::{Path, PathBuf};

use mipu_agent::EngineConfig;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::advantage::AdvantageConfig;
use crate::correction::CorrectionConfig;
use crate::gate::GateConfig;
use crate::loss::LossConfig;
use crate::mixture::{CurriculumConfig, TaskSource};
use crate::optim::OptimConfig;
use crate::overlong::Overlong;
use crate::preset::{self, Preset};
use crate::update::AlgorithmConfig;
use crate::yaml::{self, ConfigError};

/// A whole training run (`mipu train FILE`).
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RunConfig {
    /// Name of the run; its directory is `runs/<name>-<n>`.
    pub name: String,
    /// Seed of everything: data, sampling, environments, minibatches. Default 0.
    #[serde(default)]
    pub seed: u64,
    /// HF-style directory of the starting weights.
    pub model: PathBuf,
    /// Task files, as paths or `{path: .., weight: ..}`. Without weights and curriculum their training rows form one pool; with
    /// either, each file gets its share of every step's prompts.
    pub tasks: Vec<TaskSource>,
    /// Moves prompts to where the policy succeeds sometimes. Default: none.
    #[serde(default)]
    pub curriculum: Option<CurriculumConfig>,
    /// Training steps (attempted updates).
    pub steps: NonZeroU64,
    /// A published method: its settings of `algorithm` and `rollout`, below what this file sets itself. Default: none.
    #[serde(default)]
    pub preset: Option<Preset>,
    /// How episodes are sampled.
    #[serde(default)]
    pub rollout: RolloutSection,
    /// Number formats of the sampler mu.
    #[serde(default)]
    pub sampler: EngineConfig,
    /// Advantage, correction, loss and gate.
    #[serde(default)]
    pub algorithm: AlgorithmSection,
    /// AdamW and its learning rate.
    #[serde(default)]
    pub optimizer: OptimConfig,
    /// Validation groups of the gate.
    #[serde(default)]
    pub validation: ValidationSection,
    /// Held-out evaluation.
    #[serde(default)]
    pub eval: EvalSection,
    /// When checkpoints are written and kept.
    #[serde(default)]
    pub checkpoint: CheckpointSection,
}

/// How a step's episodes are sampled.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RolloutSection {
    /// Task instances a step. Default 24.
    pub prompts: NonZeroUsize,
    /// Episodes of each instance (G). Default 8.
    pub group_size: NonZeroUsize,
    /// Softmax temperature of sampling, and of the log-probs on both sides. Default 1.
    pub temperature: Temperature,
    /// Token budget of one turn. Default 64.
    pub max_turn_tokens: NonZeroUsize,
    /// Replaces groups that carry no signal (all returns equal) by other prompts (DAPO). Default: none.
    pub dynamic_sampling: Option<DynamicSampling>,
    /// Episodes in flight; does not change a byte of the result. Default 64.
    pub concurrency: NonZeroUsize,
}

impl Default for RolloutSection {
    fn default() -> Self {
        Self {
            prompts: nonzero(24),
            group_size: nonzero(8),
            temperature: Temperature(1.0),
            max_turn_tokens: nonzero(64),
            dynamic_sampling: None,
            concurrency: nonzero(64),
        }
    }
}

/// How often uninformative groups are replaced within a step.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct DynamicSampling {
    /// Most further rounds of prompts. Default 3.
    pub max_rounds: NonZeroU32,
}

impl Default for DynamicSampling {
    fn default() -> Self {
        Self {
            max_rounds: NonZeroU32::new(3).expect("a default is positive"),
        }
    }
}

/// What Step 1 and Step 2 compute.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AlgorithmSection {
    /// Advantages inside a group. Default `grpo`.
    pub advantage: AdvantageConfig,
    /// Weight of pi_k / mu_k on each token. Default `tis`.
    pub correction: CorrectionConfig,
    /// Clipped surrogate.
    pub loss: LossConfig,
    /// Episodes that were cut by their turn or token limit. Default `keep`.
    pub overlong: Overlong,
    /// Accept or roll back. Default `mipu`.
    pub gate: GateConfig,
    /// Optimizer updates per pass over the groups of a step; cut between groups. Default 1.
    pub minibatches: NonZeroUsize,
    /// Passes over the groups of a step. Default 1.
    pub epochs: NonZeroUsize,
    /// Tokens in one forward and backward pass; bounds memory. Default 256.
    pub micro_batch_tokens: NonZeroUsize,
}

impl Default for AlgorithmSection {
    fn default() -> Self {
        let AlgorithmConfig {
            advantage,
            correction,
            loss,
            overlong,
            minibatches,
            epochs,
            micro_batch_tokens,
        } = AlgorithmConfig::default();
        let gate = GateConfig::default();
        Self {
            advantage,
            correction,
            loss,
            overlong,
            gate,
            minibatches,
            epochs,
            micro_batch_tokens,
        }
    }
}

impl AlgorithmSection {
    /// The part that Step 1 reads.
    pub fn update(&self) -> AlgorithmConfig {
        AlgorithmConfig {
            advantage: self.advantage,
            correction: self.correction,
            loss: self.loss,
            overlong: self.overlong,
            minibatches: self.minibatches,
            epochs: self.epochs,
            micro_batch_tokens: self.micro_batch_tokens,
        }
    }
}

/// Groups the gate validates a candidate on, drawn from the validation split.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ValidationSection {
    /// Task instances. Default 16.
    pub prompts: NonZeroUsize,
    /// Episodes of each. Default 8.
    pub group_size: NonZeroUsize,
    /// At every n-th attempted step that the gate judges, the same rows are played by pi as well, which measures the J(mu) - J(pi) that
    /// T_hat estimates. 0, the default, never.
    pub audit_every: u64,
}

impl Default for ValidationSection {
    fn default() -> Self {
        Self {
            prompts: nonzero(16),
            group_size: nonzero(8),
            audit_every: 0,
        }
    }
}

/// Held-out evaluation of the deployed sampler, J(mu), on the test split.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct EvalSection {
    /// Evaluate after every n-th step as well as before the first and after the last; 0 leaves those out. Default 10.
    pub every: u64,
    /// Task instances. Default 128.
    pub prompts: NonZeroUsize,
    /// Episodes of each. Default 2.
    pub samples: NonZeroUsize,
    /// Sampling temperature. Default 1.
    pub temperature: Temperature,
}

impl Default for EvalSection {
    fn default() -> Self {
        Self {
            every: 10,
            prompts: nonzero(128),
            samples: nonzero(2),
            temperature: Temperature(1.0),
        }
    }
}

/// When checkpoints are written and how many stay.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CheckpointSection {
    /// Write one after every n-th step (and after the last). Default 1.
    pub every: NonZeroU64,
    /// Newest ones to keep, the best one aside. Default 2.
    pub keep_last: NonZeroUsize,
}

impl Default for CheckpointSection {
    fn default() -> Self {
        Self {
            every: NonZeroU64::MIN,
            keep_last: nonzero(2),
        }
    }
}

/// Softmax temperature: finite, positive.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(try_from = "f32", into = "f32")]
pub struct Temperature(f32);

impl Temperature {
    /// The value.
    pub fn get(self) -> f32 {
        self.0
    }
}

impl TryFrom<f32> for Temperature {
    type Error = String;

    fn try_from(value: f32) -> Result<Self, String> {
        if value.is_finite() && value > 0.0 {
            Ok(Self(value))
        } else {
            Err(format!("a temperature must be a positive number; got {value}"))
        }
    }
}

impl From<Temperature> for f32 {
    fn from(value: Temperature) -> f32 {
        value.0
    }
}

const fn nonzero(n: usize) -> NonZeroUsize {
    NonZeroUsize::new(n).expect("a default is positive")
}

impl RunConfig {
    /// Reads a file and applies overrides (`a.b=c`, values read as YAML). Paths become relative to the current directory.
    ///
    /// # Errors
    /// With file, line, column, snippet and hint.
    pub fn load(path: &Path, overrides: &[String]) -> Result<Self, ConfigError> {
        let mut config: Self = yaml::load_expanded(path, overrides, preset::expand)?;
        config.model = yaml::relative_to(path, &config.model);
        for task in &mut config.tasks {
            task.path = yaml::relative_to(path, &task.path);
        }
        config.check(path)?;
        Ok(config)
    }

    fn check(&self, path: &Path) -> Result<(), ConfigError> {
        let fail = |message: &str, hint: &str| {
            Err(ConfigError::Invalid {
                path: path.to_owned(),
                message: message.to_owned(),
                hint: hint.to_owned(),
            })
        };
        if !self.model.is_dir() {
            return fail(
                &format!("the model directory {} does not exist", self.model.display()),
                "paths in a file are relative to it; a model directory holds config.json, model.safetensors and tokenizer.json",
            );
        }
        if let Some(task) = self.tasks.iter().find(|t| !t.path.is_file()) {
            return fail(
                &format!("the task file {} does not exist", task.path.display()),
                "paths in a file are relative to it; `mipu task new FILE` writes a task to start from",
            );
        }
        if self.tasks.is_empty() {
            return fail(
                "`tasks` is empty",
                "name at least one task file, e.g. `tasks: [../tasks/calc.yaml]`",
            );
        }
        if self.name.is_empty() || self.name.contains(['/', '\\']) || self.name.starts_with('.') {
            return fail(
                "`name` must be usable as a directory name",
                "letters, digits and dashes, e.g. `name: quickstart`",
            );
        }
        let weighted = self.curriculum.is_some() || self.tasks.iter().any(|task| task.weight.is_some());
        if weighted && self.rollout.dynamic_sampling.is_some() {
            return fail(
                "`rollout.dynamic_sampling` and task weights or a `curriculum` both decide which prompts are sampled",
                "leave one of them out; a curriculum already avoids prompts without a signal",
            );
        }
        if self.rollout.group_size.get() < 2 {
            return fail(
                "`rollout.group_size` is 1: a group of one has no advantage",
                "use at least 2 episodes per prompt; 8 is the default",
            );
        }
        Ok(())
    }
}
