//! Whether CUDA can use each GPU: a context, a copy of 1 MiB there and back, and a comparison. Runs in a child,
//! since a sick driver can hang here, and only in deep passes on an idle node.

use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::path::Path;

use libloading::Library;
use serde::{Deserialize, Serialize};

use super::answer;
use super::child::{Ended, Outcome};
use crate::facts::{Reading, Usable};

/// Bytes copied there and back.
const SIZE: usize = 1 << 20;

/// One line of the child's answer.
#[derive(Serialize, Deserialize)]
enum Line {
    /// The library is not installed.
    Missing,
    /// CUDA does not start.
    Failed(String),
    /// Number of devices.
    Count(u32),
    /// This device is about to be used: a hang is its.
    Begun(String),
    /// What came of it; `None` is success.
    Gpu(String, Option<String>),
}

/// Body of the child: `library` is a path or a name for the dynamic linker.
pub fn child(library: &Path) {
    // SAFETY: libcuda's initialisers are those of the installed driver, which root trusts; nothing else runs in
    // this process.
    let Ok(lib) = (unsafe { Library::new(library) }) else {
        return answer(&Line::Missing);
    };
    if let Err(why) = (Cuda { lib: &lib }).all(&mut |line| answer(&line)) {
        answer(&Line::Failed(why));
    }
    // Unloading can hang with a sick driver; the process ends anyway.
    std::mem::forget(lib);
}

type Device = c_int;

struct Cuda<'a> {
    lib: &'a Library,
}

/// Calls a function of libcuda by name, with the types given; an error is a sentence.
macro_rules! cuda {
    ($self:ident, $name:literal, $($arg:expr => $type:ty),*) => {{
        // SAFETY: the name and the types are those of cuda.h, stable since CUDA 4; pointers given here are to
        // variables that live through the call and are large enough.
        let code = unsafe {
            let call = $self
                .lib
                .get::<unsafe extern "C" fn($($type),*) -> c_int>(concat!($name, "\0").as_bytes())
                .map_err(|_| format!("libcuda has no {}", $name))?;
            call($($arg),*)
        };
        match code {
            0 => Ok(()),
            code => Err(format!("{} failed: CUDA error {code}{}", $name, meaning(code))),
        }
    }};
}

impl Cuda<'_> {
    fn all(&self, emit: &mut dyn FnMut(Line)) -> Result<(), String> {
        cuda!(self, "cuInit", 0 => c_uint)?;
        let mut count: c_int = 0;
        cuda!(self, "cuDeviceGetCount", &raw mut count => *mut c_int)?;
        emit(Line::Count(u32::try_from(count).unwrap_or(0)));
        for ordinal in 0..count {
            let mut device: Device = 0;
            cuda!(self, "cuDeviceGet", &raw mut device => *mut Device, ordinal => c_int)?;
            let name = self.address(device).unwrap_or_else(|_| format!("CUDA device {ordinal}"));
            emit(Line::Begun(name.clone()));
            let result = self.use_device(device);
            emit(Line::Gpu(name, result.err()));
        }
        Ok(())
    }

    fn address(&self, device: Device) -> Result<String, String> {
        let mut text: [c_char; 32] = [0; 32];
        cuda!(self, "cuDeviceGetPCIBusId", text.as_mut_ptr() => *mut c_char, 31 => c_int, device => Device)?;
        // c_char has a sign on x86-64 and none on aarch64.
        let bytes: Vec<u8> = text.iter().map(|c| c.to_ne_bytes()[0]).take_while(|byte| *byte != 0).collect();
        Ok(super::nvml::normal_pci(&String::from_utf8_lossy(&bytes)))
    }

    fn use_device(&self, device: Device) -> Result<(), String> {
        let mut context: *mut c_void = std::ptr::null_mut();
        cuda!(self, "cuCtxCreate_v2", &raw mut context => *mut *mut c_void, 0 => c_uint, device => Device)?;
        let result = self.copy();
        // What the copy said matters more than what clearing up says.
        result.and(cuda!(self, "cuCtxDestroy_v2", context => *mut c_void))
    }

    fn copy(&self) -> Result<(), String> {
        let sent: Vec<u8> = (0..SIZE).map(|i| (i % 251) as u8).collect();
        let mut back = vec![0u8; SIZE];
        let mut memory: u64 = 0;
        cuda!(self, "cuMemAlloc_v2", &raw mut memory => *mut u64, SIZE => usize)?;
        cuda!(self, "cuMemcpyHtoD_v2", memory => u64, sent.as_ptr().cast() => *const c_void, SIZE => usize)?;
        cuda!(self, "cuMemcpyDtoH_v2", back.as_mut_ptr().cast() => *mut c_void, memory => u64, SIZE => usize)?;
        cuda!(self, "cuMemFree_v2", memory => u64)?;
        if back == sent { Ok(()) } else { Err("what was copied there and back is not the same".into()) }
    }
}

/// The codes that an operator meets, from cuda.h.
fn meaning(code: c_int) -> &'static str {
    match code {
        2 => " (out of memory)",
        3 => " (driver not initialised)",
        46 => " (device busy or unavailable)",
        100 => " (no device)",
        101 => " (invalid device)",
        214 => " (uncorrectable ECC error)",
        719 => " (launch failed)",
        802 => " (system not ready: fabric manager)",
        803 => " (driver and library do not match)",
        999 => " (unknown)",
        _ => "",
    }
}

/// Reads the child's lines: what came of each GPU, by PCI address; under "" when CUDA did not start at all.
pub fn parse(outcome: &Outcome) -> Reading<BTreeMap<String, Usable>> {
    let mut gpus = BTreeMap::new();
    let mut begun = None;
    for line in outcome.stdout.lines() {
        match serde_json::from_str(line) {
            Ok(Line::Missing) => return Reading::Unsupported,
            Ok(Line::Failed(why)) => {
                gpus.insert(String::new(), Usable::Fails(why));
            }
            Ok(Line::Count(_)) => {}
            Ok(Line::Begun(pci)) => begun = Some(pci),
            Ok(Line::Gpu(pci, failed)) => {
                begun = None;
                gpus.insert(pci, failed.map_or(Usable::Works, Usable::Fails));
            }
            // A cut last line is what was being written when time ran out.
            Err(_) => {}
        }
    }
    match (&outcome.ended, begun) {
        (Ended::Exit(Some(0)), None) => {}
        (Ended::Deadline(why), Some(pci)) => {
            gpus.insert(pci, Usable::Hangs(why.clone()));
        }
        (Ended::Exit(_), Some(pci)) => {
            gpus.insert(pci, Usable::Fails("the process that used it died".into()));
        }
        (ended, _) if gpus.is_empty() => return super::failed(ended),
        _ => {}
    }
    Reading::Value(gpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(lines: &[Line], ended: Ended) -> Outcome {
        let stdout: String = lines.iter().map(|l| serde_json::to_string(l).unwrap() + "\n").collect();
        Outcome { stdout, ended }
    }

    #[test]
    fn a_failure_and_a_hang_are_the_gpus() {
        let lines = [
            Line::Count(3),
            Line::Begun("a".into()),
            Line::Gpu("a".into(), None),
            Line::Begun("b".into()),
            Line::Gpu("b".into(), Some("cuCtxCreate_v2 failed: CUDA error 214".into())),
            Line::Begun("c".into()),
        ];
        let Reading::Value(gpus) = parse(&outcome(&lines, Ended::Deadline("late".into()))) else {
            panic!("no answer")
        };
        assert_eq!(gpus["a"], Usable::Works);
        assert!(matches!(&gpus["b"], Usable::Fails(why) if why.contains("214")));
        assert_eq!(gpus["c"], Usable::Hangs("late".into()));
    }

    #[test]
    fn no_library_is_unsupported_and_no_start_is_a_failure() {
        let ok = || Ended::Exit(Some(0));
        assert_eq!(parse(&outcome(&[Line::Missing], ok())), Reading::Unsupported);
        let Reading::Value(gpus) = parse(&outcome(&[Line::Failed("x".into())], ok())) else {
            panic!("no answer")
        };
        assert_eq!(gpus[""], Usable::Fails("x".into()));
        assert!(matches!(parse(&outcome(&[], Ended::Exit(None))), Reading::Unknown(_)));
    }
}
