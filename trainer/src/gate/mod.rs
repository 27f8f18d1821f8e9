//! Step 2 of MIPU: is the candidate kept, or rolled back?
//!
//! Validation groups from tasks never trained on, sampled by the candidate engine `mu_{k+1}`, become a [`Statistic`] ([`measure`]); a
//! [`GateConfig`] judges it ([`judge`]); the result is a [`Decision`] for the ledger.
//!
//! Sign: T_hat estimates `J(mu_{k+1}) - J(pi_{k+1})`. Negative means the trainer puts more mass than the engine on the better episodes,
//! so the trainer's gain is not realised by the engine that is deployed. Under pure noise T_hat is negative about half the time, which is why
//! every decision carries a standard error and a permutation p-value.
//!
//! Invariants: an undefined T_hat is `None`, never 0; a non-finite one rejects; nothing here depends on the clock or on thread timing.

mod config;
mod permutation;
mod statistic;
#[cfg(test)]
mod tests;

use mipu_envs::seed::{Purpose, stream};
use rand::RngExt;
use serde::{Deserialize, Serialize};

pub use config::{
    EXTENSIONS, GateConfig, MipuGate, OnUndefined, RandomGate, RewardDropGate, SignificantGate, Threshold,
};
pub use permutation::{EXACT_LIMIT, MONTE_CARLO_DRAWS};
pub use statistic::{Estimate, Statistic, ValidationEpisode, measure, rho};

/// Slack of the comparison with `-c_t`: a common factor on rho cancels only up to rounding, and with equal policies and `c = 0` an update must
/// not be rejected for it.
pub const ROUNDING: f64 = 1e-12;

/// Keeps the `random` gate's draws apart from validation draws, which share [`Purpose::Gate`].
const COIN_TAG: u64 = u64::from_le_bytes(*b"coinflip");

/// Why an update was kept or rolled back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// `T_hat >= -c_t`.
    WithinTolerance,
    /// `T_hat < -c_t` (and significantly so, for `mipu_significant`).
    BelowTolerance,
    /// `T_hat < -c_t`, but the permutation test does not rule out chance.
    NotSignificant,
    /// No informative group; `on_undefined` decided.
    Undefined,
    /// A ratio or T_hat was not finite.
    NonFinite,
    /// Validation reward did not fall by more than its standard error.
    RewardHeld,
    /// It did.
    RewardFell,
    /// The `random` gate's coin.
    Coin,
    /// Not judged: the gate is off, or not due at this step.
    Unjudged,
}

/// What a gate says, before the weights are touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Keep the candidate.
    Accept(Reason),
    /// Roll it back.
    Reject(Reason),
    /// No informative group yet: sample more, measure all groups again, and judge with `round + 1`.
    Extend,
}

/// Circumstances of a judgement.
#[derive(Clone, Copy, Debug, Default)]
pub struct Occasion {
    /// Run seed.
    pub seed: u64,
    /// Attempted steps before this one; anneals `c_t`.
    pub attempt: u64,
    /// Times the validation set was extended already.
    pub round: u32,
    /// Validation reward of the last accepted mu, for `reward_drop`.
    pub reward_before: Option<Estimate>,
}

/// Judges a measured update. Gates that do not look at T_hat still reject when it is not finite: a broken policy is never deployed.
pub fn judge(config: &GateConfig, statistic: &Statistic, occasion: &Occasion) -> Verdict {
    if !config.due(occasion.attempt) {
        return Verdict::Accept(Reason::Unjudged);
    }
    if statistic.non_finite {
        return Verdict::Reject(Reason::NonFinite);
    }
    match config {
        GateConfig::Never => Verdict::Accept(Reason::Unjudged),
        GateConfig::Random(gate) => {
            let draw: f64 = stream(occasion.seed, Purpose::Gate, &[COIN_TAG, occasion.attempt]).random();
            if draw < gate.reject_rate.get() {
                Verdict::Reject(Reason::Coin)
            } else {
                Verdict::Accept(Reason::Coin)
            }
        }
        GateConfig::RewardDrop(gate) => judge_reward(
            gate.standard_errors.get(),
            statistic.reward,
            occasion.reward_before,
        ),
        GateConfig::Mipu(_) | GateConfig::MipuSignificant(_) => judge_proxy(config, statistic, occasion),
    }
}

fn judge_proxy(config: &GateConfig, statistic: &Statistic, occasion: &Occasion) -> Verdict {
    let c = config
        .threshold()
        .and_then(|t| t.at(occasion.attempt, statistic.null_sd));
    let (Some(t_hat), Some(c)) = (statistic.t_hat, c) else {
        return match config.on_undefined() {
            OnUndefined::Accept => Verdict::Accept(Reason::Undefined),
            OnUndefined::Reject => Verdict::Reject(Reason::Undefined),
            OnUndefined::Extend if occasion.round < EXTENSIONS => Verdict::Extend,
            OnUndefined::Extend => Verdict::Accept(Reason::Undefined),
        };
    };
    if t_hat >= -c - ROUNDING {
        return Verdict::Accept(Reason::WithinTolerance);
    }
    match config {
        GateConfig::MipuSignificant(gate) if statistic.p_value.is_none_or(|p| p >= gate.alpha.get()) => {
            Verdict::Accept(Reason::NotSignificant)
        }
        _ => Verdict::Reject(Reason::BelowTolerance),
    }
}

fn judge_reward(standard_errors: f64, now: Option<Estimate>, before: Option<Estimate>) -> Verdict {
    let (Some(now), Some(before)) = (now, before) else {
        return Verdict::Accept(Reason::Undefined);
    };
    let se = now.se.unwrap_or(0.0).hypot(before.se.unwrap_or(0.0));
    if before.mean - now.mean > standard_errors * se + ROUNDING {
        Verdict::Reject(Reason::RewardFell)
    } else {
        Verdict::Accept(Reason::RewardHeld)
    }
}

/// The record of a judged update. Every number is finite: what is undefined is `None`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// T_hat over all validation episodes.
    pub t_hat: Option<f64>,
    /// T_hat over the episodes of informative groups.
    pub t_hat_informative: Option<f64>,
    /// Standard error of `t_hat` over groups.
    pub se: Option<f64>,
    /// Within-group permutation p-value of a `t_hat` as low.
    pub p_value: Option<f64>,
    /// Standard deviation of `t_hat` under the permutation null.
    pub null_sd: Option<f64>,
    /// Tolerance in force.
    pub c_t: Option<f64>,
    /// Validation reward of `mu_{k+1}` and its standard error.
    pub reward: Option<Estimate>,
    /// Validation episodes that entered.
    pub n_episodes: usize,
    /// Validation groups that entered.
    pub n_groups: usize,
    /// Informative groups among them.
    pub n_informative: usize,
    /// Kept, or rolled back.
    pub accepted: bool,
    /// Why.
    pub reason: Reason,
    /// No group was informative although the gate ran.
    pub undefined: bool,
    /// Something was not finite.
    pub non_finite: bool,
    /// Weights before the update (`pi_k`).
    pub hash_before: String,
    /// Weights of the candidate (`pi_{k+1}`).
    pub hash_candidate: String,
    /// Weights measured once the decision took effect.
    pub hash_after: String,
}

/// Weights after a decision are not the ones it calls for.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "{} left the wrong weights: expected {expected}, found {found}\nhint: the run is stopped before anything is recorded; resume from the last checkpoint",
    if *.accepted { "an accepted update" } else { "a rollback" }
)]
pub struct HashMismatch {
    /// Whether the update had been accepted.
    pub accepted: bool,
    /// Hash the decision calls for.
    pub expected: String,
    /// Hash measured.
    pub found: String,
}

impl Decision {
    /// Records a verdict. `hash_after` is what was *measured* after the update was kept or rolled back.
    ///
    /// # Errors
    /// When that is not the candidate's hash (kept) or the hash before (rolled back).
    ///
    /// # Panics
    /// On [`Verdict::Extend`], which is not a decision.
    pub fn new(
        config: &GateConfig,
        statistic: &Statistic,
        verdict: Verdict,
        occasion: &Occasion,
        hashes: Hashes,
    ) -> Result<Self, HashMismatch> {
        let (accepted, reason) = match verdict {
            Verdict::Accept(reason) => (true, reason),
            Verdict::Reject(reason) => (false, reason),
            Verdict::Extend => panic!("an extension is not a decision"),
        };
        let expected = if accepted {
            &hashes.candidate
        } else {
            &hashes.before
        };
        if *expected != hashes.after {
            return Err(HashMismatch {
                accepted,
                expected: expected.clone(),
                found: hashes.after,
            });
        }
        let judged = config.due(occasion.attempt);
        Ok(Self {
            t_hat: statistic.t_hat,
            t_hat_informative: statistic.t_hat_informative,
            se: statistic.se,
            p_value: statistic.p_value,
            null_sd: statistic.null_sd,
            c_t: config
                .threshold()
                .and_then(|t| t.at(occasion.attempt, statistic.null_sd)),
            reward: statistic.reward,
            n_episodes: statistic.n_episodes,
            n_groups: statistic.n_groups,
            n_informative: statistic.n_informative,
            accepted,
            reason,
            undefined: judged && statistic.undefined,
            non_finite: statistic.non_finite,
            hash_before: hashes.before,
            hash_candidate: hashes.candidate,
            hash_after: hashes.after,
        })
    }
}

/// Weight hashes around a decision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hashes {
    /// Before the update.
    pub before: String,
    /// The candidate.
    pub candidate: String,
    /// Measured after the decision took effect.
    pub after: String,
}
