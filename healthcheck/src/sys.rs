//! The few system calls that the standard library lacks. The only file of this crate, with the NVML
//! boundary, that holds `unsafe`.

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

/// Effective user id of this process.
#[must_use]
pub fn effective_uid() -> u32 {
    // SAFETY: geteuid takes no argument and cannot fail.
    unsafe { libc::geteuid() }
}

/// Seconds since this machine booted, suspension included. Unlike the wall clock nobody sets it.
#[must_use]
pub fn since_boot() -> f64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `t` is a writable timespec. CLOCK_BOOTTIME is there since Linux 2.6.39; were it not, `t` stays 0.
    unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut t) };
    #[allow(clippy::cast_precision_loss, reason = "seconds need no more than 53 bits")]
    let seconds = t.tv_sec as f64 + t.tv_nsec as f64 / 1e9;
    seconds
}

/// Sends a signal; false when the process is gone or not ours.
pub fn kill(pid: i32, signal: i32) -> bool {
    // SAFETY: kill takes two integers; pid > 0 is asserted so that no process group is meant.
    pid > 0 && unsafe { libc::kill(pid, signal) } == 0
}

/// Sends a signal to a process group that a child of ours was made to lead; false when nobody is left in it.
pub fn kill_group(leader: i32, signal: i32) -> bool {
    // SAFETY: kill takes two integers; leader > 1 is asserted, since -1 would mean every process.
    leader > 1 && unsafe { libc::kill(-leader, signal) } == 0
}

/// Takes the remains of a dead child away; does nothing for any other process.
pub fn reap(pid: i32) {
    if pid > 0 {
        // SAFETY: waitpid takes integers and a null pointer, which it allows; WNOHANG never waits.
        unsafe { libc::waitpid(pid, std::ptr::null_mut(), libc::WNOHANG) };
    }
}

/// Makes a child end (by SIGTERM) when this process does: one that Slurm kills must leave nothing hanging.
pub fn die_with_parent(command: &mut std::process::Command) -> &mut std::process::Command {
    use std::os::unix::process::CommandExt;
    // SAFETY: the closure runs between fork and exec and calls prctl only, which is async-signal-safe.
    unsafe {
        command.pre_exec(|| {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM);
            Ok(())
        })
    }
}

/// Takes an exclusive lock without waiting; false when another process holds it.
///
/// # Errors
/// Whatever flock reports other than "held by another".
pub fn try_lock(file: &File) -> std::io::Result<bool> {
    // SAFETY: the descriptor is open for as long as `file` is borrowed.
    if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0 {
        return Ok(true);
    }
    let error = std::io::Error::last_os_error();
    if error.raw_os_error() == Some(libc::EWOULDBLOCK) { Ok(false) } else { Err(error) }
}

/// Blocks and inodes of a file system.
#[derive(Debug, Clone, Copy)]
pub struct FsUsage {
    /// Blocks used, in percent of what ordinary users can have.
    pub blocks_percent: f64,
    /// Inodes used, in percent; `None` where the file system has no fixed number.
    pub inodes_percent: Option<f64>,
}

/// Space and inodes of the file system that holds `path`.
///
/// # Errors
/// What statvfs reports.
pub fn fs_usage(path: &Path) -> std::io::Result<FsUsage> {
    let c = std::ffi::CString::new(path.as_os_str().as_encoded_bytes())?;
    let mut s = std::mem::MaybeUninit::<libc::statvfs>::zeroed();
    // SAFETY: `c` is NUL-terminated and `s` is a writable statvfs.
    if unsafe { libc::statvfs(c.as_ptr(), s.as_mut_ptr()) } != 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: statvfs returned 0, so it filled the structure (which was zeroed to begin with).
    let s = unsafe { s.assume_init() };
    // As df: used / (used + available to ordinary users).
    #[allow(clippy::cast_precision_loss)]
    let percent = |total: u64, free: u64, available: u64| {
        let used = total.saturating_sub(free);
        let base = used + available;
        if base == 0 { 0.0 } else { used as f64 * 100.0 / base as f64 }
    };
    Ok(FsUsage {
        blocks_percent: percent(s.f_blocks, s.f_bfree, s.f_bavail),
        inodes_percent: (s.f_files > 0).then(|| percent(s.f_files, s.f_ffree, s.f_favail)),
    })
}

/// Sets the group and mode of an open file, so that a job's user can read it.
///
/// # Errors
/// What fchown reports.
pub fn set_group(file: &File, gid: u32) -> std::io::Result<()> {
    // SAFETY: the descriptor is open; uid -1 (u32::MAX) leaves the owner alone.
    if unsafe { libc::fchown(file.as_raw_fd(), u32::MAX, gid) } == 0 {
        Ok(())
    } else {
        Err(std::io::Error::last_os_error())
    }
}

/// State of the kernel's clock.
///
/// # Errors
/// What adjtimex reports.
pub fn clock() -> std::io::Result<crate::facts::Clock> {
    let mut t = std::mem::MaybeUninit::<libc::timex>::zeroed();
    // SAFETY: `t` is a writable timex; with `modes` 0, as zeroed, adjtimex changes nothing.
    let state = unsafe { libc::adjtimex(t.as_mut_ptr()) };
    if state < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: adjtimex succeeded, so it filled the structure (which was zeroed to begin with).
    let t = unsafe { t.assume_init() };
    let unit = if t.status & libc::STA_NANO != 0 { 1e-9 } else { 1e-6 };
    #[allow(clippy::cast_precision_loss, reason = "seconds need no more than 53 bits")]
    Ok(crate::facts::Clock {
        synchronised: state != libc::TIME_ERROR && t.status & libc::STA_UNSYNC == 0,
        offset: t.offset as f64 * unit,
        max_error: t.maxerror as f64 * 1e-6,
    })
}

/// Makes reads of a descriptor return at once when there is nothing to read.
///
/// # Errors
/// What fcntl reports.
pub fn set_nonblocking(fd: &impl AsRawFd) -> std::io::Result<()> {
    // SAFETY: F_SETFL on an open descriptor takes an integer.
    if unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) } == 0 {
        Ok(())
    } else {
        Err(std::io::Error::last_os_error())
    }
}

/// `struct nvme_passthru_cmd` of Linux' `nvme_ioctl.h`.
#[repr(C)]
#[derive(Default)]
struct NvmeCommand {
    opcode: u8,
    flags: u8,
    reserved: u16,
    namespace: u32,
    cdw2_3: [u32; 2],
    metadata: u64,
    address: u64,
    metadata_length: u32,
    data_length: u32,
    cdw10_15: [u32; 6],
    timeout_ms: u32,
    result: u32,
}

/// `NVME_IOCTL_ADMIN_CMD`: `_IOWR('N', 0x41, struct nvme_passthru_cmd)`.
const NVME_ADMIN: libc::c_ulong = 0xc048_4e41;

/// Asks an NVMe controller for log page 02h (SMART / Health Information) of the whole device.
///
/// # Errors
/// What the ioctl reports; a status of the controller's as its number.
pub fn nvme_health_page(device: &File, page: &mut [u8; 512]) -> std::io::Result<()> {
    const GET_LOG_PAGE: u8 = 0x02;
    /// Number of 4-byte words less one in the upper half, the page in the lower.
    const WORDS_AND_PAGE: u32 = (512 / 4 - 1) << 16 | 0x02;
    let mut command = NvmeCommand {
        opcode: GET_LOG_PAGE,
        namespace: u32::MAX,
        address: page.as_mut_ptr() as u64,
        data_length: 512,
        cdw10_15: [WORDS_AND_PAGE, 0, 0, 0, 0, 0],
        ..NvmeCommand::default()
    };
    // SAFETY: `command` is a writable nvme_passthru_cmd, and `address` points to the `data_length` bytes of `page`, which the
    // driver fills; both outlive the call. A device that is no NVMe controller refuses the request.
    match unsafe { libc::ioctl(device.as_raw_fd(), NVME_ADMIN as _, &raw mut command) } {
        0 => Ok(()),
        status if status > 0 => {
            Err(std::io::Error::other(format!("the controller answers with status {status:#x}")))
        }
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// Waits until one of the descriptors can be read or the time is over.
pub fn poll_readable(fds: &[i32], timeout: std::time::Duration) {
    let mut polled: Vec<libc::pollfd> =
        fds.iter().map(|&fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 }).collect();
    let millis = i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX).max(1);
    // SAFETY: `polled` outlives the call and its length is given. The result is not needed: callers read
    // without blocking.
    unsafe {
        libc::poll(polled.as_mut_ptr(), libc::nfds_t::try_from(polled.len()).unwrap_or(0), millis);
    }
}

/// Connects to a Unix stream socket; connecting, reading and writing each give up after `limit`. Without a limit a connect
/// waits for ever once the queue of a server that does not accept is full.
///
/// # Errors
/// What socket, setsockopt or connect report; a path that is too long is an invalid input.
pub fn connect(path: &Path, limit: std::time::Duration) -> std::io::Result<std::os::unix::net::UnixStream> {
    use std::os::unix::ffi::OsStrExt;
    let done = |result: libc::c_int| if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) };
    // SAFETY: a zeroed sockaddr_un is a valid one with an empty path.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::sa_family_t::try_from(libc::AF_UNIX).unwrap_or_default();
    let bytes = path.as_os_str().as_bytes();
    // The last byte stays 0.
    if bytes.len() >= address.sun_path.len() {
        return Err(std::io::Error::new(
            std::io::ErrorKind::InvalidInput,
            "the path of the socket is too long",
        ));
    }
    for (to, from) in address.sun_path.iter_mut().zip(bytes) {
        *to = libc::c_char::from_ne_bytes([*from]);
    }
    // SAFETY: socket takes integers.
    let fd = unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: socket succeeded, so this descriptor is open and nobody else's.
    let stream = unsafe { std::os::unix::net::UnixStream::from_raw_fd(fd) };
    stream.set_write_timeout(Some(limit))?;
    stream.set_read_timeout(Some(limit))?;
    let length = libc::socklen_t::try_from(size_of::<libc::sockaddr_un>()).unwrap_or_default();
    // SAFETY: `address` is a sockaddr_un of the length given and outlives the call.
    done(unsafe { libc::connect(fd, (&raw const address).cast(), length) })?;
    Ok(stream)
}

static STOP: AtomicBool = AtomicBool::new(false);
static STOP_PIPE: AtomicI32 = AtomicI32::new(-1);

extern "C" fn on_stop(_signal: libc::c_int) {
    STOP.store(true, Ordering::Relaxed);
    let fd = STOP_PIPE.load(Ordering::Relaxed);
    // SAFETY: write is async-signal-safe, one byte of a static is read, and errno is put back, since the interrupted code
    // may be about to read it. A full pipe is as good: it wakes the reader already.
    unsafe {
        let errno = libc::__errno_location();
        let before = *errno;
        libc::write(fd, b"x".as_ptr().cast(), 1);
        *errno = before;
    }
}

/// From now on SIGTERM and SIGINT do not end the process: the descriptor given becomes readable, and
/// [`asked_to_stop`] says so. To be called once.
///
/// # Errors
/// What pipe2 or sigaction report.
pub fn stop_signals() -> std::io::Result<OwnedFd> {
    let mut ends = [0; 2];
    // SAFETY: `ends` has room for two descriptors.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK) } != 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: pipe2 succeeded, so this end is open and nobody else's. The other one stays open for the handler.
    let reader = unsafe { OwnedFd::from_raw_fd(ends[0]) };
    STOP_PIPE.store(ends[1], Ordering::Relaxed);
    for signal in [libc::SIGTERM, libc::SIGINT] {
        // SAFETY: a zeroed sigaction is a valid one with an empty mask; the handler is async-signal-safe.
        let done = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_stop as extern "C" fn(libc::c_int) as usize;
            libc::sigaction(signal, &raw const action, std::ptr::null_mut())
        };
        if done != 0 {
            return Err(std::io::Error::last_os_error());
        }
    }
    Ok(reader)
}

/// SIGTERM or SIGINT came since [`stop_signals`].
#[must_use]
pub fn asked_to_stop() -> bool {
    STOP.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn a_server_that_accepts_nobody_holds_nobody_up() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let server = UnixListener::bind(&path).unwrap();
        // SAFETY: listen on an open socket of ours; it only shortens the queue.
        assert_eq!(unsafe { libc::listen(server.as_raw_fd(), 0) }, 0);
        let limit = std::time::Duration::from_millis(50);
        let ends: Vec<_> = (0..4).map(|_| connect(&path, limit)).collect();
        assert!(ends.iter().any(Result::is_ok), "{ends:?}");
        let full = ends.into_iter().find_map(Result::err).expect("the queue holds one");
        assert_eq!(full.kind(), std::io::ErrorKind::WouldBlock);
    }

    #[test]
    fn a_socket_that_is_not_there_or_has_too_long_a_name_is_said() {
        let limit = std::time::Duration::from_secs(1);
        let missing = connect(Path::new("/nonexistent/s"), limit).unwrap_err();
        assert_eq!(missing.kind(), std::io::ErrorKind::NotFound);
        let long = connect(Path::new(&"x".repeat(200)), limit).unwrap_err();
        assert_eq!(long.kind(), std::io::ErrorKind::InvalidInput);
    }
}
