//! What is remembered between calls: whether NVML is initialised, and the last good GPU file.

use std::env;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::ffi::{Answer, Handle, own_path};
use crate::model::{Gpu, GpuFile, Hang, ReturnCode, names_function};

/// Names the GPU file, when it is not `gpus.toml` beside the library.
pub const GPUS_ENV: &str = "CLUSTERMAX_SIM_GPUS";
/// The GPU file's name beside the library.
pub const GPUS_FILE: &str = "gpus.toml";

static STATE: Mutex<State> = Mutex::new(State { users: 0, path: None, seen: None, file: None });

struct State {
    /// `nvmlInit` calls without their `nvmlShutdown`.
    users: u32,
    path: Option<PathBuf>,
    /// The version of the file that was read last, good or bad.
    seen: Option<Stamp>,
    /// The last good file.
    file: Option<Arc<GpuFile>>,
}

/// Tells one version of a file from the next.
#[derive(Clone, Copy, PartialEq)]
struct Stamp {
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    fn of(path: &Path) -> Option<Stamp> {
        let data = fs::metadata(path).ok()?;
        Some(Stamp {
            inode: data.ino(),
            size: data.size(),
            modified: (data.mtime(), data.mtime_nsec()),
            changed: (data.ctime(), data.ctime_nsec()),
        })
    }
}

impl State {
    /// Reads the file if it is another than last time. What cannot be used is told once and changes nothing.
    fn refresh(&mut self) {
        let Some(path) = &self.path else { return };
        let stamp = Stamp::of(path);
        if stamp.is_some() && stamp == self.seen {
            return;
        }
        match GpuFile::load(path) {
            Ok(file) => self.file = Some(Arc::new(file)),
            Err(error) if stamp != self.seen || self.file.is_none() => {
                let rest = if self.file.is_some() { "; the last good one stays in use" } else { "" };
                eprintln!("simulated libnvidia-ml.so.1: {error}{rest}");
            }
            Err(_) => {}
        }
        self.seen = stamp;
    }
}

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Where the GPU file is: named by the environment, else beside the library as it was opened, else (the library
/// was opened through a symbolic link) beside the real file.
fn find_file() -> Option<PathBuf> {
    if let Some(path) = env::var_os(GPUS_ENV).filter(|path| !path.is_empty()) {
        return Some(PathBuf::from(path));
    }
    let own = std::path::absolute(own_path()?).ok()?;
    let beside = own.with_file_name(GPUS_FILE);
    if !beside.exists()
        && let Ok(real) = own.canonicalize()
    {
        return Some(real.with_file_name(GPUS_FILE));
    }
    Some(beside)
}

/// One user more.
pub(crate) fn init(function: &str) -> Answer {
    {
        let mut state = state();
        if state.users == 0 {
            let path = find_file();
            if path != state.path {
                *state = State { users: 0, path, seen: None, file: None };
            }
        }
        state.refresh();
        if state.file.is_none() {
            return Err(ReturnCode::Unknown);
        }
    }
    // Counted only when it succeeds, and not while it hangs: the lock must not be held then.
    let file = pass_faults(function, None, || state().file.clone().ok_or(ReturnCode::Unknown))?;
    forced_error(&file.errors, function)?;
    state().users += 1;
    Ok(())
}

/// One user less.
pub(crate) fn shutdown(function: &str) -> Answer {
    on_node(function, |_| Ok(()))?;
    let mut state = state();
    state.users = state.users.checked_sub(1).ok_or(ReturnCode::Uninitialized)?;
    Ok(())
}

/// The GPU file as it is now.
fn current() -> Answer<Arc<GpuFile>> {
    let mut state = state();
    if state.users == 0 {
        return Err(ReturnCode::Uninitialized);
    }
    state.refresh();
    state.file.clone().ok_or(ReturnCode::Unknown)
}

/// What a call without a GPU works on.
pub(crate) struct NodeCall<'a> {
    pub(crate) file: &'a GpuFile,
}

impl NodeCall<'_> {
    /// The GPUs that are enumerated, with their positions in the file, in the order of their index.
    pub(crate) fn present(&self) -> impl Iterator<Item = (usize, &Gpu)> {
        self.file.gpus.iter().enumerate().filter(|(_, gpu)| !gpu.missing)
    }

    /// The handle of the one GPU that `wanted` fits. A lost GPU cannot be asked for its name any more.
    pub(crate) fn find(&self, wanted: impl Fn(&Gpu) -> bool) -> Answer<Handle> {
        match self.present().find(|(_, gpu)| wanted(gpu)) {
            Some((_, gpu)) if gpu.lost => Err(ReturnCode::GpuIsLost),
            Some((position, _)) => Ok(Handle::new(position)),
            None => Err(ReturnCode::NotFound),
        }
    }
}

/// What a call for one GPU works on.
pub(crate) struct GpuCall<'a> {
    pub(crate) file: &'a GpuFile,
    pub(crate) gpu: &'a Gpu,
    pub(crate) position: usize,
}

impl<'a> GpuCall<'a> {
    /// The GPU's index among those present.
    pub(crate) fn index(&self) -> u32 {
        self.file.gpus.iter().take(self.position).filter(|gpu| !gpu.missing).count() as u32
    }

    /// The other GPU of a call that takes two.
    pub(crate) fn other(&self, handle: Handle) -> Answer<&'a Gpu> {
        usable(self.file, handle).map(|(_, gpu)| gpu)
    }
}

/// Runs a call that names no GPU.
pub(crate) fn on_node(function: &str, body: impl FnOnce(&NodeCall) -> Answer) -> Answer {
    let file = pass_faults(function, None, current)?;
    forced_error(&file.errors, function)?;
    body(&NodeCall { file: &file })
}

/// Runs a call for one GPU.
pub(crate) fn on_gpu(function: &str, handle: Handle, body: impl FnOnce(&GpuCall) -> Answer) -> Answer {
    let file = pass_faults(function, handle.position(), current)?;
    forced_error(&file.errors, function)?;
    let (position, gpu) = usable(&file, handle)?;
    forced_error(&gpu.errors, function)?;
    body(&GpuCall { file: &file, gpu, position })
}

fn usable(file: &GpuFile, handle: Handle) -> Answer<(usize, &Gpu)> {
    let position = handle.position().ok_or(ReturnCode::InvalidArgument)?;
    let gpu = file.gpus.get(position).ok_or(ReturnCode::InvalidArgument)?;
    if gpu.lost || gpu.missing { Err(ReturnCode::GpuIsLost) } else { Ok((position, gpu)) }
}

fn forced_error(errors: &std::collections::BTreeMap<String, ReturnCode>, function: &str) -> Answer {
    match errors.iter().find(|(name, _)| names_function(name, function)) {
        Some((_, ReturnCode::Success)) | None => Ok(()),
        Some((_, code)) => Err(*code),
    }
}

/// Lets the call wait out a hang, then refuses it if the library is to lack the function.
fn pass_faults(
    function: &str,
    position: Option<usize>,
    current: impl Fn() -> Answer<Arc<GpuFile>>,
) -> Answer<Arc<GpuFile>> {
    let begin = Instant::now();
    let mut file = current()?;
    while let Some(left) = file.hang.as_ref().and_then(|hang| hang_left(hang, function, position, begin)) {
        thread::sleep(left.min(Duration::from_millis(50)));
        // A file that is gone belongs to a cluster that is gone: do not leave its processes stuck.
        let gone = state().path.as_ref().is_some_and(|path| !path.exists());
        if gone {
            break;
        }
        state().refresh();
        file = current()?;
    }
    if file.missing.functions.iter().any(|name| names_function(name, function)) {
        return Err(ReturnCode::FunctionNotFound);
    }
    Ok(file)
}

/// How much longer a call that began at `begin` hangs; `None`: not at all.
fn hang_left(hang: &Hang, function: &str, position: Option<usize>, begin: Instant) -> Option<Duration> {
    if !names_function(&hang.function, function) || hang.gpu.is_some_and(|gpu| position != Some(gpu)) {
        return None;
    }
    if hang.forever {
        return Some(Duration::MAX);
    }
    let whole = Duration::try_from_secs_f64(hang.seconds?).ok()?;
    whole.checked_sub(begin.elapsed()).filter(|left| !left.is_zero())
}
