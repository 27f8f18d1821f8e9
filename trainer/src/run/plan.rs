//! The arithmetic of a run, printed before step 0: batch sizes, tokens, memory.

use std::fmt;

use mipu_agent::{ModelConfig, Precision};
use mipu_envs::TaskSet;
use serde::Serialize;

use crate::config::RunConfig;

/// What a run will do, in numbers.
#[derive(Clone, Debug, Serialize)]
pub struct Plan {
    /// Name of the run.
    pub name: String,
    /// Seed.
    pub seed: u64,
    /// Model family and its parameters.
    pub model: String,
    /// Number of parameters.
    pub parameters: usize,
    /// Number formats of the sampler.
    pub sampler: String,
    /// Rows of the splits: train, validation, test.
    pub rows: [usize; 3],
    /// Steps.
    pub steps: u64,
    /// Prompts a step, episodes a prompt.
    pub rollout: [usize; 2],
    /// Validation prompts a step, episodes a prompt; zeros when the gate samples nothing.
    pub validation: [usize; 2],
    /// Episodes of one evaluation, and how many evaluations.
    pub eval: [usize; 2],
    /// Most tokens of a step's training episodes.
    pub max_step_tokens: usize,
    /// Optimizer updates a step.
    pub updates_per_step: usize,
    /// Temperature on both sides.
    pub temperature: f32,
    /// Algorithm in words.
    pub algorithm: Vec<String>,
    /// Memory estimate in bytes, by part.
    pub memory: Vec<(String, u64)>,
    /// Cores the process may use.
    pub threads: usize,
}

impl Plan {
    /// Works the numbers out.
    pub fn new(config: &RunConfig, model: &ModelConfig, tasks: &TaskSet) -> Self {
        let parameters: usize = model
            .tensor_shapes()
            .iter()
            .map(|(_, shape)| shape.iter().product::<usize>())
            .sum();
        let longest = tasks
            .train
            .iter()
            .map(|t| t.spec.max_tokens.min(model.max_position_embeddings))
            .max()
            .unwrap_or(model.max_position_embeddings);
        let rollout = [config.rollout.prompts.get(), config.rollout.group_size.get()];
        let validation = if config.algorithm.gate.every().is_some() {
            [
                config.validation.prompts.get(),
                config.validation.group_size.get(),
            ]
        } else {
            [0, 0]
        };
        let evaluations = 2
            + (config.steps.get() - 1)
                .checked_div(config.eval.every)
                .unwrap_or(0) as usize;
        let eval = [
            config.eval.prompts.get().min(tasks.test.len()) * config.eval.samples.get(),
            evaluations,
        ];
        let episodes = rollout[0] * rollout[1];
        Self {
            name: config.name.clone(),
            seed: config.seed,
            model: format!(
                "{} with {} layers of width {}, context {}",
                model.model_type, model.num_hidden_layers, model.hidden_size, model.max_position_embeddings
            ),
            parameters,
            sampler: format!(
                "weights {}, activations {}, KV cache {}, head {}",
                name(config.sampler.weights),
                name(config.sampler.activations),
                name(config.sampler.kv_cache),
                name(config.sampler.lm_head)
            ),
            rows: [tasks.train.len(), tasks.validation.len(), tasks.test.len()],
            steps: config.steps.get(),
            rollout,
            validation,
            eval,
            max_step_tokens: episodes * longest,
            updates_per_step: config.algorithm.minibatches.get() * config.algorithm.epochs.get(),
            temperature: config.rollout.temperature.get(),
            algorithm: describe(config),
            memory: memory(config, model, parameters, longest),
            threads: std::thread::available_parallelism().map_or(1, usize::from),
        }
    }

    /// Estimated bytes in all.
    pub fn memory_bytes(&self) -> u64 {
        self.memory.iter().map(|(_, bytes)| bytes).sum()
    }
}

fn memory(config: &RunConfig, model: &ModelConfig, parameters: usize, longest: usize) -> Vec<(String, u64)> {
    let f32s = |n: usize| (n * 4) as u64;
    let kv_bytes = match config.sampler.kv_cache {
        Precision::F32 => 4,
        Precision::Bf16 | Precision::F16 => 2,
        Precision::Fp8 => 1,
    };
    let kv_token = 2 * model.num_hidden_layers * model.num_key_value_heads * model.head_dim * kv_bytes;
    let live = config
        .rollout
        .concurrency
        .get()
        .min(config.rollout.prompts.get() * config.rollout.group_size.get());
    let micro = config.algorithm.micro_batch_tokens.get();
    // Per token and layer: normed inputs, q k v, attention output, gate, up, their product, residuals; twice for gradients.
    let widths = 6 * model.hidden_size
        + 3 * model.intermediate_size
        + 2 * (model.num_attention_heads + 2 * model.num_key_value_heads) * model.head_dim
        + model.num_attention_heads * longest;
    vec![
        ("pi: f32 weights".to_owned(), f32s(parameters)),
        ("pi: gradients".to_owned(), f32s(parameters)),
        ("AdamW: m and v".to_owned(), f32s(2 * parameters)),
        (
            "rollback copy of weights, m and v".to_owned(),
            f32s(3 * parameters),
        ),
        ("mu: packed weights".to_owned(), (parameters * 2) as u64),
        (
            format!("mu: KV cache of {live} episodes"),
            (live * longest * kv_token) as u64,
        ),
        (
            format!("activations of a micro-batch of {micro} tokens"),
            f32s(2 * micro * (model.num_hidden_layers * widths + model.vocab_size)),
        ),
    ]
}

fn describe(config: &RunConfig) -> Vec<String> {
    let algorithm = &config.algorithm;
    vec![
        format!("advantage   {}", yaml_line(&algorithm.advantage)),
        format!("correction  {}", yaml_line(&algorithm.correction)),
        format!("loss        {}", yaml_line(&algorithm.loss)),
        format!("gate        {}", yaml_line(&algorithm.gate)),
    ]
}

/// A section on one line, as JSON-like YAML.
fn yaml_line(value: &impl Serialize) -> String {
    let text = serde_json::to_string(value).unwrap_or_default();
    text.replace('"', "").replace(':', ": ").replace(',', ", ")
}

fn name(precision: Precision) -> &'static str {
    match precision {
        Precision::F32 => "f32",
        Precision::Bf16 => "bf16",
        Precision::F16 => "f16",
        Precision::Fp8 => "FP8 E4M3",
    }
}

/// Bytes as people read them.
fn bytes(n: u64) -> String {
    match n {
        0..=0xF_FFFF => format!("{:.0} KiB", n as f64 / 1024.0),
        0x10_0000..=0x3FFF_FFFF => format!("{:.1} MiB", n as f64 / 1_048_576.0),
        _ => format!("{:.1} GiB", n as f64 / 1_073_741_824.0),
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [prompts, group] = self.rollout;
        writeln!(
            f,
            "run         {} (seed {}, {} threads)",
            self.name, self.seed, self.threads
        )?;
        writeln!(f, "model       {}: {} parameters", self.model, self.parameters)?;
        writeln!(
            f,
            "sampler mu  {}; temperature {}",
            self.sampler, self.temperature
        )?;
        writeln!(
            f,
            "rows        {} to train on, {} to validate on, {} held out",
            self.rows[0], self.rows[1], self.rows[2]
        )?;
        writeln!(
            f,
            "a step      {prompts} prompts x {group} = {} episodes (at most {} tokens) -> {} update{}",
            prompts * group,
            self.max_step_tokens,
            self.updates_per_step,
            if self.updates_per_step == 1 { "" } else { "s" }
        )?;
        match self.validation {
            [0, _] => writeln!(f, "gate        samples nothing")?,
            [p, g] => writeln!(
                f,
                "gate        {p} prompts x {g} = {} validation episodes a step",
                p * g
            )?,
        }
        writeln!(
            f,
            "evaluation  {} times {} held-out episodes",
            self.eval[1], self.eval[0]
        )?;
        writeln!(
            f,
            "in all      {} steps, {} training and {} validation episodes",
            self.steps,
            self.steps as usize * prompts * group,
            self.steps as usize * self.validation[0] * self.validation[1]
        )?;
        for line in &self.algorithm {
            writeln!(f, "{line}")?;
        }
        write!(
            f,
            "memory      about {} beside the sandbox",
            bytes(self.memory_bytes())
        )?;
        for (part, n) in &self.memory {
            write!(f, "\n            {:>9}  {part}", bytes(*n))?;
        }
        Ok(())
    }
}
