//! Slurm's node lists: `n[1-3,08],gpu-7`.

/// More nodes than any cluster has.
const MOST: usize = 100_000;

/// The node names of a list, in its order.
///
/// # Errors
/// A clause that names the part that is wrong.
pub fn expand(list: &str) -> Result<Vec<String>, String> {
    let mut names = Vec::new();
    let (mut depth, mut start) = (0_usize, 0);
    for (at, letter) in list.char_indices().chain([(list.len(), ',')]) {
        match letter {
            '[' => depth += 1,
            ']' => depth = depth.checked_sub(1).ok_or_else(|| format!("{list:?} has a ] without its ["))?,
            ',' if depth == 0 => {
                let part = list[start..at].trim();
                if !part.is_empty() {
                    item(part, &mut names)?;
                }
                start = at + 1;
            }
            _ => {}
        }
    }
    if depth > 0 {
        return Err(format!("{list:?} has a [ without its ]"));
    }
    Ok(names)
}

fn item(part: &str, names: &mut Vec<String>) -> Result<(), String> {
    let Some((prefix, rest)) = part.split_once('[') else {
        names.push(part.to_owned());
        return Ok(());
    };
    let Some((ranges, suffix)) = rest.split_once(']') else { return Err(format!("{part:?} lacks a ]")) };
    let mut tails = Vec::new();
    item(suffix, &mut tails)?;
    for range in ranges.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let number = |text: &str| {
            text.parse::<usize>()
                .map_err(|_| format!("{range:?} in {part:?} is no number or range of numbers"))
        };
        let (from, to) = (number(first)?, number(last)?);
        if to < from || to - from >= MOST {
            return Err(format!("{range:?} in {part:?} falls or is too long"));
        }
        for n in from..=to {
            for tail in &tails {
                names.push(format!("{prefix}{n:0width$}{tail}", width = first.len()));
            }
        }
        if names.len() > MOST {
            return Err(format!("{part:?} names more than {MOST} nodes"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_as_slurm_writes_them() {
        for (list, names) in [
            ("n1", "n1"),
            ("n[1-3]", "n1 n2 n3"),
            ("n[08-10,2]-ib,gpu7", "n08-ib n09-ib n10-ib n2-ib gpu7"),
            ("r[1-2]n[1-2]", "r1n1 r1n2 r2n1 r2n2"),
            ("", ""),
        ] {
            assert_eq!(expand(list).unwrap().join(" "), names, "{list}");
        }
        for bad in ["n[1-", "n]1", "n[3-1]", "n[a]", "n[1-200000]"] {
            assert!(expand(bad).unwrap_err().contains('"'), "{bad}");
        }
    }
}
