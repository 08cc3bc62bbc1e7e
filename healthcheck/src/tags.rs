//! Tags that a user gives to a job: `KEY=VALUE[,KEY=VALUE]...`.
//!
//! They become labels of metrics and words of log lines, so what they may hold is bounded. The prolog reads them from
//! an environment that its user can write, and the SPANK plugin, which compiles this file too, refuses bad ones before
//! the job is submitted.

use std::collections::BTreeMap;

/// Most tags of one job.
pub const MAX_TAGS: usize = 8;
/// Longest key, in bytes.
pub const MAX_KEY: usize = 32;
/// Longest value, in bytes.
pub const MAX_VALUE: usize = 64;

/// Reads tags.
///
/// # Errors
/// One sentence that says what is wrong and what is allowed; it repeats nothing of the text but a valid key.
pub fn parse(text: &str) -> Result<BTreeMap<String, String>, String> {
    let mut tags = BTreeMap::new();
    for (number, tag) in (1_usize..).zip(text.split(',')) {
        if number > MAX_TAGS {
            return Err(format!("there are more than {MAX_TAGS} tags"));
        }
        let (key, value) =
            tag.split_once('=').ok_or_else(|| format!("tag {number} has no \"=\"; write KEY=VALUE"))?;
        if !is_key(key) {
            return Err(format!(
                "the key of tag {number} is none; it takes a small letter, then small letters, digits and _, \
                 at most {MAX_KEY} characters"
            ));
        }
        if !is_value(value) {
            return Err(format!(
                "the value of tag \"{key}\" is none; it takes letters, digits and . _ : / @ + -, \
                 1 to {MAX_VALUE} characters"
            ));
        }
        if tags.insert(key.to_owned(), value.to_owned()).is_some() {
            return Err(format!("tag \"{key}\" is given twice"));
        }
    }
    Ok(tags)
}

fn is_key(key: &str) -> bool {
    key.len() <= MAX_KEY
        && key.starts_with(|c: char| c.is_ascii_lowercase())
        && key.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
}

fn is_value(value: &str) -> bool {
    (1..=MAX_VALUE).contains(&value.len())
        && value.bytes().all(|b| b.is_ascii_alphanumeric() || b"._:/@+-".contains(&b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_read() {
        let tags = parse("project=llm-7b,run=a/b:1.2@x+y_z").unwrap();
        assert_eq!(tags["project"], "llm-7b");
        assert_eq!(tags["run"], "a/b:1.2@x+y_z");
        let most = (0..8).map(|i| format!("k{i}={}", "v".repeat(64))).collect::<Vec<_>>().join(",");
        assert_eq!(parse(&most).unwrap().len(), 8);
        assert!(parse(&format!("{}=1", "k".repeat(32))).is_ok());
    }

    #[test]
    fn hostile_tags_are_refused_with_a_sentence_and_never_repeated() {
        let nine = (0..9).map(|i| format!("k{i}=v")).collect::<Vec<_>>().join(",");
        for (bad, why) in [
            ("", "tag 1 has no \"=\"; write KEY=VALUE"),
            ("project", "tag 1 has no"),
            ("a=1,", "tag 2 has no"),
            ("=x", "the key of tag 1 is none"),
            ("Project=x", "the key of tag 1"),
            ("9a=x", "the key of tag 1"),
            ("a=1,b b=x", "the key of tag 2"),
            ("a=", "the value of tag \"a\" is none"),
            ("a=x y", "the value of tag \"a\""),
            ("a=x\ny", "the value of tag \"a\""),
            ("a=\"}\n", "the value of tag \"a\""),
            ("a=$(reboot)", "the value of tag \"a\""),
            ("a=%s%n", "the value of tag \"a\""),
            ("a=\u{1b}[31m", "the value of tag \"a\""),
            ("a=\u{e4}", "the value of tag \"a\""),
            ("a=b=c", "the value of tag \"a\""),
            ("a=1,a=2", "tag \"a\" is given twice"),
            (&format!("a={}", "v".repeat(65)), "the value of tag \"a\""),
            (&format!("{}=1", "k".repeat(33)), "the key of tag 1"),
            (&nine, "there are more than 8 tags"),
        ] {
            let said = parse(bad).unwrap_err();
            assert!(said.starts_with(why), "{bad:?}: {said}");
            assert!(said.bytes().all(|b| b.is_ascii_graphic() || b == b' ') && said.len() < 200, "{said:?}");
        }
    }
}
