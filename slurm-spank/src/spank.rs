//! Safe wrapper of what the plugin needs from its host process.
//!
//! Every function of the host is looked up with dlsym: a symbol that a release lacks then costs one feature, not
//! the load of the plugin (rustc links cdylibs with BIND_NOW), and unit tests need no Slurm.

use std::ffi::{CStr, CString, c_char, c_int, c_uint};
use std::marker::PhantomData;

use crate::options::OptionSpec;

pub(crate) use sys::spank_t;

#[allow(
    missing_docs,
    non_camel_case_types,
    non_upper_case_globals,
    non_snake_case,
    dead_code,
    unused_qualifications,
    clippy::all
)]
mod sys {
    include!(concat!(env!("OUT_DIR"), "/bindings.rs"));
}

type ContextFn = unsafe extern "C" fn() -> sys::spank_context;
type RegisterFn = unsafe extern "C" fn(spank_t, *mut sys::spank_option) -> c_uint;
type GetItemFn = unsafe extern "C" fn(spank_t, sys::spank_item, ...) -> c_uint;
type GetenvFn = unsafe extern "C" fn(spank_t, *const c_char, *mut c_char, c_int) -> c_uint;
type LogFn = unsafe extern "C" fn(*const c_char, ...);

/// Never called: makes the compiler compare the types above with the header's declarations.
#[allow(dead_code)]
fn same_as_header() {
    let _: ContextFn = sys::spank_context;
    let _: RegisterFn = sys::spank_option_register;
    let _: GetItemFn = sys::spank_get_item;
    let _: GetenvFn = sys::spank_getenv;
    let _: LogFn = sys::slurm_spank_log;
    let _: LogFn = sys::slurm_error;
}

/// Looks a function up in the host process.
macro_rules! host {
    ($name:literal as $type:ty) => {{
        // SAFETY: the name is a C string; RTLD_DEFAULT searches the host and its libraries.
        let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, $name.as_ptr()) };
        if address.is_null() {
            None
        } else {
            // SAFETY: Slurm exports the symbol as a function of this type (`same_as_header`).
            Some(unsafe { std::mem::transmute::<*mut libc::c_void, $type>(address) })
        }
    }};
}

/// Where the hook runs (`enum spank_context`, the same in 22.05 to 26.05).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Context {
    /// srun.
    Local,
    /// slurmstepd.
    Remote,
    /// sbatch, salloc, scrontab.
    Allocator,
    /// slurmd.
    Slurmd,
    /// Prolog or epilog, or not known.
    Other,
}

/// Context of the calling process.
pub(crate) fn context() -> Context {
    let Some(f) = host!(c"spank_context" as ContextFn) else { return Context::Other };
    // SAFETY: takes no argument and only reads the host's state.
    match unsafe { f() } {
        sys::spank_context_S_CTX_LOCAL => Context::Local,
        sys::spank_context_S_CTX_REMOTE => Context::Remote,
        sys::spank_context_S_CTX_ALLOCATOR => Context::Allocator,
        sys::spank_context_S_CTX_SLURMD => Context::Slurmd,
        _ => Context::Other,
    }
}

/// Slurm's callback for one option: value, argument (may be null), 1 in slurmstepd.
pub(crate) type OptionCallback = unsafe extern "C" fn(c_int, *const c_char, c_int) -> c_int;

/// Slurm's handle and the plugstack arguments, for the time of one hook call: the handle points to the caller's
/// stack and must not be kept.
pub(crate) struct Spank<'call> {
    raw: spank_t,
    args: Vec<String>,
    call: PhantomData<&'call ()>,
}

impl Spank<'_> {
    /// # Safety
    /// `raw` is the handle Slurm passed to the running hook; `argv` is null or holds `ac` C strings.
    pub(crate) unsafe fn new(raw: spank_t, ac: c_int, argv: *mut *mut c_char) -> Self {
        let count = if argv.is_null() { 0 } else { usize::try_from(ac).unwrap_or(0) };
        let args = (0..count)
            // SAFETY: `i` is below the number of entries of `argv`.
            .map(|i| unsafe { *argv.add(i) })
            .filter(|arg| !arg.is_null())
            // SAFETY: not null, and a C string by the caller's promise; copied at once.
            .map(|arg| unsafe { CStr::from_ptr(arg) }.to_string_lossy().into_owned())
            .collect();
        Self { raw, args, call: PhantomData }
    }

    /// Arguments of the plugstack line.
    pub(crate) fn args(&self) -> impl Iterator<Item = &str> {
        self.args.iter().map(String::as_str)
    }

    /// Registers an option; true when Slurm took it. Valid in `slurm_spank_init` only.
    pub(crate) fn register(&self, spec: &OptionSpec, callback: OptionCallback) -> bool {
        let Some(f) = host!(c"spank_option_register" as RegisterFn) else { return false };
        let mut option = sys::spank_option {
            name: spec.name.as_ptr().cast_mut(),
            arginfo: spec.arginfo.map_or(std::ptr::null_mut(), |text| text.as_ptr().cast_mut()),
            usage: spec.usage.as_ptr().cast_mut(),
            has_arg: c_int::from(spec.arginfo.is_some()),
            val: spec.choice as c_int,
            cb: Some(callback),
        };
        // SAFETY: Slurm copies the struct and its strings and writes to neither.
        unsafe { f(self.raw, &raw mut option) == 0 }
    }

    /// Job id (`S_JOB_ID`).
    pub(crate) fn job_id(&self) -> Option<u32> {
        self.item_u32(sys::spank_item_S_JOB_ID)
    }

    /// Step id (`S_JOB_STEPID`).
    pub(crate) fn step_id(&self) -> Option<u32> {
        self.item_u32(sys::spank_item_S_JOB_STEPID)
    }

    /// Number of tasks of this step on this node.
    pub(crate) fn local_task_count(&self) -> Option<u32> {
        self.item_u32(sys::spank_item_S_JOB_LOCAL_TASK_COUNT)
    }

    /// Task number within this node, from 0.
    pub(crate) fn local_task_id(&self) -> Option<i32> {
        let f = host!(c"spank_get_item" as GetItemFn)?;
        let mut value: c_int = 0;
        // SAFETY: the item takes one `int *`, which lives through the call.
        let rc = unsafe { f(self.raw, sys::spank_item_S_TASK_ID, &raw mut value) };
        (rc == 0).then_some(value)
    }

    fn item_u32(&self, item: sys::spank_item) -> Option<u32> {
        let f = host!(c"spank_get_item" as GetItemFn)?;
        let mut value: u32 = 0;
        // SAFETY: only called with items that take one `uint32_t *`, which lives through the call.
        let rc = unsafe { f(self.raw, item, &raw mut value) };
        (rc == 0).then_some(value)
    }

    /// Variable of the job's environment: the user's data. None when unset, not UTF-8 or longer than 255 bytes.
    pub(crate) fn job_env(&self, name: &CStr) -> Option<String> {
        let f = host!(c"spank_getenv" as GetenvFn)?;
        let mut buffer = [0_u8; 256];
        // SAFETY: the buffer is as long as stated; Slurm writes a C string into it and nothing beyond.
        let rc = unsafe { f(self.raw, name.as_ptr(), buffer.as_mut_ptr().cast(), 256) };
        if rc != 0 {
            return None;
        }
        CStr::from_bytes_until_nul(&buffer).ok()?.to_str().ok().map(str::to_owned)
    }
}

/// Prints one line to the user: on srun's stderr, or in the output file of a batch job.
pub(crate) fn log_user(line: &str) {
    // Older hosts have no slurm_spank_log; there the line comes with "error: " in front.
    if let Some(f) = host!(c"slurm_spank_log" as LogFn).or_else(|| host!(c"slurm_error" as LogFn)) {
        log(f, line);
    }
}

/// Prints one line to the host's log at error level.
pub(crate) fn log_error(line: &str) {
    if let Some(f) = host!(c"slurm_error" as LogFn) {
        log(f, line);
    }
}

fn log(f: LogFn, line: &str) {
    // Text never becomes the format.
    let text = CString::new(line.replace('\0', " ")).unwrap_or_default();
    // SAFETY: printf-like function; the format takes exactly the one string given.
    unsafe { f(c"%s".as_ptr(), text.as_ptr()) };
}

/// Effective user id of this process.
pub(crate) fn effective_uid() -> u32 {
    // SAFETY: no argument, cannot fail.
    unsafe { libc::geteuid() }
}

/// Milliseconds since boot, by the clock that nobody sets.
pub(crate) fn since_boot() -> i64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes the struct, which outlives the call; this clock exists on every kernel since 2.6.39.
    unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut time) };
    time.tv_sec * 1_000 + time.tv_nsec / 1_000_000
}

/// Ends this process at once, without the host's exit handlers.
pub(crate) fn end_process(status: c_int) -> ! {
    // SAFETY: no precondition; nothing of this process runs afterwards.
    unsafe { libc::_exit(status) }
}

/// Argument of an option callback: None when null or not UTF-8.
///
/// # Safety
/// `text` is null or a C string that stays unchanged while the result is used.
pub(crate) unsafe fn option_argument<'a>(text: *const c_char) -> Option<&'a str> {
    if text.is_null() {
        return None;
    }
    // SAFETY: not null, a C string by the caller's promise.
    unsafe { CStr::from_ptr(text) }.to_str().ok()
}
