//! The C interface itself, through the signatures that bindgen made from NVIDIA's nvml.h: what nvml-wrapper hides.
#![allow(clippy::unwrap_used)] // Clippy takes helpers of tests for ordinary code.

mod common;

use std::ffi::{CStr, c_char, c_uint};
use std::mem::zeroed;
use std::ptr::{null, null_mut};

use common::Node;
use nvidia_ml_sim::model::{HealthFlag, Process, ProcessKind, Repair};
use nvidia_ml_sim::{GpuFile, GpuModel};
use nvml_wrapper_sys::bindings::{
    NvmlLib, nvmlDevice_t, nvmlEccSramErrorStatus_t, nvmlGpuFabricInfo_t, nvmlGpuFabricInfo_v2_t,
    nvmlGpuFabricInfo_v3_t, nvmlMarginTemperature_t, nvmlMemory_v2_t, nvmlPciInfoExt_t, nvmlProcessInfo_t,
    nvmlRepairStatus_t, nvmlRowRemapperHistogramValues_t, nvmlTemperature_t, nvmlUUID_t,
};

const SUCCESS: c_uint = 0;
const UNINITIALIZED: c_uint = 1;
const INVALID_ARGUMENT: c_uint = 2;
const NOT_SUPPORTED: c_uint = 3;
const NOT_FOUND: c_uint = 6;
const INSUFFICIENT_SIZE: c_uint = 7;
const ARGUMENT_VERSION_MISMATCH: c_uint = 25;

/// Calls a function of the library as C does.
macro_rules! c {
    ($lib:expr, $name:ident($($arg:expr),*)) => {
        // SAFETY: the pointers given are NULL or point to live variables of the types in nvml.h.
        unsafe { $lib.$name.as_ref().unwrap()($($arg),*) }
    };
}

/// `NVML_STRUCT_VERSION`
fn version<T>(number: c_uint) -> c_uint {
    size_of::<T>() as c_uint | number << 24
}

fn open(node: &Node) -> NvmlLib {
    // SAFETY: the library's initialisers do nothing.
    unsafe { NvmlLib::new(node.library()) }.unwrap()
}

fn device(lib: &NvmlLib, index: c_uint) -> nvmlDevice_t {
    let mut device = null_mut();
    assert_eq!(c!(lib, nvmlDeviceGetHandleByIndex_v2(index, &mut device)), SUCCESS);
    device
}

/// An initialised node of one model.
fn started(model: GpuModel) -> (Node, NvmlLib) {
    let node = Node::new(&GpuFile::new(model, 2, 0x3a1c, 0));
    let lib = open(&node);
    assert_eq!(c!(lib, nvmlInit_v2()), SUCCESS);
    (node, lib)
}

/// Zero bytes are a valid value of every plain C struct here.
fn blank<T>() -> T {
    // SAFETY: used for structs of numbers only.
    unsafe { zeroed() }
}

#[test]
fn initialisation_is_counted() {
    let node = Node::new(&GpuFile::h100_sxm(2, 1, 0));
    let lib = open(&node);
    let mut count = 0;
    assert_eq!(c!(lib, nvmlDeviceGetCount_v2(&mut count)), UNINITIALIZED);
    assert_eq!(c!(lib, nvmlDeviceGetVgpuMetadata(null_mut(), null_mut(), null_mut())), UNINITIALIZED);
    assert_eq!(c!(lib, nvmlShutdown()), UNINITIALIZED);
    assert_eq!(c!(lib, nvmlInit_v2()), SUCCESS);
    assert_eq!(c!(lib, nvmlInitWithFlags(1)), SUCCESS);
    assert_eq!(c!(lib, nvmlShutdown()), SUCCESS);
    assert_eq!(c!(lib, nvmlDeviceGetCount_v2(&mut count)), SUCCESS);
    assert_eq!(count, 2);
    assert_eq!(c!(lib, nvmlShutdown()), SUCCESS);
    assert_eq!(c!(lib, nvmlDeviceGetCount_v2(&mut count)), UNINITIALIZED);
}

#[test]
fn null_and_garbage_are_refused() {
    let (_node, lib) = started(GpuModel::H100Sxm);
    let gpu = device(&lib, 0);
    assert_eq!(c!(lib, nvmlDeviceGetCount_v2(null_mut())), INVALID_ARGUMENT);
    assert_eq!(c!(lib, nvmlDeviceGetHandleByUUID(null(), null_mut())), INVALID_ARGUMENT);
    assert_eq!(c!(lib, nvmlDeviceGetName(gpu, null_mut(), 96)), INVALID_ARGUMENT);
    assert_eq!(c!(lib, nvmlDeviceGetMemoryInfo_v2(gpu, null_mut())), INVALID_ARGUMENT);
    assert_eq!(c!(lib, nvmlDeviceGetFieldValues(gpu, 1, null_mut())), INVALID_ARGUMENT);
    assert_eq!(c!(lib, nvmlDeviceGetFieldValues(gpu, -1, null_mut())), INVALID_ARGUMENT);
    assert_eq!(
        c!(lib, nvmlDeviceGetComputeRunningProcesses_v3(gpu, null_mut(), null_mut())),
        INVALID_ARGUMENT
    );
    let mut value = 0;
    for garbage in [0_usize, 1, 0xdead_beef, usize::MAX] {
        let handle: nvmlDevice_t = std::ptr::without_provenance_mut(garbage);
        assert_eq!(c!(lib, nvmlDeviceGetPowerUsage(handle, &mut value)), INVALID_ARGUMENT, "{garbage:#x}");
    }
    assert_eq!(c!(lib, nvmlDeviceGetClockInfo(gpu, 9, &mut value)), INVALID_ARGUMENT);
    assert_eq!(c!(lib, nvmlDeviceGetTemperature(gpu, 7, &mut value)), INVALID_ARGUMENT);
    assert_eq!(c!(lib, nvmlDeviceGetTemperatureThreshold(gpu, 99, &mut value)), INVALID_ARGUMENT);
}

#[test]
fn buffers_that_are_too_small() {
    let (node, lib) = started(GpuModel::H100Sxm);
    let gpu = device(&lib, 0);
    let name = "NVIDIA H100 80GB HBM3";
    let mut buffer = [0 as c_char; 64];
    let short = name.len() as c_uint;
    assert_eq!(c!(lib, nvmlDeviceGetName(gpu, buffer.as_mut_ptr(), short)), INSUFFICIENT_SIZE);
    assert_eq!(c!(lib, nvmlDeviceGetName(gpu, buffer.as_mut_ptr(), short + 1)), SUCCESS);
    // SAFETY: the library has just written a NUL-terminated string there.
    assert_eq!(unsafe { CStr::from_ptr(buffer.as_ptr()) }.to_str().unwrap(), name);

    node.change(|file| {
        file.gpus[0].processes =
            (1..=3).map(|pid| Process { pid, used_memory: 10, kind: ProcessKind::Compute }).collect();
    });
    let mut processes: [nvmlProcessInfo_t; 3] = blank();
    for (room, answer) in [(0, INSUFFICIENT_SIZE), (2, INSUFFICIENT_SIZE), (3, SUCCESS)] {
        let mut count = room;
        let array = if room == 0 { null_mut() } else { processes.as_mut_ptr() };
        assert_eq!(c!(lib, nvmlDeviceGetComputeRunningProcesses_v3(gpu, &mut count, array)), answer);
        assert_eq!(count, 3, "the number needed, whatever the room");
    }
    assert_eq!(processes.map(|process| process.pid), [1, 2, 3]);
    let mut none = 0;
    assert_eq!(c!(lib, nvmlDeviceGetGraphicsRunningProcesses_v3(gpu, &mut none, null_mut())), SUCCESS);
}

#[test]
fn versioned_structs() {
    let (_node, lib) = started(GpuModel::H100Sxm);
    let gpu = device(&lib, 1);
    let mut memory: nvmlMemory_v2_t = blank();
    assert_eq!(c!(lib, nvmlDeviceGetMemoryInfo_v2(gpu, &mut memory)), ARGUMENT_VERSION_MISMATCH);
    memory.version = version::<nvmlMemory_v2_t>(2);
    assert_eq!(c!(lib, nvmlDeviceGetMemoryInfo_v2(gpu, &mut memory)), SUCCESS);
    assert_eq!(memory.total, 81559 << 20);

    let mut temperature: nvmlTemperature_t = blank();
    temperature.version = version::<nvmlTemperature_t>(1);
    assert_eq!(c!(lib, nvmlDeviceGetTemperatureV(gpu, &mut temperature)), SUCCESS);
    assert_eq!(temperature.temperature, 30);

    let mut margin: nvmlMarginTemperature_t = blank();
    margin.version = version::<nvmlMarginTemperature_t>(1);
    assert_eq!(c!(lib, nvmlDeviceGetMarginTemperature(gpu, &mut margin)), SUCCESS);
    assert_eq!(margin.marginTemperature, 57);

    let mut pci: nvmlPciInfoExt_t = blank();
    pci.version = version::<nvmlPciInfoExt_t>(1);
    assert_eq!(c!(lib, nvmlDeviceGetPciInfoExt(gpu, &mut pci)), SUCCESS);
    assert_eq!((pci.domain, pci.bus, pci.baseClass, pci.subClass), (0x3a1c, 0x2a, 3, 2));
}

#[test]
fn uuids_as_text_and_as_bytes() {
    let (node, lib) = started(GpuModel::H100Sxm);
    let uuid = GpuFile::load(&node.gpus()).unwrap().gpus[1].uuid.clone();
    let mut given: nvmlUUID_t = blank();
    given.version = version::<nvmlUUID_t>(1);
    given.type_ = 1;
    for (index, byte) in uuid.bytes().enumerate() {
        // SAFETY: the union was zeroed, and both members are bytes.
        unsafe { given.value.str_[index] = byte as c_char };
    }
    let mut found = null_mut();
    assert_eq!(c!(lib, nvmlDeviceGetHandleByUUIDV(&given, &mut found)), SUCCESS);
    assert_eq!(found, device(&lib, 1));
    let number = u128::from_str_radix(&uuid.replace("GPU-", "").replace('-', ""), 16).unwrap();
    given.type_ = 2;
    given.value.bytes = number.to_be_bytes();
    assert_eq!(c!(lib, nvmlDeviceGetHandleByUUIDV(&given, &mut found)), SUCCESS);
    assert_eq!(found, device(&lib, 1));
    given.value.bytes = [9; 16];
    assert_eq!(c!(lib, nvmlDeviceGetHandleByUUIDV(&given, &mut found)), NOT_FOUND);
    given.type_ = 7;
    assert_eq!(c!(lib, nvmlDeviceGetHandleByUUIDV(&given, &mut found)), INVALID_ARGUMENT);
}

#[test]
fn rows_and_sram() {
    let (node, lib) = started(GpuModel::H100Sxm);
    let gpu = device(&lib, 0);
    node.change(|file| {
        let rows = file.gpus[0].remapped_rows.as_mut().unwrap();
        (rows.correctable, rows.uncorrectable, rows.pending) = (2, 1, true);
        (rows.histogram.max, rows.histogram.low, rows.histogram.none) = (2558, 1, 1);
        let ecc = &mut file.gpus[0].ecc;
        ecc.sram_threshold_exceeded = true;
        (ecc.aggregate.sram_parity, ecc.aggregate.sram_secded) = (4, 1);
        (ecc.aggregate.sram_l2, ecc.aggregate.sram_sm) = (3, 1);
    });
    let (mut correctable, mut uncorrectable, mut pending, mut failure) = (9, 9, 9, 9);
    let answer = c!(
        lib,
        nvmlDeviceGetRemappedRows(gpu, &mut correctable, &mut uncorrectable, &mut pending, &mut failure)
    );
    assert_eq!((answer, correctable, uncorrectable, pending, failure), (SUCCESS, 2, 1, 1, 0));
    let mut rows: nvmlRowRemapperHistogramValues_t = blank();
    assert_eq!(c!(lib, nvmlDeviceGetRowRemapperHistogram(gpu, &mut rows)), SUCCESS);
    assert_eq!((rows.max, rows.high, rows.partial, rows.low, rows.none), (2558, 0, 0, 1, 1));
    let mut sram: nvmlEccSramErrorStatus_t = blank();
    sram.version = version::<nvmlEccSramErrorStatus_t>(1);
    assert_eq!(c!(lib, nvmlDeviceGetSramEccErrorStatus(gpu, &mut sram)), SUCCESS);
    assert_eq!((sram.aggregateUncParity, sram.aggregateUncSecDed, sram.bThresholdExceeded), (4, 1, 1));
    assert_eq!(
        (sram.aggregateUncBucketL2, sram.aggregateUncBucketSm, sram.aggregateUncBucketOther),
        (3, 1, 1)
    );
    assert_eq!(sram.volatileUncParity, 0);
    node.change(|file| file.gpus[0].ecc.enabled = false);
    assert_eq!(c!(lib, nvmlDeviceGetSramEccErrorStatus(gpu, &mut sram)), NOT_SUPPORTED);
}

#[test]
fn fabric_in_all_its_versions() {
    let (node, lib) = started(GpuModel::H100Sxm);
    let gpu = device(&lib, 0);
    node.change(|file| {
        let fabric = file.gpus[0].fabric.as_mut().unwrap();
        fabric.cluster_uuid = "00112233-4455-6677-8899-aabbccddeeff".to_owned();
        fabric.clique_id = 7;
        fabric.degraded_bandwidth = HealthFlag::True;
    });
    let mut one: nvmlGpuFabricInfo_t = blank();
    assert_eq!(c!(lib, nvmlDeviceGetGpuFabricInfo(gpu, &mut one)), SUCCESS);
    assert_eq!((one.state, one.status, one.cliqueId), (3, SUCCESS, 7));
    assert_eq!((one.clusterUuid[0], one.clusterUuid[15]), (0x00, 0xff));
    let mut three: nvmlGpuFabricInfo_v3_t = blank();
    three.version = version::<nvmlGpuFabricInfo_v3_t>(3);
    assert_eq!(c!(lib, nvmlDeviceGetGpuFabricInfoV(gpu, &mut three)), SUCCESS);
    assert_eq!((three.healthMask & 3, three.healthSummary), (1, 3));
    // A caller built with an older header has a smaller struct: nothing may be written behind it.
    let mut two: (nvmlGpuFabricInfo_v2_t, [u8; 16]) = (blank(), [0xee; 16]);
    two.0.version = version::<nvmlGpuFabricInfo_v2_t>(2);
    let smaller = (&raw mut two.0).cast();
    assert_eq!(c!(lib, nvmlDeviceGetGpuFabricInfoV(gpu, smaller)), SUCCESS);
    assert_eq!((two.0.cliqueId, two.0.healthMask), (7, three.healthMask));
    assert_eq!(two.1, [0xee; 16]);
    three.version = version::<nvmlGpuFabricInfo_v3_t>(9);
    assert_eq!(c!(lib, nvmlDeviceGetGpuFabricInfoV(gpu, &mut three)), ARGUMENT_VERSION_MISMATCH);

    let (_node, lib) = started(GpuModel::A100Sxm);
    assert_eq!(c!(lib, nvmlDeviceGetGpuFabricInfo(device(&lib, 0), &mut one)), NOT_SUPPORTED);
}

#[test]
fn repair_is_for_blackwell() {
    let mut status: nvmlRepairStatus_t = blank();
    status.version = version::<nvmlRepairStatus_t>(1);
    let (_node, lib) = started(GpuModel::H100Sxm);
    assert_eq!(c!(lib, nvmlDeviceGetRepairStatus(device(&lib, 0), &mut status)), NOT_SUPPORTED);
    let (node, lib) = started(GpuModel::B200);
    node.change(|file| file.gpus[0].repair = Some(Repair { tpc_pending: true, ..Repair::default() }));
    assert_eq!(c!(lib, nvmlDeviceGetRepairStatus(device(&lib, 0), &mut status)), SUCCESS);
    assert_eq!((status.bChannelRepairPending, status.bTpcRepairPending), (0, 1));
}

#[test]
fn nvlinks_end_at_switches() {
    let (node, lib) = started(GpuModel::H100Sxm);
    let gpu = device(&lib, 0);
    let mut kind = 0;
    assert_eq!(c!(lib, nvmlDeviceGetNvLinkRemoteDeviceType(gpu, 17, &mut kind)), SUCCESS);
    assert_eq!(kind, 2);
    node.change(|file| file.gpus[0].nvlink.as_mut().unwrap().down = [17].into());
    assert_eq!(c!(lib, nvmlDeviceGetNvLinkRemoteDeviceType(gpu, 17, &mut kind)), NOT_SUPPORTED);
    node.change(|file| file.gpus[0].nvlink = None);
    assert_eq!(c!(lib, nvmlDeviceGetNvLinkState(gpu, 0, &mut kind)), NOT_SUPPORTED);
}

#[test]
fn error_texts() {
    let node = Node::without_file();
    let lib = open(&node);
    for (code, text) in
        [(0, "Success"), (15, "GPU is lost"), (999, "Unknown Error"), (12345, "Unknown Error")]
    {
        // SAFETY: the library returns constants.
        let told = unsafe { CStr::from_ptr(lib.nvmlErrorString.as_ref().unwrap()(code)) };
        assert_eq!(told.to_str().unwrap(), text);
    }
}
