//! Command-line arguments.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use mipu_envs::import::{Comparison, Format};

/// An agentic multi-turn RL gym with an accept-or-roll-back (MIPU) trainer.
#[derive(Debug, Parser)]
#[command(
    name = "mipu",
    version,
    propagate_version = true,
    after_help = "\
Start here:
  mipu train configs/quickstart.yaml       train a small agent in about a minute, then open the report it names
  mipu task check tasks/calc.yaml          check that a task is solvable, deterministic and cannot be cheated
  mipu task new my-task.yaml --kind tool   write a commented task to start from"
)]
pub(crate) struct Cli {
    /// Say more (-v the steps, -vv the details); RUST_LOG overrides
    #[arg(short, long, action = clap::ArgAction::Count, global = true)]
    pub(crate) verbose: u8,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Train a policy: roll out, update, sync, validate, accept or roll back
    Train(Train),
    /// Measure J(mu): success of the deployed sampler on held-out rows, with intervals
    Eval(Eval),
    /// Sample episodes and write them as JSONL, without training
    Rollout(Rollout),
    /// Clone demonstrations: the warm start of a policy
    Sft(Sft),
    /// Write (again) the HTML report of a run directory
    Report(Report),
    /// Check, show and create task files
    #[command(subcommand)]
    Task(Task),
    /// Verify the hash chain of a run's ledger
    #[command(subcommand)]
    Ledger(Ledger),
    /// Look at a model directory
    #[command(subcommand)]
    Model(Model),
    /// Measure the sandbox, the sampler, the trainer, or the mismatch between them
    #[command(subcommand)]
    Bench(Bench),
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  mipu train configs/quickstart.yaml
  mipu train configs/quickstart.yaml --seed 3 -- steps=20 algorithm.gate=never
  mipu train configs/quickstart.yaml --dry-run
  mipu train configs/quickstart.yaml --resume auto      continue the newest unfinished run of this configuration

The run directory holds config.yaml, metrics.jsonl, ledger.jsonl, trajectories/, checkpoints/ and report.html.
Ctrl-C abandons the step in progress; nothing that was recorded is lost, and --resume goes on from there.")]
pub(crate) struct Train {
    /// Configuration file (YAML)
    #[arg(value_name = "CONFIG", required_unless_present = "config")]
    pub(crate) path: Option<PathBuf>,
    /// The same as a flag
    #[arg(long, value_name = "CONFIG", conflicts_with = "path")]
    pub(crate) config: Option<PathBuf>,
    /// Seed of everything (overrides the file)
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// Run directory [default: runs/NAME-NUMBER, the next free one]
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Continue a run: `auto` (the newest unfinished one, else a new one), `latest`, or a run directory
    #[arg(long, value_name = "auto|latest|DIR")]
    pub(crate) resume: Option<String>,
    /// Explain the run (arithmetic, memory, algorithm) and stop
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// End with one JSON object on standard output
    #[arg(long)]
    pub(crate) json: bool,
    /// Overrides, `section.key=value`
    #[arg(last = true, value_name = "KEY=VALUE")]
    pub(crate) overrides: Vec<String>,
}

/// Which rows.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum SplitArg {
    Train,
    Validation,
    Test,
}

/// Number format of the sampler.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum PrecisionArg {
    F32,
    Bf16,
    F16,
    Fp8,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct Sampled {
    /// Model directory (a checkpoint of a run is one)
    #[arg(long, short, value_name = "DIR")]
    pub(crate) model: PathBuf,
    /// Task files
    #[arg(long, short, value_name = "FILE", required = true, num_args = 1..)]
    pub(crate) task: Vec<PathBuf>,
    /// Rows to use
    #[arg(long, value_enum, default_value = "test")]
    pub(crate) split: SplitArg,
    /// Task instances (all of the split when fewer)
    #[arg(long, short = 'n', default_value_t = 128)]
    pub(crate) prompts: usize,
    /// Episodes of each instance
    #[arg(long, short = 'k', default_value_t = 2)]
    pub(crate) samples: usize,
    /// Sampling temperature
    #[arg(long, default_value_t = 1.0)]
    pub(crate) temperature: f32,
    /// Token budget of one turn
    #[arg(long, default_value_t = 64)]
    pub(crate) max_turn_tokens: usize,
    /// Number format of weights, activations and KV cache
    #[arg(long, value_enum, default_value = "fp8")]
    pub(crate) precision: PrecisionArg,
    /// Seed
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
    /// Print one JSON object on standard output
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  mipu eval -m runs/quickstart-001/checkpoints/step-000060 -t tasks/calc.yaml
  mipu eval -m runs/quickstart-001/checkpoints/step-000060 --against configs/base-tiny -t tasks/calc.yaml
  mipu eval -m DIR -t tasks/calc.yaml --precision f32       J(pi): the trainer's own policy, in f32")]
pub(crate) struct Eval {
    #[command(flatten)]
    pub(crate) sampled: Sampled,
    /// A second model directory on the same rows and seeds: is the first one better? (paired test)
    #[arg(long, value_name = "DIR")]
    pub(crate) against: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  mipu rollout -m configs/base-tiny -t tasks/calc.yaml -n 4 -k 2 --out episodes.jsonl"
)]
pub(crate) struct Rollout {
    #[command(flatten)]
    pub(crate) sampled: Sampled,
    /// Where the episodes go, one JSON object a line
    #[arg(long, short, value_name = "FILE", default_value = "episodes.jsonl")]
    pub(crate) out: PathBuf,
    /// Also print the first N episodes as people read them
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) show: usize,
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  mipu sft configs/base-tiny.yaml --out models/base-tiny")]
pub(crate) struct Sft {
    /// Configuration file (YAML)
    pub(crate) config: PathBuf,
    /// Model directory to write
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
    /// Seed (overrides the file)
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// End with one JSON object on standard output
    #[arg(long)]
    pub(crate) json: bool,
    /// Overrides, `section.key=value`
    #[arg(last = true, value_name = "KEY=VALUE")]
    pub(crate) overrides: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Report {
    /// Run directory
    pub(crate) run: PathBuf,
    /// Print one JSON object with the report's path
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Task {
    /// Play the reference solution and the cheats; report what is wrong with a task
    Check {
        /// Task files
        #[arg(required = true)]
        paths: Vec<PathBuf>,
        /// Rows to play
        #[arg(long, default_value_t = 8)]
        rows: usize,
        /// Seed
        #[arg(long, default_value_t = 0)]
        seed: u64,
        /// Print one JSON object on standard output
        #[arg(long)]
        json: bool,
    },
    /// Write a commented task file to start from
    New {
        /// File to write (never overwritten)
        path: PathBuf,
        /// Which kind to start from
        #[arg(long, value_enum, default_value = "tool")]
        kind: TaskKind,
    },
    /// Show a row as the model sees it: messages, ids and loss mask of the reference solution
    Show {
        /// Task file
        path: PathBuf,
        /// Row, counted from 0 over train, validation and test
        #[arg(long, default_value_t = 0)]
        row: usize,
        /// Model directory whose tokenizer and dialect to show; messages only when left out
        #[arg(long, short)]
        model: Option<PathBuf>,
        /// Seed
        #[arg(long, default_value_t = 0)]
        seed: u64,
        /// Print one JSON object on standard output
        #[arg(long)]
        json: bool,
    },
    /// Play an episode yourself, in the terminal
    #[command(after_help = "\
Example:
  mipu task play tasks/calc.yaml --row 3

Each line is a turn: `python print(6 * 7)`, then `answer 42`. `help` lists what can be typed; input may come from a pipe.")]
    Play {
        /// Task file
        path: PathBuf,
        /// Row, counted from 0 over train, validation and test
        #[arg(long, default_value_t = 0)]
        row: usize,
        /// Seed of rows, failures and latencies
        #[arg(long, default_value_t = 0)]
        seed: u64,
    },
    /// Make a task file of problems kept elsewhere
    #[command(after_help = "\
Examples:
  mipu task import human-eval HumanEval.jsonl.gz --out tasks/human-eval
  mipu task import jsonl rows.jsonl --out tasks/mine --instruction \"{{ question }}\" --answer \"{{ answer }}\" --compare numeric
  mipu task import reasoning-gym rows.jsonl --out tasks/gym --verifier verifier.py
  mipu task import harbor DIR --out tasks/harbor

What comes out is an ordinary task file with its rows beside it. Check it before you train: mipu task check.")]
    Import {
        /// human-eval, jsonl, harbor or reasoning-gym
        format: Format,
        /// File or directory to import
        source: PathBuf,
        /// Directory of the task files (made if need be; nothing in it is overwritten)
        #[arg(long, short, value_name = "DIR")]
        out: PathBuf,
        /// Name of the task [default: that of the source]
        #[arg(long)]
        name: Option<String>,
        /// jsonl: template of the prompt [default: the field question, prompt, instruction, problem or input]
        #[arg(long, value_name = "TEMPLATE")]
        instruction: Option<String>,
        /// jsonl: template of the expected answer [default: the field answer, gold, target, output or solution]
        #[arg(long, value_name = "TEMPLATE")]
        answer: Option<String>,
        /// jsonl: exact, numeric or contains
        #[arg(long, default_value = "exact")]
        compare: Comparison,
        /// reasoning-gym: Python file that defines `score_answer(answer, entry)`
        #[arg(long, value_name = "FILE")]
        verifier: Option<PathBuf>,
        /// Print one JSON object on standard output
        #[arg(long)]
        json: bool,
    },
    /// Print the JSON Schema of task files, for editors
    Schema {
        /// As a Markdown reference for people
        #[arg(long)]
        markdown: bool,
    },
}

/// A kind of task to start from.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum TaskKind {
    /// A question answered with the Python tool
    Tool,
    /// A function graded by hidden unit tests
    Code,
    /// A directory of files with a bug: search, edit, run tests
    Repo,
    /// A stochastic world: slippery ice
    World,
    /// A question over a corpus searched by BM25
    Search,
    /// A scripted user who must be asked
    ChatUser,
    /// A world of your own, written in Python
    Python,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Ledger {
    /// Check every line's hash and its link to the one before
    Verify {
        /// Run directory or ledger file
        path: PathBuf,
        /// Print one JSON object on standard output
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum Model {
    /// Shape, parameters, tokenizer, dialect and memory at each precision
    Info {
        /// Model directory
        path: PathBuf,
        /// Print one JSON object on standard output
        #[arg(long)]
        json: bool,
    },
    /// Make a model directory of a GGUF file (Llama, Qwen2, Qwen3), tokenizer and chat template included
    Import {
        /// GGUF file
        path: PathBuf,
        /// Directory to write
        #[arg(long, short)]
        out: PathBuf,
        /// How to store the weights; f32 keeps every bit of the file's values
        #[arg(long, value_enum, default_value_t = FormatArg::F32)]
        format: FormatArg,
        /// Print one JSON object on standard output
        #[arg(long)]
        json: bool,
    },
    /// Write a model directory as other engines load it
    Export {
        /// Model directory (a checkpoint of a run is one)
        path: PathBuf,
        /// Directory to write
        #[arg(long, short)]
        out: PathBuf,
        /// How to store the weights
        #[arg(long, value_enum, default_value_t = FormatArg::Bf16)]
        format: FormatArg,
        /// Print one JSON object on standard output
        #[arg(long)]
        json: bool,
    },
    /// Download a model from a Hugging Face hub, every file checked against its hash
    Pull {
        /// ORG/NAME
        repo: String,
        /// Branch, tag or commit
        #[arg(long, default_value = "main")]
        revision: String,
        /// Directory to write [default: models/NAME]
        #[arg(long, short)]
        out: Option<PathBuf>,
        /// Print one JSON object on standard output
        #[arg(long)]
        json: bool,
    },
}

/// How a directory stores its weights.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum FormatArg {
    /// Every bit of the f32 weights
    F32,
    /// bfloat16
    Bf16,
    /// compressed-tensors `float-quantized`: E4M3 with a scale for each output channel
    Fp8Channel,
    /// E4M3 with a scale for each 128 x 128 block (`weight_scale_inv`)
    Fp8Block,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Bench {
    /// Time of a fresh execution and of a session turn, beside native python3
    Sandbox {
        /// Executions of each kind
        #[arg(long, default_value_t = 200)]
        runs: usize,
        /// Print one JSON object on standard output
        #[arg(long)]
        json: bool,
    },
    /// Tokens per second of the engine
    Sampler {
        /// Model directory [default: the quick start's]
        #[arg(long, short)]
        model: Option<PathBuf>,
        /// Engine threads, 0 for every core
        #[arg(long, default_value_t = 0)]
        threads: usize,
        /// Print one JSON object on standard output
        #[arg(long)]
        json: bool,
    },
    /// Tokens per second of forward, backward and update
    Trainer {
        /// Model directory [default: the quick start's]
        #[arg(long, short)]
        model: Option<PathBuf>,
        /// Print one JSON object on standard output
        #[arg(long)]
        json: bool,
    },
    /// How training-inference mismatch accumulates over an episode, FP8 against f32
    Mismatch {
        #[command(flatten)]
        sampled: Sampled,
        /// Page to write
        #[arg(long, value_name = "FILE", default_value = "mismatch.html")]
        out: PathBuf,
    },
}
