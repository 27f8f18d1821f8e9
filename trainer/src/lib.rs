//! The trainer: the differentiable policy pi, the sampler-referenced update (MIPU step 1), and what judges it.
//!
//! Data flow: `Group` (from `mipu-agent`) -> [`advantage`] -> [`batch`] -> [`policy`] forward -> [`correction`] and [`loss`] ->
//! backward -> [`optim`] -> new weights. [`update::update`] is the composition; each part is a function of plain values.
//!
//! Invariants:
//! - Only sampled tokens enter a ratio, a loss, a KL term or an entropy; they are gathered before the head, so nothing is masked after
//!   the fact and padding does not exist (sequences are packed end to end).
//! - The log-probs of `pi_k` are frozen before the first optimizer step of an update.
//! - A non-finite number stops the update, names where it was seen, and leaves policy and optimizer as they were.
//! - Results do not depend on the number of threads: every reduction has a fixed order.

pub mod advantage;
pub mod batch;
pub mod bench;
pub mod correction;
pub mod loss;
pub mod number;
pub mod optim;
pub mod policy;
pub mod schedule;
pub mod update;

mod error;
#[cfg(test)]
mod testing;

pub use error::TrainerError;
pub use optim::AdamW;
pub use policy::TrainerPolicy;
