//! RFC 3339 times as the suite writes them.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

/// Milliseconds since 1970 in UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Timestamp(pub(crate) i64);

impl Timestamp {
    /// Now, by the system's clock.
    pub(crate) fn now() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
    }

    /// When a step began that began at `self` by the clock of then, `elapsed` milliseconds before `now`. Where the clock was set back
    /// meanwhile it is a time of the present clock, earlier than `self`: what happened since is then told, and something older maybe
    /// again, rather than nothing. What a clock is slewed by in that time is no setting.
    pub(crate) fn as_of_clock(self, now: Self, elapsed: i64) -> Self {
        let by_now = now.0.saturating_sub(elapsed);
        let slewed = (elapsed / 1_000).max(5_000);
        if by_now < self.0.saturating_sub(slewed) { Self(by_now) } else { self }
    }

    /// Reads `2026-11-30T20:50:00[.123](Z|+01:00)`; None for anything else.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (date, rest) = text.split_once(['T', 't', ' '])?;
        let mut parts = date.split('-').map(number);
        let (year, month, day) = (parts.next()??, parts.next()??, parts.next()??);
        if parts.next().is_some() || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
            return None;
        }
        let zone = rest.rfind(['Z', 'z', '+', '-'])?;
        let (clock, zone) = rest.split_at(zone);
        let offset_minutes = match zone {
            "Z" | "z" => 0,
            _ => {
                let (hours, minutes) = zone[1..].split_once(':')?;
                let minutes = number(hours)? * 60 + number(minutes)?;
                if zone.starts_with('-') { -minutes } else { minutes }
            }
        };
        let (clock, fraction) = clock.split_once('.').unwrap_or((clock, "0"));
        let mut parts = clock.split(':').map(number);
        let (hour, minute, second) = (parts.next()??, parts.next()??, parts.next()??);
        if parts.next().is_some() || hour > 23 || minute > 59 || second > 60 {
            return None;
        }
        number(fraction)?;
        let millis = number(&format!("{fraction:0<3}")[..3])?;
        let seconds =
            days(year, month, day) * 86_400 + hour * 3_600 + (minute - offset_minutes) * 60 + second;
        Some(Self(seconds * 1_000 + millis))
    }

    /// Seconds from `earlier` to this time; negative when it is the later one.
    pub(crate) fn seconds_since(self, earlier: Self) -> i64 {
        self.0.saturating_sub(earlier.0) / 1_000
    }
}

/// `2026-11-30 20:50:00 UTC`, as a reader of a job's output wants it.
impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.div_euclid(1_000);
        let (year, month, day) = date(seconds.div_euclid(86_400));
        let clock = seconds.rem_euclid(86_400);
        write!(
            f,
            "{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02} UTC",
            clock / 3_600,
            clock / 60 % 60,
            clock % 60
        )
    }
}

/// Up to nine digits, nothing else.
fn number(text: &str) -> Option<i64> {
    if text.is_empty() || text.len() > 9 || !text.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    text.parse().ok()
}

/// Days from 1970-01-01 to a date of the Gregorian calendar. Years are counted from March, so that the leap day
/// is the last of its year.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    year * 365 + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + day_of_year - 719_468
}

/// The inverse of [`days`].
fn date(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (era * 400 + year_of_era + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_the_suite_writes() {
        assert_eq!(Timestamp::parse("1970-01-01T00:00:00Z"), Some(Timestamp(0)));
        assert_eq!(Timestamp::parse("2026-11-30T20:50:00.123Z"), Some(Timestamp(1_796_071_800_123)));
        assert_eq!(Timestamp::parse("2026-11-30T20:50:00.123456789Z"), Some(Timestamp(1_796_071_800_123)));
        assert_eq!(Timestamp::parse("2026-11-30T21:50:00+01:00"), Some(Timestamp(1_796_071_800_000)));
        assert_eq!(Timestamp::parse("2024-02-29T00:00:00Z"), Some(Timestamp(1_709_164_800_000)));
    }

    #[test]
    fn refuses_everything_else() {
        for bad in [
            "",
            "now",
            "2026-11-30",
            "2026-11-30T20:50:00",
            "2026-13-30T20:50:00Z",
            "2026-11-30T25:50:00Z",
            "2026-11-30T20:50Z",
            "2026-11-30T20:50:00.Z",
            "2026-11-30T20:50:00.äöü€Z",
            "2026-11-30T20:50:00+1",
            "-1-11-30T20:50:00Z",
            "99999999999-01-01T00:00:00Z",
        ] {
            assert_eq!(Timestamp::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn prints_what_it_reads() {
        for text in ["2026-11-30 20:50:00 UTC", "2000-02-29 23:59:59 UTC", "1969-12-31 00:00:01 UTC"] {
            let parsed = Timestamp::parse(&text.replace(" UTC", "Z")).unwrap();
            assert_eq!(parsed.to_string(), text);
        }
    }

    #[test]
    fn a_step_under_a_clock_that_is_set_back_began_by_the_present_clock() {
        let start = Timestamp(1_000_000_000);
        let began = |now: i64, elapsed: i64| start.as_of_clock(Timestamp(now), elapsed).0;
        assert_eq!(began(1_000_060_000, 60_000), 1_000_000_000);
        assert_eq!(began(1_000_060_000, 64_000), 1_000_000_000, "slewed");
        assert_eq!(began(1_086_340_000, 86_400_000), 1_000_000_000, "slewed for a day");
        assert_eq!(began(996_460_000, 60_000), 996_400_000, "set back by an hour");
        assert_eq!(
            began(1_003_660_000, 60_000),
            1_000_000_000,
            "set ahead: what happened before that counts too"
        );
        assert_eq!(Timestamp(i64::MAX).as_of_clock(Timestamp(5), 3), Timestamp(2), "init was never called");
    }

    #[test]
    fn age_counts_seconds() {
        assert_eq!(Timestamp(12_500).seconds_since(Timestamp(2_000)), 10);
        assert_eq!(Timestamp(0).seconds_since(Timestamp(5_000)), -5);
    }
}
