//! The operating system boundary: every `unsafe` call of this crate, translated and nothing else.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicI32, Ordering};

/// The last of SIGINT, SIGTERM and SIGHUP that arrived, 0 while none did.
static SIGNAL: AtomicI32 = AtomicI32::new(0);

extern "C" fn note_signal(signal: libc::c_int) {
    SIGNAL.store(signal, Ordering::SeqCst);
}

/// Makes SIGINT, SIGTERM and SIGHUP set a flag that [`pending_signal`] reads, instead of ending the process.
pub fn catch_signals() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: `note_signal` only stores to an atomic, which is async-signal-safe, and has the C ABI that
        // sigaction expects; the zeroed structure is a valid sigaction with an empty mask and no flags.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = note_signal as extern "C" fn(libc::c_int) as usize;
            libc::sigaction(signal, &action, std::ptr::null_mut());
        }
    }
}

/// The name of the signal that asked this process to stop, if one did since [`catch_signals`].
#[must_use]
pub fn pending_signal() -> Option<&'static str> {
    match SIGNAL.load(Ordering::SeqCst) {
        0 => None,
        libc::SIGINT => Some("SIGINT"),
        libc::SIGTERM => Some("SIGTERM"),
        libc::SIGHUP => Some("SIGHUP"),
        _ => Some("a signal"),
    }
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn c_path(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| io::ErrorKind::InvalidInput.into())
}

/// Effective user id of this process.
#[must_use]
pub fn effective_uid() -> u32 {
    // SAFETY: geteuid has no preconditions and cannot fail.
    unsafe { libc::geteuid() }
}

/// Sends `signal` to one process. `Ok(false)` when there is no such process.
///
/// # Errors
/// The error of kill(2) other than ESRCH.
pub fn kill(pid: i32, signal: i32) -> io::Result<bool> {
    if pid <= 1 {
        // 0 and negative numbers mean groups, 1 is init: never what a caller here wants.
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: kill takes plain integers; `pid` is a single process by the check above.
    match check(unsafe { libc::kill(pid, signal) }) {
        Ok(()) => Ok(true),
        Err(e) if e.raw_os_error() == Some(libc::ESRCH) => Ok(false),
        Err(e) => Err(e),
    }
}

/// Takes an exclusive flock(2) on `file`; `Ok(false)` when another process holds it.
///
/// # Errors
/// The error of flock(2).
pub fn try_lock(file: &File) -> io::Result<bool> {
    // SAFETY: the descriptor is open for as long as `file` is borrowed.
    match check(unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) }) {
        Ok(()) => Ok(true),
        Err(e) if e.raw_os_error() == Some(libc::EWOULDBLOCK) => Ok(false),
        Err(e) => Err(e),
    }
}

/// Whether programs on the file system of `path` cannot be run (mount option noexec).
///
/// # Errors
/// The error of statvfs(3).
pub fn is_noexec(path: &Path) -> io::Result<bool> {
    let name = c_path(path)?;
    // SAFETY: statvfs is plain data, for which all zeros is valid; `name` is NUL-terminated and both outlive the call.
    unsafe {
        let mut status: libc::statvfs = std::mem::zeroed();
        check(libc::statvfs(name.as_ptr(), &mut status))?;
        Ok(status.f_flag & libc::ST_NOEXEC != 0)
    }
}

/// Creates a character device node, readable and writable by everybody as the driver's own are.
///
/// # Errors
/// The error of mknod(2) or chmod(2).
pub fn mknod_char(path: &Path, major: u32, minor: u32) -> io::Result<()> {
    let name = c_path(path)?;
    // SAFETY: `name` is a NUL-terminated string that outlives both calls.
    unsafe {
        check(libc::mknod(name.as_ptr(), libc::S_IFCHR | 0o666, libc::makedev(major, minor)))?;
        check(libc::chmod(name.as_ptr(), 0o666))
    }
}

/// Detaches the command's process: a session of its own, so that no terminal signal reaches it, and, when
/// `cgroup_procs` is given, a member of that cgroup (an open `cgroup.procs` file) before it runs.
pub fn detach(command: &mut Command, cgroup_procs: Option<RawFd>) {
    // SAFETY: the closure runs between fork and exec and calls only setsid, signal and write, which are
    // async-signal-safe; it captures an integer. The caller keeps the descriptor open until spawn returns.
    unsafe {
        command.pre_exec(move || {
            if libc::setsid() == -1 {
                return Err(io::Error::last_os_error());
            }
            for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGPIPE] {
                libc::signal(signal, libc::SIG_DFL);
            }
            if let Some(fd) = cgroup_procs
                && libc::write(fd, b"0".as_ptr().cast(), 1) != 1
            {
                return Err(io::Error::last_os_error());
            }
            Ok(())
        });
    }
}

/// Gives this process a mount namespace of its own whose root is the folder `root`, with each `(from, to)` of `mounts`
/// seen there; `folder` becomes the working directory if it is seen, else `/`. Only makes system calls, so that it may
/// run between fork and exec.
///
/// # Errors
/// The error of the first system call that failed.
pub fn enter_root(root: &CStr, mounts: &[(CString, CString)], folder: &CStr) -> io::Result<()> {
    let bind = |from: &CStr, to: &CStr| {
        // SAFETY: both are NUL-terminated strings that outlive the call; a bind mount reads no type and no data.
        check(unsafe {
            libc::mount(
                from.as_ptr(),
                to.as_ptr(),
                std::ptr::null(),
                libc::MS_BIND | libc::MS_REC,
                std::ptr::null(),
            )
        })
    };
    // SAFETY: unshare takes an integer; mount gets NUL-terminated strings and null for what it does not read.
    unsafe {
        check(libc::unshare(libc::CLONE_NEWNS))?;
        // Nothing that is mounted from here on is seen outside.
        check(libc::mount(
            c"none".as_ptr(),
            c"/".as_ptr(),
            std::ptr::null(),
            libc::MS_REC | libc::MS_PRIVATE,
            std::ptr::null(),
        ))?;
    }
    bind(root, root)?;
    for (from, to) in mounts {
        bind(from, to)?;
    }
    // SAFETY: all arguments are NUL-terminated strings. The old root is put below the new one's "." and taken off
    // there, as pivot_root(2) describes.
    unsafe {
        check(libc::chdir(root.as_ptr()))?;
        if libc::syscall(libc::SYS_pivot_root, c".".as_ptr(), c".".as_ptr()) != 0 {
            return Err(io::Error::last_os_error());
        }
        check(libc::umount2(c".".as_ptr(), libc::MNT_DETACH))?;
        if libc::chdir(folder.as_ptr()) != 0 {
            check(libc::chdir(c"/".as_ptr()))?;
        }
    }
    Ok(())
}

/// Has the command's process do [`enter_root`] before it runs.
pub fn enter_root_before_exec(
    command: &mut Command,
    root: CString,
    mounts: Vec<(CString, CString)>,
    folder: CString,
) {
    // SAFETY: the closure runs between fork and exec, makes system calls only and allocates nothing; its strings are
    // its own.
    unsafe {
        command.pre_exec(move || enter_root(&root, &mounts, &folder));
    }
}
