//! Floods: equal events counted, in bounded memory.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::policy::{Drain, Severity, Table, policy};
use super::{KernelEvent, Kind};
use crate::kernel_lines;

/// Most different events that a [`Fold`] keeps apart by their text.
pub(super) const FOLD_MAX: usize = 1024;

/// Equal events, counted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Folded {
    /// The first of them.
    pub event: KernelEvent,
    /// How many.
    pub count: u64,
    /// Sequence number of the last.
    pub last_seq: u64,
    /// Microseconds since boot of the last.
    pub last_usec: u64,
}

/// Counts equal events together: same device, MIG instance, code, meaning, origin and text without its numbers. Floods of
/// hundreds of thousands of lines, 29 of them different, were seen; memory is bounded whatever comes.
#[derive(Debug, Default)]
pub struct Fold {
    pub(super) order: Vec<Folded>,
    index: HashMap<FoldKey, usize>,
    overflow: u64,
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct FoldKey {
    table: Table,
    code: u32,
    pci: Option<String>,
    gi: Option<u32>,
    ci: Option<u32>,
    meaning: (Severity, &'static str, Drain),
    synthetic: bool,
    text: String,
}

impl Fold {
    /// Adds one event.
    pub fn add(&mut self, event: KernelEvent) {
        let mut key = FoldKey::of(&event);
        if !self.index.contains_key(&key) && self.order.len() >= FOLD_MAX {
            key.text.clear();
            if !self.index.contains_key(&key) && self.order.len() >= 2 * FOLD_MAX {
                self.overflow += 1;
                return;
            }
        }
        let at = *self.index.entry(key).or_insert(self.order.len());
        match self.order.get_mut(at) {
            Some(folded) => {
                folded.count += 1;
                folded.last_seq = event.seq;
                folded.last_usec = event.usec;
            }
            None => {
                let (last_seq, last_usec) = (event.seq, event.usec);
                self.order.push(Folded { event, count: 1, last_seq, last_usec });
            }
        }
    }

    /// Events that found no place in the bounded memory.
    #[must_use]
    pub fn overflow(&self) -> u64 {
        self.overflow
    }

    /// The different events, in the order in which each was first seen.
    #[must_use]
    pub fn finish(self) -> Vec<Folded> {
        self.order
    }
}

impl FoldKey {
    fn of(event: &KernelEvent) -> Self {
        let (table, code, gi, ci) = match &event.kind {
            Kind::Xid { code, gi, ci, .. } => (Table::Xid, *code, *gi, *ci),
            Kind::Sxid { code, .. } => (Table::Sxid, *code, None, None),
            Kind::Text(text) => (Table::Text, *text as u32, None, None),
            Kind::Line { row, .. } => {
                (Table::Line, kernel_lines::row(row).map_or(u32::MAX, |(at, _)| at), None, None)
            }
        };
        let policy = policy(event);
        FoldKey {
            table,
            code,
            pci: event.pci.clone(),
            gi,
            ci,
            meaning: (policy.severity, policy.action.word(), policy.drain),
            synthetic: event.synthetic,
            text: fold_text(event),
        }
    }
}

/// What tells events of one code apart. Of lines that count only within minutes, no two are folded that are not.
fn fold_text(event: &KernelEvent) -> String {
    let text = without_numbers(&event.message);
    match event.device() {
        Some(device) => format!("{device} {text}"),
        None if kernel_lines::needs_repetition(event) => format!("{} {text}", event.usec / 1_000_000),
        None => text,
    }
}

/// Every number, decimal or hexadecimal, becomes `#`.
fn without_numbers(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for word in text.split_inclusive(|c: char| !c.is_ascii_alphanumeric()) {
        let body = word.trim_end_matches(|c: char| !c.is_ascii_alphanumeric());
        if body.bytes().any(|b| b.is_ascii_digit()) {
            out.push('#');
            out.push_str(&word[body.len()..]);
        } else {
            out.push_str(word);
        }
    }
    out
}

/// Folds events; see [`Fold`].
#[must_use]
pub fn fold(events: impl IntoIterator<Item = KernelEvent>) -> Vec<Folded> {
    let mut fold = Fold::default();
    events.into_iter().for_each(|e| fold.add(e));
    fold.finish()
}
