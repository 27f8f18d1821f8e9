//! trainer

pub mod gate;
pub mod ledger;
pub mod metrics;
pub mod mismatch;
mod statistics;
