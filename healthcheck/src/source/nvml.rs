//! NVML, read in a child that prints one JSON line for the driver and one for each GPU, so that a GPU whose
//! driver call hangs does not hide the ones read before it.

use std::collections::BTreeMap;
use std::io::{BufRead, Write};
use std::path::Path;

use nvml_wrapper::enum_wrappers::device::{
    EccCounter, MemoryError, MemoryLocation, TemperatureSensor, TemperatureThreshold,
};
use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper::{Device, Nvml};
use serde::{Deserialize, Serialize};

use super::child::{END_OF_ANSWER, Ended, Outcome};
use super::{answer, nvml_details};
use crate::facts::{NvmlFacts, NvmlGpu, Reading};

/// `NVML_FI_DEV_REMAPPED_PENDING`.
const FIELD_REMAP_PENDING: u32 = 144;
/// `NVML_FI_DEV_REMAPPED_FAILURE`.
const FIELD_REMAP_FAILURE: u32 = 145;
/// `NVML_FI_DEV_GET_GPU_RECOVERY_ACTION`.
const FIELD_RECOVERY_ACTION: u32 = 230;
/// `NVML_NVLINK_MAX_LINKS`.
const MAX_NVLINKS: u32 = 18;

/// One line of the child's answer.
#[derive(Serialize, Deserialize)]
enum Line {
    Driver {
        version: String,
        count: u32,
    },
    Gpu(Box<NvmlGpu>),
    Failed {
        library_missing: bool,
        why: String,
        #[serde(default)]
        code: u32,
    },
}

/// Body of the child: `library` is a path or a name for the dynamic linker. `slow` asks for what only slow passes need, too.
pub fn child(library: &Path, slow: bool) {
    if let Err(e) = read(library, slow, &mut |line| answer(&line)) {
        fail(library, e);
    }
}

fn fail(library: &Path, e: NvmlError) {
    let library_missing = matches!(e, NvmlError::LibloadingError(_));
    let why = if library_missing {
        format!("{} cannot be loaded: {e}", library.display())
    } else {
        format!("NVML does not start: {e}")
    };
    answer(&Line::Failed { library_missing, why, code: e.into() });
}

/// Body of the resident child: NVML stays open, and each line on standard input asks for one answer. It ends after a failure
/// or a lost GPU, because a library that was opened before the driver was mended may go on failing.
pub fn resident(library: &Path) {
    let mut open = None;
    for question in std::io::stdin().lock().lines() {
        if question.is_err() {
            return;
        }
        let mut sick = false;
        let mut emit = |line: Line| {
            sick |= matches!(&line, Line::Gpu(g) if g.lost);
            answer(&line);
        };
        let read = match &open {
            // A timed pass is a slow one.
            Some(nvml) => look(nvml, true, &mut emit),
            None => start(library).and_then(|nvml| look(open.insert(nvml), true, &mut emit)),
        };
        let failed = read.is_err();
        if let Err(e) = read {
            fail(library, e);
        }
        let mut out = std::io::stdout().lock();
        if out.write_all(END_OF_ANSWER.as_bytes()).and_then(|()| out.flush()).is_err() || sick || failed {
            break;
        }
    }
    // Shutting down can hang with a sick driver; the process ends anyway.
    std::mem::forget(open);
}

fn start(library: &Path) -> Result<Nvml, NvmlError> {
    Nvml::builder().lib_path(library.as_os_str()).init()
}

fn read(library: &Path, slow: bool, emit: &mut dyn FnMut(Line)) -> Result<(), NvmlError> {
    let nvml = start(library)?;
    let done = look(&nvml, slow, emit);
    // Shutting down can hang with a sick driver; the process ends anyway.
    std::mem::forget(nvml);
    done
}

fn look(nvml: &Nvml, slow: bool, emit: &mut dyn FnMut(Line)) -> Result<(), NvmlError> {
    let version = nvml.sys_driver_version().unwrap_or_else(|e| format!("unknown ({e})"));
    let count = nvml.device_count()?;
    emit(Line::Driver { version: version.clone(), count });
    for index in 0..count {
        emit(Line::Gpu(Box::new(gpu(nvml, index, &version, slow))));
    }
    Ok(())
}

fn gpu(nvml: &Nvml, index: u32, driver: &str, slow: bool) -> NvmlGpu {
    let mut lost = false;
    let device = match nvml.device_by_index(index) {
        Ok(d) => d,
        Err(e) => {
            return NvmlGpu { index, lost: matches!(e, NvmlError::GpuLost), ..NvmlGpu::default() };
        }
    };
    let mut fields =
        fields(&device, &[FIELD_REMAP_PENDING, FIELD_REMAP_FAILURE, FIELD_RECOVERY_ACTION], &mut lost);
    let mut field = || fields.pop().unwrap_or_default();
    let recovery_action = map(field(), |v| u32::try_from(v).unwrap_or(u32::MAX));
    let remap_failure = map(field(), |v| v != 0);
    let remap_pending = map(field(), |v| v != 0);
    let lost = &mut lost;
    let ecc =
        |location| device.memory_error_counter(MemoryError::Uncorrected, EccCounter::Volatile, location);
    let mut gpu = NvmlGpu {
        index,
        minor: take(device.minor_number(), lost),
        name: take(device.name(), lost),
        uuid: take(device.uuid(), lost),
        pci: map(take(device.pci_info(), lost), |p| normal_pci(&p.bus_id)),
        recovery_action,
        remap_pending,
        remap_failure,
        ecc_sram_ue: take(ecc(MemoryLocation::SRAM), lost),
        ecc_dram_ue: take(ecc(MemoryLocation::Device), lost),
        nvlinks: nvlinks(&device, lost),
        temperature: take(device.temperature(TemperatureSensor::Gpu), lost),
        slowdown_temperature: take(device.temperature_threshold(TemperatureThreshold::Slowdown), lost),
        lost: false,
        details: None,
        survey: None,
    };
    if !*lost {
        let links = || gpu.nvlinks.value().into_iter().flatten();
        let all: Vec<u32> = links().map(|(link, _)| *link).collect();
        let active: Vec<u32> = links().filter(|(_, active)| **active).map(|(link, _)| *link).collect();
        gpu.details = Some(Box::new(nvml_details::details(&device, driver, &all, lost)));
        gpu.survey = slow.then(|| Box::new(nvml_details::survey(&device, &active, lost)));
    }
    gpu.lost = *lost;
    gpu
}

/// Several field values in one call, in the order of `ids`.
fn fields(device: &Device<'_>, ids: &[u32], lost: &mut bool) -> Vec<Reading<u64>> {
    let wanted: Vec<FieldId> = ids.iter().map(|id| FieldId(*id)).collect();
    match device.field_values_for(&wanted) {
        Ok(samples) => samples
            .into_iter()
            .map(|s| {
                let value = s.and_then(|s| s.value).map(|v| match v {
                    SampleValue::U32(v) => u64::from(v),
                    SampleValue::U64(v) => v,
                    SampleValue::I64(v) => u64::try_from(v).unwrap_or(0),
                    SampleValue::F64(_) => 0,
                });
                take(value, lost)
            })
            .collect(),
        Err(e) => {
            let reading = take::<u64>(Err(e), lost);
            vec![reading; ids.len()]
        }
    }
}

fn nvlinks(device: &Device<'_>, lost: &mut bool) -> Reading<BTreeMap<u32, bool>> {
    let mut links = BTreeMap::new();
    for link in 0..MAX_NVLINKS {
        match device.link_wrapper_for(link).is_active() {
            Ok(active) => {
                links.insert(link, active);
            }
            // The GPU has fewer links, or none.
            Err(NvmlError::NotSupported | NvmlError::InvalidArg | NvmlError::NotFound) => {}
            Err(e) => return take(Err(e), lost),
        }
    }
    if links.is_empty() { Reading::Unsupported } else { Reading::Value(links) }
}

/// What an answer of NVML's means. A function or an argument version that the library lacks is unsupported.
pub fn take<T>(result: Result<T, NvmlError>, lost: &mut bool) -> Reading<T> {
    match result {
        Ok(v) => Reading::Value(v),
        Err(
            NvmlError::NotSupported
            | NvmlError::FailedToLoadSymbol(_)
            | NvmlError::FunctionNotFound
            // Argument version mismatch; deprecated.
            | NvmlError::UnexpectedVariant(25 | 26)
            | NvmlError::VgpuEccNotSupported,
        ) => Reading::Unsupported,
        Err(e) => {
            *lost |= matches!(e, NvmlError::GpuLost);
            Reading::Unknown(e.to_string())
        }
    }
}

/// Changes the value, if there is one.
pub fn map<T, U>(reading: Reading<T>, f: impl FnOnce(T) -> U) -> Reading<U> {
    match reading {
        Reading::Value(v) => Reading::Value(f(v)),
        Reading::Unsupported => Reading::Unsupported,
        Reading::Unknown(why) => Reading::Unknown(why),
        Reading::Hung(why) => Reading::Hung(why),
    }
}

/// NVML writes `00000000:5D:00.0`, the kernel `0000:5d:00.0`.
pub fn normal_pci(bus_id: &str) -> String {
    let text = bus_id.to_lowercase();
    match text.split_once(':') {
        Some((domain, rest)) if domain.len() == 8 && domain.starts_with("0000") => {
            format!("{}:{rest}", &domain[4..])
        }
        _ => text,
    }
}

/// Reads the child's lines; GPUs that came before a hang count.
pub fn parse(outcome: &Outcome) -> Reading<NvmlFacts> {
    let mut facts = None;
    // A cut last line is what was being written when time ran out.
    for line in outcome.stdout.lines() {
        match serde_json::from_str(line) {
            Ok(Line::Driver { version, count }) => {
                facts = Some(NvmlFacts { driver_version: version, count, ..NvmlFacts::default() });
            }
            Ok(Line::Gpu(gpu)) => {
                if let Some(f) = facts.as_mut() {
                    f.gpus.push(*gpu);
                }
            }
            Ok(Line::Failed { library_missing: true, why, .. }) => {
                return Reading::Value(NvmlFacts { library_missing: Some(why), ..NvmlFacts::default() });
            }
            Ok(Line::Failed { why, code, .. }) => {
                return Reading::Value(NvmlFacts {
                    refused: Some(why),
                    refusal_code: code,
                    ..NvmlFacts::default()
                });
            }
            Err(_) => {}
        }
    }
    let Some(facts) = facts else { return super::failed(&outcome.ended) };
    let (read, count) = (facts.gpus.len(), facts.count);
    match &outcome.ended {
        Ended::Deadline(why) => Reading::Value(NvmlFacts { hung: Some(why.clone()), ..facts }),
        Ended::Exit(Some(0)) if read == count as usize => Reading::Value(facts),
        Ended::Exit(Some(0)) => {
            let why = format!("its answer holds {read} of {count} GPUs");
            Reading::Value(NvmlFacts { incomplete: Some(why), ..facts })
        }
        Ended::Exit(Some(code)) => {
            let why = format!("its child ended with exit code {code} after {read} of {count} GPUs");
            Reading::Value(NvmlFacts { incomplete: Some(why), ..facts })
        }
        Ended::Exit(None) | Ended::NotStarted(_) => {
            let why = format!("its child was ended by a signal after {read} of {count} GPUs");
            Reading::Value(NvmlFacts { incomplete: Some(why), ..facts })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pci_addresses_are_the_kernels() {
        assert_eq!(normal_pci("00000000:5D:00.0"), "0000:5d:00.0");
        assert_eq!(normal_pci("00003A1C:1A:00.0"), "3a1c:1a:00.0");
        assert_eq!(normal_pci("0000:1A:00.0"), "0000:1a:00.0");
        assert_eq!(normal_pci("00010000:1A:00.0"), "00010000:1a:00.0");
    }

    #[test]
    fn gpus_before_a_hang_count() {
        let line = |l: &Line| serde_json::to_string(l).unwrap();
        let gpu = NvmlGpu { index: 0, ..NvmlGpu::default() };
        let stdout = format!(
            "{}\n{}\n{{\"Gpu\":{{\"ind",
            line(&Line::Driver { version: "580".into(), count: 2 }),
            line(&Line::Gpu(Box::new(gpu)))
        );
        let Reading::Value(f) = parse(&Outcome { stdout, ended: Ended::Deadline("late".into()) }) else {
            panic!("no facts")
        };
        assert_eq!((f.count, f.gpus.len(), f.hung.as_deref()), (2, 1, Some("late")));
        let none = parse(&Outcome { stdout: String::new(), ended: Ended::Deadline("late".into()) });
        assert_eq!(none, Reading::Hung("late".into()));
    }

    #[test]
    fn a_crash_or_a_spoilt_line_is_no_hang_and_no_complete_answer() {
        let line = |l: &Line| serde_json::to_string(l).unwrap();
        let gpu = |index| line(&Line::Gpu(Box::new(NvmlGpu { index, ..NvmlGpu::default() })));
        let driver = line(&Line::Driver { version: "580".into(), count: 2 });
        let facts = |text: String, ended| match parse(&Outcome { stdout: text, ended }) {
            Reading::Value(f) => f,
            other => panic!("{other:?}"),
        };
        let whole = format!("{driver}\n{}\n{}\n", gpu(0), gpu(1));
        assert_eq!(facts(whole, Ended::Exit(Some(0))).incomplete, None);
        let spoilt = format!("{driver}\n{}\nWARNING: gpu 1 {}\n", gpu(0), gpu(1));
        let f = facts(spoilt, Ended::Exit(Some(0)));
        assert_eq!((f.hung, f.incomplete.as_deref()), (None, Some("its answer holds 1 of 2 GPUs")));
        for ended in [Ended::Exit(None), Ended::Exit(Some(3))] {
            let f = facts(format!("{driver}\n{}\n", gpu(0)), ended);
            assert!(f.hung.is_none() && f.incomplete.is_some_and(|w| w.contains("after 1 of 2 GPUs")));
        }
    }

    #[test]
    fn a_missing_library_is_told_from_a_sick_driver() {
        let mut lines = Vec::new();
        assert!(matches!(
            read(Path::new("/nonexistent/libnvidia-ml.so.1"), true, &mut |l| lines.push(l)),
            Err(NvmlError::LibloadingError(_))
        ));
        assert!(lines.is_empty());
    }
}
