//! Any bytes as a task file: they load, or are refused with a message that begins with the file's name.

#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use mipu_envs::TaskSet;

fuzz_target!(|bytes: &[u8]| {
    let text = String::from_utf8_lossy(bytes);
    match TaskSet::from_text(Path::new("task.yaml"), &text, 0) {
        Ok(set) => {
            for task in set.train.iter().chain(&set.validation).chain(&set.test) {
                assert!(!task.opening().is_empty());
            }
        }
        Err(error) => assert!(error.to_string().starts_with("task.yaml"), "{error}"),
    }
});
