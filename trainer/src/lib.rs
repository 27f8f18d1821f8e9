//! trainer

pub mod gate;
pub mod ledger;
pub mod metrics;
mod statistics;
