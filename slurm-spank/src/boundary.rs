//! The panic boundary. A panic that leaves an `extern "C"` function aborts slurmstepd: srun then hangs and the
//! batch job stays RUNNING. So every export's body runs inside [`contained`].

use std::any::Any;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

use crate::spank;

/// Runs one hook. A panic inside it becomes one line in the host's log and `fallback`, which is 0 everywhere:
/// a bug of this plugin must not fail a job.
macro_rules! contained {
    ($hook:literal, $fallback:expr, $body:expr) => {
        $crate::boundary::contain($hook, $fallback, || $body)
    };
}
pub(crate) use contained;

/// The function behind [`contained`].
pub(crate) fn contain<T>(hook: &str, fallback: T, body: impl FnOnce() -> T) -> T {
    static QUIET: Once = Once::new();
    // std's own hook writes to descriptor 2, which in slurmd and slurmstepd may be anything.
    // It is this library's copy of std: the host is not affected.
    QUIET.call_once(|| panic::set_hook(Box::new(|_| {})));
    panic::catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|payload| {
        // Logging is inside its own boundary: nothing may leave this function.
        let _ = panic::catch_unwind(AssertUnwindSafe(|| {
            spank::log_error(&format!(
                "clustermax: internal error in {hook}: {}; the job is not affected, please report this",
                reason(payload.as_ref())
            ));
        }));
        // The payload's own destructor may panic; what that throws is left alone: a leak of a few bytes cannot panic.
        let _ = panic::catch_unwind(AssertUnwindSafe(|| drop(payload))).map_err(std::mem::forget);
        fallback
    })
}

fn reason(payload: &(dyn Any + Send)) -> &str {
    payload
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("panic without a message")
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_panic_becomes_the_fallback() {
        assert_eq!(contained!("task_init", 0, panic!("boom")), 0);
        assert_eq!(contained!("task_init", 0, -1), -1);
    }
}
