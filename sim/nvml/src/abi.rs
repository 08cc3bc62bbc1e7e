//! Every function the library exports. This file only translates: it names the function, unpacks its arguments
//! and packs the answer; what is answered is decided in `answer` and `session`, how pointers are used in `ffi`.
//!
//! `gpu` functions take a device handle first; `node` functions take none. Several names before one body are
//! versions of a function that differ in nothing a caller can see here.

#![allow(non_snake_case)] // The names are NVML's.

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong};
use std::fs;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nvml_wrapper_sys::bindings::{
    nvmlBAR1Memory_t, nvmlEccErrorCounts_t, nvmlEccSramErrorStatus_v1_t, nvmlEventData_t, nvmlFieldValue_t,
    nvmlGpuFabricInfo_t, nvmlGpuFabricInfo_v2_t, nvmlGpuFabricInfo_v3_t, nvmlHwbcEntry_t,
    nvmlMarginTemperature_v1_t, nvmlMemory_t, nvmlMemory_v2_t, nvmlPciInfo_t, nvmlPciInfoExt_v1_t,
    nvmlProcessInfo_v1_t, nvmlProcessInfo_v2_t, nvmlRepairStatus_v1_t, nvmlReturn_t,
    nvmlRowRemapperHistogramValues_t, nvmlTemperature_v1_t, nvmlUUID_t, nvmlUtilization_t,
    nvmlViolationTime_t,
};

use crate::answer::{self, supported};
use crate::ffi::{Answer, Handle, Ptr, Text, boundary, is_uuid, struct_version};
use crate::model::{ClockEvent, Gpu, PciAddress, ProcessKind, ReturnCode};
use crate::session::{self, GpuCall};

/// Exports functions for one GPU: `fn name | other_name (arguments) |call| answer;`
macro_rules! gpu {
    ($($(#[$doc:meta])* fn $($name:ident)|+ ($($args:tt)*) |$call:pat_param| $body:expr;)*) => {
        $(gpu!(@each [$(#[$doc])*] [$($name)+] ($($args)*) |$call| $body);)*
    };
    (@each $doc:tt [$($name:ident)+] $args:tt |$call:pat_param| $body:expr) => {
        $(gpu!(@export $doc $name $args |$call| $body);)+
    };
    (@export [$(#[$doc:meta])*] $name:ident ($($arg:ident: $type:ty),*) |$call:pat_param| $body:expr) => {
        $(#[$doc])*
        #[unsafe(no_mangle)]
        extern "C" fn $name(device: Handle $(, $arg: $type)*) -> nvmlReturn_t {
            boundary(|| session::on_gpu(stringify!($name), device, |$call| $body))
        }
    };
}

/// Exports functions that name no GPU.
macro_rules! node {
    ($($(#[$doc:meta])* fn $($name:ident)|+ ($($args:tt)*) |$call:pat_param| $body:expr;)*) => {
        $(node!(@each [$(#[$doc])*] [$($name)+] ($($args)*) |$call| $body);)*
    };
    (@each $doc:tt [$($name:ident)+] $args:tt |$call:pat_param| $body:expr) => {
        $(node!(@export $doc $name $args |$call| $body);)+
    };
    (@export [$(#[$doc:meta])*] $name:ident ($($arg:ident: $type:ty),*) |$call:pat_param| $body:expr) => {
        $(#[$doc])*
        #[unsafe(no_mangle)]
        extern "C" fn $name($($arg: $type),*) -> nvmlReturn_t {
            boundary(|| session::on_node(stringify!($name), |$call| $body))
        }
    };
}

// ---- Initialisation, errors

#[unsafe(no_mangle)]
extern "C" fn nvmlInit() -> nvmlReturn_t {
    boundary(|| session::init("nvmlInit"))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlInit_v2() -> nvmlReturn_t {
    boundary(|| session::init("nvmlInit_v2"))
}

/// No flag changes anything here: a node may have no GPU, and GPUs are never attached.
#[unsafe(no_mangle)]
extern "C" fn nvmlInitWithFlags(_flags: c_uint) -> nvmlReturn_t {
    boundary(|| session::init("nvmlInitWithFlags"))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlShutdown() -> nvmlReturn_t {
    boundary(|| session::shutdown("nvmlShutdown"))
}

/// Works before initialisation and whatever is broken, as in the real library.
#[unsafe(no_mangle)]
extern "C" fn nvmlErrorString(code: nvmlReturn_t) -> *const c_char {
    let text: &'static CStr = match code {
        0 => c"Success",
        1 => c"Uninitialized",
        2 => c"Invalid Argument",
        3 => c"Not Supported",
        4 => c"Insufficient Permissions",
        5 => c"Already Initialized",
        6 => c"Not Found",
        7 => c"Insufficient Size",
        8 => c"Insufficient External Power",
        9 => c"Driver Not Loaded",
        10 => c"Timeout",
        11 => c"Interrupt Request Issue",
        12 => c"NVML Shared Library Not Found",
        13 => c"Function Not Found",
        14 => c"Corrupted infoROM",
        15 => c"GPU is lost",
        16 => c"GPU requires restart",
        17 => c"The operating system has blocked the request.",
        18 => c"Driver/library version mismatch",
        19 => c"In use by another client",
        20 => c"Insufficient Memory",
        21 => c"No data",
        22 => c"ECC is not supported on this vGPU",
        23 => c"Insufficient Resources",
        24 => c"Frequency Not Supported",
        25 => c"Argument Version Mismatch",
        26 => c"Deprecated",
        27 => c"Not Ready",
        28 => c"GPU Not Found",
        29 => c"Invalid State",
        30 => c"Reset Type Not Supported",
        _ => c"Unknown Error",
    };
    text.as_ptr()
}

// ---- The system, and finding GPUs

node! {
    fn nvmlSystemGetDriverVersion(version: Ptr<c_char>, length: c_uint) |call| {
        version.put_text(length, &call.file.driver_version)
    };
    fn nvmlSystemGetNVMLVersion(version: Ptr<c_char>, length: c_uint) |call| {
        version.put_text(length, &call.file.nvml_version)
    };
    fn nvmlSystemGetCudaDriverVersion | nvmlSystemGetCudaDriverVersion_v2(version: Ptr<c_int>) |call| {
        version.put(crate::model::cuda_version_number(&call.file.cuda_version).ok_or(ReturnCode::Unknown)?)
    };
    /// The command of a process of this machine, as /proc has it.
    fn nvmlSystemGetProcessName(pid: c_uint, name: Ptr<c_char>, length: c_uint) |_| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).map_err(|_| ReturnCode::NotFound)?;
        let command = line.split(|&byte| byte == 0).next().unwrap_or_default();
        name.put_text(length, &String::from_utf8_lossy(command))
    };
    fn nvmlSystemGetHicVersion(count: Ptr<c_uint>, entries: Ptr<nvmlHwbcEntry_t>) |_| {
        entries.put_items(count, &[])
    };
    fn nvmlUnitGetCount | nvmlGetExcludedDeviceCount(count: Ptr<c_uint>) |_| count.put(0);

    fn nvmlDeviceGetCount | nvmlDeviceGetCount_v2(count: Ptr<c_uint>) |call| {
        count.put(call.present().count() as c_uint)
    };
    fn nvmlDeviceGetHandleByIndex | nvmlDeviceGetHandleByIndex_v2(index: c_uint, device: Ptr<Handle>) |call| {
        let (position, _) = call.present().nth(index as usize).ok_or(ReturnCode::InvalidArgument)?;
        device.put(Handle::new(position))
    };
    fn nvmlDeviceGetHandleBySerial(serial: Text, device: Ptr<Handle>) |call| {
        let serial = serial.get()?;
        device.put(call.find(|gpu| gpu.serial == serial)?)
    };
    fn nvmlDeviceGetHandleByUUID(uuid: Text, device: Ptr<Handle>) |call| {
        let uuid = uuid.get()?;
        device.put(call.find(|gpu| gpu.uuid == uuid)?)
    };
    fn nvmlDeviceGetHandleByUUIDV(uuid: Ptr<nvmlUUID_t>, device: Ptr<Handle>) |call| {
        uuid.expect_version(1)?;
        let uuid = uuid.get()?;
        is_uuid(&uuid, "")?;
        device.put(call.find(|gpu| is_uuid(&uuid, &gpu.uuid) == Ok(true))?)
    };
    fn nvmlDeviceGetHandleByPciBusId | nvmlDeviceGetHandleByPciBusId_v2(address: Text, device: Ptr<Handle>) |call| {
        let address: PciAddress = address.get()?.parse().map_err(|_| ReturnCode::InvalidArgument)?;
        device.put(call.find(|gpu| gpu.pci_address == address)?)
    };
}

// ---- What the GPU is

gpu! {
    fn nvmlDeviceGetIndex(index: Ptr<c_uint>) |call| index.put(call.index());
    fn nvmlDeviceGetModuleId(module: Ptr<c_uint>) |call| module.put(call.index());
    fn nvmlDeviceGetName(name: Ptr<c_char>, length: c_uint) |call| name.put_text(length, &call.gpu.name);
    fn nvmlDeviceGetBrand(brand: Ptr<c_uint>) |call| brand.put(call.gpu.brand);
    fn nvmlDeviceGetUUID(uuid: Ptr<c_char>, length: c_uint) |call| uuid.put_text(length, &call.gpu.uuid);
    fn nvmlDeviceGetSerial(serial: Ptr<c_char>, length: c_uint) |call| serial.put_text(length, &call.gpu.serial);
    fn nvmlDeviceGetMinorNumber(minor: Ptr<c_uint>) |call| minor.put(call.gpu.minor_number);
    fn nvmlDeviceGetArchitecture(architecture: Ptr<c_uint>) |call| architecture.put(call.gpu.architecture);
    fn nvmlDeviceGetCudaComputeCapability(major: Ptr<c_int>, minor: Ptr<c_int>) |call| {
        let [high, low] = call.gpu.compute_capability;
        major.put(c_int::from(high))?;
        minor.put(c_int::from(low))
    };
    fn nvmlDeviceGetNumGpuCores(cores: Ptr<c_uint>) |call| cores.put(call.gpu.cores);
    fn nvmlDeviceGetMemoryBusWidth(bits: Ptr<c_uint>) |call| bits.put(call.gpu.memory_bus_width);
    fn nvmlDeviceGetVbiosVersion(version: Ptr<c_char>, length: c_uint) |call| {
        version.put_text(length, &call.gpu.vbios)
    };
    fn nvmlDeviceGetBoardPartNumber(number: Ptr<c_char>, length: c_uint) |call| {
        number.put_text(length, &call.gpu.board_part_number)
    };
    fn nvmlDeviceGetBoardId(board: Ptr<c_uint>) |call| board.put(c_uint::from(call.gpu.pci_address.bus) << 8);
    /// SXM boards carry one GPU each.
    fn nvmlDeviceGetMultiGpuBoard(several: Ptr<c_uint>) |_| several.put(0);
    fn nvmlDeviceOnSameBoard(other: Handle, same: Ptr<c_int>) |call| {
        same.put(c_int::from(call.other(other)?.uuid == call.gpu.uuid))
    };
    fn nvmlDeviceGetInforomImageVersion(version: Ptr<c_char>, length: c_uint) |call| {
        version.put_text(length, &call.gpu.inforom_image)
    };
    fn nvmlDeviceGetInforomVersion(object: c_uint, version: Ptr<c_char>, length: c_uint) |_| match object {
        0 => version.put_text(length, "2.1"),
        1 => version.put_text(length, "7.16"),
        2 => Err(ReturnCode::NotSupported),
        _ => Err(ReturnCode::InvalidArgument),
    };
    fn nvmlDeviceGetInforomConfigurationChecksum(checksum: Ptr<c_uint>) |call| {
        if call.gpu.inforom_valid { checksum.put(0) } else { Err(ReturnCode::CorruptedInforom) }
    };
    fn nvmlDeviceValidateInforom() |call| {
        if call.gpu.inforom_valid { Ok(()) } else { Err(ReturnCode::CorruptedInforom) }
    };
    /// The buffer has 64 bytes by definition (`NVML_GSP_FIRMWARE_VERSION_BUF_SIZE`); the firmware comes with the driver.
    fn nvmlDeviceGetGspFirmwareVersion(version: Ptr<c_char>) |call| version.put_text(64, &call.file.driver_version);
    fn nvmlDeviceGetGspFirmwareMode(enabled: Ptr<c_uint>, default: Ptr<c_uint>) |_| {
        enabled.put(1)?;
        default.put(1)
    };
    fn nvmlDeviceGetNumaNodeId(node: Ptr<c_uint>) |call| {
        node.put(c_uint::try_from(call.gpu.numa_node).map_err(|_| ReturnCode::NotSupported)?)
    };
    /// Within a NUMA node the path goes over its host bridges, else over the link between the sockets.
    fn nvmlDeviceGetTopologyCommonAncestor(other: Handle, level: Ptr<c_uint>) |call| {
        const NODE: c_uint = 40;
        const SYSTEM: c_uint = 50;
        level.put(if call.other(other)?.numa_node == call.gpu.numa_node { NODE } else { SYSTEM })
    };
    fn nvmlDeviceGetP2PStatus(other: Handle, _kind: c_uint, status: Ptr<c_uint>) |call| {
        const OK: c_uint = 0;
        const NOT_SUPPORTED: c_uint = 5;
        let linked = call.gpu.nvlink.is_some() && call.other(other)?.nvlink.is_some();
        status.put(if linked { OK } else { NOT_SUPPORTED })
    };
    fn nvmlDeviceGetDisplayMode | nvmlDeviceGetDisplayActive(enabled: Ptr<c_uint>) |_| enabled.put(0);
    fn nvmlDeviceGetPersistenceMode(mode: Ptr<c_uint>) |call| mode.put(c_uint::from(call.gpu.persistence_mode));
    fn nvmlDeviceGetComputeMode(mode: Ptr<c_uint>) |call| mode.put(call.gpu.compute_mode as c_uint);
    fn nvmlDeviceGetVirtualizationMode(mode: Ptr<c_uint>) |_| mode.put(0);
    fn nvmlDeviceGetAccountingMode(mode: Ptr<c_uint>) |_| mode.put(0);
    fn nvmlDeviceGetAccountingBufferSize(size: Ptr<c_uint>) |_| size.put(4000);
    fn nvmlDeviceGetAccountingPids(count: Ptr<c_uint>, pids: Ptr<c_uint>) |_| pids.put_items(count, &[]);
    fn nvmlDeviceGetNumFans(fans: Ptr<c_uint>) |_| fans.put(0);
}

// ---- PCI

gpu! {
    fn nvmlDeviceGetPciInfo_v3(pci: Ptr<nvmlPciInfo_t>) |call| pci.put(answer::pci(call.gpu));
    fn nvmlDeviceGetPciInfo | nvmlDeviceGetPciInfo_v2(pci: Ptr<PciInfoV2>) |call| {
        let info = answer::pci(call.gpu);
        pci.put(PciInfoV2 {
            bus_id: info.busIdLegacy,
            domain: info.domain,
            bus: info.bus,
            device: info.device,
            device_id: info.pciDeviceId,
            subsystem_id: info.pciSubSystemId,
            reserved: [0; 4],
        })
    };
    fn nvmlDeviceGetPciInfoExt(pci: Ptr<nvmlPciInfoExt_v1_t>) |call| {
        pci.expect_version(1)?;
        let info = answer::pci(call.gpu);
        pci.put(nvmlPciInfoExt_v1_t {
            version: struct_version::<nvmlPciInfoExt_v1_t>(1),
            domain: info.domain,
            bus: info.bus,
            device: info.device,
            pciDeviceId: info.pciDeviceId,
            pciSubSystemId: info.pciSubSystemId,
            // Class 0302: 3D controller.
            baseClass: 3,
            subClass: 2,
            busId: info.busId,
        })
    };
    fn nvmlDeviceGetBusType(kind: Ptr<c_uint>) |_| {
        const PCIE: c_uint = 2;
        kind.put(PCIE)
    };
    fn nvmlDeviceGetCurrPcieLinkGeneration(generation: Ptr<c_uint>) |call| generation.put(call.gpu.pcie.generation);
    fn nvmlDeviceGetMaxPcieLinkGeneration | nvmlDeviceGetGpuMaxPcieLinkGeneration(generation: Ptr<c_uint>) |call| {
        generation.put(call.gpu.pcie.max_generation)
    };
    fn nvmlDeviceGetCurrPcieLinkWidth(lanes: Ptr<c_uint>) |call| lanes.put(call.gpu.pcie.width);
    fn nvmlDeviceGetMaxPcieLinkWidth(lanes: Ptr<c_uint>) |call| lanes.put(call.gpu.pcie.max_width);
    fn nvmlDeviceGetPcieSpeed(speed: Ptr<c_uint>) |call| {
        speed.put(answer::pcie_speed(call.gpu.pcie.generation)?)
    };
    /// `NVML_PCIE_LINK_MAX_SPEED_*` counts like the generations.
    fn nvmlDeviceGetPcieLinkMaxSpeed(speed: Ptr<c_uint>) |call| speed.put(call.gpu.pcie.max_generation);
    fn nvmlDeviceGetPcieReplayCounter(replays: Ptr<c_uint>) |call| replays.put(call.gpu.pcie.replay_counter);
    fn nvmlDeviceGetPcieThroughput(direction: c_uint, rate: Ptr<c_uint>) |call| match direction {
        0 => rate.put(call.gpu.pcie.tx),
        1 => rate.put(call.gpu.pcie.rx),
        _ => Err(ReturnCode::InvalidArgument),
    };
    fn nvmlDeviceGetBAR1MemoryInfo(info: Ptr<nvmlBAR1Memory_t>) |call| {
        let (total, used) = (call.gpu.memory.bar1_total, call.gpu.memory.bar1_used);
        info.put(nvmlBAR1Memory_t { bar1Total: total, bar1Free: total.saturating_sub(used), bar1Used: used })
    };
    fn nvmlDeviceGetIrqNum(irq: Ptr<c_uint>) |call| irq.put(256 + call.gpu.minor_number);
}

/// The PCI information before it had long bus ids.
#[repr(C)]
struct PciInfoV2 {
    bus_id: [c_char; 16],
    domain: c_uint,
    bus: c_uint,
    device: c_uint,
    device_id: c_uint,
    subsystem_id: c_uint,
    reserved: [c_uint; 4],
}

// ---- Memory, temperature, power, clocks, load

gpu! {
    fn nvmlDeviceGetMemoryInfo(info: Ptr<nvmlMemory_t>) |call| info.put(answer::memory(call.gpu));
    fn nvmlDeviceGetMemoryInfo_v2(info: Ptr<nvmlMemory_v2_t>) |call| {
        info.expect_version(2)?;
        info.put(answer::memory_v2(call.gpu))
    };

    fn nvmlDeviceGetTemperature(sensor: c_uint, degrees: Ptr<c_uint>) |call| match sensor {
        0 => degrees.put(c_uint::try_from(call.gpu.temperature.gpu).map_err(|_| ReturnCode::Unknown)?),
        _ => Err(ReturnCode::InvalidArgument),
    };
    fn nvmlDeviceGetTemperatureV(reading: Ptr<nvmlTemperature_v1_t>) |call| {
        reading.expect_version(1)?;
        let asked = reading.get()?;
        if asked.sensorType != 0 {
            return Err(ReturnCode::InvalidArgument);
        }
        reading.put(nvmlTemperature_v1_t { temperature: call.gpu.temperature.gpu, ..asked })
    };
    fn nvmlDeviceGetTemperatureThreshold(kind: c_uint, degrees: Ptr<c_uint>) |call| {
        degrees.put(answer::threshold(call.gpu, kind)?)
    };
    fn nvmlDeviceGetMarginTemperature(margin: Ptr<nvmlMarginTemperature_v1_t>) |call| {
        margin.expect_version(1)?;
        margin.put(nvmlMarginTemperature_v1_t {
            version: struct_version::<nvmlMarginTemperature_v1_t>(1),
            marginTemperature: answer::margin(call.gpu),
        })
    };

    fn nvmlDeviceGetPowerUsage(milliwatts: Ptr<c_uint>) |call| milliwatts.put(call.gpu.power.usage);
    fn nvmlDeviceGetPowerManagementMode(mode: Ptr<c_uint>) |_| mode.put(1);
    fn nvmlDeviceGetPowerManagementLimit | nvmlDeviceGetEnforcedPowerLimit(milliwatts: Ptr<c_uint>) |call| {
        milliwatts.put(call.gpu.power.limit)
    };
    fn nvmlDeviceGetPowerManagementDefaultLimit(milliwatts: Ptr<c_uint>) |call| {
        milliwatts.put(call.gpu.power.default_limit)
    };
    fn nvmlDeviceGetPowerManagementLimitConstraints(lowest: Ptr<c_uint>, highest: Ptr<c_uint>) |call| {
        lowest.put(call.gpu.power.min_limit)?;
        highest.put(call.gpu.power.max_limit)
    };
    fn nvmlDeviceGetPowerSource(source: Ptr<c_uint>) |_| source.put(0);
    fn nvmlDeviceGetTotalEnergyConsumption(millijoules: Ptr<c_ulonglong>) |call| millijoules.put(call.gpu.energy_mj);
    fn nvmlDeviceGetPerformanceState | nvmlDeviceGetPowerState(state: Ptr<c_uint>) |call| {
        state.put(call.gpu.performance_state)
    };
    /// `size` is in bytes; places without a state hold `NVML_PSTATE_UNKNOWN`.
    fn nvmlDeviceGetSupportedPerformanceStates(states: Ptr<c_uint>, size: c_uint) |_| {
        const UNKNOWN: c_uint = 32;
        let mut all = vec![UNKNOWN; (size as usize / size_of::<c_uint>()).min(16)];
        *all.first_mut().ok_or(ReturnCode::InsufficientSize)? = 0;
        states.put_all(&all)
    };

    fn nvmlDeviceGetClockInfo(domain: c_uint, mhz: Ptr<c_uint>) |call| {
        mhz.put(answer::clock(&call.gpu.clocks, domain)?)
    };
    fn nvmlDeviceGetMaxClockInfo | nvmlDeviceGetApplicationsClock | nvmlDeviceGetDefaultApplicationsClock
        | nvmlDeviceGetMaxCustomerBoostClock(domain: c_uint, mhz: Ptr<c_uint>) |call| {
        mhz.put(answer::clock(&call.gpu.max_clocks, domain)?)
    };
    fn nvmlDeviceGetClock(domain: c_uint, which: c_uint, mhz: Ptr<c_uint>) |call| {
        let clocks = match which {
            0 => &call.gpu.clocks,
            1..=3 => &call.gpu.max_clocks,
            _ => return Err(ReturnCode::InvalidArgument),
        };
        mhz.put(answer::clock(clocks, domain)?)
    };
    fn nvmlDeviceGetSupportedMemoryClocks(count: Ptr<c_uint>, mhz: Ptr<c_uint>) |call| {
        mhz.put_items(count, &[call.gpu.max_clocks.memory])
    };
    fn nvmlDeviceGetSupportedGraphicsClocks(memory: c_uint, count: Ptr<c_uint>, mhz: Ptr<c_uint>) |call| {
        mhz.put_items(count, &answer::graphics_clocks(call.gpu, memory)?)
    };
    fn nvmlDeviceGetCurrentClocksEventReasons | nvmlDeviceGetCurrentClocksThrottleReasons(
        reasons: Ptr<c_ulonglong>
    ) |call| reasons.put(answer::clock_events(call.gpu));
    fn nvmlDeviceGetSupportedClocksEventReasons | nvmlDeviceGetSupportedClocksThrottleReasons(
        reasons: Ptr<c_ulonglong>
    ) |_| reasons.put(0x1ff);
    fn nvmlDeviceGetViolationStatus(policy: c_uint, time: Ptr<nvmlViolationTime_t>) |call| {
        let event = match policy {
            0 => Some(ClockEvent::SwPowerCap),
            1 => Some(ClockEvent::HwThermalSlowdown),
            2 => Some(ClockEvent::SyncBoost),
            3..=5 | 10 | 11 => None,
            _ => return Err(ReturnCode::InvalidArgument),
        };
        let nanoseconds = event.and_then(|event| call.gpu.clock_event_ns.get(&event)).copied().unwrap_or(0);
        time.put(nvmlViolationTime_t { referenceTime: now() as c_ulonglong, violationTime: nanoseconds })
    };

    /// In MIG mode load is known per instance only.
    fn nvmlDeviceGetUtilizationRates(rates: Ptr<nvmlUtilization_t>) |call| {
        if call.gpu.mig.as_ref().is_some_and(|mig| mig.enabled) {
            return Err(ReturnCode::NotSupported);
        }
        rates.put(nvmlUtilization_t { gpu: call.gpu.utilization.gpu, memory: call.gpu.utilization.memory })
    };
    fn nvmlDeviceGetEncoderUtilization | nvmlDeviceGetDecoderUtilization | nvmlDeviceGetJpgUtilization
        | nvmlDeviceGetOfaUtilization(percent: Ptr<c_uint>, period: Ptr<c_uint>) |_| {
        percent.put(0)?;
        period.put(167_000)
    };
}

// ---- Errors and repair

gpu! {
    fn nvmlDeviceGetEccMode(current: Ptr<c_uint>, pending: Ptr<c_uint>) |call| {
        current.put(c_uint::from(call.gpu.ecc.enabled))?;
        pending.put(c_uint::from(call.gpu.ecc.pending))
    };
    fn nvmlDeviceGetDefaultEccMode(mode: Ptr<c_uint>) |_| mode.put(1);
    fn nvmlDeviceGetTotalEccErrors(error: c_uint, counter: c_uint, count: Ptr<c_ulonglong>) |call| {
        count.put(answer::ecc_total(call.gpu, error, counter)?)
    };
    fn nvmlDeviceGetDetailedEccErrors(error: c_uint, counter: c_uint, counts: Ptr<nvmlEccErrorCounts_t>) |call| {
        counts.put(answer::ecc_detailed(call.gpu, error, counter)?)
    };
    fn nvmlDeviceGetMemoryErrorCounter(
        error: c_uint, counter: c_uint, location: c_uint, count: Ptr<c_ulonglong>
    ) |call| count.put(answer::ecc_at(call.gpu, error, counter, location)?);
    fn nvmlDeviceGetSramEccErrorStatus(status: Ptr<nvmlEccSramErrorStatus_v1_t>) |call| {
        status.expect_version(1)?;
        status.put(answer::sram_status(call.gpu)?)
    };
    fn nvmlDeviceGetRemappedRows(
        correctable: Ptr<c_uint>, uncorrectable: Ptr<c_uint>, pending: Ptr<c_uint>, failure: Ptr<c_uint>
    ) |call| {
        let rows = supported(call.gpu.remapped_rows.as_ref())?;
        correctable.put(rows.correctable)?;
        uncorrectable.put(rows.uncorrectable)?;
        pending.put(c_uint::from(rows.pending))?;
        failure.put(c_uint::from(rows.failure))
    };
    fn nvmlDeviceGetRowRemapperHistogram(values: Ptr<nvmlRowRemapperHistogramValues_t>) |call| {
        let histogram = &supported(call.gpu.remapped_rows.as_ref())?.histogram;
        values.put(nvmlRowRemapperHistogramValues_t {
            max: histogram.max,
            high: histogram.high,
            partial: histogram.partial,
            low: histogram.low,
            none: histogram.none,
        })
    };
    fn nvmlDeviceGetRetiredPages(cause: c_uint, count: Ptr<c_uint>, addresses: Ptr<c_ulonglong>) |call| {
        addresses.put_items(count, retired_pages(call.gpu, cause)?)
    };
    /// When a page was retired is not simulated: the times are 0.
    fn nvmlDeviceGetRetiredPages_v2(
        cause: c_uint, count: Ptr<c_uint>, addresses: Ptr<c_ulonglong>, times: Ptr<c_ulonglong>
    ) |call| {
        let pages = retired_pages(call.gpu, cause)?;
        addresses.put_items(count, pages)?;
        if pages.is_empty() { Ok(()) } else { times.put_all(&vec![0; pages.len()]) }
    };
    fn nvmlDeviceGetRetiredPagesPendingStatus(pending: Ptr<c_uint>) |call| {
        pending.put(c_uint::from(supported(call.gpu.retired_pages.as_ref())?.pending))
    };
    fn nvmlDeviceGetRepairStatus(status: Ptr<nvmlRepairStatus_v1_t>) |call| {
        status.expect_version(1)?;
        let repair = supported(call.gpu.repair.as_ref())?;
        status.put(nvmlRepairStatus_v1_t {
            version: struct_version::<nvmlRepairStatus_v1_t>(1),
            bChannelRepairPending: c_uint::from(repair.channel_pending),
            bTpcRepairPending: c_uint::from(repair.tpc_pending),
        })
    };
    /// Known to drivers from 590 on.
    fn nvmlDeviceGetUnrepairableMemoryFlag_v1(status: Ptr<UnrepairableMemoryV1>) |call| {
        if answer::release(call.file) < (590, 0) {
            return Err(ReturnCode::FunctionNotFound);
        }
        status.expect_version(1)?;
        status.put(UnrepairableMemoryV1 {
            version: struct_version::<UnrepairableMemoryV1>(1),
            unrepairable_memory: c_uint::from(supported(call.gpu.repair.as_ref())?.unrepairable_memory),
        })
    };
    /// Fails as a whole only for the GPU's sake; each field has its own return code.
    fn nvmlDeviceGetFieldValues(count: c_int, values: Ptr<nvmlFieldValue_t>) |call| {
        let count = usize::try_from(count).map_err(|_| ReturnCode::InvalidArgument)?;
        let time = now();
        values.change_each(count, |entry| answer::fill_field(call.file, call.gpu, time, entry))
    };
}

/// nvml.h of driver 590.
#[derive(Clone, Copy)]
#[repr(C)]
struct UnrepairableMemoryV1 {
    version: c_uint,
    unrepairable_memory: c_uint,
}

fn retired_pages(gpu: &Gpu, cause: c_uint) -> Answer<&[u64]> {
    let pages = supported(gpu.retired_pages.as_ref())?;
    match cause {
        0 => Ok(&pages.single_bit),
        1 => Ok(&pages.double_bit),
        _ => Err(ReturnCode::InvalidArgument),
    }
}

// ---- NVLink and fabric

gpu! {
    fn nvmlDeviceGetNvLinkState(link: c_uint, active: Ptr<c_uint>) |call| {
        active.put(c_uint::from(!answer::link(call.gpu, link)?.down.contains(&link)))
    };
    fn nvmlDeviceGetNvLinkVersion(link: c_uint, version: Ptr<c_uint>) |call| {
        version.put(answer::link(call.gpu, link)?.version)
    };
    fn nvmlDeviceGetNvLinkCapability(link: c_uint, capability: c_uint, result: Ptr<c_uint>) |call| {
        result.put(answer::link_capability(call.gpu, link, capability)?)
    };
    fn nvmlDeviceGetNvLinkErrorCounter(link: c_uint, counter: c_uint, value: Ptr<c_ulonglong>) |call| {
        value.put(answer::link_error(call.gpu, link, counter)?)
    };
    fn nvmlDeviceGetNvLinkRemotePciInfo_v2(link: c_uint, pci: Ptr<nvmlPciInfo_t>) |call| {
        pci.put(answer::link_remote(call.gpu, link)?)
    };
    fn nvmlDeviceGetNvLinkRemotePciInfo(link: c_uint, pci: Ptr<PciInfoV2>) |call| {
        let info = answer::link_remote(call.gpu, link)?;
        pci.put(PciInfoV2 {
            bus_id: info.busIdLegacy,
            domain: info.domain,
            bus: info.bus,
            device: info.device,
            device_id: info.pciDeviceId,
            subsystem_id: 0,
            reserved: [0; 4],
        })
    };
    fn nvmlDeviceGetNvLinkRemoteDeviceType(link: c_uint, kind: Ptr<c_uint>) |call| {
        const SWITCH: c_uint = 2;
        answer::link_remote(call.gpu, link)?;
        kind.put(SWITCH)
    };
    fn nvmlDeviceGetGpuFabricInfo(info: Ptr<nvmlGpuFabricInfo_t>) |call| info.put(answer::fabric_v1(call.gpu)?);
    fn nvmlDeviceGetGpuFabricInfoV(info: Ptr<nvmlGpuFabricInfo_v3_t>) |call| {
        let version = info.version()?;
        if version == struct_version::<nvmlGpuFabricInfo_v3_t>(3) {
            info.put(answer::fabric_v3(call.gpu)?)
        } else if version == struct_version::<nvmlGpuFabricInfo_v2_t>(2) {
            info.cast::<nvmlGpuFabricInfo_v2_t>().put(answer::fabric_v2(call.gpu)?)
        } else {
            Err(ReturnCode::ArgumentVersionMismatch)
        }
    };
}

// ---- Processes and MIG

gpu! {
    fn nvmlDeviceGetComputeRunningProcesses_v2 | nvmlDeviceGetComputeRunningProcesses_v3(
        count: Ptr<c_uint>, processes: Ptr<nvmlProcessInfo_v2_t>
    ) |call| processes.put_items(count, &answer::processes(call.gpu, ProcessKind::Compute));
    fn nvmlDeviceGetGraphicsRunningProcesses_v2 | nvmlDeviceGetGraphicsRunningProcesses_v3(
        count: Ptr<c_uint>, processes: Ptr<nvmlProcessInfo_v2_t>
    ) |call| processes.put_items(count, &answer::processes(call.gpu, ProcessKind::Graphics));
    fn nvmlDeviceGetMPSComputeRunningProcesses_v2 | nvmlDeviceGetMPSComputeRunningProcesses_v3(
        count: Ptr<c_uint>, processes: Ptr<nvmlProcessInfo_v2_t>
    ) |_| processes.put_items(count, &[]);
    fn nvmlDeviceGetComputeRunningProcesses(count: Ptr<c_uint>, processes: Ptr<nvmlProcessInfo_v1_t>) |call| {
        processes.put_items(count, &processes_v1(call, ProcessKind::Compute))
    };
    fn nvmlDeviceGetGraphicsRunningProcesses(count: Ptr<c_uint>, processes: Ptr<nvmlProcessInfo_v1_t>) |call| {
        processes.put_items(count, &processes_v1(call, ProcessKind::Graphics))
    };
    fn nvmlDeviceGetMPSComputeRunningProcesses(count: Ptr<c_uint>, processes: Ptr<nvmlProcessInfo_v1_t>) |_| {
        processes.put_items(count, &[])
    };
    fn nvmlDeviceGetMigMode(current: Ptr<c_uint>, pending: Ptr<c_uint>) |call| {
        let mig = supported(call.gpu.mig.as_ref())?;
        current.put(c_uint::from(mig.enabled))?;
        pending.put(c_uint::from(mig.pending))
    };
    /// 0 unless MIG mode is on, as nvml.h has it.
    fn nvmlDeviceGetMaxMigDeviceCount(count: Ptr<c_uint>) |call| {
        count.put(call.gpu.mig.as_ref().filter(|mig| mig.enabled).map_or(0, |mig| mig.max_devices))
    };
    fn nvmlDeviceIsMigDeviceHandle(is: Ptr<c_uint>) |_| is.put(0);
    /// No MIG device exists: instances are not simulated.
    fn nvmlDeviceGetMigDeviceHandleByIndex(_index: c_uint, _mig_device: Ptr<Handle>) |call| {
        supported(call.gpu.mig.as_ref())?;
        Err(ReturnCode::NotFound)
    };
}

fn processes_v1(call: &GpuCall, kind: ProcessKind) -> Vec<nvmlProcessInfo_v1_t> {
    let processes = answer::processes(call.gpu, kind).into_iter();
    processes
        .map(|process| nvmlProcessInfo_v1_t { pid: process.pid, usedGpuMemory: process.usedGpuMemory })
        .collect()
}

// ---- Events. None ever comes: a wait ends with its time-out.

/// The one event set: sets differ in nothing here.
const EVENT_SET: usize = 1;

node! {
    fn nvmlEventSetCreate(set: Ptr<usize>) |_| set.put(EVENT_SET);
    fn nvmlEventSetFree(set: usize) |_| {
        if set == EVENT_SET { Ok(()) } else { Err(ReturnCode::InvalidArgument) }
    };
    fn nvmlEventSetWait | nvmlEventSetWait_v2(set: usize, _data: Ptr<nvmlEventData_t>, timeout_ms: c_uint) |_| {
        if set != EVENT_SET {
            return Err(ReturnCode::InvalidArgument);
        }
        thread::sleep(Duration::from_millis(timeout_ms.into()));
        Err(ReturnCode::Timeout)
    };
}

gpu! {
    fn nvmlDeviceGetSupportedEventTypes(types: Ptr<c_ulonglong>) |_| {
        // Single-bit and double-bit ECC errors, power state changes, critical Xids, clock changes.
        types.put(0x1f)
    };
    fn nvmlDeviceRegisterEvents(_types: c_ulonglong, set: usize) |_| {
        if set == EVENT_SET { Ok(()) } else { Err(ReturnCode::InvalidArgument) }
    };
}

/// Microseconds since 1970.
fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as i64)
}

// ---- What is not simulated. A C caller cleans up its own arguments, so these may ignore all but the first.

gpu! {
    fn nvmlDeviceClearAccountingPids | nvmlDeviceClearCpuAffinity | nvmlDeviceClearEccErrorCounts
        | nvmlDeviceClearFieldValues | nvmlDeviceCreateGpuInstance
        | nvmlDeviceCreateGpuInstanceWithPlacement | nvmlDeviceFreezeNvLinkUtilizationCounter
        | nvmlDeviceGetAPIRestriction | nvmlDeviceGetAccountingStats | nvmlDeviceGetActiveVgpus
        | nvmlDeviceGetAdaptiveClockInfoStatus | nvmlDeviceGetAddressingMode | nvmlDeviceGetAttributes
        | nvmlDeviceGetAttributes_v2 | nvmlDeviceGetAutoBoostedClocksEnabled | nvmlDeviceGetBridgeChipInfo
        | nvmlDeviceGetC2cModeInfoV | nvmlDeviceGetCapabilities | nvmlDeviceGetClkMonStatus
        | nvmlDeviceGetClockOffsets | nvmlDeviceGetComputeInstanceId
        | nvmlDeviceGetConfComputeGpuAttestationReport | nvmlDeviceGetConfComputeGpuCertificate
        | nvmlDeviceGetConfComputeMemSizeInfo | nvmlDeviceGetConfComputeProtectedMemoryUsage
        | nvmlDeviceGetCoolerInfo | nvmlDeviceGetCpuAffinity | nvmlDeviceGetCpuAffinityWithinScope
        | nvmlDeviceGetCreatableVgpus | nvmlDeviceGetCurrentClockFreqs
        | nvmlDeviceGetDeviceHandleFromMigDeviceHandle | nvmlDeviceGetDramEncryptionMode
        | nvmlDeviceGetDriverModel | nvmlDeviceGetDriverModel_v2 | nvmlDeviceGetDynamicPstatesInfo
        | nvmlDeviceGetEncoderCapacity | nvmlDeviceGetEncoderSessions | nvmlDeviceGetEncoderStats
        | nvmlDeviceGetFBCSessions | nvmlDeviceGetFBCStats | nvmlDeviceGetFanControlPolicy_v2
        | nvmlDeviceGetFanSpeed | nvmlDeviceGetFanSpeedRPM | nvmlDeviceGetFanSpeed_v2
        | nvmlDeviceGetGpcClkMinMaxVfOffset | nvmlDeviceGetGpcClkVfOffset | nvmlDeviceGetGpuInstanceById
        | nvmlDeviceGetGpuInstanceId | nvmlDeviceGetGpuInstancePossiblePlacements
        | nvmlDeviceGetGpuInstancePossiblePlacements_v2 | nvmlDeviceGetGpuInstanceProfileInfo
        | nvmlDeviceGetGpuInstanceProfileInfoByIdV | nvmlDeviceGetGpuInstanceProfileInfoV
        | nvmlDeviceGetGpuInstanceRemainingCapacity | nvmlDeviceGetGpuInstances
        | nvmlDeviceGetGpuOperationMode | nvmlDeviceGetGridLicensableFeatures
        | nvmlDeviceGetGridLicensableFeatures_v2 | nvmlDeviceGetGridLicensableFeatures_v3
        | nvmlDeviceGetGridLicensableFeatures_v4 | nvmlDeviceGetHostVgpuMode | nvmlDeviceGetLastBBXFlushTime
        | nvmlDeviceGetMemClkMinMaxVfOffset | nvmlDeviceGetMemClkVfOffset | nvmlDeviceGetMemoryAffinity
        | nvmlDeviceGetMinMaxClockOfPState | nvmlDeviceGetMinMaxFanSpeed | nvmlDeviceGetNvLinkInfo
        | nvmlDeviceGetNvLinkUtilizationControl | nvmlDeviceGetNvLinkUtilizationCounter
        | nvmlDeviceGetNvlinkBwMode | nvmlDeviceGetNvlinkSupportedBwModes | nvmlDeviceGetPdi
        | nvmlDeviceGetPerformanceModes | nvmlDeviceGetPgpuMetadataString | nvmlDeviceGetPlatformInfo
        | nvmlDeviceGetPowerMizerMode_v1 | nvmlDeviceGetProcessUtilization
        | nvmlDeviceGetProcessesUtilizationInfo | nvmlDeviceGetRunningProcessDetailList
        | nvmlDeviceGetSamples | nvmlDeviceGetSramUniqueUncorrectedEccErrorCounts
        | nvmlDeviceGetSupportedVgpus | nvmlDeviceGetTargetFanSpeed | nvmlDeviceGetThermalSettings
        | nvmlDeviceGetTopologyNearestGpus | nvmlDeviceGetVgpuCapabilities
        | nvmlDeviceGetVgpuHeterogeneousMode | nvmlDeviceGetVgpuInstancesUtilizationInfo
        | nvmlDeviceGetVgpuMetadata | nvmlDeviceGetVgpuProcessUtilization
        | nvmlDeviceGetVgpuProcessesUtilizationInfo | nvmlDeviceGetVgpuSchedulerCapabilities
        | nvmlDeviceGetVgpuSchedulerLog | nvmlDeviceGetVgpuSchedulerState
        | nvmlDeviceGetVgpuTypeCreatablePlacements | nvmlDeviceGetVgpuTypeSupportedPlacements
        | nvmlDeviceGetVgpuUtilization | nvmlDevicePowerSmoothingActivatePresetProfile
        | nvmlDevicePowerSmoothingSetState | nvmlDevicePowerSmoothingUpdatePresetProfileParam
        | nvmlDeviceReadWritePRM_v1 | nvmlDeviceResetApplicationsClocks | nvmlDeviceResetGpuLockedClocks
        | nvmlDeviceResetMemoryLockedClocks | nvmlDeviceResetNvLinkErrorCounters
        | nvmlDeviceResetNvLinkUtilizationCounter | nvmlDeviceSetAPIRestriction
        | nvmlDeviceSetAccountingMode | nvmlDeviceSetApplicationsClocks
        | nvmlDeviceSetAutoBoostedClocksEnabled | nvmlDeviceSetClockOffsets | nvmlDeviceSetComputeMode
        | nvmlDeviceSetConfComputeUnprotectedMemSize | nvmlDeviceSetCpuAffinity
        | nvmlDeviceSetDefaultAutoBoostedClocksEnabled | nvmlDeviceSetDefaultFanSpeed_v2
        | nvmlDeviceSetDramEncryptionMode | nvmlDeviceSetDriverModel | nvmlDeviceSetEccMode
        | nvmlDeviceSetFanControlPolicy | nvmlDeviceSetFanSpeed_v2 | nvmlDeviceSetGpcClkVfOffset
        | nvmlDeviceSetGpuLockedClocks | nvmlDeviceSetGpuOperationMode | nvmlDeviceSetMemClkVfOffset
        | nvmlDeviceSetMemoryLockedClocks | nvmlDeviceSetMigMode
        | nvmlDeviceSetNvLinkDeviceLowPowerThreshold | nvmlDeviceSetNvLinkUtilizationControl
        | nvmlDeviceSetNvlinkBwMode | nvmlDeviceSetPersistenceMode | nvmlDeviceSetPowerManagementLimit
        | nvmlDeviceSetPowerManagementLimit_v2 | nvmlDeviceSetPowerMizerMode_v1
        | nvmlDeviceSetTemperatureThreshold | nvmlDeviceSetVgpuCapabilities
        | nvmlDeviceSetVgpuHeterogeneousMode | nvmlDeviceSetVgpuSchedulerState
        | nvmlDeviceSetVirtualizationMode | nvmlDeviceWorkloadPowerProfileClearRequestedProfiles
        | nvmlDeviceWorkloadPowerProfileGetCurrentProfiles | nvmlDeviceWorkloadPowerProfileGetProfilesInfo
        | nvmlDeviceWorkloadPowerProfileSetRequestedProfiles() |_| Err(ReturnCode::NotSupported);
}

node! {
    fn nvmlComputeInstanceDestroy | nvmlComputeInstanceGetInfo | nvmlComputeInstanceGetInfo_v2
        | nvmlDeviceDiscoverGpus | nvmlDeviceModifyDrainState | nvmlDeviceQueryDrainState
        | nvmlDeviceRemoveGpu | nvmlDeviceRemoveGpu_v2 | nvmlGetExcludedDeviceInfoByIndex
        | nvmlGetVgpuCompatibility | nvmlGetVgpuDriverCapabilities | nvmlGetVgpuVersion | nvmlGpmMetricsGet
        | nvmlGpmMigSampleGet | nvmlGpmQueryDeviceSupport | nvmlGpmQueryIfStreamingEnabled
        | nvmlGpmSampleAlloc | nvmlGpmSampleFree | nvmlGpmSampleGet | nvmlGpmSetStreamingEnabled
        | nvmlGpuInstanceCreateComputeInstance | nvmlGpuInstanceCreateComputeInstanceWithPlacement
        | nvmlGpuInstanceDestroy | nvmlGpuInstanceGetActiveVgpus | nvmlGpuInstanceGetComputeInstanceById
        | nvmlGpuInstanceGetComputeInstancePossiblePlacements | nvmlGpuInstanceGetComputeInstanceProfileInfo
        | nvmlGpuInstanceGetComputeInstanceProfileInfoV | nvmlGpuInstanceGetComputeInstanceRemainingCapacity
        | nvmlGpuInstanceGetComputeInstances | nvmlGpuInstanceGetCreatableVgpus | nvmlGpuInstanceGetInfo
        | nvmlGpuInstanceGetVgpuHeterogeneousMode | nvmlGpuInstanceGetVgpuSchedulerLog
        | nvmlGpuInstanceGetVgpuSchedulerState | nvmlGpuInstanceGetVgpuTypeCreatablePlacements
        | nvmlGpuInstanceSetVgpuHeterogeneousMode | nvmlGpuInstanceSetVgpuSchedulerState
        | nvmlSetVgpuVersion | nvmlSystemEventSetCreate | nvmlSystemEventSetFree | nvmlSystemEventSetWait
        | nvmlSystemGetConfComputeCapabilities | nvmlSystemGetConfComputeGpusReadyState
        | nvmlSystemGetConfComputeKeyRotationThresholdInfo | nvmlSystemGetConfComputeSettings
        | nvmlSystemGetConfComputeState | nvmlSystemGetDriverBranch | nvmlSystemGetNvlinkBwMode
        | nvmlSystemGetTopologyGpuSet | nvmlSystemRegisterEvents | nvmlSystemSetConfComputeGpusReadyState
        | nvmlSystemSetConfComputeKeyRotationThresholdInfo | nvmlSystemSetNvlinkBwMode | nvmlUnitGetDevices
        | nvmlUnitGetFanSpeedInfo | nvmlUnitGetHandleByIndex | nvmlUnitGetLedState | nvmlUnitGetPsuInfo
        | nvmlUnitGetTemperature | nvmlUnitGetUnitInfo | nvmlUnitSetLedState
        | nvmlVgpuInstanceClearAccountingPids | nvmlVgpuInstanceGetAccountingMode
        | nvmlVgpuInstanceGetAccountingPids | nvmlVgpuInstanceGetAccountingStats
        | nvmlVgpuInstanceGetEccMode | nvmlVgpuInstanceGetEncoderCapacity
        | nvmlVgpuInstanceGetEncoderSessions | nvmlVgpuInstanceGetEncoderStats
        | nvmlVgpuInstanceGetFBCSessions | nvmlVgpuInstanceGetFBCStats | nvmlVgpuInstanceGetFbUsage
        | nvmlVgpuInstanceGetFrameRateLimit | nvmlVgpuInstanceGetGpuInstanceId | nvmlVgpuInstanceGetGpuPciId
        | nvmlVgpuInstanceGetLicenseInfo | nvmlVgpuInstanceGetLicenseInfo_v2
        | nvmlVgpuInstanceGetLicenseStatus | nvmlVgpuInstanceGetMdevUUID | nvmlVgpuInstanceGetMetadata
        | nvmlVgpuInstanceGetPlacementId | nvmlVgpuInstanceGetRuntimeStateSize | nvmlVgpuInstanceGetType
        | nvmlVgpuInstanceGetUUID | nvmlVgpuInstanceGetVmDriverVersion | nvmlVgpuInstanceGetVmID
        | nvmlVgpuInstanceSetEncoderCapacity | nvmlVgpuTypeGetBAR1Info | nvmlVgpuTypeGetCapabilities
        | nvmlVgpuTypeGetClass | nvmlVgpuTypeGetDeviceID | nvmlVgpuTypeGetFbReservation
        | nvmlVgpuTypeGetFrameRateLimit | nvmlVgpuTypeGetFramebufferSize
        | nvmlVgpuTypeGetGpuInstanceProfileId | nvmlVgpuTypeGetGspHeapSize | nvmlVgpuTypeGetLicense
        | nvmlVgpuTypeGetMaxInstances | nvmlVgpuTypeGetMaxInstancesPerGpuInstance
        | nvmlVgpuTypeGetMaxInstancesPerVm | nvmlVgpuTypeGetName | nvmlVgpuTypeGetNumDisplayHeads
        | nvmlVgpuTypeGetResolution() |_| Err(ReturnCode::NotSupported);

    // Functions of drivers later than those simulated, which nvidia-ml-py asks for all the same.
    fn nvmlDeviceGetAccountingStats_v2 | nvmlDeviceGetAdaptiveTgpModeInfo_v1 | nvmlDeviceGetBBXTimeData_v1
        | nvmlDeviceGetBankRemapperStatus_v1 | nvmlDeviceGetGpuFabricInfo_v4 | nvmlDeviceGetHostname_v1
        | nvmlDeviceGetMemoryLimits_v1 | nvmlDeviceGetNvLinkTelemetrySamples_v1
        | nvmlDeviceGetRemappedRows_v2 | nvmlDeviceGetVgpuSchedulerLog_v2
        | nvmlDeviceGetVgpuSchedulerState_v2 | nvmlDevicePerfMetricsGetSamples_v1
        | nvmlDeviceReadPRMCounters_v1 | nvmlDeviceSetAdaptiveTgpMode_v1 | nvmlDeviceSetHostname_v1
        | nvmlDeviceSetMemoryLimits_v1 | nvmlDeviceSetNvlinkBwModeAsync_v1 | nvmlDeviceSetRusdSettings_v1
        | nvmlDeviceSetVgpuSchedulerState_v2 | nvmlDeviceVgpuForceGspUnload
        | nvmlDeviceWorkloadPowerProfileUpdateProfiles_v1 | nvmlEventSetGetContextCount_v1
        | nvmlEventSetGetContextData_v1 | nvmlEventSetGetContextInfo_v1
        | nvmlEventSetGetGpuOperationalEventContextLegacyXid_v1
        | nvmlEventSetRegisterGpuOperationalEvents_v1 | nvmlEventSetWait_v3
        | nvmlGpuInstanceGetVgpuSchedulerLog_v2 | nvmlGpuInstanceGetVgpuSchedulerState_v2
        | nvmlGpuInstanceSetVgpuSchedulerState_v2 | nvmlSystemGetCPER_v1() |_| Err(ReturnCode::FunctionNotFound);
}
