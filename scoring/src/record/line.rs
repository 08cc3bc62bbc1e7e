//! A line of records.jsonl without copies: scoring reads a million of them and keeps each text once.

use std::borrow::Cow;
use std::fmt;
use std::ops::Deref;

use serde::de::{self, Deserialize, Deserializer, Visitor};
use serde_json::value::RawValue;

use super::{Provenance, SCHEMA, State, check_evidence, check_value};

/// A text that is a part of the line unless it has escapes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Text<'a>(pub(crate) Cow<'a, str>);

impl Deref for Text<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Texts;

        impl<'de> Visitor<'de> for Texts {
            type Value = Text<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_borrowed_str<E: de::Error>(self, text: &'de str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Borrowed(text)))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(text.to_owned())))
            }
        }

        deserializer.deserialize_str(Texts)
    }
}

/// The text of a JSON value; of a key that is absent, an empty object.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Raw<'a>(pub(crate) &'a str);

impl Default for Raw<'_> {
    fn default() -> Self {
        Self("{}")
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Raw<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        <&RawValue>::deserialize(deserializer).map(|raw| Self(raw.get()))
    }
}

/// [`super::Record`], borrowed. Params and subject are kept as text, since few of them are distinct.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Line<'a> {
    #[serde(borrow)]
    schema: Text<'a>,
    #[serde(borrow)]
    pub(crate) run: Text<'a>,
    #[serde(borrow)]
    pub(crate) cluster: Text<'a>,
    #[serde(borrow)]
    pub(crate) stage: Text<'a>,
    #[serde(borrow)]
    pub(crate) metric: Text<'a>,
    pub(crate) value: Option<f64>,
    #[serde(borrow)]
    pub(crate) unit: Text<'a>,
    pub(crate) state: State,
    #[serde(borrow, default)]
    pub(crate) params: Raw<'a>,
    #[serde(borrow, default)]
    pub(crate) subject: Raw<'a>,
    pub(crate) provenance: Provenance,
    #[serde(borrow, default)]
    pub(crate) evidence: Option<Evidence<'a>>,
    #[serde(borrow, default)]
    pub(crate) detail: Option<Text<'a>>,
    #[serde(borrow, default, rename = "tool")]
    _tool: Option<Text<'a>>,
    #[serde(borrow, default, rename = "command")]
    _command: Option<Text<'a>>,
    #[serde(borrow, default, rename = "job")]
    _job: Option<Text<'a>>,
    #[serde(borrow, default, rename = "started")]
    _started: Option<Text<'a>>,
    #[serde(default)]
    seconds: Option<f64>,
    #[serde(default)]
    pub(crate) of: Option<u32>,
}

/// [`super::Evidence`], borrowed.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Evidence<'a> {
    #[serde(borrow)]
    pub(crate) file: Text<'a>,
    #[serde(borrow)]
    pub(crate) sha256: Text<'a>,
    #[serde(borrow, default)]
    pub(crate) pointer: Option<Text<'a>>,
}

impl<'a> Line<'a> {
    /// The record of a line, but for its params and subject; nothing when anything is wrong with it: the reader then
    /// looks again with [`super::parse`], which says what.
    pub(crate) fn parse(line: &'a [u8]) -> Option<Self> {
        let text = std::str::from_utf8(line).ok()?;
        let record: Self = serde_json::from_str(text).ok()?;
        let sound = *record.schema == *SCHEMA
            && check_value(
                record.state,
                record.value,
                [("run", &record.run), ("stage", &record.stage), ("metric", &record.metric)],
                record.seconds,
                record.evidence.is_some(),
            )
            .is_ok()
            && record.evidence.as_ref().is_none_or(|one| check_evidence(&one.file, &one.sha256).is_ok());
        sound.then_some(record)
    }
}
