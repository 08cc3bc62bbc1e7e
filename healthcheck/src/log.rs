//! Log lines on standard error, where slurmd and journald pick them up.

/// Starts logging; to be called before the first line. Calling it again changes nothing.
pub fn init() {
    // No time stamps: slurmd's log and journald add their own.
    let _ = tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .without_time()
        .with_target(false)
        .with_ansi(false)
        // A full or closed standard error is nobody's fault; complaining about it there would be a panic.
        .log_internal_errors(false)
        .try_init();
}
