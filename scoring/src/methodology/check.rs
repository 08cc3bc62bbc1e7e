//! What is wrong with the rows of a methodology.

use std::collections::BTreeSet;

use super::{Class, Criterion, Measure, Methodology, Rule};

impl Methodology {
    /// Everything that is wrong with the rows, one clause each.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        self.check_rules(&mut problems);
        self.check_criteria(&mut problems);
        self.check_list(&mut problems);
        self.check_references(&mut problems);
        self.check_ceilings(&mut problems);
        for metric in self.metrics.values() {
            if metric.min >= metric.max && metric.min != 1.0 {
                problems.push(format!("metrics.tsv: {}: min is not below max", metric.name));
            }
            if metric.meaning.is_empty() {
                problems.push(format!("metrics.tsv: {}: meaning is empty", metric.name));
            }
        }
        problems
    }

    fn check_rules(&self, problems: &mut Vec<String>) {
        let rules = &self.rules;
        let total: u32 = rules.category.iter().map(|category| category.weight).sum();
        if total != 100 {
            problems.push(format!("rating.toml: category weights add up to {total}, not 100"));
        }
        if !(rules.floor > 0.0 && rules.floor < 1.0) {
            problems.push(format!("rating.toml: floor {} is not between 0 and 1", rules.floor));
        }
        let sensitivity = &rules.sensitivity;
        let relative = &rules.relative;
        let rising = relative.tiers.windows(2).all(|pair| pair[0].top < pair[1].top);
        let known = relative.tiers.iter().all(|one| rules.tier.iter().any(|tier| tier.id == one.id));
        if relative.peers < 2
            || !(0.0..1.0).contains(&relative.tie)
            || relative.reason.is_empty()
            || !rising
            || !known
            || relative.tiers.last().is_none_or(|last| last.top != 1.0)
        {
            problems.push(
                "rating.toml: relative needs 2 peers at least, a tie in [0, 1), a reason, and known tiers whose shares rise to 1"
                    .to_owned(),
            );
        }
        let sound = (1..=100_000).contains(&sensitivity.draws)
            && sensitivity.spread > 0.0
            && sensitivity.spread < 1.0
            && !sensitivity.reason.is_empty();
        if !sound {
            problems.push(
                "rating.toml: sensitivity needs 1 to 100000 draws, a spread between 0 and 1 and a reason"
                    .to_owned(),
            );
        }
        for pair in rules.tier.windows(2) {
            if pair[0].cut <= pair[1].cut {
                problems.push(format!("rating.toml: tier {} does not lie below {}", pair[1].id, pair[0].id));
            }
        }
        for tier in &rules.tier {
            if !(tier.cut > 0.0 && tier.cut <= 1.0) {
                problems.push(format!("rating.toml: tier {}: cut {} is not in (0, 1]", tier.id, tier.cut));
            }
        }
        for cap in &rules.cap {
            let known = rules.tier.iter().any(|tier| tier.id == cap.tier);
            if !known && cap.tier != "unavailable" && cap.tier != "underperforming" {
                problems.push(format!("rating.toml: cap {}: there is no tier {:?}", cap.id, cap.tier));
            }
        }
        for (what, reason) in rules
            .category
            .iter()
            .map(|category| (&category.id, &category.reason))
            .chain(rules.tier.iter().map(|tier| (&tier.id, &tier.reason)))
            .chain(rules.cap.iter().map(|cap| (&cap.id, &cap.reason)))
            .chain(&rules.not_applicable)
            .chain(&rules.nothing_there)
        {
            if reason.is_empty() {
                problems.push(format!("rating.toml: {what}: reason is empty"));
            }
        }
        for (key, source) in &rules.sources {
            if !is_date(&source.date) {
                problems.push(format!("rating.toml: source {key}: {:?} is not a date", source.date));
            }
        }
        if !is_date(&rules.date) {
            problems.push(format!("rating.toml: {:?} is not a date", rules.date));
        }
    }

    fn check_criteria(&self, problems: &mut Vec<String>) {
        let mut seen = BTreeSet::new();
        for criterion in self.criteria.iter().chain(&self.undecided) {
            let mut bad = |what: String| problems.push(format!("criteria.toml: {}: {what}", criterion.id));
            if !seen.insert(&criterion.id) {
                bad("the id is there twice".to_owned());
            }
            match self.listed.iter().find(|listed| listed.id == criterion.id) {
                None => bad("the id is not in criteria-list.tsv".to_owned()),
                Some(listed) => {
                    if listed.category != criterion.category {
                        bad(format!("category is {}, the list says {}", criterion.category, listed.category));
                    }
                    if listed.class != criterion.class.word() {
                        bad(format!("class is {}, the list says {}", criterion.class.word(), listed.class));
                    }
                }
            }
            if !self.rules.category.iter().any(|category| category.id == criterion.category) {
                bad(format!("there is no category {:?}", criterion.category));
            }
            if !(1..=3).contains(&criterion.weight) {
                bad(format!("weight {} is not 1, 2 or 3", criterion.weight));
            }
            if criterion.text.is_empty() {
                bad("text is empty".to_owned());
            }
            match &criterion.undecided {
                None if criterion.measures.is_empty() => {
                    bad("it has neither measures, evidence nor a reason why it is undecided".to_owned());
                }
                Some(reason) if reason.is_empty() => bad("undecided has no reason".to_owned()),
                Some(_) if !criterion.measures.is_empty() || criterion.evidence.is_some() => {
                    bad("it is undecided and has measures or evidence".to_owned());
                }
                Some(_) if criterion.gate.is_some() => bad("a gate is undecided".to_owned()),
                _ => {}
            }
            if let Some(what) = check_evidence(criterion) {
                bad(what);
            }
            if !is_date(&criterion.date) {
                bad(format!("{:?} is not a date", criterion.date));
            }
            let ours = criterion.source.strip_prefix("ours: ").is_some_and(|reason| !reason.is_empty());
            match self.rules.sources.get(&criterion.source) {
                Some(source) if source.date != criterion.date => {
                    bad(format!("date is {}, the source's is {}", criterion.date, source.date));
                }
                None if !ours => {
                    bad(format!("source {:?} is neither in [sources] nor \"ours: REASON\"", criterion.source))
                }
                _ => {}
            }
            for reason in &criterion.na {
                if !self.rules.not_applicable.contains_key(reason) {
                    bad(format!("{reason:?} is not in the closed list of reasons"));
                }
            }
            for measure in &criterion.measures {
                if let Some(what) = self.check_measure(criterion, measure) {
                    bad(what);
                }
            }
        }
    }

    fn check_list(&self, problems: &mut Vec<String>) {
        for listed in &self.listed {
            if listed.versions.is_empty() {
                problems.push(format!("criteria-list.tsv: {}: versions is empty", listed.id));
            }
            if !self.criteria.iter().chain(&self.undecided).any(|criterion| criterion.id == listed.id) {
                problems.push(format!("criteria-list.tsv: {}: criteria.toml has no row for it", listed.id));
            }
        }
    }

    fn check_measure(&self, criterion: &Criterion, measure: &Measure) -> Option<String> {
        let Some(metric) = self.metrics.get(&measure.metric) else {
            return Some(format!("there is no metric {:?} in metrics.tsv", measure.metric));
        };
        if criterion.class == Class::Evidence && measure.metric != "claim" {
            return Some("a criterion of class evidence is decided by claims only".to_owned());
        }
        if criterion.class == Class::Machine && measure.takes_claim() {
            return Some(
                "a criterion of class machine is never decided by a claim, only class evidence or partly"
                    .to_owned(),
            );
        }
        if let Some(item) = &measure.or_claim
            && item != &criterion.id
        {
            return Some(format!("or_claim {item:?} is not its own id"));
        }
        if measure.shows.is_some() && measure.or_claim.is_none() {
            return Some("shows without or_claim: nothing decides the rest".to_owned());
        }
        if measure.each.as_ref().is_some_and(|each| each.values.is_empty()) {
            return Some("each has no values".to_owned());
        }
        match &measure.rule {
            Rule::Flag { pass } if *pass > 1 => Some(format!("flag {pass} is neither 0 nor 1")),
            Rule::Flag { .. } if (metric.min, metric.max) != (0.0, 1.0) => {
                Some(format!("rule flag for {}, which is no flag", metric.name))
            }
            Rule::AtMost { limit } | Rule::AtLeast { limit }
                if !(*limit >= metric.min && *limit <= metric.max) =>
            {
                Some(format!("limit {limit} is outside the range of {}", metric.name))
            }
            Rule::Curve { points } => check_curve(points, Some((metric.min, metric.max))),
            Rule::Spread { points } => check_curve(points, None),
            Rule::AnyText { values, .. } if values.is_empty() => Some("any_text has no values".to_owned()),
            Rule::Reference
                if !self.references.iter().any(|reference| reference.metric == measure.metric) =>
            {
                Some(format!("references.tsv has no row for {}", measure.metric))
            }
            _ => None,
        }
    }

    fn check_ceilings(&self, problems: &mut Vec<String>) {
        for ceiling in &self.ceilings {
            let name = format!("ceilings.tsv: {} {}", ceiling.metric, ceiling.gpus.join("|"));
            match self.metrics.get(&ceiling.metric) {
                None => problems.push(format!("{name}: there is no such metric")),
                Some(metric) if metric.unit != ceiling.unit => {
                    problems
                        .push(format!("{name}: unit is {}, the metric's is {}", ceiling.unit, metric.unit));
                }
                Some(metric) if !(ceiling.ceiling > metric.min && ceiling.ceiling <= metric.max) => {
                    problems.push(format!("{name}: {} is outside the metric's range", ceiling.ceiling));
                }
                Some(_) => {}
            }
            if ceiling.gpus.is_empty() || ceiling.basis.is_empty() || ceiling.source.is_empty() {
                problems.push(format!("{name}: gpu, basis or source is empty"));
            }
            if !is_date(&ceiling.date) {
                problems.push(format!("{name}: {:?} is not a date", ceiling.date));
            }
        }
    }

    fn check_references(&self, problems: &mut Vec<String>) {
        let mut seen = BTreeSet::new();
        for reference in &self.references {
            let mut bad = |what: String| problems.push(format!("references.tsv: {}: {what}", reference.id));
            if !seen.insert(&reference.id) {
                bad("the id is there twice".to_owned());
            }
            match self.metrics.get(&reference.metric) {
                None => bad(format!("there is no metric {:?}", reference.metric)),
                Some(metric) => {
                    if metric.unit != reference.unit {
                        bad(format!("unit is {}, the metric's is {}", reference.unit, metric.unit));
                    }
                    if reference.ceiling > metric.max {
                        bad("ceiling is above the metric's range".to_owned());
                    }
                }
            }
            if let Some(what) = check_curve(&reference.points(), None) {
                bad(what);
            }
            if reference.typical > reference.ceiling {
                bad(format!(
                    "typical {} is above the physical ceiling {}",
                    reference.typical, reference.ceiling
                ));
            }
            let texts = [&reference.link, &reference.source, &reference.basis];
            if reference.gpus.is_empty() || texts.iter().any(|text| text.is_empty()) {
                bad("gpu, link (\"none\" where no link matters), source or ceiling_basis is empty".to_owned());
            }
            if !is_date(&reference.date) {
                bad(format!("{:?} is not a date", reference.date));
            }
        }
    }
}

/// A criterion that takes a claim names its kind; what it requires are fields of that kind.
fn check_evidence(criterion: &Criterion) -> Option<String> {
    let takes = criterion.measures.iter().any(Measure::takes_claim);
    let Some(kind) = &criterion.evidence else {
        if criterion.requires.is_some() {
            return Some("requires without evidence".to_owned());
        }
        return takes.then(|| "a claim decides it, so evidence must name its kind".to_owned());
    };
    if !crate::evidence::is_kind(kind) {
        return Some(format!("evidence {kind:?} is none of {}", crate::evidence::kind_names()));
    }
    if !takes {
        return Some("it has evidence, but no measure takes a claim".to_owned());
    }
    let rule = criterion.requires.as_ref()?;
    let mut fields = rule.one_of.keys().chain(rule.least.keys()).chain(rule.most.keys()).chain(&rule.present);
    fields
        .find(|field| !crate::evidence::has_field(kind, field))
        .map(|field| format!("requires {field}, which [[{kind}]] does not have"))
}

/// Points must have rising finite values, scores in [0, 1] that only rise or only fall.
fn check_curve(points: &[[f64; 2]], range: Option<(f64, f64)>) -> Option<String> {
    if points.len() < 2 {
        return Some("a curve needs two points at least".to_owned());
    }
    let finite = points.iter().flatten().all(|number| number.is_finite());
    if !finite || points.iter().any(|point| !(0.0..=1.0).contains(&point[1])) {
        return Some("a curve's values must be finite and its scores in [0, 1]".to_owned());
    }
    if points.windows(2).any(|pair| pair[0][0] >= pair[1][0]) {
        return Some("a curve's values must rise".to_owned());
    }
    let rising = points.windows(2).all(|pair| pair[0][1] <= pair[1][1]);
    let falling = points.windows(2).all(|pair| pair[0][1] >= pair[1][1]);
    if !rising && !falling {
        return Some("a curve's scores must only rise or only fall".to_owned());
    }
    if let Some((min, max)) = range
        && points.iter().any(|point| point[0] < min || point[0] > max)
    {
        return Some("a curve's values must lie in the metric's range".to_owned());
    }
    None
}

fn is_date(text: &str) -> bool {
    text.len() == 10 && text.parse::<jiff::civil::Date>().is_ok()
}
