//! Log lines on standard error, where slurmd and journald pick them up.

/// Starts logging; to be called once, at the start of `main`.
pub fn init() {
    // No time stamps: slurmd's log and journald add their own.
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .without_time()
        .with_target(false)
        .with_ansi(false)
        .init();
}
