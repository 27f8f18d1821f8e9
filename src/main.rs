//! The `mipu` command line.
fn main() {}
