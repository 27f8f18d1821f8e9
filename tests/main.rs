//! Integration tests of the `mipu` binary: what a person types, and what comes back.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod configs;
mod documents;
mod durability;
mod json;
mod learning;
mod support;
mod switches;
mod tidy;
