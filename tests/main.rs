//! Integration tests of the `mipu` binary.
