//! The canonical metric keys: `area/name`, each declared once with its unit and meaning.

use std::borrow::Cow;

use mipu_envs::StopReason;

/// What a number counts in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Reward of the task.
    Reward,
    /// A share in [0, 1].
    Share,
    /// Natural-log units.
    Nats,
    /// Tokens the policy sampled.
    Tokens,
    /// Agent turns.
    Turns,
    /// A count of something named in the description.
    Count,
    /// A plain number without unit.
    One,
    /// 0 or 1.
    Flag,
    /// Wall-clock seconds.
    Seconds,
    /// Tokens a second.
    TokensPerSecond,
}

impl Unit {
    /// Word for tables.
    pub fn word(self) -> &'static str {
        match self {
            Self::Reward => "reward",
            Self::Share => "share",
            Self::Nats => "nats",
            Self::Tokens => "tokens",
            Self::Turns => "turns",
            Self::Count => "count",
            Self::One => "-",
            Self::Flag => "0 or 1",
            Self::Seconds => "s",
            Self::TokensPerSecond => "tokens/s",
        }
    }
}

/// A declared key, or a member of a declared family (`stop/max_turns`).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Cow<'static, str>);

impl Key {
    /// `area/name`.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether a replay gives the same value bit for bit. Only such values may enter the ledger.
    pub fn replayable(&self) -> bool {
        replayable(&self.0)
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// Whether values under this name are the same at every replay: everything but wall-clock times and rates.
pub(crate) fn replayable(name: &str) -> bool {
    !name.starts_with("time/") && !name.starts_with("throughput/")
}

/// One row of the key table.
#[derive(Clone, Copy, Debug)]
pub struct Declared {
    /// `area/name`, with `<..>` for the free part of a family.
    pub name: &'static str,
    /// Unit.
    pub unit: Unit,
    /// Meaning, in one line.
    pub about: &'static str,
}

/// Declares the constants and the table from one list.
macro_rules! keys {
    ($($constant:ident = $name:literal, $unit:ident, $about:literal;)*) => {
        $(#[doc = $about] pub const $constant: Key = Key(Cow::Borrowed($name));)*
        /// Every fixed key in the order of its area.
        pub const FIXED: &[Declared] = &[$(Declared { name: $name, unit: Unit::$unit, about: $about }),*];
    };
}

keys! {
    REWARD_MEAN = "reward/mean", Reward, "mean return of the training episodes sampled by mu_k";
    REWARD_STD = "reward/std", Reward, "standard deviation of those returns";
    REWARD_VALIDATION = "reward/validation", Reward, "mean return of mu_{k+1} on the gate's validation groups";
    REWARD_VALIDATION_SE = "reward/validation_se", Reward, "its standard error over groups";
    REWARD_HELD_OUT = "reward/held_out", Reward, "J(mu): mean return on the held-out split, when evaluated";
    REWARD_HELD_OUT_SE = "reward/held_out_se", Reward, "its standard error over tasks";
    ACTOR_LOSS = "actor/loss", One, "surrogate loss, mean over updates of the step";
    ACTOR_ENTROPY = "actor/entropy", Nats, "entropy of pi over generated tokens";
    ACTOR_GRAD_NORM = "actor/grad_norm", One, "gradient norm before clipping, mean over updates";
    ACTOR_LR = "actor/lr", One, "learning rate of the step's last update";
    ACTOR_UPDATES = "actor/updates", Count, "optimizer updates in the step";
    ACTOR_SKIPPED_UPDATES = "actor/skipped_updates", Count, "updates skipped: no token in the loss";
    ACTOR_RATIO_MEAN = "actor/ratio_mean", One, "mean pi_theta / pi_k over generated tokens";
    ACTOR_CLIP_FRAC_LOW = "actor/clip_frac_low", Share, "tokens whose ratio was clipped from below";
    ACTOR_CLIP_FRAC_HIGH = "actor/clip_frac_high", Share, "tokens whose ratio was clipped from above";
    ACTOR_DUAL_CLIP_FRAC = "actor/dual_clip_frac", Share, "tokens held by the dual clip";
    ACTOR_KL_OLD = "actor/kl_old", Nats, "k3 estimate of KL(pi_k || pi_theta) after the step";
    ACTOR_KL_REF = "actor/kl_ref", Nats, "KL estimate to the reference policy";
    CORRECTION_WEIGHT_MEAN = "correction/weight_mean", One, "mean correction weight after truncation";
    CORRECTION_TRUNCATED_FRAC = "correction/truncated_frac", Share, "tokens whose weight was truncated";
    CORRECTION_MASKED_FRAC = "correction/masked_frac", Share, "generated tokens the correction removed from the loss";
    RESPONSE_LENGTH_MEAN = "response_length/mean", Tokens, "generated tokens of an episode, mean";
    RESPONSE_LENGTH_MAX = "response_length/max", Tokens, "generated tokens of an episode, largest";
    NUM_TURNS_MEAN = "num_turns/mean", Turns, "turns of an episode, mean";
    NUM_TURNS_MAX = "num_turns/max", Turns, "turns of an episode, largest";
    TOKENS_SAMPLED = "tokens/sampled", Tokens, "generated tokens of the step's training episodes";
    TOKENS_TOTAL = "tokens/total", Tokens, "all tokens of those episodes, prompts and tool output included";
    EPISODE_COUNT = "episode/count", Count, "scored training episodes";
    EPISODE_MALFORMED_TURNS = "episode/malformed_turns", Turns, "turns that could not be parsed, mean per episode";
    EPISODE_LATENCY_MS = "episode/latency_ms", One, "virtual latency of the tools, mean milliseconds per episode";
    GROUP_COUNT = "group/count", Count, "training groups";
    GROUP_FRAC_ZERO_STD = "group/frac_zero_std", Share, "groups whose returns were all equal (no gradient)";
    GROUP_UNSCORED = "group/unscored", Count, "episodes left out because their environment failed";
    GROUP_RESAMPLED = "group/resampled", Count, "groups sampled in addition to replace uninformative ones";
    GROUP_MASKED = "group/masked", Count, "episodes left out of the loss because a limit cut them";
    GATE_T_HAT = "gate/t_hat", Reward, "T_hat over all validation episodes (Eq 8)";
    GATE_T_HAT_INFORMATIVE = "gate/t_hat_informative", Reward, "T_hat over informative groups";
    GATE_SE = "gate/se", Reward, "standard error of T_hat over groups";
    GATE_P_VALUE = "gate/p_value", Share, "within-group permutation p-value of a T_hat as low";
    GATE_NULL_SD = "gate/null_sd", Reward, "standard deviation of T_hat under that null";
    GATE_C = "gate/c", Reward, "tolerance c_t";
    GATE_ACCEPTED = "gate/accepted", Flag, "1 when the update was kept, 0 when rolled back";
    GATE_UNDEFINED = "gate/undefined", Flag, "1 when no validation group was informative";
    GATE_NON_FINITE = "gate/non_finite", Flag, "1 when a ratio or T_hat was not finite";
    GATE_INFORMATIVE_GROUPS = "gate/informative_groups", Count, "informative validation groups";
    GATE_EPISODES = "gate/episodes", Count, "validation episodes";
    GATE_AUDIT = "gate/audit", Reward, "J(mu) - J(pi) measured by sampling from both, when audited";
    GATE_AUDIT_SE = "gate/audit_se", Reward, "its standard error over rows";
    GATE_AUDIT_RANK_CORRELATION = "gate/audit_rank_correlation", One, "rank correlation of T_hat with the audits so far";
    MISMATCH_K1 = "mismatch/k1", Nats, "mean of -d, d = log pi - log mu";
    MISMATCH_K2 = "mismatch/k2", Nats, "mean of d^2 / 2";
    MISMATCH_K3 = "mismatch/k3", Nats, "mean of e^d - d - 1";
    MISMATCH_ABS_LOGP_DIFF_MEAN = "mismatch/abs_logp_diff_mean", Nats, "mean |d|";
    MISMATCH_ABS_LOGP_DIFF_MAX = "mismatch/abs_logp_diff_max", Nats, "largest |d|";
    MISMATCH_ABS_LOGP_DIFF_P99 = "mismatch/abs_logp_diff_p99", Nats, "99th percentile of |d|";
    MISMATCH_RATIO_MEAN = "mismatch/ratio_mean", One, "mean e^d; exactly 1 in expectation";
    MISMATCH_RATIO_MEAN_SE = "mismatch/ratio_mean_se", One, "its standard error over episodes";
    MISMATCH_MULT_PROB_ERROR = "mismatch/mult_prob_error", One, "mean e^|d|";
    MISMATCH_PROB_DIFF_MEAN = "mismatch/prob_diff_mean", One, "mean |p_pi - p_mu|";
    MISMATCH_PROB_DIFF_MAX = "mismatch/prob_diff_max", One, "largest |p_pi - p_mu|";
    MISMATCH_PROB_PEARSON = "mismatch/prob_pearson", One, "Pearson r of p_pi and p_mu";
    MISMATCH_CHI2_TOKEN = "mismatch/chi2_token", One, "mean e^{2d} - 1 over tokens";
    MISMATCH_CHI2_SEQ = "mismatch/chi2_seq", One, "mean e^{2 sum d} - 1 over episodes";
    MISMATCH_ESS = "mismatch/ess", Share, "effective share of the token weights";
    MISMATCH_ESS_SEQ = "mismatch/ess_seq", Share, "effective share of the sequence weights";
    MISMATCH_LOG_PPL_DIFF = "mismatch/log_ppl_diff", Nats, "mean over episodes of mean -d";
    MISMATCH_ALARM = "mismatch/alarm", Flag, "1 when mean e^d leaves 1 by several standard errors, or log-probs are not finite";
    MISMATCH_NON_FINITE = "mismatch/non_finite", Count, "tokens whose log-prob gap is not finite, left out of every mean";
    TIME_STEP = "time/step", Seconds, "the whole step";
    TIME_ROLLOUT = "time/rollout", Seconds, "training rollouts";
    TIME_SCORE = "time/score", Seconds, "log-probs of the trainer policy";
    TIME_UPDATE = "time/update", Seconds, "forward, backward and optimizer";
    TIME_SYNC = "time/sync", Seconds, "quantising weights into the sampler, rollbacks included";
    TIME_GATE = "time/gate", Seconds, "validation rollouts and their scoring";
    TIME_AUDIT = "time/audit", Seconds, "validation rollouts of pi, when audited";
    TIME_CHECKPOINT = "time/checkpoint", Seconds, "writing and syncing the checkpoint";
    TIME_EVAL = "time/eval", Seconds, "held-out evaluation";
    THROUGHPUT_TOKENS_PER_S = "throughput/tokens_per_s", TokensPerSecond, "generated tokens per second of rollout";
}

/// Families whose last part is free.
pub const FAMILIES: &[Declared] = &[
    Declared {
        name: "stop/<reason>",
        unit: Unit::Share,
        about: "training episodes that ended for this reason",
    },
    Declared {
        name: "env/<fact>",
        unit: Unit::One,
        about: "a fact reported by the environment, mean over episodes",
    },
    Declared {
        name: "task/<name>/reward",
        unit: Unit::Reward,
        about: "mean return of the training episodes of one task file, with several files",
    },
    Declared {
        name: "curriculum/<bucket>/share",
        unit: Unit::Share,
        about: "share of the next step's prompts, with weights or a curriculum",
    },
    Declared {
        name: "curriculum/<bucket>/pass_rate",
        unit: Unit::Share,
        about: "moving mean return of the bucket's groups",
    },
    Declared {
        name: "mismatch/k3_turn_<n>",
        unit: Unit::Nats,
        about: "k3 over the tokens of turn n (the first 8 turns)",
    },
];

/// Turns that get their own `mismatch/k3_turn_<n>`: more would flood a dashboard, and the report reads the whole curve elsewhere.
pub const TURN_KEYS: usize = 8;

/// `stop/<reason>`.
pub fn stop(reason: StopReason) -> Key {
    Key(Cow::Borrowed(match reason {
        StopReason::Answered => "stop/answered",
        StopReason::Terminal => "stop/terminal",
        StopReason::MaxTurns => "stop/max_turns",
        StopReason::MaxTokens => "stop/max_tokens",
        StopReason::Cancelled => "stop/cancelled",
    }))
}

/// `env/<fact>`; characters other than letters, digits, `_`, `-`, `.` and `/` become `_`.
pub fn env(fact: &str) -> Key {
    Key(Cow::Owned(format!("env/{}", clean(fact))))
}

/// `task/<name>/reward`.
pub fn task_reward(name: &str) -> Key {
    Key(Cow::Owned(format!("task/{}/reward", clean(name))))
}

/// `curriculum/<bucket>/share`.
pub fn bucket_share(bucket: &str) -> Key {
    Key(Cow::Owned(format!("curriculum/{}/share", clean(bucket))))
}

/// `curriculum/<bucket>/pass_rate`.
pub fn bucket_pass_rate(bucket: &str) -> Key {
    Key(Cow::Owned(format!("curriculum/{}/pass_rate", clean(bucket))))
}

fn clean(part: &str) -> String {
    let clean = |c: char| {
        if c.is_ascii_alphanumeric() || "_-./".contains(c) {
            c
        } else {
            '_'
        }
    };
    part.chars().map(clean).collect()
}

/// `mismatch/k3_turn_<n>`; `None` past [`TURN_KEYS`].
pub fn k3_turn(turn: usize) -> Option<Key> {
    (turn < TURN_KEYS).then(|| Key(Cow::Owned(format!("mismatch/k3_turn_{turn}"))))
}

/// The key table as text, one key a line: name, unit, meaning.
pub fn table() -> String {
    let rows = || FIXED.iter().chain(FAMILIES);
    let width = rows().map(|d| d.name.len()).max().unwrap_or(0);
    rows()
        .map(|d| format!("{:width$}  {:8}  {}\n", d.name, d.unit.word(), d.about))
        .collect()
}
