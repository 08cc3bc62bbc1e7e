//! The kernel log: writing fault lines to the real `/dev/kmsg`, with proof that they arrived, and to a node's file of
//! raw records for lines that name no device.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::error::{Error, IoContext, Result};
use crate::files;

/// The kernel's record device.
pub const KMSG: &str = "/dev/kmsg";
/// The kernel cuts what user space writes at 1024 bytes less its prefix; a fault line is far shorter.
pub const LINE_MAX: usize = 900;

/// One record of the kernel log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Facility times 8 plus level.
    pub priority: u32,
    /// Sequence number.
    pub sequence: u64,
    /// Microseconds since boot.
    pub microseconds: u64,
    /// The text, without dictionary lines.
    pub text: String,
}

impl Record {
    /// Reads the head and text of one raw record, `prio,seq,usec,flags[,...];text`.
    #[must_use]
    pub fn parse(raw: &str) -> Option<Self> {
        let (head, rest) = raw.split_once(';')?;
        let mut fields = head.split(',');
        Some(Self {
            priority: fields.next()?.parse().ok()?,
            sequence: fields.next()?.parse().ok()?,
            microseconds: fields.next()?.parse().ok()?,
            text: rest.lines().next().unwrap_or_default().to_owned(),
        })
    }
}

/// Calls `each` for every record from where `log` stands to the end of the ring.
fn drain(log: &mut File, mut each: impl FnMut(Record)) -> io::Result<()> {
    // A record is at most 8 KiB (CONSOLE_EXT_LOG_MAX); a smaller buffer gives EINVAL.
    let mut buffer = [0_u8; 8192];
    loop {
        match log.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(n) => {
                if let Some(record) = Record::parse(&String::from_utf8_lossy(&buffer[..n])) {
                    each(record);
                }
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            // The ring overran the reader: the next read continues at the oldest record.
            Err(e) if e.raw_os_error() == Some(libc::EPIPE) => {}
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
}

fn open_reader() -> Result<File> {
    let path = Path::new(KMSG);
    OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path).context("read", path)
}

/// Every record in the ring now.
///
/// # Errors
/// When the log cannot be read.
pub fn ring() -> Result<Vec<Record>> {
    let mut records = Vec::new();
    drain(&mut open_reader()?, |r| records.push(r)).context("read", Path::new(KMSG))?;
    Ok(records)
}

/// Writes one line to the kernel log with the level the driver uses (3, error) and reads it back.
///
/// The kernel files what user space writes under facility 1, whatever is asked, so the record's priority is 11.
///
/// # Errors
/// When the log cannot be written, or the line does not appear in it within two seconds (`printk_devkmsg` off or
/// rate-limited).
pub fn write_kernel(line: &str) -> Result<Record> {
    let path = Path::new(KMSG);
    let mut log = open_reader()?;
    log.seek(SeekFrom::End(0)).context("read", path)?;
    let mut writer = OpenOptions::new().write(true).open(path).context("write", path)?;
    writer.write_all(format!("<3>{line}\n").as_bytes()).context("write", path)?;
    let deadline = Instant::now() + Duration::from_secs(2);
    loop {
        let mut found = None;
        drain(&mut log, |record| {
            if record.text == line {
                found = Some(record);
            }
        })
        .context("read", path)?;
        match found {
            Some(record) => return Ok(record),
            None if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(10)),
            None => {
                return Err(Error::System(format!(
                    "the line written to {KMSG} did not appear in the kernel log; \
                     /proc/sys/kernel/printk_devkmsg must be \"on\""
                )));
            }
        }
    }
}

/// Appends a record, as the kernel would have written it (facility 0, level error), to a node's record file.
///
/// # Errors
/// When the file cannot be read or written.
pub fn append_record(file: &Path, line: &str) -> Result<Record> {
    let last = files::read(file)?.lines().filter_map(Record::parse).next_back();
    let record = Record {
        priority: 3,
        sequence: last.map_or(0, |r| r.sequence + 1),
        microseconds: microseconds_since_boot()?,
        text: line.to_owned(),
    };
    let text = format!("{},{},{},-;{}\n", record.priority, record.sequence, record.microseconds, record.text);
    // One write call: a follower sees whole records only.
    let mut out = OpenOptions::new().append(true).open(file).context("write", file)?;
    out.write_all(text.as_bytes()).context("write", file)?;
    Ok(record)
}

fn microseconds_since_boot() -> Result<u64> {
    let path = Path::new("/proc/uptime");
    let text = files::read(path)?;
    let wrong = || Error::Malformed {
        path: path.to_owned(),
        what: "seconds since boot",
        detail: text.trim().to_owned(),
    };
    let seconds: f64 = text.split(' ').next().and_then(|s| s.parse().ok()).ok_or_else(wrong)?;
    Ok(Duration::try_from_secs_f64(seconds).map_err(|_| wrong())?.as_micros() as u64)
}

/// PCI domains (four hexadecimal digits, as a number) that a text mentions, as `hhhh:hh:` anywhere in it.
pub fn domains_in(text: &str) -> impl Iterator<Item = u32> + '_ {
    let bytes = text.as_bytes();
    (0..bytes.len().saturating_sub(7)).filter_map(move |i| {
        let window = &bytes[i..i + 8];
        let hex = |part: &[u8]| part.iter().all(u8::is_ascii_hexdigit);
        let shaped = window[4] == b':' && window[7] == b':' && hex(&window[..4]) && hex(&window[5..7]);
        // A longer run of digits is another thing, an address or a GUID.
        let starts = i == 0 || !bytes[i - 1].is_ascii_hexdigit();
        (shaped && starts).then(|| u32::from_str_radix(&text[i..i + 4], 16).ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raw_records() {
        let record =
            Record::parse("3,1203,100200000,-,caller=T1;mlx5_core 0000:12:00.0: text\n SUBSYSTEM=pci\n");
        assert_eq!(
            record,
            Some(Record {
                priority: 3,
                sequence: 1203,
                microseconds: 100_200_000,
                text: "mlx5_core 0000:12:00.0: text".to_owned()
            })
        );
        assert_eq!(Record::parse("no semicolon"), None);
    }

    #[test]
    fn record_file_grows_by_whole_records() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("kmsg");
        std::fs::write(&file, "").unwrap();
        append_record(&file, "first").unwrap();
        let second = append_record(&file, "NFS: server not responding; still trying").unwrap();
        assert_eq!(second.sequence, 1);
        let text = std::fs::read_to_string(&file).unwrap();
        let records: Vec<_> = text.lines().map(|l| Record::parse(l).unwrap()).collect();
        assert_eq!(records[1], second);
        assert_eq!(records[0].text, "first");
        assert!(
            append_record(&folder.path().join("absent"), "x").unwrap_err().to_string().contains("absent")
        );
    }

    #[test]
    fn domains() {
        let all = |t: &str| domains_in(t).collect::<Vec<_>>();
        assert_eq!(all("NVRM: Xid (PCI:3a1c:18:00): 79, GPU has fallen off the bus."), [0x3a1c]);
        assert_eq!(all("mlx5_core 0000:12:00.0: x 10000:e1:00.0"), [0]);
        assert_eq!(all("é3a1c:18:00"), [0x3a1c]);
        assert_eq!(all("short"), [] as [u32; 0]);
    }
}
