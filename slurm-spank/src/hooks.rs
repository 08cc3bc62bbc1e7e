//! Every symbol that Slurm looks for, and nothing else.
//!
//! Only hooks with work to do are exported. `slurm_spank_job_prolog` or `_epilog` would cost an extra slurmstepd
//! for every job on every node; `init` and `fini` have a meaning of their own to Slurm's plugin loader.

use std::ffi::{c_char, c_int, c_uint};

use crate::boundary::contained;
use crate::plugin;
use crate::spank::{Spank, spank_t};

// Slurm finds these with dlsym, so each must be the object itself, not a pointer to it.

/// Name of the plugin; part of the environment variable that carries its option into a job.
#[allow(non_upper_case_globals)]
#[unsafe(no_mangle)]
pub static plugin_name: [u8; 11] = *b"clustermax\0";

/// Type of the plugin: decides how Slurm compares versions.
#[allow(non_upper_case_globals)]
#[unsafe(no_mangle)]
pub static plugin_type: [u8; 6] = *b"spank\0";

/// Slurm's `SLURM_VERSION_NUMBER` of the release this file is built for. Slurm loads it only if major and minor
/// are its own.
#[allow(non_upper_case_globals)]
#[unsafe(no_mangle)]
pub static plugin_version: c_uint = release(env!("CLUSTERMAX_SLURM_VERSION_NUMBER"));

/// `ESPANK_JOB_FAILURE`: since 25.05 a failing remote init then fails the job and leaves the node in service.
#[cfg(slurm_init_failure_mode)]
#[allow(non_upper_case_globals)]
#[unsafe(no_mangle)]
pub static slurm_spank_init_failure_mode: c_int = 3012;

/// Registers the option. In every context, since an option must be known to all three clients and to slurmstepd.
///
/// # Safety
/// Called by Slurm with its own handle and the arguments of the plugstack line.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slurm_spank_init(spank: spank_t, ac: c_int, argv: *mut *mut c_char) -> c_int {
    // SAFETY: `spank` is Slurm's handle for this call; `argv` holds `ac` strings that live as long as the plugin.
    contained!("init", 0, plugin::init(&unsafe { Spank::new(spank, ac, argv) }))
}

/// Looks at the job's record before the step's tasks begin.
///
/// # Safety
/// As for `slurm_spank_init`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slurm_spank_user_init(spank: spank_t, ac: c_int, argv: *mut *mut c_char) -> c_int {
    // SAFETY: as in `slurm_spank_init`.
    contained!("user_init", 0, plugin::user_init(&unsafe { Spank::new(spank, ac, argv) }))
}

/// Refuses to start a task on a node that is leaving service: ends the task's process, or returns -1 where there
/// is none. No other hook returns anything but 0.
///
/// # Safety
/// As for `slurm_spank_init`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slurm_spank_task_init(spank: spank_t, ac: c_int, argv: *mut *mut c_char) -> c_int {
    // SAFETY: as in `slurm_spank_init`.
    contained!("task_init", 0, plugin::task_init(&unsafe { Spank::new(spank, ac, argv) }))
}

/// Prints the report after the last local task.
///
/// # Safety
/// As for `slurm_spank_init`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slurm_spank_task_exit(spank: spank_t, ac: c_int, argv: *mut *mut c_char) -> c_int {
    // SAFETY: as in `slurm_spank_init`.
    contained!("task_exit", 0, plugin::task_exit(&unsafe { Spank::new(spank, ac, argv) }))
}

/// Decimal number from the build's environment, as a constant.
const fn release(text: &str) -> c_uint {
    let bytes = text.as_bytes();
    let mut value: c_uint = 0;
    let mut i = 0;
    while i < bytes.len() {
        value = value * 10 + (bytes[i] - b'0') as c_uint;
        i += 1;
    }
    value
}
