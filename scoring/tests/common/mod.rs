//! What several test programs make: statements for every criterion that takes one.

use scoring::methodology::Methodology;

/// Head of an evidence.toml for the runs of these tests, which start on 2026-11-30.
pub const HEAD: &str = "schema = \"clustermax-evidence/1\"\nprovider = \"Example Cloud\"\n\
                        stated_by = \"the provider\"\nstated_on = 2026-11-01\n";

/// A valid statement that a criterion is met, of the kind it asks for and with what it requires.
pub fn statement(methodology: &Methodology, item: &str) -> String {
    let kind = methodology.criterion(item).and_then(|one| one.evidence.as_deref()).unwrap_or_default();
    let body = match (item, kind) {
        ("sec-03", _) => attestation("ISO 27001", "all sites"),
        ("sec-04", _) => attestation("GDPR", "all sites"),
        ("sec-06", _) => attestation("penetration test", "all sites"),
        (_, "attestation") => attestation("SOC 2", "all sites and the InfiniBand fabric"),
        (_, "price") => "per = \"GPU-hour\"\namount = 2.5\ncurrency = \"USD\"\nterm_months = 12\n".to_owned(),
        (_, "terms") => "text = \"as asked\"\n".to_owned(),
        (_, "sla") => {
            "node = \"a host\"\nrack = \"18 trays\"\ncluster_means = \"all racks\"\nsite = \"a building\"\n\
             downtime = \"not reachable or degraded\"\nnode_percent = 99.9\nrack_percent = 99.0\n\
             credits = \"10 to 100 %\"\nexclusions = [\"maintenance\"]\n"
                .to_owned()
        }
        (_, "partnership") => "partner = \"NVIDIA\"\nprogramme = \"Cloud Partner\"\n".to_owned(),
        (_, "capacity") => "gpu = [\"B200\"]\ngpus = 1024\nposix_tb = 100\ns3_tb = 100\n".to_owned(),
        (_, "support") => "hours = \"24x7\"\nresponse_minutes = 15\n".to_owned(),
        (_, "interview") => "who = \"a customer\"\non = 2026-10-01\nsummary = \"as asked\"\n".to_owned(),
        _ => "text = \"as asked\"\n".to_owned(),
    };
    format!("\n[[{kind}]]\nitem = \"{item}\"\nmet = true\n{body}")
}

fn attestation(standard: &str, scope: &str) -> String {
    format!(
        "standard = \"{standard}\"\ntype = \"Type II\"\nissuer = \"Auditor LLP\"\nscope = [\"{scope}\"]\n\
         valid_from = 2026-01-01\nvalid_to = 2026-12-31\n"
    )
}

/// An evidence.toml that states everything but the items left out.
pub fn evidence(methodology: &Methodology, left_out: &[&str]) -> String {
    let mut text = HEAD.to_owned();
    for criterion in &methodology.criteria {
        if criterion.evidence.is_some() && !left_out.contains(&criterion.id.as_str()) {
            text.push_str(&statement(methodology, &criterion.id));
        }
    }
    text
}
