//! What a GPU answers, computed from its entry in the GPU file. Nothing here touches a pointer or a file.

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings::{
    field_id as id, nvmlEccErrorCounts_t, nvmlEccSramErrorStatus_v1_t, nvmlFieldValue_t, nvmlGpuFabricInfo_t,
    nvmlGpuFabricInfo_v2_t, nvmlGpuFabricInfo_v3_t, nvmlMemory_t, nvmlMemory_v2_t, nvmlPciInfo_t,
    nvmlProcessInfo_v2_t, nvmlReturn_t, nvmlValue_t,
};

use crate::ffi::{Answer, field, struct_version};
use crate::model::{
    ClockEvent, Clocks, EccCounts, Fabric, FabricState, Gpu, GpuFile, HealthFlag, NvLink, NvLinkErrors,
    PciAddress, ProcessKind, RecoveryAction, ReturnCode, driver_release,
};

/// First release with the field ids of CUDA 13.0 Update 1 (NVML API reference, known issues).
const RENUMBERED: (u32, u32) = (580, 82);
/// First release that knows the recovery action (its header is CUDA 12.8's).
const RECOVERY_ACTION_SINCE: (u32, u32) = (570, 0);
/// NVLink 5.0 counts errors as InfiniBand does (ids 201-222) instead of replays and CRC errors.
const NVLINK_5: u32 = 7;

/// The release in the file; a file that was validated always has one.
pub(crate) fn release(file: &GpuFile) -> (u32, u32) {
    driver_release(&file.driver_version).unwrap_or_default()
}

/// `value`, if the GPU has such a thing.
pub(crate) fn supported<T>(value: Option<T>) -> Answer<T> {
    value.ok_or(ReturnCode::NotSupported)
}

/// Version 1 of the memory call counts what is reserved as used.
pub(crate) fn memory(gpu: &Gpu) -> nvmlMemory_t {
    let memory = &gpu.memory;
    let used = memory.used.saturating_add(memory.reserved).min(memory.total);
    nvmlMemory_t { total: memory.total, free: memory.total - used, used }
}

/// Version 2 tells reserved and used apart.
pub(crate) fn memory_v2(gpu: &Gpu) -> nvmlMemory_v2_t {
    nvmlMemory_v2_t {
        version: struct_version::<nvmlMemory_v2_t>(2),
        total: gpu.memory.total,
        reserved: gpu.memory.reserved,
        free: memory(gpu).free,
        used: gpu.memory.used,
    }
}

/// The GPU's PCI address; NVML always writes function 0.
pub(crate) fn pci(gpu: &Gpu) -> nvmlPciInfo_t {
    nvmlPciInfo_t {
        pciDeviceId: gpu.pci_device_id,
        pciSubSystemId: gpu.pci_subsystem_id,
        ..pci_address(gpu.pci_address)
    }
}

/// A PCI address without device ids.
pub(crate) fn pci_address(at: PciAddress) -> nvmlPciInfo_t {
    nvmlPciInfo_t {
        busIdLegacy: field(&format!("{:04X}:{:02X}:{:02X}.0", at.domain, at.bus, at.device)),
        domain: at.domain,
        bus: c_uint::from(at.bus),
        device: c_uint::from(at.device),
        pciDeviceId: 0,
        pciSubSystemId: 0,
        busId: field(&format!("{:08X}:{:02X}:{:02X}.0", at.domain, at.bus, at.device)),
    }
}

/// One clock domain (`nvmlClockType_t`), MHz.
pub(crate) fn clock(clocks: &Clocks, domain: c_uint) -> Answer<c_uint> {
    match domain {
        0 => Ok(clocks.graphics),
        1 => Ok(clocks.sm),
        2 => Ok(clocks.memory),
        3 => Ok(clocks.video),
        _ => Err(ReturnCode::InvalidArgument),
    }
}

/// Graphics clocks the GPU can be set to with its memory at `memory_mhz`, highest first.
pub(crate) fn graphics_clocks(gpu: &Gpu, memory_mhz: c_uint) -> Answer<Vec<c_uint>> {
    if memory_mhz != gpu.max_clocks.memory {
        return Err(ReturnCode::NotFound);
    }
    // The driver offers steps of 15 MHz.
    Ok((0..=gpu.max_clocks.graphics.saturating_sub(210) / 15)
        .map(|n| gpu.max_clocks.graphics - 15 * n)
        .collect())
}

/// Bit mask of the reasons (`nvmlClocksEventReason*`).
pub(crate) fn clock_events(gpu: &Gpu) -> u64 {
    gpu.clock_events.iter().fold(0, |mask, event| mask | *event as u64)
}

/// A temperature threshold (`nvmlTemperatureThresholds_t`), degrees Celsius.
pub(crate) fn threshold(gpu: &Gpu, kind: c_uint) -> Answer<c_uint> {
    let degrees = match kind {
        0 => gpu.temperature.shutdown,
        1 => gpu.temperature.slowdown,
        2 => gpu.temperature.memory_max,
        3 => gpu.temperature.gpu_max,
        4..=7 => return Err(ReturnCode::NotSupported),
        _ => return Err(ReturnCode::InvalidArgument),
    };
    c_uint::try_from(degrees).map_err(|_| ReturnCode::Unknown)
}

/// Degrees Celsius left to the highest operating temperature; negative above it.
pub(crate) fn margin(gpu: &Gpu) -> i32 {
    gpu.temperature.gpu_max.saturating_sub(gpu.temperature.gpu)
}

/// ECC counters of one kind (`nvmlEccCounterType_t`).
pub(crate) fn ecc(gpu: &Gpu, counter: c_uint) -> Answer<&EccCounts> {
    if !gpu.ecc.enabled {
        return Err(ReturnCode::NotSupported);
    }
    match counter {
        0 => Ok(&gpu.ecc.since_load),
        1 => Ok(&gpu.ecc.aggregate),
        _ => Err(ReturnCode::InvalidArgument),
    }
}

/// All errors of one type (`nvmlMemoryErrorType_t`).
pub(crate) fn ecc_total(gpu: &Gpu, error: c_uint, counter: c_uint) -> Answer<u64> {
    let counts = ecc(gpu, counter)?;
    match error {
        0 => Ok(counts.dram_corrected.saturating_add(counts.sram_corrected)),
        1 => Ok(counts.dram_uncorrected.saturating_add(counts.sram_uncorrected())),
        _ => Err(ReturnCode::InvalidArgument),
    }
}

/// Errors of one type at one place (`nvmlMemoryLocation_t`). GPUs since Ampere know device memory and SRAM only.
pub(crate) fn ecc_at(gpu: &Gpu, error: c_uint, counter: c_uint, location: c_uint) -> Answer<u64> {
    let counts = ecc(gpu, counter)?;
    match (location, error) {
        (2, 0) => Ok(counts.dram_corrected),
        (2, 1) => Ok(counts.dram_uncorrected),
        (7, 0) => Ok(counts.sram_corrected),
        (7, 1) => Ok(counts.sram_uncorrected()),
        (0..=7, 0 | 1) => Err(ReturnCode::NotSupported),
        _ => Err(ReturnCode::InvalidArgument),
    }
}

/// The older call's split: SRAM as a whole stands in for the L2 cache.
pub(crate) fn ecc_detailed(gpu: &Gpu, error: c_uint, counter: c_uint) -> Answer<nvmlEccErrorCounts_t> {
    Ok(nvmlEccErrorCounts_t {
        l1Cache: 0,
        l2Cache: ecc_at(gpu, error, counter, 7)?,
        deviceMemory: ecc_at(gpu, error, counter, 2)?,
        registerFile: 0,
    })
}

/// SRAM errors by their source, and whether NVIDIA's threshold for a replacement is exceeded.
pub(crate) fn sram_status(gpu: &Gpu) -> Answer<nvmlEccSramErrorStatus_v1_t> {
    let (since_load, aggregate) = (ecc(gpu, 0)?, ecc(gpu, 1)?);
    Ok(nvmlEccSramErrorStatus_v1_t {
        version: struct_version::<nvmlEccSramErrorStatus_v1_t>(1),
        aggregateUncParity: aggregate.sram_parity,
        aggregateUncSecDed: aggregate.sram_secded,
        aggregateCor: aggregate.sram_corrected,
        volatileUncParity: since_load.sram_parity,
        volatileUncSecDed: since_load.sram_secded,
        volatileCor: since_load.sram_corrected,
        aggregateUncBucketL2: aggregate.sram_l2,
        aggregateUncBucketSm: aggregate.sram_sm,
        aggregateUncBucketPcie: aggregate.sram_pcie,
        aggregateUncBucketMcu: aggregate.sram_mcu,
        aggregateUncBucketOther: aggregate.sram_other(),
        bThresholdExceeded: c_uint::from(gpu.ecc.sram_threshold_exceeded),
    })
}

/// Processes of one kind. Without MIG instances both instance ids are "none".
pub(crate) fn processes(gpu: &Gpu, kind: ProcessKind) -> Vec<nvmlProcessInfo_v2_t> {
    let of_kind = gpu.processes.iter().filter(|process| process.kind == kind);
    of_kind
        .map(|process| nvmlProcessInfo_v2_t {
            pid: process.pid,
            usedGpuMemory: process.used_memory,
            gpuInstanceId: c_uint::MAX,
            computeInstanceId: c_uint::MAX,
        })
        .collect()
}

/// The GPU's NVLink, and that it has this link.
pub(crate) fn link(gpu: &Gpu, link: c_uint) -> Answer<&NvLink> {
    let nvlink = supported(gpu.nvlink.as_ref())?;
    match link {
        link if link < nvlink.links => Ok(nvlink),
        0..=17 => Err(ReturnCode::NotSupported),
        _ => Err(ReturnCode::InvalidArgument),
    }
}

/// Errors of one link; those of a link that has none are all zero.
fn link_errors(nvlink: &NvLink, link: c_uint) -> NvLinkErrors {
    nvlink.errors.iter().find(|errors| errors.link == link).cloned().unwrap_or_default()
}

/// One error counter (`nvmlNvLinkErrorCounter_t`) of one link.
pub(crate) fn link_error(gpu: &Gpu, number: c_uint, counter: c_uint) -> Answer<u64> {
    let nvlink = link(gpu, number)?;
    if nvlink.version >= NVLINK_5 {
        return Err(ReturnCode::NotSupported);
    }
    let errors = link_errors(nvlink, number);
    match counter {
        0 => Ok(errors.replay),
        1 => Ok(errors.recovery),
        2 => Ok(errors.crc_flit),
        3 => Ok(errors.crc_data),
        4 => Ok(errors.ecc_data),
        _ => Err(ReturnCode::InvalidArgument),
    }
}

/// The switch at the other end of a link: an HGX board has four, at the bottom of the GPU's PCI domain.
pub(crate) fn link_remote(gpu: &Gpu, number: c_uint) -> Answer<nvmlPciInfo_t> {
    const SWITCHES: u32 = 4;
    let nvlink = link(gpu, number)?;
    if nvlink.down.contains(&number) {
        return Err(ReturnCode::NotSupported);
    }
    let switch = number * SWITCHES / nvlink.links;
    let at = PciAddress { domain: gpu.pci_address.domain, bus: 5 + switch as u8, device: 0, function: 0 };
    Ok(nvmlPciInfo_t { pciDeviceId: 0x22a3_10de, ..pci_address(at) })
}

/// One capability (`nvmlNvLinkCapability_t`) of one link.
pub(crate) fn link_capability(gpu: &Gpu, number: c_uint, capability: c_uint) -> Answer<c_uint> {
    link(gpu, number)?;
    match capability {
        0..=3 | 5 => Ok(1),
        // There is no SLI bridge.
        4 => Ok(0),
        _ => Err(ReturnCode::InvalidArgument),
    }
}

/// Membership in a fabric. GPUs before Hopper do not know the call.
fn fabric(gpu: &Gpu) -> Answer<Fabric> {
    match &gpu.fabric {
        Some(fabric) => Ok(fabric.clone()),
        None if gpu.architecture < 9 => Err(ReturnCode::NotSupported),
        None => Ok(Fabric {
            state: FabricState::NotSupported,
            degraded_bandwidth: HealthFlag::NotSupported,
            route_recovery: HealthFlag::NotSupported,
            route_unhealthy: HealthFlag::NotSupported,
            access_timeout_recovery: HealthFlag::NotSupported,
            incorrect_configuration: 0,
            ..Fabric::default()
        }),
    }
}

/// `NVML_GPU_FABRIC_HEALTH_MASK_*`.
fn health_mask(fabric: &Fabric) -> c_uint {
    fabric.degraded_bandwidth as c_uint
        | (fabric.route_recovery as c_uint) << 2
        | (fabric.route_unhealthy as c_uint) << 4
        | (fabric.access_timeout_recovery as c_uint) << 6
        | fabric.incorrect_configuration << 8
}

/// `NVML_GPU_FABRIC_HEALTH_SUMMARY_*`: 0 not supported, 1 healthy, 2 unhealthy, 3 limited capacity.
fn health_summary(fabric: &Fabric) -> u8 {
    let bad = [fabric.route_recovery, fabric.route_unhealthy, fabric.access_timeout_recovery];
    if bad.contains(&HealthFlag::True) || fabric.incorrect_configuration > 1 {
        2
    } else if fabric.degraded_bandwidth == HealthFlag::True {
        3
    } else {
        u8::from(health_mask(fabric) != 0)
    }
}

/// Version 3 of the fabric information; the earlier ones are parts of it.
pub(crate) fn fabric_v3(gpu: &Gpu) -> Answer<nvmlGpuFabricInfo_v3_t> {
    let fabric = fabric(gpu)?;
    Ok(nvmlGpuFabricInfo_v3_t {
        version: struct_version::<nvmlGpuFabricInfo_v3_t>(3),
        clusterUuid: fabric.cluster_uuid_bytes().unwrap_or_default(),
        status: fabric.status as nvmlReturn_t,
        cliqueId: fabric.clique_id,
        state: fabric.state as u8,
        healthMask: health_mask(&fabric),
        healthSummary: health_summary(&fabric),
    })
}

/// Version 2: without the summary.
pub(crate) fn fabric_v2(gpu: &Gpu) -> Answer<nvmlGpuFabricInfo_v2_t> {
    let info = fabric_v3(gpu)?;
    Ok(nvmlGpuFabricInfo_v2_t {
        version: struct_version::<nvmlGpuFabricInfo_v2_t>(2),
        clusterUuid: info.clusterUuid,
        status: info.status,
        cliqueId: info.cliqueId,
        state: info.state,
        healthMask: info.healthMask,
    })
}

/// Version 1: without the health mask.
pub(crate) fn fabric_v1(gpu: &Gpu) -> Answer<nvmlGpuFabricInfo_t> {
    let info = fabric_v3(gpu)?;
    Ok(nvmlGpuFabricInfo_t {
        clusterUuid: info.clusterUuid,
        status: info.status,
        cliqueId: info.cliqueId,
        state: info.state,
    })
}

/// PCIe speed of one lane of a generation, MT/s (NVML writes MBPS).
pub(crate) fn pcie_speed(generation: u32) -> Answer<c_uint> {
    match generation {
        1 => Ok(2500),
        2 => Ok(5000),
        // Each generation from 3 on doubles the speed of the one before.
        3..=6 => Ok(8000 << (generation - 3)),
        _ => Err(ReturnCode::Unknown),
    }
}

/// A field's value, with its type.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Value {
    /// `NVML_VALUE_TYPE_UNSIGNED_INT`
    U32(u32),
    /// `NVML_VALUE_TYPE_UNSIGNED_LONG_LONG`
    U64(u64),
    /// `NVML_VALUE_TYPE_SIGNED_INT`
    I32(i32),
}

/// Fills in one entry of `nvmlDeviceGetFieldValues`; `now` is in microseconds since 1970.
pub(crate) fn fill_field(file: &GpuFile, gpu: &Gpu, now: i64, entry: &mut nvmlFieldValue_t) {
    entry.timestamp = now;
    entry.latencyUsec = 0;
    entry.nvmlReturn = ReturnCode::Success as nvmlReturn_t;
    // The union is wider than most of its members: no caller should see stale bytes.
    entry.value = nvmlValue_t { ullVal: 0 };
    match field_value(file, gpu, entry.fieldId, entry.scopeId) {
        Ok(Value::U32(value)) => (entry.valueType, entry.value.uiVal) = (1, value),
        Ok(Value::U64(value)) => (entry.valueType, entry.value.ullVal) = (3, value),
        Ok(Value::I32(value)) => (entry.valueType, entry.value.siVal) = (5, value),
        Err(code) => entry.nvmlReturn = code as nvmlReturn_t,
    }
}

/// The id that `field` had before driver 580.82; `None` if it was none.
///
/// Only 251-273 moved: 251-255 (clock event times, power balancing) became 269-273 and 256-273 (power smoothing)
/// became 251-268. Ids from 274 on are new.
fn before_580_82(field: u32, release: (u32, u32)) -> Option<u32> {
    match field {
        _ if release < RENUMBERED => {
            (field <= id::NVML_FI_PWR_SMOOTHING_ADMIN_OVERRIDE_RAMP_DOWN_HYST_VAL).then_some(field)
        }
        269..=273 => Some(field - 18),
        251..=268 => Some(field + 5),
        0..=250 => Some(field),
        _ => None,
    }
}

/// One field (`NVML_FI_*`). `scope` is the link for most NVLink fields.
pub(crate) fn field_value(file: &GpuFile, gpu: &Gpu, field: u32, scope: u32) -> Answer<Value> {
    use Value::{I32, U32, U64};
    let old = match before_580_82(field, release(file)) {
        Some(0) => return Err(ReturnCode::InvalidArgument),
        Some(old) => old,
        // Fields of later headers (power smoothing, data rates, bank remapping) are not simulated.
        None if field <= 307 && release(file) >= RENUMBERED => return Err(ReturnCode::NotSupported),
        None => return Err(ReturnCode::InvalidArgument),
    };
    let temperature = &gpu.temperature;
    match old {
        id::NVML_FI_DEV_ECC_CURRENT => Ok(U32(u32::from(gpu.ecc.enabled))),
        id::NVML_FI_DEV_ECC_PENDING => Ok(U32(u32::from(gpu.ecc.pending))),
        id::NVML_FI_DEV_ECC_SBE_VOL_TOTAL => ecc_total(gpu, 0, 0).map(U64),
        id::NVML_FI_DEV_ECC_DBE_VOL_TOTAL => ecc_total(gpu, 1, 0).map(U64),
        id::NVML_FI_DEV_ECC_SBE_AGG_TOTAL => ecc_total(gpu, 0, 1).map(U64),
        id::NVML_FI_DEV_ECC_DBE_AGG_TOTAL => ecc_total(gpu, 1, 1).map(U64),
        id::NVML_FI_DEV_ECC_SBE_VOL_DEV => ecc_at(gpu, 0, 0, 2).map(U64),
        id::NVML_FI_DEV_ECC_DBE_VOL_DEV => ecc_at(gpu, 1, 0, 2).map(U64),
        id::NVML_FI_DEV_ECC_SBE_AGG_DEV => ecc_at(gpu, 0, 1, 2).map(U64),
        id::NVML_FI_DEV_ECC_DBE_AGG_DEV => ecc_at(gpu, 1, 1, 2).map(U64),

        id::NVML_FI_DEV_RETIRED_SBE => {
            supported(gpu.retired_pages.as_ref()).map(|pages| U64(pages.single_bit.len() as u64))
        }
        id::NVML_FI_DEV_RETIRED_DBE => {
            supported(gpu.retired_pages.as_ref()).map(|pages| U64(pages.double_bit.len() as u64))
        }
        id::NVML_FI_DEV_RETIRED_PENDING => {
            supported(gpu.retired_pages.as_ref()).map(|pages| U64(u64::from(pages.pending)))
        }
        id::NVML_FI_DEV_REMAPPED_COR => {
            supported(gpu.remapped_rows.as_ref()).map(|rows| U32(rows.correctable))
        }
        id::NVML_FI_DEV_REMAPPED_UNC => {
            supported(gpu.remapped_rows.as_ref()).map(|rows| U32(rows.uncorrectable))
        }
        id::NVML_FI_DEV_REMAPPED_PENDING => {
            supported(gpu.remapped_rows.as_ref()).map(|rows| U32(u32::from(rows.pending)))
        }
        id::NVML_FI_DEV_REMAPPED_FAILURE => {
            supported(gpu.remapped_rows.as_ref()).map(|rows| U32(u32::from(rows.failure)))
        }

        id::NVML_FI_DEV_MEMORY_TEMP => {
            u32::try_from(temperature.memory).map(U32).map_err(|_| ReturnCode::Unknown)
        }
        // T.Limit values are degrees below (above zero) or above (below zero) the highest operating temperature.
        id::NVML_FI_DEV_TEMPERATURE_SHUTDOWN_TLIMIT => Ok(I32(temperature.gpu_max - temperature.shutdown)),
        id::NVML_FI_DEV_TEMPERATURE_SLOWDOWN_TLIMIT => Ok(I32(temperature.gpu_max - temperature.slowdown)),
        id::NVML_FI_DEV_TEMPERATURE_MEM_MAX_TLIMIT | id::NVML_FI_DEV_TEMPERATURE_GPU_MAX_TLIMIT => Ok(I32(0)),

        id::NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION | id::NVML_FI_DEV_ENERGY => Ok(U64(gpu.energy_mj)),
        id::NVML_FI_DEV_POWER_AVERAGE | id::NVML_FI_DEV_POWER_INSTANT => Ok(U32(gpu.power.usage)),
        id::NVML_FI_DEV_POWER_MIN_LIMIT => Ok(U32(gpu.power.min_limit)),
        id::NVML_FI_DEV_POWER_MAX_LIMIT => Ok(U32(gpu.power.max_limit)),
        id::NVML_FI_DEV_POWER_DEFAULT_LIMIT => Ok(U32(gpu.power.default_limit)),
        id::NVML_FI_DEV_POWER_CURRENT_LIMIT | id::NVML_FI_DEV_POWER_REQUESTED_LIMIT => {
            Ok(U32(gpu.power.limit))
        }

        id::NVML_FI_DEV_PERF_POLICY_POWER => event_time(gpu, ClockEvent::SwPowerCap),
        id::NVML_FI_DEV_PERF_POLICY_SYNC_BOOST => event_time(gpu, ClockEvent::SyncBoost),
        id::NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN => {
            event_time(gpu, ClockEvent::SwThermalSlowdown)
        }
        id::NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN => {
            event_time(gpu, ClockEvent::HwThermalSlowdown)
        }
        id::NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN => {
            event_time(gpu, ClockEvent::HwPowerBrakeSlowdown)
        }

        id::NVML_FI_DEV_PCIE_REPLAY_COUNTER => Ok(U32(gpu.pcie.replay_counter)),
        id::NVML_FI_DEV_PCIE_REPLAY_ROLLOVER_COUNTER | id::NVML_FI_DEV_PCIE_L0_TO_RECOVERY_COUNTER => {
            Ok(U32(0))
        }
        id::NVML_FI_DEV_PCIE_COUNT_CORRECTABLE_ERRORS => Ok(U32(gpu.pcie.correctable_errors)),
        id::NVML_FI_DEV_PCIE_COUNT_NON_FATAL_ERROR => Ok(U32(gpu.pcie.nonfatal_errors)),
        id::NVML_FI_DEV_PCIE_COUNT_FATAL_ERROR => Ok(U32(gpu.pcie.fatal_errors)),
        id::NVML_FI_DEV_PCIE_COUNT_NAKS_RECEIVED..=id::NVML_FI_DEV_PCIE_COUNT_BAD_DLLP
        | id::NVML_FI_DEV_PCIE_COUNT_UNSUPPORTED_REQ..=id::NVML_FI_DEV_PCIE_COUNT_LANE_ERROR => Ok(U32(0)),

        id::NVML_FI_DEV_IS_RESETLESS_MIG_SUPPORTED => Ok(U32(u32::from(gpu.mig.is_some()))),
        id::NVML_FI_DEV_C2C_LINK_COUNT => Ok(U32(0)),

        id::NVML_FI_DEV_GET_GPU_RECOVERY_ACTION if release(file) >= RECOVERY_ACTION_SINCE => {
            Ok(U32(gpu.recovery_action as u32))
        }
        id::NVML_FI_DEV_GET_GPU_RECOVERY_ACTION => Err(ReturnCode::InvalidArgument),
        id::NVML_FI_DEV_RESET_STATUS => Ok(U32(u32::from(gpu.recovery_action == RecoveryAction::GpuReset))),
        id::NVML_FI_DEV_DRAIN_AND_RESET_STATUS => {
            Ok(U32(u32::from(gpu.recovery_action == RecoveryAction::DrainAndReset)))
        }
        _ => nvlink_field(gpu, old, scope),
    }
}

/// Nanoseconds that a reason has reduced the clocks.
fn event_time(gpu: &Gpu, event: ClockEvent) -> Answer<Value> {
    Ok(Value::U64(gpu.clock_event_ns.get(&event).copied().unwrap_or(0)))
}

/// Fields about NVLink. Links 0-5 and 6-11 have two blocks of ids; the later fields take the link as scope.
fn nvlink_field(gpu: &Gpu, old: u32, scope: u32) -> Answer<Value> {
    use Value::{U32, U64};
    let nvlink = supported(gpu.nvlink.as_ref())?;
    let legacy = nvlink.version < NVLINK_5;
    let counter = |number: c_uint, kind: c_uint| link_error(gpu, number, kind).map(U64);
    let total = |kind: c_uint| {
        let sum = (0..nvlink.links).map(|number| link_error(gpu, number, kind)).sum::<Answer<u64>>();
        sum.map(U64)
    };
    let speed = |number: c_uint| {
        link(gpu, number)?;
        Ok(U32(if nvlink.down.contains(&number) { 0 } else { nvlink.speed }))
    };
    let modern = |value: fn(&NvLinkErrors) -> u64| {
        link(gpu, scope)?;
        if legacy { Err(ReturnCode::NotSupported) } else { Ok(U64(value(&link_errors(nvlink, scope)))) }
    };
    match old {
        32..=37 => counter(old - 32, 2),
        96..=101 => counter(old - 96 + 6, 2),
        id::NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL => total(2),
        39..=44 => counter(old - 39, 3),
        102..=107 => counter(old - 102 + 6, 3),
        id::NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL => total(3),
        46..=51 => counter(old - 46, 0),
        108..=113 => counter(old - 108 + 6, 0),
        id::NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL => total(0),
        53..=58 => counter(old - 53, 1),
        114..=119 => counter(old - 114 + 6, 1),
        id::NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL => total(1),
        148..=159 => counter(old - 148, 4),
        id::NVML_FI_DEV_NVLINK_ECC_DATA_ERROR_COUNT_TOTAL => total(4),
        id::NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY => counter(scope, 0),
        id::NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY => counter(scope, 1),
        id::NVML_FI_DEV_NVLINK_ERROR_DL_CRC => counter(scope, 2),
        84..=89 => speed(old - 84),
        132..=137 => speed(old - 132 + 6),
        id::NVML_FI_DEV_NVLINK_GET_SPEED => speed(scope),
        id::NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON => Ok(U32(nvlink.speed)),
        id::NVML_FI_DEV_NVLINK_LINK_COUNT => Ok(U32(nvlink.links)),
        id::NVML_FI_DEV_NVSWITCH_CONNECTED_LINK_COUNT => Ok(U32(nvlink.links - nvlink.down.len() as u32)),
        id::NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX..=id::NVML_FI_DEV_NVLINK_THROUGHPUT_RAW_RX => Ok(U64(0)),
        id::NVML_FI_DEV_NVLINK_REMOTE_NVLINK_ID => link(gpu, scope).map(|_| U32(scope)),
        id::NVML_FI_DEV_NVLINK_GET_STATE => {
            link(gpu, scope).map(|nvlink| U32(u32::from(!nvlink.down.contains(&scope))))
        }
        id::NVML_FI_DEV_NVLINK_GET_VERSION => link(gpu, scope).map(|nvlink| U32(nvlink.version)),
        id::NVML_FI_DEV_NVLINK_COUNT_XMIT_PACKETS..=id::NVML_FI_DEV_NVLINK_COUNT_XMIT_DISCARDS => {
            modern(|_| 0)
        }
        id::NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_SUCCESSFUL_EVENTS => {
            modern(|errors| errors.recovery_successful)
        }
        id::NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS => modern(|errors| errors.recovery_failed),
        id::NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS => {
            modern(|errors| errors.recovery_successful.saturating_add(errors.recovery_failed))
        }
        id::NVML_FI_DEV_NVLINK_COUNT_EFFECTIVE_ERRORS => modern(|errors| errors.effective),
        id::NVML_FI_DEV_NVLINK_COUNT_EFFECTIVE_BER => modern(|errors| ber(errors.effective_ber)),
        id::NVML_FI_DEV_NVLINK_COUNT_SYMBOL_ERRORS => modern(|errors| errors.symbol),
        id::NVML_FI_DEV_NVLINK_COUNT_SYMBOL_BER => modern(|errors| ber(errors.symbol_ber)),
        id::NVML_FI_DEV_NVLINK_COUNT_FEC_HISTORY_0..=id::NVML_FI_DEV_NVLINK_COUNT_FEC_HISTORY_15 => {
            modern(|_| 0)
        }
        _ => Err(ReturnCode::NotSupported),
    }
}

/// A bit error rate as NVML encodes it: mantissa in bits 8-11, negated power of ten in bits 0-7; no error at all
/// is 15e-255.
fn ber(rate: f64) -> u64 {
    if rate <= 0.0 {
        return 0xfff;
    }
    let exponent = (-rate.log10().floor()).clamp(0.0, 255.0);
    let mantissa = (rate * 10f64.powf(exponent)).round().clamp(1.0, 15.0);
    (mantissa as u64) << 8 | exponent as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::GpuModel;

    fn node(model: GpuModel, driver: &str) -> GpuFile {
        GpuFile { driver_version: driver.to_owned(), ..GpuFile::new(model, 1, 0x3a1c, 0) }
    }

    fn value(file: &GpuFile, field: u32, scope: u32) -> Answer<Value> {
        field_value(file, &file.gpus[0], field, scope)
    }

    #[test]
    fn fields_follow_the_numbering_of_the_driver() {
        for (driver, therm) in
            [("570.172.08", 251), ("580.65.06", 251), ("580.82.07", 269), ("590.48.01", 269)]
        {
            let mut file = node(GpuModel::H100Sxm, driver);
            file.gpus[0].clock_event_ns.insert(ClockEvent::SwThermalSlowdown, 7);
            file.gpus[0].recovery_action = RecoveryAction::NodeReboot;
            assert_eq!(value(&file, therm, 0), Ok(Value::U64(7)), "{driver}");
            assert_eq!(value(&file, 520 - therm, 0), Err(ReturnCode::NotSupported), "{driver}");
            // Below 251 nothing moved.
            assert_eq!(value(&file, 230, 0), Ok(Value::U32(2)), "{driver}");
        }
        let old = node(GpuModel::H100Sxm, "535.261.03");
        assert_eq!(value(&old, 230, 0), Err(ReturnCode::InvalidArgument));
        assert_eq!(value(&old, 300, 0), Err(ReturnCode::InvalidArgument));
        assert_eq!(value(&node(GpuModel::H100Sxm, "590.48.01"), 300, 0), Err(ReturnCode::NotSupported));
    }

    #[test]
    fn nvlink_fields_find_the_link_by_block_and_by_scope() {
        let mut file = node(GpuModel::H100Sxm, "570.172.08");
        let nvlink = file.gpus[0].nvlink.as_mut().unwrap();
        nvlink.down.insert(17);
        nvlink.errors.push(NvLinkErrors { link: 7, replay: 3, crc_flit: 5, ..NvLinkErrors::default() });
        assert_eq!(value(&file, id::NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_L7, 0), Ok(Value::U64(3)));
        assert_eq!(value(&file, id::NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL, 0), Ok(Value::U64(3)));
        assert_eq!(value(&file, id::NVML_FI_DEV_NVLINK_ERROR_DL_CRC, 7), Ok(Value::U64(5)));
        assert_eq!(value(&file, id::NVML_FI_DEV_NVLINK_GET_STATE, 17), Ok(Value::U32(0)));
        assert_eq!(value(&file, id::NVML_FI_DEV_NVLINK_GET_STATE, 16), Ok(Value::U32(1)));
        assert_eq!(value(&file, id::NVML_FI_DEV_NVLINK_GET_STATE, 18), Err(ReturnCode::InvalidArgument));
        assert_eq!(
            value(&file, id::NVML_FI_DEV_NVLINK_COUNT_EFFECTIVE_BER, 0),
            Err(ReturnCode::NotSupported)
        );
    }

    #[test]
    fn nvlink_5_counts_in_its_own_way() {
        let mut file = node(GpuModel::B200, "580.82.07");
        file.gpus[0].nvlink.as_mut().unwrap().errors.push(NvLinkErrors {
            link: 2,
            effective_ber: 3e-7,
            recovery_failed: 1,
            ..NvLinkErrors::default()
        });
        assert_eq!(value(&file, id::NVML_FI_DEV_NVLINK_COUNT_EFFECTIVE_BER, 2), Ok(Value::U64(0x307)));
        assert_eq!(value(&file, id::NVML_FI_DEV_NVLINK_COUNT_EFFECTIVE_BER, 1), Ok(Value::U64(0xfff)));
        assert_eq!(value(&file, id::NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS, 2), Ok(Value::U64(1)));
        assert_eq!(value(&file, id::NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY, 2), Err(ReturnCode::NotSupported));
    }

    #[test]
    fn health_of_the_fabric() {
        let mut gpu = GpuFile::h100_sxm(1, 1, 0).gpus.remove(0);
        let healthy = fabric_v3(&gpu).unwrap();
        assert_eq!(
            (healthy.state, healthy.status, healthy.healthMask, healthy.healthSummary),
            (3, 0, 0x1aa, 1)
        );
        let fabric = gpu.fabric.as_mut().unwrap();
        fabric.route_unhealthy = HealthFlag::True;
        fabric.incorrect_configuration = 5;
        let sick = fabric_v3(&gpu).unwrap();
        assert_eq!((sick.healthMask, sick.healthSummary), (0x59a, 2));
        gpu.fabric = None;
        assert_eq!(fabric_v3(&gpu).unwrap().state, 0);
        gpu.architecture = 7;
        assert_eq!(fabric_v3(&gpu).unwrap_err(), ReturnCode::NotSupported);
    }

    #[test]
    fn memory_adds_up_in_both_versions() {
        let mut gpu = Gpu::default();
        gpu.memory.used = 1 << 30;
        let (one, two) = (memory(&gpu), memory_v2(&gpu));
        assert_eq!(one.used + one.free, one.total);
        assert_eq!(two.used + two.free + two.reserved, two.total);
        assert_eq!(one.free, two.free);
        assert_eq!(two.version, 0x0200_0028);
    }

    #[test]
    fn pcie_speeds() {
        assert_eq!([1, 2, 3, 4, 5, 6].map(pcie_speed), [2500, 5000, 8000, 16000, 32000, 64000].map(Ok));
    }
}
