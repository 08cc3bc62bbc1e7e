//! Boundary to libslurm: opens the library of the release we were built for, and turns its structures into plain
//! values. No decision is taken here.
//!
//! libslurm keeps global state, may call exit(1) and may block for `MessageTimeout` seconds; it is only ever
//! used in the worker process (`worker.rs`).

use std::ffi::{CStr, CString, c_char, c_int};
use std::io;
use std::ptr;

use healthcheck::hostlist;
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_LAZY};
use prolog_epilog::node_state::{self, Node};
use prolog_epilog::release::Release;
use prolog_epilog::slurm::{Job, Slurm, SlurmError};

#[allow(
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    unsafe_op_in_unsafe_fn,
    unused_qualifications,
    dead_code,
    clippy::all,
    clippy::semicolon_if_nothing_returned,
    clippy::undocumented_unsafe_blocks
)]
mod bindings {
    include!(concat!(env!("OUT_DIR"), "/bindings.rs"));
}
use bindings as c;

/// The bits on which decisions rest are those of the header.
const _: () = {
    assert!(c::NODE_STATE_DRAIN == node_state::DRAIN);
    assert!(c::NODE_STATE_FAIL == node_state::FAIL);
    assert!(c::node_states_NODE_STATE_DOWN == node_state::DOWN);
    assert!(c::node_states_NODE_STATE_FUTURE == node_state::FUTURE);
    assert!(c::NODE_STATE_MAINT == 1 << 15);
    assert!(c::NODE_STATE_REBOOT_ISSUED == 1 << 20);
    assert!(c::NODE_STATE_POWER_DRAIN == 1 << 25);
};

/// Release given to the build.
pub fn built_for() -> Release {
    Release::from_number(number(env!("CLUSTERMAX_SLURM_VERSION_NUMBER")))
}

/// Release of the header, hence of the structures' layout.
fn header() -> Release {
    Release::from_number(number(env!("CLUSTERMAX_SLURM_HEADER_NUMBER")))
}

fn number(text: &str) -> u32 {
    text.parse().unwrap_or_default()
}

/// libslurm, opened and of the right release.
pub struct Libslurm {
    api: c::Libslurm,
}

impl Libslurm {
    /// Opens the libslurm of the release we were built for.
    ///
    /// # Errors
    /// One sentence: not there, or of another release.
    pub fn open() -> Result<Self, String> {
        let release = built_for();
        if header() != release {
            return Err(format!(
                "built for Slurm {release} with the headers of {}: rebuild with SLURM_INCLUDE_DIR of Slurm {release}",
                header()
            ));
        }
        let Some(soname) = release.libslurm() else {
            return Err(format!("which libslurm belongs to Slurm {release} is not known"));
        };
        let name = format!("libslurm.so.{soname}");
        // SAFETY: loading runs the library's constructors; libslurm has none that need preparation. Its own
        // plugins (auth, cred, ...) look its symbols up in the global scope, hence RTLD_GLOBAL.
        let library = unsafe { Library::open(Some(&name), RTLD_LAZY | RTLD_GLOBAL) }.map_err(|_| {
            format!("{name} of Slurm {release}, for which this program was built, is not installed")
        })?;
        // SAFETY: the signatures come from the header of the release whose soname was just opened.
        let api = unsafe { c::Libslurm::from_library(library) }
            .map_err(|e| format!("{name} lacks a function of Slurm {release}: {e}"))?;
        // SAFETY: takes nothing, returns a constant.
        let version = unsafe { api.slurm_api_version() };
        if version >> 16 != i64::from(soname) {
            return Err(format!(
                "{name} says it is version {} of the interface, not {soname}: it is not Slurm {release}'s",
                version >> 16
            ));
        }
        Ok(Libslurm { api })
    }

    /// Reads the configuration named by `SLURM_CONF`. May end the process or take very long.
    pub fn init(self) -> Self {
        // SAFETY: called once per process, in the worker only; NULL means: by the environment.
        unsafe { self.api.slurm_init(ptr::null()) };
        self
    }

    /// Turns a return code and errno, which must be read at once, into a result.
    fn check(&self, code: c_int) -> Result<(), SlurmError> {
        if code == 0 {
            return Ok(());
        }
        let errno = io::Error::last_os_error().raw_os_error().unwrap_or_default();
        // SAFETY: returns a static or thread-local C string for any number.
        let text = unsafe { text(self.api.slurm_strerror(errno)) };
        let message = format!("{text} ({errno})");
        Err(if is_final(errno) { SlurmError::Refused(message) } else { SlurmError::NoAnswer(message) })
    }

    fn take_nodes(&self, code: c_int, message: *mut c::node_info_msg_t) -> Result<Vec<Node>, SlurmError> {
        self.check(code)?;
        if message.is_null() {
            return Ok(Vec::new());
        }
        // SAFETY: on success libslurm hands over a message with `record_count` records.
        let nodes = unsafe {
            records((*message).node_array, (*message).record_count)
                .iter()
                // Deleted nodes leave records without a name.
                .filter(|n| !n.name.is_null())
                .map(|n| Node {
                    name: text(n.name),
                    state: n.node_state,
                    reason: text(n.reason),
                    reason_time: n.reason_time,
                    hostname: text(n.node_hostname),
                    comment: text(n.comment),
                    resume_after: resume_after(n),
                })
                .collect()
        };
        // SAFETY: ours to free, once; the nodes above are copies.
        unsafe { self.api.slurm_free_node_info_msg(message) };
        Ok(nodes)
    }

    fn update_node(
        &self,
        name: &str,
        state: u32,
        reason: Option<&str>,
        comment: Option<&str>,
    ) -> Result<(), SlurmError> {
        let name = c_string(name)?;
        let reason = reason.map(c_string).transpose()?;
        let comment = comment.map(c_string).transpose()?;
        let mut message = std::mem::MaybeUninit::<c::update_node_msg_t>::zeroed();
        // SAFETY: the structure is ours and of the header's size; slurm_init_update_node_msg fills all of it.
        let mut message = unsafe {
            self.api.slurm_init_update_node_msg(message.as_mut_ptr());
            message.assume_init()
        };
        message.node_names = name.as_ptr().cast_mut();
        message.node_state = state;
        message.reason = reason.as_ref().map_or(ptr::null_mut(), |r| r.as_ptr().cast_mut());
        message.comment = comment.as_ref().map_or(ptr::null_mut(), |c| c.as_ptr().cast_mut());
        // SAFETY: libslurm only reads the message and its strings, which live until after the call.
        let code = unsafe { self.api.slurm_update_node(&raw mut message) };
        self.check(code)
    }

    #[cfg(not(slurm_jobs_by_step_id))]
    fn load_job(&self, id: u32, message: &mut *mut c::job_info_msg_t) -> c_int {
        // SAFETY: `message` is a valid place for the pointer.
        unsafe { self.api.slurm_load_job(message, id, SHOW_ALL) }
    }

    #[cfg(slurm_jobs_by_step_id)]
    fn load_job(&self, id: u32, message: &mut *mut c::job_info_msg_t) -> c_int {
        // SAFETY: `message` is a valid place for the pointer.
        unsafe { self.api.slurm_load_job(message, step_id(id), SHOW_ALL) }
    }

    #[cfg(not(slurm_jobs_by_step_id))]
    fn notify_job(&self, id: u32, text: &CStr) -> c_int {
        // SAFETY: libslurm only reads the text.
        unsafe { self.api.slurm_notify_job(id, text.as_ptr().cast_mut()) }
    }

    #[cfg(slurm_jobs_by_step_id)]
    fn notify_job(&self, id: u32, text: &CStr) -> c_int {
        // SAFETY: libslurm only reads the text.
        unsafe { self.api.slurm_notify_job(step_id(id), text.as_ptr().cast_mut()) }
    }
}

/// Whether Slurm is to resume the node by itself: 0 and NO_VAL stand for no.
#[cfg(slurm_resume_after)]
fn resume_after(node: &c::node_info_t) -> bool {
    node.resume_after != 0 && node.resume_after != i64::from(c::NO_VAL)
}

#[cfg(not(slurm_resume_after))]
fn resume_after(_: &c::node_info_t) -> bool {
    false
}

/// The whole job, as libslurm of 26.05 wants it named.
#[cfg(slurm_jobs_by_step_id)]
fn step_id(job: u32) -> c::slurm_step_id_t {
    // SAFETY: the structure holds integers only, for which zero is a value.
    let mut step: c::slurm_step_id_t = unsafe { std::mem::zeroed() };
    step.job_id = job;
    step.step_id = c::NO_VAL;
    step.step_het_comp = c::NO_VAL;
    step
}

/// Also nodes and jobs of hidden partitions.
const SHOW_ALL: u16 = c::SHOW_ALL as u16;

/// Errors after which trying again is of no use. All others (no connection, time-out, authentication service down,
/// controller in standby, unknown) may go better later.
fn is_final(errno: c_int) -> bool {
    let Ok(errno) = u32::try_from(errno) else { return false };
    [
        c::slurm_err_t_ESLURM_ACCESS_DENIED,
        c::slurm_err_t_ESLURM_USER_ID_MISSING,
        c::slurm_err_t_ESLURM_INVALID_NODE_NAME,
        c::slurm_err_t_ESLURM_INVALID_NODE_STATE,
        c::slurm_err_t_ESLURM_INVALID_JOB_ID,
        c::slurm_err_t_ESLURM_ALREADY_DONE,
        c::slurm_err_t_ESLURM_JOB_FINISHED,
        c::slurm_err_t_ESLURM_JOB_PENDING,
        c::slurm_err_t_ESLURM_NOT_SUPPORTED,
    ]
    .contains(&errno)
}

fn c_string(text: &str) -> Result<CString, SlurmError> {
    CString::new(text).map_err(|_| SlurmError::Refused("the text holds a NUL byte".into()))
}

/// A copy of a C string; empty for NULL.
///
/// # Safety
/// `text` is NULL or points to a NUL-terminated string.
unsafe fn text(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: by contract of this function.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// A C array as a slice.
///
/// # Safety
/// `array` is NULL, or points to `count` records that live for `'a`.
unsafe fn records<'a, T>(array: *const T, count: u32) -> &'a [T] {
    if array.is_null() {
        return &[];
    }
    // SAFETY: by contract of this function.
    unsafe { std::slice::from_raw_parts(array, usize::try_from(count).unwrap_or(0)) }
}

impl Slurm for Libslurm {
    fn via(&self) -> &'static str {
        "libslurm"
    }

    fn node(&mut self, name: &str) -> Result<Option<Node>, SlurmError> {
        let c_name = c_string(name)?;
        let mut message = ptr::null_mut();
        // SAFETY: `message` is a valid place for the pointer; the name is only read.
        let code = unsafe {
            self.api.slurm_load_node_single(&raw mut message, c_name.as_ptr().cast_mut(), SHOW_ALL)
        };
        Ok(self.take_nodes(code, message)?.into_iter().find(|n| n.name == name))
    }

    fn nodes(&mut self) -> Result<Vec<Node>, SlurmError> {
        let mut message = ptr::null_mut();
        // SAFETY: `message` is a valid place for the pointer.
        let code = unsafe { self.api.slurm_load_node(0, &raw mut message, SHOW_ALL) };
        self.take_nodes(code, message)
    }

    fn partitions(&mut self, node: &str) -> Result<Vec<String>, SlurmError> {
        let mut message = ptr::null_mut();
        // SAFETY: `message` is a valid place for the pointer.
        let code = unsafe { self.api.slurm_load_partitions(0, &raw mut message, SHOW_ALL) };
        self.check(code)?;
        if message.is_null() {
            return Ok(Vec::new());
        }
        // SAFETY: on success libslurm hands over a message with `record_count` records; their strings are copied.
        let partitions: Vec<(String, String)> = unsafe {
            records((*message).partition_array, (*message).record_count)
                .iter()
                .map(|p| (text(p.name), text(p.nodes)))
                .collect()
        };
        // SAFETY: ours to free, once; the partitions above are copies.
        unsafe { self.api.slurm_free_partition_info_msg(message) };
        Ok(partitions
            .into_iter()
            .filter(|(_, nodes)| hostlist::contains(nodes, node))
            .map(|(p, _)| p)
            .collect())
    }

    fn drain(&mut self, name: &str, reason: &str) -> Result<(), SlurmError> {
        self.update_node(name, c::NODE_STATE_DRAIN, Some(reason), None)
    }

    fn undrain(&mut self, name: &str) -> Result<(), SlurmError> {
        self.update_node(name, c::NODE_STATE_UNDRAIN, None, None)
    }

    fn set_reason(&mut self, name: &str, reason: &str) -> Result<(), SlurmError> {
        self.update_node(name, c::NO_VAL, Some(reason), None)
    }

    fn set_comment(&mut self, name: &str, comment: &str) -> Result<(), SlurmError> {
        self.update_node(name, c::NO_VAL, None, Some(comment))
    }

    fn job(&mut self, id: u32) -> Result<Option<Job>, SlurmError> {
        let mut message = ptr::null_mut();
        let code = self.load_job(id, &mut message);
        match self.check(code) {
            Err(SlurmError::Refused(_)) => return Ok(None),
            other => other?,
        }
        if message.is_null() {
            return Ok(None);
        }
        // SAFETY: on success libslurm hands over a message with `record_count` records.
        let job = unsafe { records((*message).job_array, (*message).record_count) }.iter().find_map(|j| {
            let number = job_number(j);
            (number == id).then(|| Job {
                id: if j.array_task_id == c::NO_VAL {
                    id.to_string()
                } else {
                    format!("{}_{}", j.array_job_id, j.array_task_id)
                },
                number: id,
                batch: j.batch_flag != 0,
                running: j.job_state & JOB_STATE_BASE == c::job_states_JOB_RUNNING,
                // SAFETY: NULL or a string of the message, copied here.
                admin_comment: unsafe { text(j.admin_comment) },
            })
        });
        // SAFETY: ours to free, once; the job above is a copy.
        unsafe { self.api.slurm_free_job_info_msg(message) };
        Ok(job)
    }

    fn notify(&mut self, job: &Job, text: &str) -> Result<(), SlurmError> {
        let code = self.notify_job(job.number, &c_string(text)?);
        self.check(code)
    }

    fn set_admin_comment(&mut self, job: &Job, comment: &str) -> Result<(), SlurmError> {
        let id = c_string(&job.id)?;
        let comment = c_string(comment)?;
        let mut message = std::mem::MaybeUninit::<c::job_desc_msg_t>::zeroed();
        // SAFETY: the structure is ours and of the header's size; slurm_init_job_desc_msg fills all of it.
        let mut message = unsafe {
            self.api.slurm_init_job_desc_msg(message.as_mut_ptr());
            message.assume_init()
        };
        message.job_id_str = id.as_ptr().cast_mut();
        message.admin_comment = comment.as_ptr().cast_mut();
        let mut response = ptr::null_mut();
        // SAFETY: libslurm only reads the message and its strings, which live until after the call.
        let code = unsafe { self.api.slurm_update_job2(&raw mut message, &raw mut response) };
        let result = self.check(code);
        if response.is_null() {
            return result;
        }
        // SAFETY: on success of the call the response holds `job_array_count` error codes.
        let errors = unsafe { records((*response).error_code, (*response).job_array_count) }.to_vec();
        // SAFETY: ours to free, once.
        unsafe { self.api.slurm_free_job_array_resp(response) };
        result?;
        match errors.iter().find(|e| **e != 0) {
            Some(e) => Err(SlurmError::Refused(format!("job {} could not be updated (error {e})", job.id))),
            None => Ok(()),
        }
    }
}

/// Mask of the base state in `job_state`.
const JOB_STATE_BASE: u32 = 0xff;

#[cfg(not(slurm_jobs_by_step_id))]
fn job_number(job: &c::slurm_job_info_t) -> u32 {
    job.job_id
}

#[cfg(slurm_jobs_by_step_id)]
fn job_number(job: &c::slurm_job_info_t) -> u32 {
    job.step_id.job_id
}
