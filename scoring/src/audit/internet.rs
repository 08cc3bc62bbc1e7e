//! The way to the internet, to the one address that the operator names: how fast a download is, and whether small requests are
//! always answered. Without an address nothing is sent.

use std::time::{Duration, Instant};

use super::system::{self, find};
use super::{Item, Verdict};
use crate::Failure;

const S: &str = "audit";
/// Longest time of the download, seconds.
const DOWNLOAD: u64 = 15;
/// Small requests, one each half second.
const REQUESTS: u32 = 20;
/// A shorter download says more about its beginning than about the way, bytes.
const LEAST: f64 = 10e6;
/// Where there is no option: CLUSTERMAX_INTERNET_URL, so that the suite's stage can be told too.
const VARIABLE: &str = "CLUSTERMAX_INTERNET_URL";

/// The address to ask: the option's, else the environment's.
///
/// # Errors
/// It is no address of the web.
pub fn url(option: Option<&str>) -> Result<Option<String>, Failure> {
    let set = option.map(str::to_owned).or_else(|| std::env::var(VARIABLE).ok());
    match set.filter(|url| !url.is_empty()) {
        Some(url)
            if !(url.starts_with("https://") || url.starts_with("http://"))
                || url.contains(char::is_whitespace) =>
        {
            Err(Failure::input(format!(
                "--internet-url {url:?} is no address of the web; give one as https://HOST/FILE, a file of 1 GB or more that you may download"
            )))
        }
        set => Ok(set),
    }
}

/// Speed and steadiness from this machine.
pub fn audit(node: &str, url: Option<&str>) -> Vec<Item> {
    const METRICS: [(&str, &str); 3] =
        [("internet_download", "Gb/s"), ("internet_failed", "percent"), ("internet_connect", "ms")];
    let none = |why: &str| -> Vec<Item> {
        METRICS.iter().map(|(metric, unit)| Item::unavailable(S, metric, why).unit(unit).on(node)).collect()
    };
    let Some(url) = url else {
        return none(
            "not_tried: nothing is sent to an address that nobody named; give --internet-url https://HOST/FILE",
        );
    };
    if find("curl").is_none() {
        return none("not_installed: curl is not in PATH");
    }
    let mut items = vec![download(url).unit("Gb/s")];
    items.extend(requests(url, REQUESTS, Duration::from_millis(500)));
    items
        .into_iter()
        .map(|item| {
            item.on(node).mend(
                "see what narrows the way: a proxy, a NAT gateway, a rate limit of the provider's router",
            )
        })
        .collect()
}

/// One download, for [`DOWNLOAD`] seconds at most.
fn download(url: &str) -> Item {
    let metric = "internet_download";
    let limit = DOWNLOAD.to_string();
    let args = [
        "--silent",
        "--show-error",
        "--fail",
        "--location",
        "--max-time",
        &limit,
        "--output",
        "/dev/null",
        "--write-out",
        "%{size_download} %{time_starttransfer} %{time_total}",
        "--",
        url,
    ];
    let command = format!("curl --max-time {limit} -o /dev/null {url}");
    let ran = match system::run_for("curl", &args, Duration::from_secs(DOWNLOAD + 5)) {
        Ok(ran) => ran,
        Err(why) => return Item::unknown(S, metric, why).by(&command),
    };
    let numbers: Vec<f64> = ran.out.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let item = match numbers[..] {
        // 28: the time is over, which is how a large file ends.
        [size, first, total] if matches!(ran.code, Some(0 | 28)) && size > 0.0 && total > first => {
            let rate = size * 8.0 / (total - first) / 1e9;
            let seen =
                format!("{rate:.3} Gb/s, {:.0} MB in {:.1} s by one connection", size / 1e6, total - first);
            if size < LEAST && total < DOWNLOAD as f64 / 2.0 {
                Item::unknown(S, metric, format!("{seen}: too little to tell, name a file of 1 GB or more"))
            } else {
                Item::value(S, metric, rate, seen).judged(if rate >= 1.0 {
                    Verdict::Pass
                } else {
                    Verdict::Warn
                })
            }
        }
        _ => Item::unknown(S, metric, format!("nothing was downloaded: {}", ran.complaint())),
    };
    item.by(&command)
}

/// Heads of the file, one after the other: how many were not answered at all, and how long a connection takes.
fn requests(url: &str, count: u32, between: Duration) -> [Item; 2] {
    let command = format!("curl --head --max-time 3 -w '%{{time_connect}}' {url}");
    let args = [
        "--silent",
        "--show-error",
        "--head",
        "--max-time",
        "3",
        "--output",
        "/dev/null",
        "--write-out",
        "%{time_namelookup} %{time_connect}",
        "--",
        url,
    ];
    let (mut failed, mut times, mut last) = (0_u32, Vec::new(), String::new());
    for number in 0..count {
        let begin = Instant::now();
        match system::run_for("curl", &args, Duration::from_secs(5)) {
            Ok(ran) if ran.ok() => {
                let words: Vec<f64> =
                    ran.out.split_whitespace().filter_map(|word| word.parse().ok()).collect();
                if let [lookup, connect] = words[..] {
                    times.push((connect - lookup).max(0.0) * 1e3);
                }
            }
            Ok(ran) => {
                failed += 1;
                last = ran.complaint();
            }
            Err(why) => {
                failed += 1;
                last = why;
            }
        }
        if number + 1 < count {
            std::thread::sleep(between.saturating_sub(begin.elapsed()));
        }
    }
    times.sort_by(f64::total_cmp);
    let seen = match failed {
        0 => format!("{count} of {count} requests answered"),
        _ => format!("{failed} of {count} requests not answered: {last}"),
    };
    let share = 100.0 * f64::from(failed) / f64::from(count);
    let first = Item::value(S, "internet_failed", share, seen)
        .judged(if failed == 0 { Verdict::Pass } else { Verdict::Fail })
        .unit("percent")
        .by(&command);
    let second = match (times.first(), times.get(times.len() / 2), times.last()) {
        (Some(least), Some(median), Some(most)) => Item::value(
            S,
            "internet_connect",
            *median,
            format!("{median:.1} ms to connect (median of {}, {least:.1} to {most:.1})", times.len()),
        ),
        _ => Item::unknown(S, "internet_connect", format!("no request was answered: {last}")),
    };
    [first, second.unit("ms").by(&command)]
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;

    use super::*;
    use crate::record::State;

    /// A server of one file of so many bytes; every `drop`th connection is closed without a word.
    fn serve(bytes: usize, drop: usize) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/file", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            for (number, stream) in listener.incoming().flatten().enumerate() {
                if drop > 0 && number % drop == drop - 1 {
                    continue;
                }
                std::thread::spawn(move || {
                    let (mut stream, mut head) = (stream, [0; 1024]);
                    let read = stream.read(&mut head).unwrap_or(0);
                    let _ = write!(
                        stream,
                        "HTTP/1.1 200 OK\r\nContent-Length: {bytes}\r\nConnection: close\r\n\r\n"
                    );
                    if !head[..read].starts_with(b"HEAD") {
                        let _ = stream.write_all(&vec![0; bytes]);
                    }
                });
            }
        });
        url
    }

    #[test]
    fn nothing_is_sent_without_an_address() {
        let items = audit("n1", None);
        assert_eq!(items.len(), 3);
        for item in items {
            assert!(item.state == State::Unavailable && item.observed.contains("--internet-url"), "{item:?}");
        }
        assert!(url(Some("10.0.0.1")).is_err() && url(Some("https://a b")).is_err());
        assert_eq!(url(Some("https://example.org/x")).unwrap().as_deref(), Some("https://example.org/x"));
    }

    #[test]
    fn a_download_is_timed_and_a_small_one_says_nothing() {
        if find("curl").is_none() {
            return;
        }
        let large = download(&serve(40_000_000, 0));
        assert!(large.value.is_some_and(|rate| rate > 0.0), "{large:?}");
        let small = download(&serve(1000, 0));
        assert!(small.state == State::Unknown && small.observed.contains("too little"), "{small:?}");
        let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let none = download(&format!("http://{closed}/"));
        assert!(none.state == State::Unknown && none.observed.contains("nothing was downloaded"), "{none:?}");
    }

    #[test]
    fn requests_without_an_answer_are_counted() {
        if find("curl").is_none() {
            return;
        }
        let [steady, connect] = requests(&serve(10, 0), 4, Duration::ZERO);
        assert_eq!((steady.value, steady.verdict), (Some(0.0), Verdict::Pass));
        assert!(connect.value.is_some(), "{connect:?}");
        let [shaky, _] = requests(&serve(10, 4), 4, Duration::ZERO);
        assert_eq!((shaky.value, shaky.verdict), (Some(25.0), Verdict::Fail), "{shaky:?}");
    }
}
