//! systemd units, asked of `systemctl` in a child.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use super::child::{Ended, Outcome};
use crate::facts::{Reading, Unit};

/// systemctl, never looked up on a search path.
const SYSTEMCTL: &str = "/usr/bin/systemctl";
/// There while systemd runs this system.
const SYSTEMD: &str = "/run/systemd/system";

/// True where systemd runs.
pub fn present() -> bool {
    Path::new(SYSTEMD).is_dir() && Path::new(SYSTEMCTL).exists()
}

/// The question about these units.
pub fn command(units: &[String]) -> Command {
    let mut command = Command::new(SYSTEMCTL);
    command.args(["show", "--property=Id,LoadState,ActiveState,SubState", "--"]).args(units);
    command
}

/// What systemctl's end means.
pub fn result(outcome: &Outcome, units: &[String]) -> Reading<BTreeMap<String, Unit>> {
    match &outcome.ended {
        Ended::Exit(Some(0)) => parse(&outcome.stdout, units),
        other => super::failed(other),
    }
}

/// One block a unit, in the order asked.
#[must_use]
pub fn parse(text: &str, units: &[String]) -> Reading<BTreeMap<String, Unit>> {
    let blocks: Vec<Unit> = text
        .split("\n\n")
        .filter(|block| block.contains('='))
        .map(|block| {
            let mut unit = Unit::default();
            for (key, value) in block.lines().filter_map(|l| l.split_once('=')) {
                match key {
                    "LoadState" => unit.load = value.into(),
                    "ActiveState" => unit.active = value.into(),
                    "SubState" => unit.sub = value.into(),
                    _ => {}
                }
            }
            unit
        })
        .collect();
    if blocks.len() == units.len() && blocks.iter().all(|b| !b.active.is_empty()) {
        Reading::Value(units.iter().cloned().zip(blocks).collect())
    } else {
        Reading::Unknown(format!("systemctl told of {} units instead of {}", blocks.len(), units.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn blocks_of_systemctl() {
        let units = ["munge.service".to_string(), "sssd.service".to_string()];
        let text = "Id=munge.service\nLoadState=loaded\nActiveState=active\nSubState=running\n\nId=sssd.service\nLoadState=not-found\nActiveState=inactive\nSubState=dead\n";
        let Reading::Value(found) = parse(text, &units) else { panic!("not read") };
        assert_eq!(found["munge.service"].active, "active");
        assert_eq!(found["sssd.service"].load, "not-found");
        assert!(matches!(parse("", &units), Reading::Unknown(_)));
        assert!(matches!(parse("Id=munge.service\n", &units[..1]), Reading::Unknown(_)));
    }

    proptest! {
        #[test]
        fn no_answer_makes_it_panic(text in "(Id=|ActiveState=|\n|=|.){0,60}") {
            let _ = parse(&text, &["a".to_string()]);
        }
    }
}
