//! Lists of host names as Slurm writes them: `n[1-3,7],login,tray[01-18]-bmc`.

/// Most names one list may stand for.
const MAX_NAMES: usize = 100_000;

/// The names that a list stands for, in its order.
///
/// # Errors
/// One sentence: brackets that do not close, a range that is none, or too many names.
pub fn expand(list: &str) -> Result<Vec<String>, String> {
    let mut names = Vec::new();
    for part in split(list)? {
        one(part, &mut names)?;
    }
    Ok(names)
}

/// True when the list, if it can be understood, names this host.
#[must_use]
pub fn contains(list: &str, name: &str) -> bool {
    expand(list).is_ok_and(|names| names.iter().any(|n| n == name))
}

/// Cuts at commas and blanks outside of brackets.
fn split(list: &str) -> Result<Vec<&str>, String> {
    let mut parts = Vec::new();
    let (mut start, mut inside) = (0, false);
    for (at, c) in list.char_indices() {
        match c {
            '[' if inside => return Err(format!("\"{list}\" has a bracket within brackets")),
            '[' => inside = true,
            ']' if !inside => return Err(format!("\"{list}\" closes a bracket that is not open")),
            ']' => inside = false,
            _ if !inside && (c == ',' || c.is_whitespace()) => {
                parts.push(list.get(start..at).unwrap_or_default());
                start = at + c.len_utf8();
            }
            _ => {}
        }
    }
    if inside {
        return Err(format!("\"{list}\" opens a bracket and does not close it"));
    }
    parts.push(list.get(start..).unwrap_or_default());
    Ok(parts.into_iter().filter(|p| !p.is_empty()).collect())
}

fn one(part: &str, names: &mut Vec<String>) -> Result<(), String> {
    let Some((head, rest)) = part.split_once('[') else {
        return push(names, part.to_string(), part);
    };
    let (inner, tail) = rest.split_once(']').unwrap_or((rest, ""));
    let mut tails = Vec::new();
    one_or_empty(tail, &mut tails)?;
    for range in inner.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let number = |text: &str| -> Result<u64, String> {
            let digits = !text.is_empty() && text.len() <= 18 && text.bytes().all(|b| b.is_ascii_digit());
            digits.then(|| text.parse().ok()).flatten().ok_or(format!("\"{part}\": \"{range}\" is no range"))
        };
        let (from, to) = (number(first)?, number(last)?);
        if from > to {
            return Err(format!("\"{part}\": \"{range}\" runs backwards"));
        }
        let width = first.len();
        for n in from..=to {
            for tail in &tails {
                push(names, format!("{head}{n:0width$}{tail}"), part)?;
            }
        }
    }
    Ok(())
}

fn one_or_empty(tail: &str, tails: &mut Vec<String>) -> Result<(), String> {
    if tail.is_empty() {
        tails.push(String::new());
        return Ok(());
    }
    one(tail, tails)
}

fn push(names: &mut Vec<String>, name: String, part: &str) -> Result<(), String> {
    if names.len() >= MAX_NAMES {
        return Err(format!("\"{part}\" stands for more than {MAX_NAMES} names"));
    }
    names.push(name);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_as_slurm_writes_them() {
        for (list, names) in [
            ("", ""),
            ("n1", "n1"),
            ("n[1-3]", "n1 n2 n3"),
            ("n[08-11,20]", "n08 n09 n10 n11 n20"),
            ("a,b[1,3],c.example.org", "a b1 b3 c.example.org"),
            ("rack[1-2]-tray[1-2]", "rack1-tray1 rack1-tray2 rack2-tray1 rack2-tray2"),
            ("n1 n2", "n1 n2"),
        ] {
            assert_eq!(expand(list).unwrap().join(" "), names, "{list}");
        }
        assert!(contains("tray[01-18]", "tray07") && !contains("tray[01-18]", "tray7"));
        assert_eq!(expand("t[1-18]").unwrap().len(), 18);
    }

    #[test]
    fn what_is_no_list_is_named() {
        for (list, what) in [
            ("n[1-3", "does not close"),
            ("n1-3]", "not open"),
            ("n[[1]]", "within brackets"),
            ("n[a-b]", "is no range"),
            ("n[]", "is no range"),
            ("n[5-2]", "backwards"),
            ("n[0-999999]", "more than"),
        ] {
            let why = expand(list).unwrap_err();
            assert!(why.contains(what), "{list}: {why}");
            assert!(!contains(list, "n1"));
        }
    }
}
