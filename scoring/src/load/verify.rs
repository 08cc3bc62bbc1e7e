//! Raw files: each against its digest, and every pointer into it.

use std::borrow::Cow;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use sha2::{Digest, Sha256};

use super::Loaded;
use crate::methodology::hex;
use crate::record::line;

/// SHA-256 of a file, in hex.
pub(crate) fn sha256_file(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 16];
    loop {
        let length = file.read(&mut buffer)?;
        if length == 0 {
            return Ok(hex(&hash.finalize()));
        }
        hash.update(&buffer[..length]);
    }
}

/// Larger raw files are checked by digest only.
const POINTER_LIMIT: u64 = 32 << 20;

/// Compares each raw file with its digest and looks up every pointer into it.
pub(super) fn verify(folder: &Path, loaded: &mut Loaded) {
    let numbers = loaded.entries.by_file(loaded.files.len());
    for (raw, numbers) in loaded.files.iter_mut().zip(numbers) {
        if numbers.is_empty() {
            continue;
        }
        let bytes = match read(&folder.join(&raw.file), &raw.sha256) {
            Ok(bytes) => bytes,
            Err(problem) => {
                for number in numbers {
                    let flaw = || format!("its evidence {} {problem}", raw.file).into_boxed_str();
                    loaded.entries.at_mut(number as usize).flaw.get_or_insert_with(flaw);
                }
                raw.problem = Some(problem);
                continue;
            }
        };
        let text = Text::of(bytes.as_deref(), &raw.file);
        for number in numbers {
            let entry = loaded.entries.at_mut(number as usize);
            if let Some((_, Some(pointer))) = &entry.evidence
                && !text.has(pointer)
            {
                let flaw = format!("its evidence {} has no {pointer}", raw.file).into_boxed_str();
                entry.flaw.get_or_insert(flaw);
            }
        }
    }
}

/// The bytes of a raw file that is as it was recorded; nothing of one that is too large to look into.
fn read(path: &Path, sha256: &str) -> Result<Option<Vec<u8>>, String> {
    let size = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err("is missing".to_owned()),
        Err(error) => return Err(format!("cannot be read: {error}")),
        Ok(data) if !data.is_file() => return Err("is not a regular file".to_owned()),
        Ok(data) => data.len(),
    };
    let unreadable = |error: io::Error| format!("cannot be read: {error}");
    let (found, bytes) = if size <= POINTER_LIMIT {
        let bytes = fs::read(path).map_err(unreadable)?;
        (hex(&Sha256::digest(&bytes)), Some(bytes))
    } else {
        (sha256_file(path).map_err(unreadable)?, None)
    };
    if found == sha256 {
        return Ok(bytes);
    }
    Err(format!("has changed: its sha256 is {}..., recorded is {}...", &found[..12], &sha256[..12]))
}

enum Text<'a> {
    Json(Tree<'a>),
    Lines(usize),
    Unchecked,
}

impl<'a> Text<'a> {
    fn of(bytes: Option<&'a [u8]>, name: &str) -> Self {
        let Some(bytes) = bytes else { return Self::Unchecked };
        if name.ends_with(".json") {
            return serde_json::from_slice(bytes).map_or(Self::Unchecked, Self::Json);
        }
        Self::Lines(bytes.split_inclusive(|byte| *byte == b'\n').count())
    }

    fn has(&self, pointer: &str) -> bool {
        match self {
            // RFC 6901: an empty one is the whole document.
            Self::Json(tree) => pointer.is_empty() || (pointer.starts_with('/') && tree.has(pointer)),
            Self::Lines(lines) => match pointer.strip_prefix("line:").map(str::parse::<usize>) {
                Some(Ok(line)) => line >= 1 && line <= *lines,
                Some(Err(_)) => false,
                None => true,
            },
            _ => true,
        }
    }
}

/// What there is in a JSON document, without its values.
#[derive(Debug)]
enum Tree<'a> {
    Object(Vec<(Cow<'a, str>, Tree<'a>)>),
    Array(Vec<Tree<'a>>),
    Leaf,
}

impl Tree<'_> {
    /// Whether a JSON pointer (RFC 6901) that begins with `/` leads somewhere.
    fn has(&self, pointer: &str) -> bool {
        let mut at = self;
        for token in pointer.split('/').skip(1) {
            let token: Cow<'_, str> = if token.contains('~') {
                token.replace("~1", "/").replace("~0", "~").into()
            } else {
                token.into()
            };
            let next = match at {
                Self::Object(members) => members
                    .binary_search_by(|(name, _)| (**name).cmp(&*token))
                    .ok()
                    .map(|place| &members[place].1),
                Self::Array(items) => {
                    let plain = token.bytes().all(|byte| byte.is_ascii_digit())
                        && (token.len() == 1 || !token.starts_with('0'));
                    token.parse::<usize>().ok().filter(|_| plain).and_then(|index| items.get(index))
                }
                Self::Leaf => None,
            };
            match next {
                Some(next) => at = next,
                None => return false,
            }
        }
        true
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Tree<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Trees)
    }
}

struct Trees;

impl<'de> Visitor<'de> for Trees {
    type Value = Tree<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, _: bool) -> Result<Tree<'de>, E> {
        Ok(Tree::Leaf)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Tree<'de>, E> {
        Ok(Tree::Leaf)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Tree<'de>, E> {
        Ok(Tree::Leaf)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Tree<'de>, E> {
        Ok(Tree::Leaf)
    }

    fn visit_str<E>(self, _: &str) -> Result<Tree<'de>, E> {
        Ok(Tree::Leaf)
    }

    fn visit_unit<E>(self) -> Result<Tree<'de>, E> {
        Ok(Tree::Leaf)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Tree<'de>, A::Error> {
        let mut found = Vec::new();
        while let Some(item) = items.next_element()? {
            found.push(item);
        }
        Ok(Tree::Array(found))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Tree<'de>, A::Error> {
        let mut found: Vec<(Cow<'de, str>, Tree<'de>)> = Vec::new();
        while let Some(name) = members.next_key::<line::Text<'de>>()? {
            found.push((name.0, members.next_value()?));
        }
        // Of a name that is there twice the last one counts, as everywhere in serde_json.
        found.reverse();
        found.sort_by(|(a, _), (b, _)| a.cmp(b));
        found.dedup_by(|(a, _), (b, _)| a == b);
        Ok(Tree::Object(found))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_pointer_leads_where_serde_json_says(
            pointer in "(/([a-c~]|~0|~1|[0-3]|00|01|-|\\+1)?){0,4}",
        ) {
            let text = r#"{"a":{"b":[1,{"c":null},[true,"x",2.5]],"0":{"01":-1}},"":{"":0},"~":1,"/":{"b":2},"b":1,"b":{"c":3}}"#;
            let value: serde_json::Value = serde_json::from_str(text).unwrap();
            let tree: Tree<'_> = serde_json::from_str(text).unwrap();
            prop_assert_eq!(tree.has(&pointer), value.pointer(&pointer).is_some(), "{}", pointer);
        }
    }
}
