//! The trainer: the differentiable policy pi, the sampler-referenced update (MIPU step 1), the gate that judges it (step 2), and the records.
//!
//! Data flow: `Group` (from `mipu-agent`) -> [`advantage`] -> [`batch`] -> [`policy`] forward -> [`correction`] and [`loss`] ->
//! backward -> [`optim`] -> new weights -> sync -> [`gate`] -> [`checkpoint`] -> [`ledger`], [`metrics`] -> [`report`].
//! [`update::update`] composes step 1, [`run::train`] the whole.
//!
//! Invariants:
//! - Only sampled tokens enter a ratio, a loss, a KL term or an entropy; they are gathered before the head, so nothing is masked after
//!   the fact and padding does not exist (sequences are packed end to end).
//! - The log-probs of `pi_k` are frozen before the first optimizer step of an update.
//! - A non-finite number stops the update, names where it was seen, and leaves policy and optimizer as they were.
//! - Results do not depend on the number of threads: every reduction has a fixed order.
//! - The ledger speaks only of states that are on disk.

pub mod advantage;
pub mod batch;
pub mod bench;
pub mod checkpoint;
pub mod config;
pub mod correction;
pub mod eval;
pub mod gate;
pub mod ladder;
pub mod ledger;
pub mod loss;
pub mod metrics;
pub mod mismatch;
pub mod mixture;
pub mod number;
pub mod optim;
pub mod overlong;
pub mod policy;
pub mod preset;
pub mod report;
pub mod run;
pub mod sampled;
pub mod schedule;
pub mod sft;
pub mod update;
pub mod yaml;

mod error;
mod statistics;
#[cfg(test)]
mod testing;

pub use error::TrainerError;
pub use optim::AdamW;
pub use policy::TrainerPolicy;
