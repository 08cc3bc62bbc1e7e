//! Drain reasons: our grammar (version 1, see `docs/interfaces.md`) and the texts that Slurm writes itself.

use healthcheck::verdict::{Action, REASON_MAX, REASON_PREFIX, ascii};

/// Joins a new reason and the one it replaced.
const WAS: &str = "; was: ";
/// Token of the reasons that a degraded rack-scale domain leaves on its other trays.
pub const RACK: &str = "rack";

/// Slurm's own reasons, one a line.
const SLURM_REASONS: &str = include_str!("../data/slurm-reasons.txt");

/// Why a text cannot be a drain reason of ours.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ReasonError {
    /// Wrong or missing prefix.
    #[error(
        "the reason \"{0}\" does not start with \"{REASON_PREFIX}\": give it as `cmx:TOKEN TEXT; act=ACTION id=8HEX`"
    )]
    Prefix(String),
    /// Nothing after the prefix.
    #[error(
        "the reason has no text after \"{REASON_PREFIX}\": give it as `cmx:TOKEN TEXT; act=ACTION id=8HEX`"
    )]
    Empty,
}

/// A reason of ours, taken apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reason<'a> {
    /// Token of the check: `xid79`.
    pub token: &'a str,
    /// Device and text: `g3 GPU fell off the bus`.
    pub text: &'a str,
    /// What mends it, where the grammar of the writer has it.
    pub action: Option<Action>,
    /// The same fault has the same id.
    pub id: Option<&'a str>,
    /// The reason that this one replaced.
    pub was: Option<&'a str>,
}

impl<'a> Reason<'a> {
    /// Takes a reason of ours apart; `None` when it is not ours. A reason of ours that another version
    /// wrote is still ours: parts that are not understood are left out.
    #[must_use]
    pub fn parse(text: &'a str) -> Option<Self> {
        let body = text.strip_prefix(REASON_PREFIX)?;
        let (body, was) = match body.split_once(WAS) {
            Some((body, was)) => (body, Some(was)),
            None => (body, None),
        };
        let (head, tail) = body.rsplit_once("; act=").unwrap_or((body, ""));
        let (token, text) = head.split_once(' ').unwrap_or((head, ""));
        let mut words = tail.split(' ');
        let action = words.next().and_then(action);
        // Slurm may append " : TEXT" after the id.
        let id = words.find_map(|w| w.strip_prefix("id=")).filter(|id| is_id(id));
        Some(Reason { token, text, action, id, was })
    }
}

fn is_id(id: &str) -> bool {
    id.len() == 8 && id.bytes().all(|b| b.is_ascii_hexdigit())
}

fn action(word: &str) -> Option<Action> {
    [Action::None, Action::TellUser, Action::RestartService, Action::ResetGpu, Action::Reboot, Action::Repair]
        .into_iter()
        .find(|a| a.word() == word)
}

/// True when a program of this suite wrote the reason, whichever version of the grammar it knows.
#[must_use]
pub fn is_ours(text: &str) -> bool {
    text.starts_with(REASON_PREFIX) || is_of_other_version(text)
}

/// True for `cmx2:`, `cmx3:` and so on: a reason of this suite in a grammar that this release cannot read. Such a drain
/// counts for the brake and is left as it is: not replaced, not taken back, not given back.
#[must_use]
pub fn is_of_other_version(text: &str) -> bool {
    let name = REASON_PREFIX.trim_end_matches(':');
    let Some((version, _)) = text.strip_prefix(name).and_then(|rest| rest.split_once(':')) else {
        return false;
    };
    version.len() <= 3 && version.parse::<u16>().is_ok_and(|v| v >= 2) && !version.starts_with(['+', '0'])
}

/// True when Slurm wrote the reason by itself, so that nobody's decision is lost by replacing it.
#[must_use]
pub fn is_slurms_own(text: &str) -> bool {
    SLURM_REASONS
        .lines()
        .filter(|own| !own.is_empty() && !own.starts_with('#'))
        .any(|own| text.strip_prefix(own).is_some_and(|rest| rest.is_empty() || rest.starts_with(" : ")))
}

/// Checks a reason given from outside and makes it fit: printable ASCII, one line, at most
/// [`REASON_MAX`] bytes. What is too long loses text from its middle; action and id stay.
///
/// # Errors
/// [`ReasonError`] when it is not in our grammar at all.
pub fn normalise(text: &str) -> Result<String, ReasonError> {
    let text = ascii(text);
    let text = text.trim();
    let Some(body) = text.strip_prefix(REASON_PREFIX) else {
        return Err(ReasonError::Prefix(text.chars().take(40).collect()));
    };
    if body.trim().is_empty() {
        return Err(ReasonError::Empty);
    }
    if text.len() <= REASON_MAX {
        return Ok(text.to_string());
    }
    let (main, was) = text.split_once(WAS).unwrap_or((text, ""));
    let main = match main.rfind("; act=").map(|at| main.split_at(at)) {
        Some((head, tail)) if tail.len() < REASON_MAX => {
            format!("{}{tail}", cut(head, REASON_MAX - tail.len()))
        }
        _ => cut(main, REASON_MAX).to_string(),
    };
    Ok(replacing(&main, was))
}

/// `NEW; was: OLD` within [`REASON_MAX`] bytes: the old text is cut, the new one never.
#[must_use]
pub fn replacing(new: &str, old: &str) -> String {
    let old = ascii(old);
    let room = REASON_MAX.saturating_sub(new.len() + WAS.len());
    // A few letters of an old reason say nothing.
    if old.trim().is_empty() || room < old.len().min(8) {
        return new.to_string();
    }
    format!("{new}{WAS}{}", cut(&old, room))
}

/// The first `max` bytes of an ASCII text, without blanks at the end.
fn cut(ascii_text: &str, max: usize) -> &str {
    ascii_text.get(..max).unwrap_or(ascii_text).trim_end()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_reasons_are_taken_apart() {
        let r = Reason::parse("cmx:xid79 g3 GPU fell off the bus; act=reboot id=3f2a91bc").unwrap();
        assert_eq!(
            r,
            Reason {
                token: "xid79",
                text: "g3 GPU fell off the bus",
                action: Some(Action::Reboot),
                id: Some("3f2a91bc"),
                was: None
            }
        );
        // (reason, action, id, was)
        type Row = (&'static str, Option<Action>, Option<&'static str>, Option<&'static str>);
        let rows: &[Row] = &[
            (
                "cmx:x t; act=repair id=00000000; was: Prolog error",
                Some(Action::Repair),
                Some("00000000"),
                Some("Prolog error"),
            ),
            // Slurm appended to ours.
            (
                "cmx:x t; act=repair id=00000000 : Not responding",
                Some(Action::Repair),
                Some("00000000"),
                None,
            ),
            // Nested: the first "was" opens the old reason, whole.
            (
                "cmx:b t; act=repair id=00000001; was: cmx:a t; act=reboot id=00000002; was: Prolog error",
                Some(Action::Repair),
                Some("00000001"),
                Some("cmx:a t; act=reboot id=00000002; was: Prolog error"),
            ),
            // Text with a semicolon.
            ("cmx:x a; b; act=reset_gpu id=0000000a", Some(Action::ResetGpu), Some("0000000a"), None),
            // Of another version, or cut: still ours.
            ("cmx:x", None, None, None),
            ("cmx:x t; act=explode id=12", None, None, None),
            ("cmx:x t; act=reboot id=1234567g", Some(Action::Reboot), None, None),
            ("cmx:x t; act=reboot", Some(Action::Reboot), None, None),
        ];
        for (text, action, id, was) in rows {
            let r = Reason::parse(text).unwrap();
            assert_eq!((r.action, r.id, r.was), (*action, *id, *was), "{text}");
        }
        for newer in ["cmx2:x", "cmx17:{}", "cmx999:"] {
            assert!(is_ours(newer) && is_of_other_version(newer), "{newer}");
            assert_eq!(Reason::parse(newer), None, "{newer}");
        }
        assert!(!is_of_other_version("cmx:x"));
        for foreign in [
            "",
            "cmx",
            " cmx:x",
            "CMX:x",
            "maintenance cmx:x",
            "NHC: cmx:x",
            "cmx1:x",
            "cmx02:x",
            "cmx+2:x",
            "cmx-2:x",
            "cmx2 x",
            "cmxx:x",
        ] {
            assert_eq!(Reason::parse(foreign), None, "{foreign}");
            assert!(!is_ours(foreign));
        }
    }

    #[test]
    fn slurms_own_reasons_are_known_by_their_start() {
        for own in [
            "Prolog error",
            "Epilog error",
            "Not responding",
            "Duplicate jobid",
            "Kill task failed",
            "batch job complete failure",
            "Not responding : Prolog error",
            "Kill task failed : Not responding",
        ] {
            assert!(is_slurms_own(own), "{own}");
        }
        for not in [
            "",
            "# Reasons",
            "Prolog error on rack 3, ticket 17",
            "Prolog errors",
            "prolog error",
            "Not responding: switch 4",
            "maintenance : Not responding",
            "gres/gpu count reported lower than configured (7 < 8)",
            "Reboot ASAP",
            "cmx:xid79 g3 t; act=reboot id=3f2a91bc",
        ] {
            assert!(!is_slurms_own(not), "{not}");
        }
    }

    #[test]
    fn a_replaced_reason_is_kept_within_the_limit() {
        let new = "cmx:xid79 g3 t; act=reboot id=3f2a91bc";
        assert_eq!(replacing(new, "Prolog error"), format!("{new}; was: Prolog error"));
        assert_eq!(replacing(new, ""), new);
        assert_eq!(replacing(new, "a\n\"b\""), format!("{new}; was: a _b_"));
        let long = replacing(new, &"x".repeat(500));
        assert_eq!(long.len(), REASON_MAX);
        assert!(long.starts_with(&format!("{new}; was: xxx")));
        let full = format!("cmx:{}", "y".repeat(REASON_MAX - 4));
        assert_eq!(replacing(&full, "Prolog error"), full);
    }

    #[test]
    fn reasons_from_outside_are_made_to_fit() {
        let good = "cmx:xid79 g3 t; act=reboot id=3f2a91bc";
        assert_eq!(normalise(good).unwrap(), good);
        assert_eq!(normalise("cmx:x a\nb\"c").unwrap(), "cmx:x a b_c");
        assert_eq!(normalise("maintenance"), Err(ReasonError::Prefix("maintenance".into())));
        assert_eq!(normalise("cmx:  "), Err(ReasonError::Empty));
        let long = format!("cmx:xid79 g3 {}; act=reboot id=3f2a91bc; was: Prolog error", "x".repeat(400));
        let fitted = normalise(&long).unwrap();
        assert_eq!(fitted.len(), REASON_MAX);
        let parsed = Reason::parse(&fitted).unwrap();
        assert_eq!((parsed.action, parsed.id), (Some(Action::Reboot), Some("3f2a91bc")));
        assert_eq!(normalise(&format!("cmx:{}", "é".repeat(400))), Err(ReasonError::Empty));
    }
}
