//! Integration tests of mipu-envs.
