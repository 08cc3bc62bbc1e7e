//! Process boundary: children that can be ended with all they started, children that outlive us, our own limit.

use std::fs::File;
use std::io::{self, Seek, Write};
use std::os::fd::FromRawFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Makes the child lead its own process group and die with us.
pub fn contain(command: &mut Command) -> &mut Command {
    command.process_group(0);
    // SAFETY: the closure runs between fork and exec and calls prctl only, which is async-signal-safe.
    unsafe {
        command.pre_exec(|| {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            Ok(())
        })
    }
}

/// Kills a child started through [`contain`] and its process group. It is not waited for: a process stuck in
/// the kernel would keep us.
pub fn kill_group(child: &Child) {
    if let Ok(pid) = i32::try_from(child.id())
        && pid > 1
    {
        // SAFETY: a negative pid names the group that `contain` made the child lead; the child is not yet
        // reaped, so the number cannot belong to anybody else.
        unsafe { libc::kill(-pid, libc::SIGKILL) };
    }
}

/// Standard input with this content for a child. It is a file in memory: unlike a pipe it keeps neither side waiting, however
/// long the content is and however late the child reads. Unlike an argument it is for the child only.
///
/// # Errors
/// There is no memory for it.
pub fn handed(content: &[u8]) -> io::Result<Stdio> {
    // SAFETY: the name is a C string; the call makes a new descriptor and touches nothing else.
    let descriptor = unsafe { libc::memfd_create(c"handed".as_ptr(), libc::MFD_CLOEXEC) };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was made above and belongs to nobody else.
    let mut file = unsafe { File::from_raw_fd(descriptor) };
    file.write_all(content)?;
    file.rewind()?;
    Ok(file.into())
}

/// Starts a child that outlives us: own session, no terminal, nothing of ours held open. slurmd waits until the
/// prolog's output is closed and kills its process group afterwards; neither reaches such a child.
///
/// # Errors
/// The program cannot be started.
pub fn detach(command: &mut Command, stdin: Stdio) -> io::Result<Child> {
    command.stdin(stdin).stdout(Stdio::null()).stderr(Stdio::null()).current_dir("/");
    // SAFETY: the closure runs between fork and exec and makes two async-signal-safe system calls. close_range
    // only marks descriptors as closing on exec, so the standard library's own stay usable until then.
    unsafe {
        command.pre_exec(|| {
            if libc::setsid() == -1 {
                return Err(io::Error::last_os_error());
            }
            libc::syscall(libc::SYS_close_range, 3_u32, u32::MAX, libc::CLOSE_RANGE_CLOEXEC);
            Ok(())
        });
    }
    command.spawn()
}

/// Ends this process for certain after `limit`, wherever it may hang by then.
pub fn die_after(limit: Duration) {
    let value = libc::timeval {
        tv_sec: libc::time_t::try_from(limit.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_usec: libc::suseconds_t::from(limit.subsec_micros().max(1)),
    };
    let timer = libc::itimerval { it_interval: libc::timeval { tv_sec: 0, tv_usec: 0 }, it_value: value };
    // SAFETY: setitimer reads `timer`, which outlives the call; SIGALRM's default action ends the process.
    // Slurm may have left SIGALRM blocked or ignored, so both are undone first.
    unsafe {
        libc::signal(libc::SIGALRM, libc::SIG_DFL);
        let mut set = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), libc::SIGALRM);
        libc::sigprocmask(libc::SIG_UNBLOCK, set.as_ptr(), std::ptr::null_mut());
        libc::setitimer(libc::ITIMER_REAL, &raw const timer, std::ptr::null_mut());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A worker that hangs before it reads must not keep its parent beyond the deadline.
    #[test]
    fn what_is_handed_over_waits_for_no_reader_and_comes_whole() {
        let long = "x".repeat(1 << 20);
        let stdin = handed(long.as_bytes()).unwrap();
        let read = Command::new("/bin/cat").stdin(stdin).output().unwrap();
        assert_eq!(read.stdout, long.as_bytes());
        let deaf = Command::new("/bin/true").stdin(handed(long.as_bytes()).unwrap()).status().unwrap();
        assert!(deaf.success());
    }
}
