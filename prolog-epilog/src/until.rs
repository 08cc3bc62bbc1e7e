//! Points in time as operators write them: `2h`, `3d`, `2026-12-24`, `2026-12-24T08:00`, RFC 3339.

use jiff::{Timestamp, Zoned, civil};

/// Seconds since the epoch; a date or time without a zone is a local one.
///
/// # Errors
/// One sentence with the forms that are understood.
pub fn parse(text: &str, now: &Zoned) -> Result<i64, String> {
    let text = text.trim();
    if let Some(seconds) = span(text) {
        return Ok(now.timestamp().as_second().saturating_add(seconds));
    }
    if let Ok(time) = text.parse::<Timestamp>() {
        return Ok(time.as_second());
    }
    let local = text.parse::<civil::DateTime>().ok().and_then(|t| t.to_zoned(now.time_zone().clone()).ok());
    local.map(|t| t.timestamp().as_second()).ok_or_else(|| {
        format!(
            "--until \"{text}\" is no time: give 90m, 2h, 3d, 1w, a date like 2026-12-24, or a time like 2026-12-24T08:00"
        )
    })
}

/// `2h`: a number and one of m, h, d, w; in seconds.
fn span(text: &str) -> Option<i64> {
    let unit = match text.chars().last()? {
        'm' => 60,
        'h' => 3600,
        'd' => 86_400,
        'w' => 7 * 86_400,
        _ => return None,
    };
    let number = text.get(..text.len() - 1)?;
    if number.is_empty() || number.len() > 6 || !number.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    number.parse::<i64>().ok()?.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_operators_write_them() {
        let now: Zoned = "2026-12-01T12:00[Europe/Berlin]".parse().unwrap();
        let zero = now.timestamp().as_second();
        for (text, seconds) in [
            ("90m", 5400),
            ("2h", 7200),
            ("3d", 259_200),
            ("1w", 604_800),
            (" 2h ", 7200),
            ("2026-12-02", 43_200),
            ("2026-12-01T13:00", 3600),
            ("2026-12-01 13:00:30", 3630),
            ("2026-12-01T11:30:00Z", 1800),
            ("2026-12-01T12:30:00+01:00", 1800),
        ] {
            assert_eq!(parse(text, &now).unwrap() - zero, seconds, "{text}");
        }
        for bad in ["", "soon", "2", "h", "-2h", "2.5h", "2y", "9999999h", "2026-13-01", "24:00"] {
            assert!(parse(bad, &now).unwrap_err().contains("is no time: give 90m"), "{bad}");
        }
    }
}
