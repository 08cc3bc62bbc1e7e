//! What a service tells systemd (`sd_notify(3)`): one datagram of `KEY=VALUE` lines to the socket that the environment names.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::{Duration, Instant};

/// The way to systemd; does nothing where the program was not started by it.
#[derive(Debug)]
pub struct Notifier {
    to: Option<(UnixDatagram, SocketAddr)>,
    /// Half of the unit's WatchdogSec.
    every: Option<Duration>,
    last: Option<Instant>,
}

impl Notifier {
    /// Reads `NOTIFY_SOCKET`, `WATCHDOG_USEC` and `WATCHDOG_PID` through `get`.
    #[must_use]
    pub fn new(get: impl Fn(&str) -> Option<String>) -> Self {
        let to = get("NOTIFY_SOCKET").and_then(|name| {
            let address = match name.strip_prefix('@') {
                Some(name) => SocketAddr::from_abstract_name(name),
                None => SocketAddr::from_pathname(name),
            };
            Some((UnixDatagram::unbound().ok()?, address.ok()?))
        });
        let ours = get("WATCHDOG_PID").is_none_or(|pid| pid == std::process::id().to_string());
        let every = get("WATCHDOG_USEC").and_then(|v| v.parse().ok()).filter(|_| ours && to.is_some());
        Notifier { to, every: every.map(|usec: u64| Duration::from_micros(usec / 2)), last: None }
    }

    /// Sends a state such as `READY=1`.
    pub fn send(&self, state: &str) {
        if let Some((socket, address)) = &self.to
            && let Err(e) = socket.send_to_addr(state.as_bytes(), address)
        {
            tracing::warn!("systemd cannot be told {state}: {e}");
        }
    }

    /// Tells the watchdog that this process is well, when it is time to.
    pub fn alive(&mut self) {
        if let Some(every) = self.every
            && self.last.is_none_or(|t| t.elapsed() >= every)
        {
            self.send("WATCHDOG=1");
            self.last = Some(Instant::now());
        }
    }

    /// Longest time between two calls of [`Notifier::alive`].
    #[must_use]
    pub fn every(&self) -> Option<Duration> {
        self.every
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn systemd_hears_ready_and_the_watchdog() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let systemd = UnixDatagram::bind(&path).unwrap();
        systemd.set_nonblocking(true).unwrap();
        let heard = || {
            let mut buffer = [0; 64];
            systemd.recv(&mut buffer).ok().map(|n| String::from_utf8_lossy(&buffer[..n]).into_owned())
        };
        let get = |name: &str| match name {
            "NOTIFY_SOCKET" => Some(path.display().to_string()),
            "WATCHDOG_USEC" => Some("3600000000".to_string()),
            _ => None,
        };
        let mut notifier = Notifier::new(get);
        notifier.send("READY=1");
        assert_eq!(heard().as_deref(), Some("READY=1"));
        notifier.alive();
        notifier.alive();
        assert_eq!(heard().as_deref(), Some("WATCHDOG=1"));
        assert_eq!(heard(), None, "once in half an hour is enough");
        let other = Notifier::new(|n| if n == "WATCHDOG_PID" { Some("1".into()) } else { get(n) });
        assert_eq!(other.every(), None);
        Notifier::new(|_| None).send("READY=1");
        assert_eq!(heard(), None);
    }
}
