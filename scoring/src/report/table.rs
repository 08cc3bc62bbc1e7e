//! Tables of the HTML report: one markup; a phone or tablet shows each row as a card, with the columns' names in front.

use std::fmt::Write as _;

use crate::report::html::escape;

/// A table that every report may have.
pub struct Table {
    /// Class in the page, by which its cards get their columns' names.
    pub class: &'static str,
    /// Name of a column, and whether it holds numbers.
    pub columns: &'static [(&'static str, bool)],
}

macro_rules! tables {
    ($($(#[$doc:meta])* $name:ident $class:literal [$($column:literal $kind:ident),*])*) => {
        $($(#[$doc])* pub const $name: Table =
            Table { class: $class, columns: &[$(($column, tables!(@ $kind))),*] };)*
        const ALL: &[&Table] = &[$(&$name),*];
    };
    (@ text) => { false };
    (@ number) => { true };
}

tables! {
    /// Categories with bounds and counts.
    CATEGORIES "t-categories" ["Category" text, "Weight" number, "0 to 100 %" text, "Score" number, "Coverage" number, "Lower" number,
        "Upper" number, "Pass" number, "Fail" number, "Unknown" number, "Unavail." number, "N/A" number]
    /// Gates.
    GATES "t-gates" ["Criterion" text, "State" text, "What it asks" text, "Why" text]
    /// What makes figures mislead.
    GUARDS "t-guards" ["Guard" text, "State" text, "What it says" text, "Where" text, "Effect" text]
    /// Tiers under other weights.
    DRAWS "t-draws" ["Tier" text, "Draws" text, "Share" number]
    /// Tier without each category.
    WITHOUT "t-without" ["Left out" text, "Tier" text, "Lower" number, "Score" number, "Decided by" text]
    /// What lifts most.
    LIFTS "t-lifts" ["Criterion" text, "What it asks" text, "Lower bound" number, "Tier" text]
    /// Faults that were injected.
    FAULTS "t-faults" ["Fault" text, "Injected" number, "Detected" number, "Drained" number, "Returned" number]
    /// Messages of one size.
    SINGLE "t-single" ["Of" text, "Message" number, "GB/s" number, "Expected" number, "Ceiling" number]
    /// Rails, as the link test saw them.
    RAILS "t-rails" ["Rail" text, "Test" text, "Nodes" number, "Lowest" number, "Median" number, "Highest" number, "Lowest at" text]
    /// Collectives against what the links gave.
    LINKED "t-linked" ["Collective" text, "Of" text, "GB/s" number, "Links allow" number, "Share" text]
    /// Figures of stages.
    MEASURED "t-measured" ["Stage" text, "Metric" text, "Of" text, "Values" text, "Lowest" number, "Median" number, "Highest" number,
        "Unit" text, "Count" number]
    /// Criteria of a category.
    CRITERIA "t-criteria" ["Criterion" text, "State" text, "Value" number, "Weight" number, "What it asks" text, "Observed" text]
    /// Listed and not decided.
    UNDECIDED "t-undecided" ["Criterion" text, "What it asks" text, "Why not yet" text]
    /// Single values.
    VALUES "t-values" ["Stage" text, "Metric" text, "Params" text, "Subject" text, "Value" number, "Evidence" text]
    /// Values of many nodes.
    SPREAD "t-spread" ["Stage" text, "Metric" text, "Params" text, "Count" number, "Lowest" number, "Median" number, "Highest" number,
        "Evidence of the lowest" text]
    /// What has no value.
    ABSENT "t-absent" ["Stage" text, "Metric" text, "State" text, "Why" text, "Count" number, "Subjects" text]
    /// Runs side by side.
    RANKING "t-ranking" ["Rank" number, "Provider" text, "Tier" text, "Relative tier" text, "Lower" number, "Score" number, "Upper" number,
        "Coverage" number, "Above the next" text, "Decided by" text]
}

/// Style of the cards: which column a cell belongs to stands in the style, not in every cell.
pub fn cards() -> String {
    let mut out = String::from("@media screen and (max-width: 56rem) {\n");
    for table in ALL {
        for (at, (name, _)) in table.columns.iter().enumerate() {
            // Writing to a String cannot fail; so it is for every write! of this file.
            let _ =
                write!(out, ".{}>*>tr>td:nth-child({})::before{{content:\"{name}\"}}", table.class, at + 1);
        }
        out.push('\n');
    }
    out.push_str("}\n");
    out
}

impl Table {
    /// Up to the first row. With `tall` it scrolls in its own region.
    pub fn open(&self, out: &mut String, label: &str, tall: bool) {
        let head: Vec<(&str, bool)> = self.columns.to_vec();
        open(out, label, self.class, tall, &head);
    }
}

/// Up to the first row of a table whose columns only this page knows: a phone shows it as it is.
pub fn open(out: &mut String, label: &str, class: &str, tall: bool, columns: &[(&str, bool)]) {
    scroll(out, label, tall);
    let _ = write!(out, "<table class=\"{class}\">\n<thead><tr>");
    for (name, numbers) in columns {
        let class = if *numbers { " class=\"num\"" } else { "" };
        let _ = write!(out, "<th scope=\"col\"{class}>{}</th>", escape(name));
    }
    out.push_str("</tr></thead>\n<tbody>\n");
}

/// After the last row.
pub fn close(out: &mut String) {
    out.push_str("</tbody>\n</table>\n</div>\n");
}

/// A region that scrolls sideways where it must (or, with `tall`, down) and can be reached by keyboard.
fn scroll(out: &mut String, label: &str, tall: bool) {
    let class = if tall { "scroll tall" } else { "scroll" };
    let _ = writeln!(
        out,
        "<div class=\"{class}\" role=\"region\" tabindex=\"0\" aria-label=\"{}, table\">",
        escape(label)
    );
}

/// Numbers behind a plot, folded away: the columns' names, rows of a name and its cells.
pub fn data(out: &mut String, label: &str, columns: &[(&str, bool)], rows: &[(String, Vec<String>)]) {
    out.push_str("<details class=\"data\"><summary>The same as a table</summary>\n");
    open(out, label, "t-data", true, columns);
    for (name, cells) in rows {
        let _ = write!(out, "<tr><th scope=\"row\">{}</th>", escape(name));
        for (cell, (_, numbers)) in cells.iter().zip(columns.iter().skip(1)) {
            let class = if *numbers { " class=\"num\"" } else { "" };
            let _ = write!(out, "<td{class}>{}</td>", escape(cell));
        }
        out.push_str("</tr>\n");
    }
    close(out);
    out.push_str("</details>\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_table_has_a_class_of_its_own_and_a_card_a_column() {
        let css = cards();
        let mut classes: Vec<&str> = ALL.iter().map(|table| table.class).collect();
        let columns: usize = ALL.iter().map(|table| table.columns.len()).sum();
        assert_eq!(css.matches("::before").count(), columns);
        classes.sort_unstable();
        classes.dedup();
        assert_eq!(classes.len(), ALL.len());
    }
}
