//! DCGM's background health watches: `dcgmi health -g 0 -c -j`, where it is installed.
//!
//! Never in the prolog: it can hang for 45 s on a dying GPU (NVIDIA/NVSentinel issue 1748). It has called a GPU healthy that needed
//! a reset (NVIDIA/DCGM issue 263), so it is only another voice beside NVML.
//!
//! The JSON is the same in DCGM 3 and 4: a tree of `children`, each with a `value`; messages lie in `overflow`.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use super::child::CHILD_PATH;
use crate::facts::{Dcgm, DcgmIncident, Reading};

/// Most incidents kept.
const INCIDENTS_MAX: usize = 64;
/// Longest message kept, in characters.
const TEXT_MAX: usize = 200;

/// The child: asks, and sets the watches first where nobody has.
pub fn child(program: &Path) {
    super::answer(&ask(program));
}

fn ask(program: &Path) -> Reading<Dcgm> {
    let check = || run(program, &["health", "-g", "0", "-c", "-j"]);
    let first = match check() {
        Ok(text) => text,
        Err(why) => return Reading::Unknown(why),
    };
    match parse(&first) {
        Err(_) if first.contains("watches not enabled") => {}
        other => return other.map_or_else(Reading::Unknown, Reading::Value),
    }
    // They stay set. The first check after that only creates state and says "Healthy" whatever is wrong.
    match run(program, &["health", "-g", "0", "-s", "a"]) {
        Ok(said) if said.contains("successfully") => Reading::Unknown(
            "DCGM's health watches were not set; they are now, the next pass has an answer".into(),
        ),
        Ok(said) => Reading::Unknown(format!("dcgmi health -s a: {}", first_line(&said))),
        Err(why) => Reading::Unknown(why),
    }
}

/// What it printed, whatever its exit code: errors come on standard output too.
pub fn run(program: &Path, args: &[&str]) -> Result<String, String> {
    let out = Command::new(program)
        .args(args)
        .env_clear()
        .env("PATH", CHILD_PATH)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .map_err(|e| format!("{} cannot be started: {e}", program.display()))?;
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

/// Reads the answer; an error says why it is none.
pub fn parse(text: &str) -> Result<Dcgm, String> {
    let none = || format!("dcgmi health gave no overall health: {}", first_line(text));
    let tree: Value = serde_json::from_str(text.trim()).map_err(|_| none())?;
    let body = tree.get("body").and_then(Value::as_object).ok_or_else(none)?;
    let overall = body.get("Overall Health").and_then(value).ok_or_else(none)?;
    let mut incidents = Vec::new();
    for (group, entities) in body.iter().filter(|(name, _)| *name != "Overall Health") {
        for (id, entity) in children(entities) {
            let before = incidents.len();
            for (_, errors) in children(entity).filter(|(name, _)| *name == "Errors") {
                for (system, error) in children(errors) {
                    incidents.push(DcgmIncident {
                        entity: clip(&format!("{group} {id}")),
                        system: clip(system),
                        health: value(error).unwrap_or_default(),
                        text: messages(error),
                    });
                }
            }
            // An entity that is not healthy and does not say why.
            if let (true, Some(health)) =
                (incidents.len() == before, value(entity).filter(|v| v != "Healthy"))
            {
                let entity = clip(&format!("{group} {id}"));
                incidents.push(DcgmIncident { entity, health, ..DcgmIncident::default() });
            }
        }
    }
    incidents.truncate(INCIDENTS_MAX);
    Ok(Dcgm { overall, incidents })
}

fn value(node: &Value) -> Option<String> {
    node.get("value")?.as_str().map(clip)
}

fn children(node: &Value) -> impl Iterator<Item = (&String, &Value)> {
    node.get("children").and_then(Value::as_object).into_iter().flatten()
}

/// A message is cut into lines of a table, each a string or an object with a value.
fn messages(node: &Value) -> String {
    let lines = node.get("overflow").and_then(Value::as_array).into_iter().flatten();
    let lines: Vec<&str> =
        lines.filter_map(|l| l.as_str().or_else(|| l.get("value").and_then(Value::as_str))).collect();
    clip(&lines.join(" "))
}

pub fn first_line(text: &str) -> String {
    clip(text.lines().find(|l| !l.trim().is_empty()).unwrap_or("it printed nothing").trim())
}

pub fn clip(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(TEXT_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn sample(name: &str) -> String {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/dcgmi").join(name);
        std::fs::read_to_string(path).unwrap()
    }

    /// A program that answers `-c` with `check` and `-s` with `set`.
    fn fake(dir: &Path, check: &str, set: &str) -> Reading<Dcgm> {
        let program = dir.join("dcgmi");
        let script = format!(
            "#!/bin/sh\ncase \"$*\" in\n'health -g 0 -c -j') cat <<'J'\n{check}\nJ\n;;\n'health -g 0 -s a') echo '{set}';;\n*) exit 9;;\nesac\n"
        );
        // Written elsewhere and renamed: another test's fork may hold it open for writing.
        std::fs::write(dir.join("new"), script).unwrap();
        std::fs::set_permissions(dir.join("new"), std::fs::Permissions::from_mode(0o755)).unwrap();
        std::fs::rename(dir.join("new"), &program).unwrap();
        for _ in 0..50 {
            match ask(&program) {
                Reading::Unknown(why) if why.contains("Text file busy") => {}
                answer => return answer,
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        ask(&program)
    }

    #[test]
    fn both_answers_are_read() {
        let healthy = parse(&sample("health-healthy.json")).unwrap();
        assert_eq!((healthy.overall.as_str(), healthy.incidents.len()), ("Healthy", 0));
        let failure = parse(&sample("health-failure.json")).unwrap();
        assert_eq!(failure.overall, "Failure");
        let seen: Vec<_> = failure
            .incidents
            .iter()
            .map(|i| (i.entity.as_str(), i.system.as_str(), i.health.as_str(), i.text.as_str()))
            .collect();
        assert_eq!(
            seen,
            [
                (
                    "GPU 1",
                    "NVLINK system",
                    "Failure",
                    "GPU 1's NvLink link 3 is currently down Run a field diagnostic on the GPU."
                ),
                ("GPU 1", "PCIe system", "Warning", "Detected 9 PCIe replays per minute"),
            ]
        );
    }

    #[test]
    fn what_is_no_answer_is_unknown() {
        for text in
            ["", "[]", "{}", "{\"body\":{}}", "{\"body\":{\"Overall Health\":{\"value\":7}}}", "rubbish"]
        {
            assert!(parse(text).is_err(), "{text}");
        }
        let why =
            parse("Error: unable to establish a connection to the specified host: localhost\n").unwrap_err();
        assert!(why.contains("unable to establish"), "{why}");
    }

    #[test]
    fn a_fake_dcgmi_is_asked() {
        let dir = tempfile::tempdir().unwrap();
        let answer = fake(dir.path(), &sample("health-failure.json"), "");
        assert!(matches!(answer, Reading::Value(d) if d.overall == "Failure"));
        let unset = "Error: Health watches not enabled. Please enable watches. ";
        let answer = fake(dir.path(), unset, "Health monitor systems set successfully.");
        assert!(matches!(&answer, Reading::Unknown(w) if w.contains("the next pass")), "{answer:?}");
        let answer = fake(dir.path(), unset, "Error: Unable to set health watches. Return: x");
        assert!(matches!(&answer, Reading::Unknown(w) if w.contains("Unable to set")), "{answer:?}");
        assert!(matches!(ask(&dir.path().join("none")), Reading::Unknown(_)));
    }
}
