//! Keys of the InfiniBand subnet, as far as a host may see them: of its own port, and of a subnet manager on it.

use std::path::Path;

use super::system::{self, Host, Ran, find_system, text};
use super::{Item, Verdict, fabric};

const S: &str = "audit";
/// Where OpenSM reads its settings.
const OPENSM: [&str; 2] = ["/etc/opensm/opensm.conf", "/etc/rdma/opensm.conf"];

/// M_Key of the own port, and the keys of a subnet manager that runs here. Nothing is asked of another host.
pub fn audit(host: &Host) -> Vec<Item> {
    let metric = "ib_key_set";
    let Some(port) = fabric::ports(host).into_iter().find(|port| port.active && !port.ethernet) else {
        return vec![
            Item::not_applicable(S, metric, "no_infiniband: no active InfiniBand port").param("key", "m_key"),
        ];
    };
    let mut items = vec![management(&port.name)];
    if let Some(conf) = OPENSM.iter().find_map(|file| text(Path::new(file))) {
        items.extend(opensm(&conf));
    }
    items
}

fn mend(item: Item) -> Item {
    item.mend("set SM_Key, SA_Key, M_Key with its protect bits, C_Key and VS_Key (AM_Key with SHARP) in the subnet manager, random for each fabric")
}

/// `smpquery -D portinfo 0`: the own port by a route of no hop.
fn management(port: &str) -> Item {
    let (device, number) = port.split_once('/').unwrap_or((port, "1"));
    let command = format!("smpquery -C {device} -P {number} -D portinfo 0");
    let metric = "ib_key_set";
    let item = match find_system("smpquery") {
        None => Item::unavailable(S, metric, "not_installed: smpquery (infiniband-diags) is not in PATH"),
        Some(program) => {
            let args = ["-C", device, "-P", number, "-D", "portinfo", "0"];
            match system::run(program, &args) {
                Ok(ran) if ran.ok() => own_port(&ran),
                Ok(ran) => Item::unavailable(
                    S,
                    metric,
                    format!("zero_trust: this user may send no management datagram ({})", ran.complaint()),
                ),
                Err(why) => Item::unknown(S, metric, why),
            }
        }
    };
    mend(item.param("key", "m_key").by(&command))
}

/// With protect bits a key of 0 is one that is hidden from us.
fn own_port(ran: &Ran) -> Item {
    let metric = "ib_key_set";
    let field = |name: &str| {
        let line = ran.out.lines().find(|line| line.starts_with(name))?;
        let value = line.trim_start_matches(name).trim_start_matches([':', '.']).trim();
        match value.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16).ok(),
            None => value.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok(),
        }
    };
    match (field("Mkey"), field("ProtectBits")) {
        (Some(0), Some(0)) => {
            Item::flag(S, metric, false, true, Verdict::Fail, "M_Key is 0 and protects nothing")
        }
        // That it is set says nothing about the others, which no host may see.
        (Some(0), Some(bits)) => Item::unavailable(
            S,
            metric,
            format!(
                "zero_trust: M_Key is hidden by protect bits {bits}, the other keys are not shown to hosts"
            ),
        ),
        (Some(_), _) => {
            Item::unavailable(S, metric, "zero_trust: M_Key is set, the other keys are not shown to hosts")
        }
        _ => Item::unknown(S, metric, "smpquery portinfo shows neither Mkey nor ProtectBits"),
    }
}

/// Keys of opensm.conf: 0 is none, and 1 is OpenSM's own SM key, which everybody knows.
fn opensm(conf: &str) -> Vec<Item> {
    let found = |key: &str| {
        conf.lines().find_map(|line| {
            let (name, value) = line.trim().split_once(char::is_whitespace)?;
            let value = value.trim().trim_start_matches("0x");
            (name == key).then(|| u64::from_str_radix(value, 16).ok()).flatten()
        })
    };
    ["sm_key", "sa_key", "m_key"]
        .into_iter()
        .map(|key| {
            let item = match found(key) {
                Some(value) => {
                    let known = value == 0 || (key != "m_key" && value == 1);
                    let seen = format!(
                        "{key} of opensm.conf is {}",
                        if known { "none or OpenSM's default" } else { "set" }
                    );
                    Item::flag(S, "ib_key_set", !known, true, Verdict::Fail, seen)
                }
                None => Item::flag(
                    S,
                    "ib_key_set",
                    false,
                    true,
                    Verdict::Fail,
                    format!("{key} is not in opensm.conf: OpenSM's default"),
                ),
            };
            mend(item.param("key", format!("{key} of opensm.conf")).by("grep -i key /etc/opensm/opensm.conf"))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::testing::host;
    use super::*;
    use crate::record::State;

    #[test]
    fn a_key_of_zero_is_hidden_where_it_is_protected() {
        let shown = |key: &str, bits: u32| Ran {
            code: Some(0),
            out: format!(
                "# Port info: DR path slid 65535; dlid 65535; 0 port 1\nMkey:............................{key}\nGidPrefix:.......................0xfe80000000000000\nProtectBits:.....................{bits}\n"
            ),
            err: String::new(),
        };
        assert_eq!(own_port(&shown("0x0000000000000000", 0)).value, Some(0.0));
        for set in [shown("0x0000000000000000", 2), shown("0x00000000deadbeef", 1)] {
            let item = own_port(&set);
            assert!(
                item.state == State::Unavailable && item.observed.starts_with("zero_trust: "),
                "{item:?}"
            );
        }
        assert_eq!(
            own_port(&Ran { code: Some(0), out: String::new(), err: String::new() }).state,
            State::Unknown
        );
    }

    #[test]
    fn default_keys_of_a_subnet_manager_are_none() {
        let values = |conf: &str| opensm(conf).iter().map(|item| item.value.unwrap()).collect::<Vec<_>>();
        assert_eq!(
            values(
                "# keys\nm_key 0x0000000000000000\nsm_key 0x0000000000000001\nsa_key 0x0000000000000001\n"
            ),
            [0.0; 3]
        );
        assert_eq!(values("m_key 0x12\nsm_key 0x34\n sa_key 0x56\n"), [1.0; 3]);
        assert_eq!(values(""), [0.0; 3]);
    }

    #[test]
    fn without_infiniband_there_are_no_keys() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(audit(&host(dir.path(), &[]))[0].state, State::NotApplicable);
    }
}
