//! trainer

pub mod gate;
pub mod ledger;
pub mod metrics;
pub mod mismatch;
pub mod report;
mod statistics;
