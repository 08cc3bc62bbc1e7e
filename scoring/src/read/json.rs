//! JSON as tools really write it: text before the document, bare `inf` and `nan`, a document that was never closed.

use serde_json::Value;

/// A document and what had to be mended in it.
#[derive(Debug, Clone, PartialEq)]
pub struct Document {
    /// The document; a bare `inf` or `nan` is a string of that word, so that it is no number.
    pub value: Value,
    /// It ended inside an array or object: its writer was stopped.
    pub unclosed: bool,
}

/// The first document of `text` that begins at or after its first `{` or `[`.
#[must_use]
pub fn read(text: &str) -> Option<Document> {
    let start = text.find(['{', '['])?;
    let text = &text[start..];
    let mut stream = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    if let Some(Ok(value)) = stream.next() {
        return Some(Document { value, unclosed: false });
    }
    let (mended, unclosed) = mend(text)?;
    let value = serde_json::from_str(&mended).ok()?;
    Some(Document { value, unclosed })
}

/// All documents of a text with one a line (or one after the other), as far as they can be read.
#[must_use]
pub fn read_all(text: &str) -> Vec<Value> {
    let Some(start) = text.find(['{', '[']) else { return Vec::new() };
    let strict: Vec<Value> = serde_json::Deserializer::from_str(&text[start..])
        .into_iter::<Value>()
        .map_while(Result::ok)
        .collect();
    if strict.is_empty() { read(text).map(|document| document.value).into_iter().collect() } else { strict }
}

/// Quotes bare words that are no JSON and closes what is open, after the last whole element.
fn mend(text: &str) -> Option<(String, bool)> {
    let mut out = String::with_capacity(text.len() + 16);
    let mut open: Vec<char> = Vec::new();
    // Length of `out` and depth after the last whole element.
    let mut whole: Option<(usize, usize)> = None;
    let mut chars = text.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => {
                let mut end = None;
                let mut escaped = false;
                for (at, c) in chars.by_ref() {
                    match c {
                        _ if escaped => escaped = false,
                        '\\' => escaped = true,
                        '"' => {
                            end = Some(at);
                            break;
                        }
                        _ => {}
                    }
                }
                let Some(end) = end else { break };
                // A raw control character is not allowed in a JSON string; writers that cut values leave some.
                out.extend(text[at..=end].chars().map(|c| if c < ' ' { ' ' } else { c }));
            }
            '{' | '[' => {
                open.push(if c == '{' { '}' } else { ']' });
                out.push(c);
            }
            '}' | ']' => {
                if open.pop() != Some(c) {
                    return None;
                }
                out.push(c);
                whole = Some((out.len(), open.len()));
                if open.is_empty() {
                    return Some((out, false));
                }
            }
            ',' => {
                whole = Some((out.len(), open.len()));
                out.push(c);
            }
            c if c.is_ascii_alphanumeric() || matches!(c, '-' | '+' | '.') => {
                let mut end = at + c.len_utf8();
                while let Some((next, c)) = chars.peek().copied() {
                    if !(c.is_ascii_alphanumeric() || matches!(c, '-' | '+' | '.')) {
                        break;
                    }
                    end = next + c.len_utf8();
                    chars.next();
                }
                let word = &text[at..end];
                if serde_json::from_str::<Value>(word).is_ok() {
                    out.push_str(word);
                } else {
                    out.push('"');
                    out.push_str(word);
                    out.push('"');
                }
            }
            c => out.push(c),
        }
    }
    let (length, depth) = whole?;
    out.truncate(length);
    out.extend(open.get(..depth)?.iter().rev());
    Some((out, true))
}

/// A number, also one that its writer put into a string (`"396.10"`, `"nan"`); none for anything else.
#[must_use]
pub fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => text.trim().replace(',', "").trim_start_matches('+').parse().ok(),
        _ => None,
    }
}

/// True, also as the string that nccl-tests writes.
#[must_use]
pub fn is(value: &Value, word: &str) -> bool {
    value.as_str() == Some(word) || value.as_bool().is_some_and(|flag| flag.to_string() == word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bare_words_and_open_ends_are_mended() {
        let document = read(r#"warning {x"#);
        assert_eq!(document, None);
        let document = read(
            r#"note
            {"a":inf,"b":-inf,"c":[1,nan,3]}"#,
        )
        .unwrap();
        assert_eq!(document.value, serde_json::json!({"a":"inf","b":"-inf","c":[1,"nan",3]}));
        assert!(!document.unclosed);
        for (cut, whole) in [
            (r#"{"a":1,"rows":[{"x":1},{"x":2},{"x"#, r#"{"a":1,"rows":[{"x":1},{"x":2}]}"#),
            (r#"{"a":1,"rows":[{"x":1,"y":"#, r#"{"a":1,"rows":[{"x":1}]}"#),
            (r#"{"a":"one","b":"tw"#, r#"{"a":"one"}"#),
        ] {
            let document = read(cut).unwrap();
            assert_eq!(document.value, serde_json::from_str::<Value>(whole).unwrap());
            assert!(document.unclosed);
        }
        assert_eq!(read("{]"), None);
        assert_eq!(read("[]trailing").unwrap().value, serde_json::json!([]));
    }

    proptest::proptest! {
        #[test]
        fn nothing_panics(text in "(?s).{0,200}") {
            let _ = read(&text);
            let _ = read_all(&text);
        }

        #[test]
        fn json_like_text_does_not_panic(text in r#"[\[\]{}",:a-f0-9inf\\ é-]{0,80}"#) {
            let _ = read(&text);
        }
    }
}
