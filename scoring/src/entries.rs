//! Records in memory: sorted, and every text, set of params and subject kept once however many records share it.

use std::borrow::Borrow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::{self, Display};
use std::hash::Hash;
use std::ops::Deref;
use std::sync::Arc;

use crate::record::{Provenance, Scalar, State, Subject};

/// A text that many records share.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Arc<str>);

impl Deref for Name {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for Name {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl PartialEq<str> for Name {
    fn eq(&self, other: &str) -> bool {
        *self.0 == *other
    }
}

impl PartialEq<&str> for Name {
    fn eq(&self, other: &&str) -> bool {
        *self.0 == **other
    }
}

impl PartialEq<String> for Name {
    fn eq(&self, other: &String) -> bool {
        *self.0 == **other
    }
}

impl From<&str> for Name {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

/// What tells one record from another. The order is that of reports.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// Stage.
    pub stage: Name,
    /// Metric.
    pub metric: Name,
    /// Params, whole numbers canonical.
    pub params: Arc<BTreeMap<String, Scalar>>,
    /// Subject.
    pub subject: Arc<Subject>,
}

/// A record without its key.
#[derive(Debug, Clone)]
pub struct Entry {
    /// The value as recorded.
    pub value: Option<f64>,
    /// Its unit.
    pub unit: Name,
    /// The state as recorded.
    pub state: State,
    /// How it is known.
    pub provenance: Provenance,
    /// Index into [`crate::load::Loaded::files`] and the pointer in that file.
    pub evidence: Option<(usize, Option<Name>)>,
    /// As recorded.
    pub detail: Option<Name>,
    /// Why the value is not believed.
    pub flaw: Option<Box<str>>,
    /// Line of records.jsonl, 0 for what another file stated.
    pub(crate) line: u64,
}

impl Entry {
    /// An entry without evidence, for tests of the rules.
    #[cfg(test)]
    pub(crate) fn new(
        value: Option<f64>,
        state: State,
        provenance: Provenance,
        detail: Option<String>,
    ) -> Self {
        Self {
            value,
            unit: Name::from(""),
            state,
            provenance,
            evidence: None,
            detail: detail.as_deref().map(Name::from),
            flaw: None,
            line: 0,
        }
    }

    /// The value, when it is measured and nothing is wrong with it.
    pub fn believed(&self) -> Option<f64> {
        match (self.state, &self.flaw) {
            (State::Measured, None) => self.value,
            _ => None,
        }
    }
}

/// Records by key, in the order of keys; every key is there once.
#[derive(Debug, Clone, Default)]
pub struct Entries(Vec<(Key, Entry)>);

impl Entries {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All of them in the order of keys.
    pub fn iter(&self) -> impl Iterator<Item = (&Key, &Entry)> + Clone {
        self.0.iter().map(|(key, entry)| (key, entry))
    }

    /// All of them, to be changed.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&Key, &mut Entry)> {
        self.0.iter_mut().map(|(key, entry)| (&*key, entry))
    }

    /// Runs of records of one stage and metric.
    pub fn runs(&self) -> impl Iterator<Item = &[(Key, Entry)]> {
        self.0.chunk_by(|(a, _), (b, _)| a.stage == b.stage && a.metric == b.metric)
    }

    /// Puts a record in its place, over one with the same key.
    pub(crate) fn replace(&mut self, key: Key, entry: Entry) {
        match self.0.binary_search_by(|(known, _)| known.cmp(&key)) {
            Ok(place) => self.0[place].1 = entry,
            Err(place) => self.0.insert(place, (key, entry)),
        }
    }

    /// By number, as [`Entries::by_file`] gives it.
    pub(crate) fn at_mut(&mut self, index: usize) -> &mut Entry {
        &mut self.0[index].1
    }

    /// Numbers of the records that point into each of `files` raw files.
    pub(crate) fn by_file(&self, files: usize) -> Vec<Vec<u32>> {
        let mut numbers = vec![Vec::new(); files];
        for (index, (_, entry)) in self.0.iter().enumerate() {
            if let Some((file, _)) = entry.evidence {
                numbers[file].push(index as u32);
            }
        }
        numbers
    }
}

impl<'a> IntoIterator for &'a Entries {
    type Item = &'a (Key, Entry);
    type IntoIter = std::slice::Iter<'a, (Key, Entry)>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

/// Values that are the same are kept once and numbered in the order of first appearance.
struct Pool<T> {
    numbers: HashMap<T, u32>,
    values: Vec<T>,
}

impl<T: Hash + Eq + Ord + Clone> Pool<T> {
    fn new() -> Self {
        Self { numbers: HashMap::new(), values: Vec::new() }
    }

    fn number<Q: Hash + Eq + ?Sized>(&mut self, value: &Q, own: impl FnOnce() -> T) -> u32
    where
        T: Borrow<Q>,
    {
        if let Some(number) = self.numbers.get(value) {
            return *number;
        }
        let number = self.values.len() as u32;
        let own = own();
        self.values.push(own.clone());
        self.numbers.insert(own, number);
        number
    }

    fn text(&self, number: u32) -> T {
        self.values[number as usize].clone()
    }
}

/// Rank of each value in sorted order.
fn ranks<T: Ord>(values: &[T]) -> Vec<u32> {
    let mut order: Vec<u32> = (0..values.len() as u32).collect();
    order.sort_unstable_by(|a, b| values[*a as usize].cmp(&values[*b as usize]));
    let mut ranks = vec![0; values.len()];
    for (rank, number) in order.into_iter().enumerate() {
        ranks[number as usize] = rank as u32;
    }
    ranks
}

/// Gathers records in any order. Memory follows the distinct keys, not the length of the file: a second record with a
/// key that is there is refused at once.
pub(crate) struct Gatherer {
    names: Pool<Name>,
    params: Pool<Arc<BTreeMap<String, Scalar>>>,
    subjects: Pool<Arc<Subject>>,
    /// Number of the params that a JSON text means; one meaning may be written in several ways.
    params_texts: HashMap<Box<str>, u32>,
    subject_texts: HashMap<Box<str>, u32>,
    keys: HashSet<[u32; 4]>,
    rows: Vec<([u32; 4], Entry)>,
}

/// Other spellings of the same params that are remembered; beyond them each is parsed anew.
const SPELLINGS: usize = 1 << 20;

impl Gatherer {
    pub(crate) fn new() -> Self {
        Self {
            names: Pool::new(),
            params: Pool::new(),
            subjects: Pool::new(),
            params_texts: HashMap::new(),
            subject_texts: HashMap::new(),
            keys: HashSet::new(),
            rows: Vec::new(),
        }
    }

    /// The shared text.
    pub(crate) fn name(&mut self, text: &str) -> Name {
        let number = self.names.number(text, || Name::from(text));
        self.names.text(number)
    }

    /// Number of a text, for [`Gatherer::put`].
    pub(crate) fn number(&mut self, text: &str) -> u32 {
        self.names.number(text, || Name::from(text))
    }

    /// Number of the params that a JSON object means.
    ///
    /// # Errors
    /// Those of the parser.
    pub(crate) fn params(&mut self, json: &str) -> Result<u32, serde_json::Error> {
        if let Some(number) = self.params_texts.get(json) {
            return Ok(*number);
        }
        let params: BTreeMap<String, Scalar> = serde_json::from_str(json)?;
        let params: BTreeMap<String, Scalar> =
            params.into_iter().map(|(key, value)| (key, value.canonical())).collect();
        let number = match self.params.numbers.get(&params) {
            Some(number) => *number,
            None => {
                let params = Arc::new(params);
                self.params.number(&*params, || Arc::clone(&params))
            }
        };
        if self.params_texts.len() < SPELLINGS {
            self.params_texts.insert(json.into(), number);
        }
        Ok(number)
    }

    /// Number of the subject that a JSON object means.
    ///
    /// # Errors
    /// Those of the parser.
    pub(crate) fn subject(&mut self, json: &str) -> Result<u32, serde_json::Error> {
        if let Some(number) = self.subject_texts.get(json) {
            return Ok(*number);
        }
        let subject = Arc::new(serde_json::from_str::<Subject>(json)?);
        let number = self.subjects.number(&*subject, || Arc::clone(&subject));
        if self.subject_texts.len() < SPELLINGS {
            self.subject_texts.insert(json.into(), number);
        }
        Ok(number)
    }

    /// Adds a record. `key` is the numbers of stage, metric, params and subject.
    ///
    /// # Errors
    /// The key and the line of the record that has it already.
    pub(crate) fn put(&mut self, key: [u32; 4], entry: Entry) -> Result<(), (Key, u64)> {
        if self.keys.insert(key) {
            self.rows.push((key, entry));
            return Ok(());
        }
        let line = self.rows.iter().find(|(known, _)| *known == key).map_or(0, |(_, entry)| entry.line);
        Err((self.key(key), line))
    }

    fn key(&self, [stage, metric, params, subject]: [u32; 4]) -> Key {
        Key {
            stage: self.names.text(stage),
            metric: self.names.text(metric),
            params: self.params.text(params),
            subject: self.subjects.text(subject),
        }
    }

    /// All records in the order of keys.
    pub(crate) fn finish(self) -> Entries {
        let names = ranks(&self.names.values);
        let params = ranks(&self.params.values);
        let subjects = ranks(&self.subjects.values);
        let mut order: Vec<([u32; 4], u32)> = self
            .rows
            .iter()
            .enumerate()
            .map(|(index, ([a, b, c, d], _))| {
                let key =
                    [names[*a as usize], names[*b as usize], params[*c as usize], subjects[*d as usize]];
                (key, index as u32)
            })
            .collect();
        order.sort_unstable();
        let Self { names, params, subjects, rows, .. } = self;
        let mut rows: Vec<Option<([u32; 4], Entry)>> = rows.into_iter().map(Some).collect();
        let entries = order
            .into_iter()
            .filter_map(|(_, index)| rows[index as usize].take())
            .map(|([stage, metric, of, subject], entry)| {
                let key = Key {
                    stage: names.text(stage),
                    metric: names.text(metric),
                    params: params.text(of),
                    subject: subjects.text(subject),
                };
                (key, entry)
            })
            .collect();
        Entries(entries)
    }
}
