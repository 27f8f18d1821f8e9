//! The attack suite: what candidates try in order to pass tests without solving them, kept as data in `attacks/*.yaml`.

use std::sync::LazyLock;

use serde::Deserialize;

use crate::python;
use serde_json::Value;

/// One way to cheat. Its code may define `attack`, which then stands in for every function that the tests call.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attack {
    /// Short name.
    pub name: String,
    /// What it tries.
    pub tries: String,
    /// Python source.
    pub code: String,
}

/// The suite, in a fixed order.
pub fn attacks() -> &'static [Attack] {
    static SUITE: LazyLock<Vec<Attack>> = LazyLock::new(|| {
        [
            include_str!("attacks/verdict.yaml"),
            include_str!("attacks/objects.yaml"),
            include_str!("attacks/interpreter.yaml"),
            include_str!("attacks/resources.yaml"),
            include_str!("attacks/files.yaml"),
        ]
        .into_iter()
        .flat_map(|text| serde_saphyr::from_str::<Vec<Attack>>(text).expect("the suite is valid YAML"))
        .collect()
    });
    &SUITE
}

impl Attack {
    /// A candidate that defines `names` and carries out the attack.
    pub fn candidate(&self, names: &[impl AsRef<str>]) -> String {
        let mut source = self.code.clone();
        if source.contains("def attack(") {
            for name in names.iter().map(AsRef::as_ref).filter(|name| *name != "attack") {
                source.push_str(&format!("\n{name} = attack"));
            }
        }
        source
    }

    /// The attack as one expression, for tasks that wrap the answer in code of their own.
    pub(super) fn expression(&self, names: &[String]) -> String {
        expression(&self.candidate(names))
    }
}

/// An expression that executes `source` and has the value of its function `attack`.
pub(super) fn expression(source: &str) -> String {
    let source = python::literal(&Value::String(source.to_owned()));
    format!("(exec({source}, globals()), attack())[1]")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_attack_has_a_name_and_a_purpose_of_its_own() {
        let suite = attacks();
        assert!(suite.len() >= 40, "{}", suite.len());
        for part in [
            |a: &Attack| a.name.clone(),
            |a: &Attack| a.tries.clone(),
            |a: &Attack| a.code.clone(),
        ] {
            assert_eq!(suite.iter().map(part).collect::<BTreeSet<_>>().len(), suite.len());
        }
    }
}
